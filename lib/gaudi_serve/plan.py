"""The plan of a host: what is to run there, and everything that is wrong with the wish.

Pure functions: the same inputs give the same plan, and nothing is touched.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from .buckets import hpu_buckets
from .errors import InputError
from .launch import DEEPSEEK_DEFAULTS, LAUNCH_DEFAULTS, Launch, launch_profile, option_arguments, vllm_launch
from .placement import own_cards, place
from .spec import OWN_KEYS, finding_error, findings

Model = dict[str, Any]
Errors = list[dict[str, Any]]

# The manual's container settings (its sections 1.2.1 and 3.1.1).
CAPABILITIES = {
    "aice_1_21": ["SYS_NICE"],
    "deepseek_r1": ["SYS_NICE", "SYS_PTRACE", "IPC_LOCK"],
    "vllm": ["SYS_NICE"],
}
ULIMITS = {"aice_1_21": [], "deepseek_r1": ["memlock=-1:-1"], "vllm": []}
DEFAULTS = {
    "aice_1_21": LAUNCH_DEFAULTS,
    "deepseek_r1": DEEPSEEK_DEFAULTS,
    "vllm": {"host": "127.0.0.1", "port": 8000, "tensor_parallel_size": 1},
}
# Options of vLLM that a profile's own rules turn into something else.
CONSUMED = {"deepseek_r1": {"quantization", "max_num_prefill_seqs"}}
ALWAYS_SET = {"OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
# Seconds for one graph of an 8B model on one card, and how it grows with the parameters:
# 72 graphs in 49 s, and 271 graphs of a 72B model on four cards in about 600 s.
GRAPH_SECONDS, GRAPH_GROWTH, GRAPH_PARAMETERS = 0.68, 0.54, 8e9


def vllm_plan(
    models: Any,
    host: Mapping[str, Any],
    catalog: Mapping[str, Any] | None = None,
    *,
    host_name: str = "this host",
    defaults: Mapping[str, Any] | None = None,
    release: str = "1.21.3",
) -> dict[str, Any]:
    """Plan the models of one host.

    Args:
        models: the user's list of models.
        host: host facts, as module gaudi_facts returns them in ``gaudi_host``.
        catalog: known models; a model's ``model: <entry>`` takes the entry's keys, its own keys win.
        host_name: how messages call the host.
        defaults: keys that every model takes where neither it nor the catalog has them.
        release: release of the driver and of the serving image, such as 1.21.3.

    Returns:
        ``{models: [...], errors: [...], warnings: [...]}``. A user's mistake never raises.
    """
    if not isinstance(models, list):
        problem = finding_error(host_name, {}, "vllm_models", models, "must be a list of models")
        return {"models": [], "errors": [problem], "warnings": []}
    specs, errors = _specs(models, host, catalog or {}, defaults or {}, host_name)
    errors += _duplicates(specs, host_name) + _host_errors(specs, host, host_name)
    cards: dict[str, list[int]] = {}
    if host.get("accelerator") != "cpu":
        cards, more = place([spec for spec in specs if not _broken(spec, errors)], host, host_name)
        errors += more
    planned = []
    for spec in specs:
        if _broken(spec, errors):
            continue
        try:
            planned.append(_model(spec, host, cards.get(spec["name"], []), release))
        except InputError as problem:
            errors.append(finding_error(host_name, spec, "launch", None, str(problem)))
    warnings = [f"{host_name}: model {model['name']}: {text}" for model in planned for text in model["warnings"]]
    return {"models": planned, "errors": errors, "warnings": warnings}


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
        spec = {**defaults, **entry, **given} if isinstance(given, Mapping) else given
        found = findings(spec)
        errors += [finding_error(host_name, spec, *finding) for finding in found]
        if not found:
            specs.append(_completed(spec, host))
    return specs, errors


def _completed(spec: Mapping[str, Any], host: Mapping[str, Any]) -> Model:
    known = {key: value for key, value in spec.items() if value is not None}
    profile = launch_profile(known, host)
    base: Mapping[str, Any] = DEFAULTS[profile]
    if "module_ids" in known:
        base = {**base, "tensor_parallel_size": len(known["module_ids"])}
    full = {"state": "started", **base, **known, "launch_profile": profile}
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


def _host_errors(specs: Sequence[Model], host: Mapping[str, Any], host_name: str) -> Errors:
    errors = []
    # A stopped model's port may be somebody else's by now.
    own_ports = {
        str(service.get("port"))
        for service in host.get("services", {}).values()
        if service.get("active") or service.get("holds")
    }
    for spec in specs:
        program = host.get("ports", {}).get(str(spec["port"]))
        if program and str(spec["port"]) not in own_ports:
            allowed = f"is taken on this host by {program}; end it or choose another port"
            errors.append(finding_error(host_name, spec, "port", spec["port"], allowed))
        if not spec.get("image"):
            allowed = "is required: the serving image, here or as vllm_model_defaults.image"
            errors.append(finding_error(host_name, spec, "image", None, allowed))
        if host.get("accelerator") == "cpu":
            errors += [finding_error(host_name, spec, *problem) for problem in _cpu_problems(spec)]
        weights = host.get("weights", {})
        if spec["weights"] in weights:
            errors += [finding_error(host_name, spec, *problem) for problem in _weights_problems(spec, weights, host)]
    return errors


def _cpu_problems(spec: Model) -> list[tuple[str, Any, str]]:
    problems: list[tuple[str, Any, str]] = []
    if spec["launch_profile"] != "vllm":
        problems.append(("launch_profile", spec["launch_profile"], "needs Gaudi cards; a CPU host takes vllm"))
    if spec.get("module_ids"):
        problems.append(("module_ids", spec["module_ids"], "are Gaudi cards, of which this CPU host has none"))
    return problems


def _weights_problems(spec: Model, weights: Mapping[str, Any], host: Mapping[str, Any]) -> list[tuple[str, Any, str]]:
    if weights[spec["weights"]] is None:
        return [("weights", spec["weights"], "holds no readable config.json on this host; put the model there first")]
    if not weights[spec["weights"]]["bytes"]:
        return [("weights", spec["weights"], "holds no *.safetensors files on this host; is the download complete?")]
    config = weights[spec["weights"]]["config"]
    cards, heads, kv_heads = (
        spec["tensor_parallel_size"],
        config.get("num_attention_heads"),
        config.get("num_key_value_heads"),
    )
    problems: list[tuple[str, Any, str]] = []
    if heads and heads % cards:
        good = [number for number in range(1, 17) if heads % number == 0 and (kv_heads or 16) >= number]
        problems.append(
            ("tensor_parallel_size", cards, f"does not divide the {heads} attention heads; possible: {good}")
        )
    elif kv_heads and cards > kv_heads and host.get("accelerator") != "cpu":
        problems.append(("tensor_parallel_size", cards, f"is above the model's {kv_heads} key-value heads"))
    longest = config.get("max_position_embeddings")
    if longest and spec.get("max_model_len", 0) > longest:
        allowed = f"is above {longest}, the model's max_position_embeddings"
        problems.append(("max_model_len", spec["max_model_len"], allowed))
    return problems


def _model(spec: Model, host: Mapping[str, Any], cards: list[int], release: str) -> Model:
    placed = {**spec, "module_ids": cards} if cards else dict(spec)
    cache = _cache_path(spec, host, release)
    if cache:
        placed["recipe_cache_path"] = cache
    launch = vllm_launch(placed, _without_own_use(host))
    profile = spec["launch_profile"]
    modules = {int(module["module_id"]): module for module in host.get("modules", [])}
    nodes = sorted({int(modules[number]["numa_node"]) for number in cards})
    if len(nodes) > 1:
        launch["warnings"].append(f"cards {cards} lie on NUMA nodes {nodes}: no core binding, slower transfers")
    buckets = _graphs(launch, placed) if profile != "vllm" else {"prompt": 0, "decode": 0, "omitted": 0}
    size = ((host.get("weights") or {}).get(spec["weights"]) or {}).get("bytes", 0)
    warmup = 0 if spec.get("skip_warmup") else warmup_seconds(buckets["prompt"] + buckets["decode"], size)
    model = {
        "name": spec["name"],
        "state": spec["state"],
        "launch_profile": profile,
        "module_ids": cards,
        "cpus": launch["numactl"][1] if launch["numactl"] else None,
        "numa_node": nodes[0] if len(nodes) == 1 else None,
        "image": spec["image"],
        "host": spec["host"],
        "port": spec["port"],
        "served_model_name": spec["served_model_name"],
        "weights": spec["weights"],
        "env": {
            **ALWAYS_SET,
            **launch["env"],
            **{name: str(value) for name, value in spec.get("env", {}).items()},
        },
        "args": _arguments(launch, spec),
        "numactl": launch["numactl"],
        "runtime": "habana" if cards else None,
        "cap_add": CAPABILITIES[profile],
        "ulimits": ULIMITS[profile],
        "mounts": _mounts(spec, cache),
        "buckets": buckets,
        "graphs": buckets["prompt"] + buckets["decode"],
        "warmup_s": warmup,
        "start_timeout_s": spec.get("start_timeout_s") or start_timeout(warmup, size),
        "warnings": launch["warnings"],
    }
    return {**model, "digest": digest(model)}


def _arguments(launch: Launch, spec: Model) -> list[str]:
    """The exact launch, plus what a user adds: the served name, and further options of vLLM."""
    args = list(launch["args"])
    if spec["launch_profile"] == "vllm":
        return args
    for key, value in spec.items():
        if key not in OWN_KEYS and key not in CONSUMED.get(spec["launch_profile"], ()):
            args += option_arguments(key, value)
    return [*args, "--served-model-name", spec["served_model_name"]]


def _without_own_use(host: Mapping[str, Any]) -> dict[str, Any]:
    own = own_cards(host)
    modules = [
        {**module, "in_use": bool(module.get("in_use")) and int(module["module_id"]) not in own}
        for module in host.get("modules", [])
    ]
    return {**host, "modules": modules}


def _cache_path(spec: Model, host: Mapping[str, Any], release: str) -> str | None:
    path: str | None = spec.get("recipe_cache_path")
    if not path or spec.get("recipe_cache_exact"):
        return path
    # Recipes of another release, precision or device do not fit, and two models must not share one.
    leaf = f"{release}-{spec.get('dtype', 'auto')}-{host.get('device_name') or 'cpu'}"
    parent = path.rstrip("/")
    return f"{parent}/{leaf}" if parent.endswith("/" + spec["name"]) else f"{parent}/{spec['name']}/{leaf}"


def _mounts(spec: Model, cache: str | None) -> list[dict[str, Any]]:
    mounts = [{"source": spec["weights"], "target": spec["weights"], "read_only": True}]
    if cache:
        mounts.append({"source": cache, "target": cache, "read_only": False})
    return mounts + [{"read_only": True, **mount} for mount in spec.get("mounts", [])]


def _graphs(launch: Launch, spec: Model) -> dict[str, int]:
    env = launch["env"]
    found = hpu_buckets(
        env, int(spec.get("max_num_batched_tokens") or spec["max_model_len"]), int(env["VLLM_DECODE_BLOCK_BUCKET_MAX"])
    )
    return {
        "prompt": len(found["prompt"]),  # type: ignore[arg-type]
        "decode": len(found["decode"]),  # type: ignore[arg-type]
        "omitted": found["omitted"],  # type: ignore[dict-item]
    }


def warmup_seconds(graphs: int, weight_bytes: int) -> int:
    """Estimate the warm-up without a recipe cache, in seconds.

    Seconds a graph grow with the parameters to the power of 0.54; both constants follow from the two
    measured warm-ups above. Unknown weights count as 8 billion parameters of two bytes.
    """
    parameters = weight_bytes / 2 or GRAPH_PARAMETERS
    growth: float = (max(parameters, 1e9) / GRAPH_PARAMETERS) ** GRAPH_GROWTH
    return round(graphs * GRAPH_SECONDS * growth)


def start_timeout(warmup_s: int, weight_bytes: int) -> int:
    """Return how long a start may take, in seconds: four warm-ups, the weights at 0.2 GB/s, ten minutes."""
    return 600 + 4 * warmup_s + weight_bytes // 200_000_000


def digest(model: Mapping[str, Any]) -> str:
    """Return the digest of all that a running server depends on: if it differs, a restart is due."""
    keys = (
        "image",
        "env",
        "args",
        "numactl",
        "runtime",
        "cap_add",
        "ulimits",
        "mounts",
        "module_ids",
        "launch_profile",
    )
    text = json.dumps({key: model[key] for key in keys}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
