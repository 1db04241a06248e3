"""One model of a plan: the exact launch, what the toolkit adds to it, and what it will cost."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from .checks import model_config, weight_bytes
from .fit import plan_memory
from .launch import Launch, option_arguments, vllm_launch
from .placement import disjoint_cores, own_cards
from .shape import layers, longest_context
from .spec import OWN_KEYS
from .warmup import BLOCK, bucket_counts, likely_layers, warmup_seconds

Model = dict[str, Any]

# The manual's container settings (its sections 1.2.1 and 3.1.1).
CAPABILITIES = {
    "aice_1_21": ["SYS_NICE"],
    "deepseek_r1": ["SYS_NICE", "SYS_PTRACE", "IPC_LOCK"],
    "vllm": ["SYS_NICE"],
}
ULIMITS = {"aice_1_21": [], "deepseek_r1": ["memlock=-1:-1"], "vllm": []}
# Options of vLLM that a profile's own rules turn into something else.
CONSUMED = {"deepseek_r1": {"quantization", "max_num_prefill_seqs"}}
ALWAYS_SET = {"OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
# Models that generate no text are asked for what they do.
SMOKE_OF_TASK = {"embed": ["embedding"], "embedding": ["embedding"], "score": ["rerank"]}
NO_BUCKETS = {"prompt": 0, "decode": 0, "omitted": 0, "approximate": False}


def planned_model(spec: Model, host: Mapping[str, Any], cards: list[int], release: str) -> Model:
    """Return everything that a launch of this model on these cards needs.

    Raises:
        InputError: when the profile refuses the wish.
    """
    placed = {**spec, "module_ids": cards} if cards else dict(spec)
    cache = _cache_path(spec, host, release)
    if cache:
        placed["recipe_cache_path"] = cache
    launch = vllm_launch(placed, _without_own_use(host))
    numactl = _numactl(launch, host, cards)
    nodes = {int(module["numa_node"]) for module in host.get("modules", []) if int(module["module_id"]) in cards}
    model = {
        **_wish(spec),
        "module_ids": cards,
        "cpus": numactl[1].split(",") if numactl else None,
        "numa_node": nodes.pop() if len(nodes) == 1 else None,
        "env": _environment(launch, spec, cards),
        "args": _arguments(launch, spec),
        "numactl": numactl,
        "runtime": "habana" if cards else None,
        "cap_add": CAPABILITIES[spec["launch_profile"]],
        "ulimits": list(spec.get("ulimits", ULIMITS[spec["launch_profile"]])),
        "mounts": _mounts(spec, cache),
    }
    model.update(_cost(spec, host, model))
    warnings = [*launch["warnings"], *_core_warnings(launch, numactl, cards), *_memory_warnings(spec, model["memory"])]
    return {**model, "warnings": warnings, "digest": digest(model)}


def _wish(spec: Model) -> Model:
    keys = ("name", "state", "launch_profile", "image", "host", "port", "served_model_name", "weights")
    named = {key: spec[key] for key in keys}
    return {
        **named,
        **{key: spec.get(key) for key in ("dtype", "max_model_len", "max_num_seqs")},
        "smoke": spec.get("smoke") or SMOKE_OF_TASK.get(str(spec.get("task")), ["text"]),
    }


def _environment(launch: Launch, spec: Model, cards: list[int]) -> dict[str, str]:
    env = {**ALWAYS_SET, **launch["env"]}
    if spec["launch_profile"] == "vllm" and len(cards) > 1:
        # A forked worker cannot initialise its card again, and collectives need their lazy form.
        env.update(VLLM_WORKER_MULTIPROC_METHOD="spawn", PT_HPU_ENABLE_LAZY_COLLECTIVES="true")
    return {**env, **{name: str(value) for name, value in spec.get("env", {}).items()}}


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


def _numactl(launch: Launch, host: Mapping[str, Any], cards: list[int]) -> list[str] | None:
    """Return the vendor's binding, with disjoint cores where its rule would give two cards the same."""
    numactl: list[str] | None = launch["numactl"]
    cores = disjoint_cores(host)
    if numactl and all(number in cores for number in cards):
        numactl = ["-C", ",".join(cores[number] for number in cards), *numactl[2:]]
    # More cards on a node than cores: a range such as 4-3, which numactl refuses.
    bounds = [part.split("-") for part in numactl[1].split(",")] if numactl else []
    return numactl if all(int(first) <= int(last) for first, last in bounds) else None


def _core_warnings(launch: Launch, numactl: list[str] | None, cards: list[int]) -> list[str]:
    if launch["numactl"] and not numactl:
        return ["this host has more cards than cores on a NUMA node: no core binding"]
    if numactl != launch["numactl"] and numactl:
        return [
            f"cards {cards} get cores {numactl[1]}: the vendor's rule ({launch['numactl'][1]}) would give "
            "cards of one NUMA node the same cores, as their module_ids are not consecutive"
        ]
    return []


def _cost(spec: Model, host: Mapping[str, Any], model: Model) -> Model:
    """Return memory, graphs, warm-up and start timeout of a model."""
    config, size = model_config(spec, host), weight_bytes(spec, host)
    memory = None
    if model["module_ids"]:
        sized = {"max_model_len": longest_context(config), **spec}
        memory = plan_memory(sized, model["env"], model["args"], host, config, size)
    buckets = dict(NO_BUCKETS)
    if spec["launch_profile"] != "vllm":
        most = int(model["env"]["VLLM_DECODE_BLOCK_BUCKET_MAX"])
        tokens = int(spec.get("max_num_batched_tokens") or spec["max_model_len"])
        buckets = bucket_counts(model["env"], tokens, min(most, memory["num_hpu_blocks"] or most) if memory else most)
    graphs = buckets["prompt"] + buckets["decode"]
    depth = layers(config) or likely_layers(size / 2 or 8e9)
    fp8 = spec.get("dtype") == "fp8" or spec["launch_profile"] == "deepseek_r1"
    cards = max(1, len(model["module_ids"]))
    full, cached = warmup_seconds(graphs, depth, cards, "fp8" if fp8 else "bfloat16")
    if spec.get("skip_warmup"):
        full = cached = 0
    return {
        "memory": memory,
        "buckets": buckets,
        "graphs": graphs,
        "warmup_s": full,
        "warmup_cached_s": cached,
        "start_timeout_s": spec.get("start_timeout_s") or start_timeout(full, size),
    }


def _memory_warnings(spec: Model, memory: Mapping[str, Any] | None) -> list[str]:
    count, context = spec.get("max_num_seqs"), spec.get("max_model_len")
    if not memory or not count or not context:
        return []
    ranges = spec.get("input_range", [0, context])[1] + spec.get("output_range", [0, 0])[1]
    longest = min(int(context), ranges)
    blocks = -(-longest // BLOCK)
    fitting = memory["num_hpu_blocks"] // blocks
    if fitting >= count:
        return []
    return [
        f"the KV cache ({memory['num_hpu_blocks']} blocks) holds {fitting} requests of {longest} tokens, of "
        f"max_num_seqs {count}: under full load the others wait or start over"
    ]


def start_timeout(warmup_s: int, size: int) -> int:
    """Return how long a start may take, in seconds: four warm-ups, ``size`` bytes at 0.2 GB/s, ten minutes."""
    return 600 + 4 * warmup_s + size // 200_000_000


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
