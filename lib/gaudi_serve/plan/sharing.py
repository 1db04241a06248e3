"""Models that share a card: the engine that serves several, and the kind of answers of each model."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.errors import Problem, shown
from ..engines import ENGINES, Engine
from ..engines.architectures import TEXT_ONLY
from ..model.shared import SHARED
from ..model.spec import Spec
from ..model.weights import WeightsFacts
from ..platforms import Platform
from ..platforms.releases import rows_of

# The smoke requests of a model that generates no text, by the key that sets its kind.
ASKED = {
    "task": {"embed": ["embedding"], "embedding": ["embedding"], "score": ["rerank"]},  # The name in the fork.
    "convert": {"embed": ["embedding"], "classify": ["rerank"]},
    "runner": {"pooling": ["embedding"]},
}
# Without these options a server refuses a request that lets the model choose a tool.
TOOL_KEYS = {"enable_auto_tool_choice": "true", "tool_call_parser": "hermes (or another parser)"}
# Smoke requests with something other than text.
MEDIA = ("image", "audio", "video")
GENERATES = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")


def smoke_of(spec: Spec, weights: WeightsFacts) -> list[str]:
    """Return the smoke requests of a started model: those that the user sets, those of its kind, or a text prompt."""
    if spec.get("smoke"):
        return list(spec["smoke"])
    probes = next((asked[value] for key, asked in ASKED.items() if (value := str(spec.get(key))) in asked), None)
    if probes or not ENGINES[spec.launch_profile].share:
        return probes or ["text"]
    # A server for several models has no generating one. Their config.json shows their kind.
    names = weights.architecture.classes
    return ["rerank"] if any(name.endswith("ForSequenceClassification") for name in names) else ["embedding"]


def named(spec: Spec, one: Spec, texts: Iterable[str]) -> list[str]:
    """Return sentences about one of the models of a server, with its name if there are several."""
    return list(texts) if len(spec.served) == 1 else [f"{one.name}: {text}" for text in texts]


def sharing_problems(spec: Spec, engine: Engine, platform: Platform, release: str) -> list[Problem]:
    """Return why the models of one entry cannot share a card here, or why one model needs no such server."""
    if engine.share:
        if SHARED in spec:
            return []
        others = ", ".join(name for name, one in ENGINES.items() if one.serves(platform) and not one.share)
        allowed = f"serves several models on one card; list the others in {SHARED}, or use one of {others}"
        return [("launch_profile", engine.name, allowed)]
    if SHARED not in spec:
        return []
    names = [one["name"] for one in spec[SHARED]]
    if not platform.devices:
        apart = "here models need no cards: give each its own entry"
        return [(SHARED, names, f"is for models on one card of a Gaudi host; {apart}")]
    row = platform.release(release)
    able = [one.name for one in ENGINES.values() if one.share and one.serves(platform)]
    known = ", ".join(f"{name} of release {' or '.join(one.name for one in rows_of(name))}" for name in able)
    there = [name for name in able if row and name in row.engines]
    apart = "give each model its own entry and card"
    remedy = f"leave launch_profile out, or set it to {there[0]}" if there else apart
    why = f"{engine.name} serves one model, and a card serves one process at a time; {known} serves several"
    where = "" if there or not row else f", and accelerator_release is {release}"
    return [(SHARED, names, f"{why}{where}: {remedy}")]


def kind_problems(spec: Spec, weights: WeightsFacts) -> list[Problem]:
    """Return the problem with a model on a shared card that generates text, or whose kind is unknown."""
    if not ENGINES[spec.launch_profile].share:
        return []
    asked, smoke = ASKED["task"].get(str(spec.get("task"))), spec.get("smoke")
    if smoke and not set(smoke) <= set(asked or ["embedding", "rerank"]):
        fits = f"{asked[0]}, because task is {spec['task']}" if asked else "embedding or rerank if models share a card"
        return [("smoke", smoke, f"must be {fits}")]
    if asked:
        return []
    names = weights.architecture.classes
    text = next((name for name in names if name.endswith(GENERATES)), None)
    if text:
        key, value, _ = weights.said(spec)
        where = "its config.json" if weights.on_host else "it"
        allowed = (
            f"{where} has {shown(text)}, which generates text; models that share a card return vectors or scores; give "
            "it its own entry and card, or set task: embed or task: score if it returns those"
        )
        return [(key, value, allowed)]
    allowed = "is required because its config.json is unknown: embed (vectors) or score (reranking)"
    return [] if names or smoke else [("task", None, allowed)]


def smoke_problems(spec: Spec, weights: WeightsFacts) -> list[Problem]:
    """Return the problems with smoke requests that the model of an entry cannot answer."""
    smoke, found = spec.get("smoke") or [], weights.architecture
    media = [kind for kind in MEDIA if kind in smoke]
    if media and found.kind in TEXT_ONLY and not found.sees:
        where = "its config.json has" if weights.on_host else "it has"
        allowed = f"{where} model_type {shown(found.kind)}, which takes only text; leave out {', '.join(media)}"
        return [("smoke", smoke, allowed)]
    missing = [key for key in TOOL_KEYS if not _is_set(spec, key)]
    if "tools" not in smoke or not missing:
        return []
    remedy = " and ".join(f"{key}: {TOOL_KEYS[key]}" for key in missing)
    return [("smoke", smoke, f"needs a server that calls tools: set {remedy}, or leave out tools")]


def _is_set(spec: Spec, key: str) -> bool:
    option = f"--{key.replace('_', '-')}"
    args = [str(one).partition("=")[0].replace("_", "-") for one in spec.get("extra_args") or []]
    return bool(spec.get(key)) or option in args
