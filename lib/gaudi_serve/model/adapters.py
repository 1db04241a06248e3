"""LoRA adapters: the key ``adapters`` of a model, what vLLM requires of their folders, and its options for them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from ..core.errors import Problem, is_whole, one_line, shown
from ..core.versions import comparable
from .config_json import ADAPTER
from .host import Host, Weights
from .spec import Spec

ADAPTERS, MODULES, RANK, SLOTS, CPU_SLOTS = "adapters", "lora_modules", "max_lora_rank", "max_loras", "max_cpu_loras"
TARGETS = "lora_target_modules"
DEFAULT_RANK, DEFAULT_SLOTS = 16, 1  # Of vLLM.
# The ranks for which vLLM can reserve memory, by the first release that has them.
RANKS = (
    ("0.11.1", (1, 8, 16, 32, 64, 128, 256, 320, 512)),
    ("0.8.0", (8, 16, 32, 64, 128, 256, 320, 512)),
    ("0", (8, 16, 32, 64, 128, 256)),
)
# Features of an adapter that vLLM does not load, by their key in adapter_config.json, and the values without them.
WITHOUT = {
    "peft_type": (None, "LORA"),
    "use_dora": (None, False),
    "modules_to_save": (None, []),
    "bias": (None, "none"),
    "lora_bias": (None, False),
    "trainable_token_indices": (None, [], {}),
    "layer_replication": (None, []),
    "use_qalora": (None, False),
}
NEEDED = ("lora_alpha", "target_modules")
TABLES = ("embed_tokens", "lm_head")
BIASES = ("bias", "lora_bias")
# Endings of the names of quantised copies of a model, whose adapters fit the model too.
QUANTISED = re.compile(
    r"(-(unsloth|bnb|[48]bit|awq|gptq|int[48]|fp8|nf4|nvfp4|mxfp4|w[48]a\d+|quantized|dynamic|hf))+$"
)
SNAPSHOT = re.compile(r"models--[^/]+--([^/]+)/snapshots/")
BIAS = "enable_lora_bias"  # The option of old releases that allows a bias.


@dataclass(frozen=True)
class Adapter:
    """An adapter of a model: its name for clients, its folder on the host, and its source or None."""

    name: str
    folder: str
    source: Mapping[str, Any] | None

    def here(self, host: Host) -> Weights:
        """Return the facts of its folder; empty if it is not there or not read."""
        return host.weights.get(self.folder) or Weights()


def adapters_of(spec: Mapping[str, Any]) -> tuple[Adapter, ...]:
    """Return the adapters of a model. Invalid entries are left out."""
    given = spec.get(ADAPTERS)
    entries = [one for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []
    texts = [one for one in entries if isinstance(one.get("name"), str) and isinstance(one.get("folder"), str)]
    return tuple(Adapter(one["name"], one["folder"].rstrip("/"), one.get("source")) for one in texts)


def _module_names(modules: Any) -> tuple[str, ...]:
    """Return the names of LoRA adapters of vLLM's option ``lora_modules``: name=path, or JSON with a name."""
    return tuple(name for name, _ in _modules(modules) if name)


def hub_names(spec: Mapping[str, Any]) -> list[str]:
    """Return the adapters of vLLM's option ``lora_modules`` that a server fetches from the hub at its start."""
    return [path for _, path in _modules(spec.get(MODULES)) if path and not path.startswith("/")]


def names_in(args: Sequence[str]) -> tuple[str, ...]:
    """Return the adapter names in a server's arguments."""
    if "--lora-modules" not in args:
        return ()
    after = args[args.index("--lora-modules") + 1 :]
    return _module_names(list(takewhile(lambda word: not word.startswith("--"), after)))


