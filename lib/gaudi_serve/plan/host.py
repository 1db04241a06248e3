"""The plan of a host: what is to run there, and everything that is wrong with the wish.

Pure functions: the same inputs give the same plan, and nothing is touched.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..core.errors import InputError, Problem, shown
from ..engines import ENGINES, profile_of
from ..platforms import platform_of
from ..spec.keys import finding_error, findings
from .check import host_problems, launch_problems
from .model import planned_model
from .place import place

Model = dict[str, Any]
Errors = list[dict[str, Any]]

# What a problem with one key is worked out from: where one of those is wrong, it is only a consequence.
SIZES = ("tensor_parallel_size", "module_ids", "dtype", "gpu_memory_utilization", "kv_cache_dtype", "env", "weights")
FOLLOWS_FROM = {
    "tensor_parallel_size": SIZES,
    "max_model_len": SIZES,
    "max_num_batched_tokens": ("max_model_len", "max_num_seqs", "input_range"),
    "warmup_budget_minutes": ("input_range", "output_range", "max_num_seqs", "max_num_batched_tokens", "max_model_len"),
}
# Generous: DeepSeek-R1 warms up for a quarter of an hour. What takes longer is most often a range set too wide.
WARMUP_BUDGET_MINUTES = 240


def vllm_plan(
    models: Any,
    host: Mapping[str, Any],
    catalog: Mapping[str, Any] | None = None,
    *,
    host_name: str = "this host",
    defaults: Mapping[str, Any] | None = None,
    release: str = "1.21.3",
    host_nics: bool = False,
    images: Sequence[Mapping[str, Any]] = (),
    weights_come: bool = True,
    move_allowed: bool = False,
) -> dict[str, Any]:
    """Plan the models of one host.

    Args:
        models: the user's list of models.
        host: host facts, as module gaudi_facts returns them in ``gaudi_host``.
        catalog: known models; ``model: <entry>`` takes the entry's keys, a model's own keys win.
        host_name: how messages call the host.
        defaults: keys that every model takes where neither it nor the catalog has them.
        release: release of the driver and of the serving image, such as 1.21.3.
        host_nics: the machine has NICs for traffic between cards (matters on Gaudi2E only).
        images: what filter vllm_images returned; models may leave out a built image's tag.
        weights_come: weights with a ``source`` are brought by a later stage.
        move_allowed: running models may get other cards where others need theirs, which restarts them.

    Returns:
        ``{models: [...], errors: [...], warnings: [...]}``. A user's mistake never raises.
    """
    if not isinstance(models, list):
        return {"models": [], "errors": [_no_list(models, host_name)], "warnings": []}
    host = {**host, "host_nics": host_nics or host.get("host_nics"), "move_allowed": move_allowed}
    wishes, errors = _wishes(models, host, catalog or {}, defaults or {}, host_name)
    errors += _duplicates(wishes, host, host_name)
    _name_images(wishes, images)
    for wish in wishes:
        errors += wish.errors(host_problems(wish.spec, host, release, weights_come), host_name)
    planned, more = _placed(wishes, _names(models), host, host_name, release)
    return {"models": planned, "errors": errors + more, "warnings": _warnings(planned, host_name)}


def _warnings(planned: Sequence[Model], host_name: str) -> list[str]:
    return [f"{host_name}: model {model['name']}: {text}" for model in planned for text in model["warnings"]]


def _name_images(wishes: Sequence[Wish], images: Sequence[Mapping[str, Any]]) -> None:
    names = {entry["alias"]: entry["name"] for entry in images if "alias" in entry}
    for wish in wishes:
        wish.spec["image"] = names.get(wish.spec.get("image"), wish.spec.get("image"))


def _no_list(models: Any, host_name: str) -> dict[str, Any]:
    return finding_error(host_name, {}, "vllm_models", models, "must be a list of models")


def _names(models: Sequence[Any]) -> set[str]:
    found = (given.get("name") for given in models if isinstance(given, Mapping))
    return {name for name in found if isinstance(name, str)}


@dataclasses.dataclass
class Wish:
    """One model as it can be checked further: without the keys that are wrong, which are named in ``bad``."""

    spec: Model
    given: frozenset[str]
    bad: set[str]
    notes: tuple[str, ...] = ()

    def new(self, problems: Sequence[Problem]) -> list[Problem]:
        """Note problems, and return those that do not only follow from a key that is wrong already."""
        known = set(self.bad)
        found = [
            item
            for item in problems
            if not known or (item[0] in self.given and not known & {item[0], *FOLLOWS_FROM.get(item[0], ())})
        ]
        self.bad.update(key for key, _, _ in found)
        return found

    def errors(self, problems: Sequence[Problem], host_name: str) -> Errors:
        """Return the new problems as errors of a plan."""
        return [finding_error(host_name, self.spec, *problem) for problem in self.new(problems)]


def _placed(
    wishes: Sequence[Wish],
    named: set[str],
    host: Mapping[str, Any],
    host_name: str,
    release: str,
) -> tuple[list[Model], Errors]:
    """Place all models whose number of cards is sound, also those that something else is wrong with.

    The running ones of the others (``named``) keep their cards: a mistake must not give them away.
    """
    sized = [wish for wish in wishes if not wish.bad & {"name", "tensor_parallel_size", "module_ids", "launch_profile"}]
    reserved = named - {wish.spec["name"] for wish in sized}
    cards, found, moved = _cards([wish.spec for wish in sized], host, host_name, reserved)
    given = {number for mine in cards.values() for number in mine}
    idle = [module for module in host.get("modules", []) if not module.get("in_use")]
    left = sum(int(module["module_id"]) not in given for module in idle)
    errors: Errors = []
    planned = []
    for wish in sized:
        spec = wish.spec
        mine = [error for error in found if error["model"] == spec["name"]]
        errors += [error for error in mine if wish.new([(error["key"], error["value"], "")])]
        if mine:
            continue
        model, problems = _planned(spec, {**host, "cards_left": left}, cards.get(spec["name"], []), release)
        errors += wish.errors(problems, host_name)
        if model and not wish.bad:
            old = moved.get(spec["name"])
            move = [f"moves from cards {old} to {model['module_ids']}, and restarts; {_down(model)}"] if old else []
            planned.append({**model, "warnings": [*wish.notes, *move, *model["warnings"]]})
    return planned, errors


def _down(model: Model) -> str:
    """Return for how long a model that runs with other cards is down."""
    seconds = model["warmup_s"] if model["warmup_cached_s"] is None else model["warmup_cached_s"]
    reading = f"the time to read {model['weights_gib'] * max(1, len(model['module_ids'])):.0f} GiB of weights"
    return f"it is down for {reading}" + ("" if seconds is None else f" and about {max(1, round(seconds / 60))} min")


def _cards(
    specs: list[Model], host: Mapping[str, Any], host_name: str, reserved: set[str]
) -> tuple[dict[str, list[int]], Errors, dict[str, list[int]]]:
    if not platform_of(host).devices:
        return {}, [], {}
    return place(specs, host, host_name, bool(host["host_nics"]), reserved, bool(host["move_allowed"]))


def _planned(
    spec: Model, host: Mapping[str, Any], cards: list[int], release: str
) -> tuple[Model | None, list[tuple[str, Any, str]]]:
    try:
        model = planned_model(spec, host, cards, release)
    except InputError as problem:
        return None, [problem.finding or ("launch", None, str(problem))]
    return model, launch_problems(spec, model)


def model_weights(models: Any, catalog: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """Return the weights folders that the models name, whatever else is wrong with them."""
    paths = (spec.get("weights") for spec in _specs(models, catalog, defaults))
    return sorted({path for path in paths if isinstance(path, str) and path.startswith("/")})


def model_hosts(models: Any, catalog: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """Return the names, not the addresses, that the models listen on, whatever else is wrong with them."""
    names = set()
    for spec in _specs(models, catalog, defaults):
        name = spec.get("host")
        if isinstance(name, str) and re.fullmatch(r"(?![\d.]+$)[\w.-]{1,253}", name):
            names.add(name)
    return sorted(names)


def _specs(models: Any, catalog: Any, defaults: Any) -> Iterator[Mapping[str, Any]]:
    defaults = defaults if isinstance(defaults, Mapping) else {}
    for given in models if isinstance(models, list) else []:
        if isinstance(given, Mapping):
            name = given.get("model")
            yield {**defaults, **_entry(catalog, name), **given}


def _entry(catalog: Any, name: Any) -> Mapping[str, Any]:
    """Return what the catalog says of a name; nothing where it has none, or one that is no mapping."""
    entry = catalog.get(name) if isinstance(name, str) and isinstance(catalog, Mapping) else None
    return entry if isinstance(entry, Mapping) else {}


def _wishes(
    models: Sequence[Any],
    host: Mapping[str, Any],
    catalog: Mapping[str, Any],
    defaults: Mapping[str, Any],
    host_name: str,
) -> tuple[list[Wish], Errors]:
    wishes, errors = [], []
    for given in models:
        entry: Mapping[str, Any] = {}
        if isinstance(given, Mapping) and given.get("model") is not None:
            entry = _entry(catalog, given["model"])
            if not entry:
                known = "is not in the catalog, which has " + (", ".join(sorted(catalog)) or "nothing")
                errors.append(finding_error(host_name, given, "model", given["model"], known))
        spec = _merged(defaults, entry, given) if isinstance(given, Mapping) else given
        found = findings(spec)
        missing = isinstance(given, Mapping) and given.get("model") is not None and not entry
        # Without its entry, a model lacks most of what it wants.
        found = [item for item in found if not missing or (item[0] != "model" and item[1] is not None)]
        errors += [finding_error(host_name, spec, *finding) for finding in found]
        bad = {key for key, _, _ in found} | ({"model"} if missing else set())
        if isinstance(spec, Mapping) and not bad & {"name", "weights", "model"}:
            sound = {key: value for key, value in spec.items() if key not in bad}
            notes = _emptied(given, {**defaults, **entry})
            wishes.append(Wish(_completed(sound, host), frozenset(spec), bad, notes))
    return wishes, errors


def _emptied(given: Mapping[str, Any], below: Mapping[str, Any]) -> tuple[str, ...]:
    """Say which values of the catalog or the defaults an empty key takes away; it may be meant, or a slip."""
    lost = [key for key, value in given.items() if value is None and below.get(key) is not None]
    return tuple(f"{key} is empty, which takes away {shown(below[key])}; leave it out to keep that" for key in lost)


def _merged(*layers: Mapping[str, Any]) -> Model:
    """Return the keys of all layers, the last winning; of ``env`` variable by variable."""
    spec = {key: value for layer in layers for key, value in layer.items()}
    environments = [layer["env"] for layer in layers if layer.get("env") is not None]
    if environments and all(isinstance(env, Mapping) for env in environments):
        spec["env"] = {name: value for env in environments for name, value in env.items()}
    return spec


def _completed(spec: Mapping[str, Any], host: Mapping[str, Any]) -> Model:
    known = {key: value for key, value in spec.items() if value is not None}
    profile = profile_of(known, host)
    base = ENGINES[profile].defaults
    if "module_ids" in known:
        base = {**base, "tensor_parallel_size": len(known["module_ids"])}
    own = {"state": "started", "warmup_budget_minutes": WARMUP_BUDGET_MINUTES}
    full = {**own, **base, **known, "launch_profile": profile}
    return {"served_model_name": full["name"], **full}


def _duplicates(wishes: Sequence[Wish], host: Mapping[str, Any], host_name: str) -> Errors:
    errors = []
    used = {wish.spec["port"] for wish in wishes} | {int(port) for port in host.get("ports", {})}
    for key in ("name", "port"):
        first: dict[Any, str] = {}
        for wish in wishes:
            if key in wish.bad:
                continue
            value = wish.spec[key]
            if value in first:
                free = f"belongs to model {first[value]} already"
                if key == "port":
                    default = "" if key in wish.given else " (it is the default)"
                    free += f"{default}; {_free_port(used)} is free"
                wish.bad.add(key)
                errors.append(finding_error(host_name, wish.spec, key, value, free))
            else:
                first[value] = wish.spec["name"]
    return errors


def _free_port(used: set[int]) -> int:
    """Return a port that nobody has, and nobody else is told to take."""
    free = next((port for port in range(30001, 65536) if port not in used), 1024)
    used.add(free)
    return free
