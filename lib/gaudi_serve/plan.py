"""The plan of a host: what is to run there, and everything that is wrong with the wish.

Pure functions: the same inputs give the same plan, and nothing is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .checks import host_problems, launch_problems
from .errors import InputError
from .launch import DEEPSEEK_DEFAULTS, LAUNCH_DEFAULTS, launch_profile
from .placement import place
from .planned import planned_model
from .spec import finding_error, findings

Model = dict[str, Any]
Errors = list[dict[str, Any]]

DEFAULTS = {
    "aice_1_21": LAUNCH_DEFAULTS,
    "deepseek_r1": DEEPSEEK_DEFAULTS,
    "vllm": {"host": "127.0.0.1", "port": 8000, "tensor_parallel_size": 1},
}
# Generous: DeepSeek-R1 warms up for an hour. What takes longer is most often a range set too wide.
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
) -> dict[str, Any]:
    """Plan the models of one host.

    Args:
        models: the user's list of models.
        host: host facts, as module gaudi_facts returns them in ``gaudi_host``.
        catalog: known models; a model's ``model: <entry>`` takes the entry's keys, its own keys win.
        host_name: how messages call the host.
        defaults: keys that every model takes where neither it nor the catalog has them.
        release: release of the driver and of the serving image, such as 1.21.3.
        host_nics: the machine has NICs for traffic between cards (matters on Gaudi2E only).
        images: what filter vllm_images returned; a model may name a built image without its tag.
        weights_come: weights with a ``source`` need not be there yet, since a later stage brings them.

    Returns:
        ``{models: [...], errors: [...], warnings: [...]}``. A user's mistake never raises.
    """
    if not isinstance(models, list):
        problem = finding_error(host_name, {}, "vllm_models", models, "must be a list of models")
        return {"models": [], "errors": [problem], "warnings": []}
    specs, errors = _specs(models, host, catalog or {}, defaults or {}, host_name)
    names = {entry["alias"]: entry["name"] for entry in images if "alias" in entry}
    specs = [{**spec, "image": names.get(spec.get("image"), spec.get("image"))} for spec in specs]
    errors += _duplicates(specs, host_name)
    found = [(spec, problem) for spec in specs for problem in host_problems(spec, host, release, weights_come)]
    errors += [finding_error(host_name, spec, *problem) for spec, problem in found]
    planned, more = _placed(specs, errors, host, host_name, host_nics, release)
    warnings = [f"{host_name}: model {model['name']}: {text}" for model in planned for text in model["warnings"]]
    return {"models": planned, "errors": errors + more, "warnings": warnings}


def _placed(
    specs: list[Model], before: Errors, host: Mapping[str, Any], host_name: str, host_nics: bool, release: str
) -> tuple[list[Model], Errors]:
    sound = [spec for spec in specs if not _broken(spec, before)]
    cards, errors, moved = _cards(sound, host, host_name, host_nics)
    planned = []
    for spec in sound:
        if _broken(spec, errors):
            continue
        model, problems = _planned(spec, host, cards.get(spec["name"], []), release)
        errors += [finding_error(host_name, spec, *problem) for problem in problems]
        if model and not problems:
            old = moved.get(spec["name"])
            move = [f"moves from cards {old} to {model['module_ids']}, so that others fit"] if old else []
            planned.append({**model, "warnings": move + model["warnings"]})
    return planned, errors


def _cards(
    specs: list[Model], host: Mapping[str, Any], host_name: str, host_nics: bool
) -> tuple[dict[str, list[int]], Errors, dict[str, list[int]]]:
    if host.get("accelerator") == "cpu":
        return {}, [], {}
    return place(specs, host, host_name, host_nics or bool(host.get("host_nics")))


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
    paths = []
    for given in models if isinstance(models, list) else []:
        if isinstance(given, Mapping):
            name = given.get("model")
            entry = catalog.get(name, {}) if isinstance(name, str) else {}
            path = {**defaults, **entry, **given}.get("weights")
            if isinstance(path, str) and path.startswith("/"):
                paths.append(path)
    return sorted(set(paths))


def _broken(spec: Model, errors: Errors) -> bool:
    return any(error["model"] == spec["name"] for error in errors)


def _specs(
    models: Sequence[Any],
    host: Mapping[str, Any],
    catalog: Mapping[str, Any],
    defaults: Mapping[str, Any],
    host_name: str,
) -> tuple[list[Model], Errors]:
    specs, errors = [], []
    for given in models:
        entry: Mapping[str, Any] = {}
        if isinstance(given, Mapping) and given.get("model") is not None:
            entry = catalog.get(given["model"], {}) if isinstance(given["model"], str) else {}
            if not entry:
                known = "is not in the catalog, which has " + (", ".join(sorted(catalog)) or "nothing")
                errors.append(finding_error(host_name, given, "model", given["model"], known))
                continue
        spec = _merged(defaults, entry, given) if isinstance(given, Mapping) else given
        found = findings(spec)
        errors += [finding_error(host_name, spec, *finding) for finding in found]
        if not found:
            specs.append(_completed(spec, host))
    return specs, errors


def _merged(*layers: Mapping[str, Any]) -> Model:
    """Return the keys of all layers, the last winning; of ``env`` variable by variable."""
    spec = {key: value for layer in layers for key, value in layer.items()}
    environments = [layer["env"] for layer in layers if layer.get("env") is not None]
    if environments and all(isinstance(env, Mapping) for env in environments):
        spec["env"] = {name: value for env in environments for name, value in env.items()}
    return spec


def _completed(spec: Mapping[str, Any], host: Mapping[str, Any]) -> Model:
    known = {key: value for key, value in spec.items() if value is not None}
    profile = launch_profile(known, host)
    base: Mapping[str, Any] = DEFAULTS[profile]
    if "module_ids" in known:
        base = {**base, "tensor_parallel_size": len(known["module_ids"])}
    own = {"state": "started", "warmup_budget_minutes": WARMUP_BUDGET_MINUTES}
    full = {**own, **base, **known, "launch_profile": profile}
    return {"served_model_name": full["name"], **full}


def _duplicates(specs: Sequence[Model], host_name: str) -> Errors:
    errors = []
    for key in ("name", "port"):
        first: dict[Any, str] = {}
        for spec in specs:
            if spec[key] in first:
                free = f"belongs to model {first[spec[key]]} already"
                if key == "port":
                    used = {other["port"] for other in specs}
                    free += f"; {next((port for port in range(30001, 65536) if port not in used), 1024)} is free"
                errors.append(finding_error(host_name, spec, key, spec[key], free))
            else:
                first[spec[key]] = spec["name"]
    return errors