def names_of(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a model's adapters, from its own key or else from vLLM's option."""
    return tuple(one.name for one in adapters_of(spec)) or _module_names(spec.get(MODULES))


def _modules(modules: Any) -> list[tuple[str, str]]:
    """Return the name and the path of each adapter of ``lora_modules``; empty texts if it has none."""
    listed = [modules] if isinstance(modules, str | Mapping) else modules
    return [_module(one) for one in (listed if isinstance(listed, list) else [])]


def _module(module: Any) -> tuple[str, str]:
    if isinstance(module, str) and module.startswith("{"):
        try:
            module = json.loads(module)
        except ValueError:
            return "", ""
    if isinstance(module, Mapping):
        return str(module.get("name") or ""), str(module.get("path") or "")
    name, _, path = str(module).partition("=")
    return name, path


def number(spec: Mapping[str, Any], key: str, default: int) -> int:
    """Return the value of one of vLLM's options for adapters, which may be a text; the default if it is no number."""
    said = str(spec.get(key))
    return int(said) if said.isdigit() else default


def ranks_of(version: str | None) -> tuple[int, ...]:
    """Return the ranks that a release of vLLM allows; those of any release if it is unknown."""
    return next(ranks for since, ranks in RANKS if version is None or comparable(version) >= comparable(since))


def rank_in(config: Mapping[str, Any]) -> int | None:
    """Return the largest rank of an adapter's matrices; None if its adapter_config.json has no valid one."""
    pattern = config.get("rank_pattern")
    found = [config.get("r"), *(pattern.values() if isinstance(pattern, Mapping) else ())]
    sound = [one for one in found if is_whole(one, 1, 10**6)]
    return max(sound) if len(sound) == len(found) else None


def with_adapters(spec: Spec, host: Host, version: str | None) -> Spec:
    """Return a model with vLLM's options for its adapters; what its user sets stays.

    A rank that is unknown until a run has fetched the folder counts as vLLM's default, and is planned again after that.
    """
    found = adapters_of(spec)
    if not found:
        return spec
    largest = max(rank_in(one.here(host).adapter or {}) or 0 for one in found) or DEFAULT_RANK
    # Every release has these ranks. Rank 1 is new.
    fitting = [rank for rank in ranks_of(version or "0.8.0") if rank >= largest]
    options = {SLOTS: len(found), RANK: min(fitting, default=largest)}
    own = {key: spec[key] for key in options if spec.get(key) is not None}
    modules = [f"{one.name}={one.folder}" for one in found]
    return spec.but(enable_lora=True, **{MODULES: modules, **options, **own})


def adapter_problems(spec: Spec, host: Host, version: str | None, come: bool) -> list[Problem]:
    """Return the problems with a model's adapters and vLLM's options for them."""
    found, ranks = adapters_of(spec), ranks_of(version)
    if not found:
        return []
    missing = [(one.name, text) for one in found if (text := _folder_problem(one, host, come))]
    problems: list[Problem] = [(ADAPTERS, name, text) for name, text in missing]
    known = [(one, config) for one in found if (config := one.here(host).adapter) is not None]
    problems += [(ADAPTERS, one.name, text) for one, config in known for text in _unloaded(spec, config, ranks)]
    rank, slots = number(spec, RANK, 0), number(spec, SLOTS, 0)
    larger = [f"{one.name} ({own})" for one, config in known if (own := rank_in(config) or 0) > rank]
    if not problems and rank not in ranks:
        problems.append((RANK, spec.get(RANK), f"must be one of {', '.join(map(str, ranks))}"))
    elif not problems and larger:
        problems.append((RANK, rank, f"is below the rank of {', '.join(larger)}; leave it out, or set a larger one"))
    if not slots:
        problems.append((SLOTS, spec.get(SLOTS), "must be an integer from 1: the adapters that a batch can use"))
    elif number(spec, CPU_SLOTS, slots) < slots:
        problems.append((CPU_SLOTS, spec[CPU_SLOTS], f"must be at least max_loras, which is {slots}"))
    return problems


def _folder_problem(one: Adapter, host: Host, come: bool) -> str | None:
    """Return why the folder of an adapter cannot be served; None if it can, is unknown, or will be fetched."""
    if one.folder not in host.weights or (one.source and come):
        return None
    here = host.weights[one.folder]
    if here is None or here.adapter is None:
        why = f": {one_line(text)}" if (text := host.weights_unread.get(one.folder)) else ""
        remedy = "playbooks/weights.yml fetches it from its source" if one.source else "put the adapter there first"
        return f"its folder {one.folder} has no readable {ADAPTER} on this host{why}; {remedy}"
    if here.damaged:
        return f"its folder {one.folder} is damaged: {'; '.join(here.damaged[:3])}. Copy these files again"
    return None if here.bytes else f"its folder {one.folder} has no adapter_model.safetensors on this host"


def _unloaded(spec: Spec, config: Mapping[str, Any], ranks: Sequence[int]) -> list[str]:
    """Return what vLLM does not load of an adapter."""
    where, rank = f"its {ADAPTER} has", rank_in(config)
    allowed = {key: values for key, values in WITHOUT.items() if not (key in BIASES and spec.get(BIAS))}
    unloaded = [f"{key} {shown(config[key])}" for key, values in allowed.items() if config.get(key) not in values]
    found = [f"{where} {', '.join(unloaded)}, which vLLM does not load; train it without"] if unloaded else []
    if missing := [key for key in NEEDED if key not in config]:
        found.append(f"{where} no {' and no '.join(missing)}, which vLLM requires")
    if rank is None or rank > ranks[-1]:
        said = shown(config.get("r")) if rank is None else rank
        found.append(f"{where} rank r {said}, and this vLLM takes an integer up to {ranks[-1]}")
    targets, only = config.get("target_modules"), spec.get(TARGETS)
    if isinstance(only, list) and isinstance(targets, list):
        left = [name for name in map(str, targets) if name.rpartition(".")[2] not in only]
        found += [f"changes {', '.join(left)}, which {TARGETS} leaves out"] if left else []
    return found


def adapter_notes(spec: Spec, host: Host) -> list[str]:
    """Return what a plan does not know of a model's adapters, and adapters that were trained on another model."""
    notes = []
    source = spec.get("source")
    own = [spec.weights, str(source.get("repo") or "") if isinstance(source, Mapping) else "", str(spec.get("model"))]
    names = [name for path in own if (name := _model_name(path))]
    for one in adapters_of(spec):
        config = one.here(host).adapter
        base = _model_name(str((config or {}).get("base_model_name_or_path") or ""))
        notes += [f"adapter {one.name}: {text}" for text in _otherwise(config or {})]
        if config is None:
            notes.append(
                f"adapter {one.name}: its rank is unknown until its folder is on the host; the plan uses {RANK} "
                f"{spec.get(RANK)}"
            )
        elif base and not any(base in name or name in base for name in names):
            said = config["base_model_name_or_path"]
            notes.append(f"adapter {one.name} was trained on {said}; vLLM stops if this model has other shapes")
    return notes


def _model_name(path: str) -> str:
    """Return the name of a model by the end of its path, without the ending of a quantised copy."""
    found = SNAPSHOT.search(path)
    name = found[1] if found else path.rstrip("/").rpartition("/")[2]
    return QUANTISED.sub("", name.lower())


def _otherwise(config: Mapping[str, Any]) -> list[str]:
    """Return what vLLM computes otherwise than the library that trained an adapter."""
    patterns = [key for key in ("rank_pattern", "alpha_pattern") if config.get(key)]
    notes = []
    if patterns:
        text = "vLLM scales all its layers by lora_alpha and r alone, so that its answers differ from training"
        notes.append(f"its {ADAPTER} has {' and '.join(patterns)}, and {text}")
    if parameters := config.get("target_parameters"):
        text = "vLLM ignores or refuses them for most models with experts: compare its answers with those of training"
        notes.append(f"its {ADAPTER} has target_parameters {shown(parameters)}, and {text}")
    targets = config.get("target_modules")
    tables = [name for name in TABLES if isinstance(targets, list) and name in targets]
    if tables:
        text = "vLLM stops if its file also has the table of the base model, such as lm_head.base_layer.weight"
        notes.append(f"it changes {' and '.join(tables)}: {text}")
    return notes
