"""One model of a plan: the exact launch, what the toolkit adds to it, and what it will cost."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from itertools import chain
from typing import Any

from ..buckets.linear import BLOCK, BucketRanges
from ..buckets.warmup import BucketCounts, bucket_counts, likely_layers, warmup_seconds
from ..engines import Launch, engine_of
from ..engines.base import option_arguments
from ..memory.autocalc import DEVICE_GIB, GIB, MOST_CARDS
from ..memory.fit import plan_memory, quantised_at_load
from ..memory.shape import layers, longest_context, memory_names
from ..platforms import Platform, platform_of
from ..spec.keys import OWN_KEYS
from ..spec.vllm_options import OPTION_NAMES
from .check import bytes_here, model_config, weight_bytes
from .launch import launched
from .place import disjoint_cores, own_cards

Model = dict[str, Any]

# The manual's container settings (its sections 1.2.1 and 3.1.1). All other capabilities are dropped, but for the one
# by which root in the container reads weights and writes caches that belong to another user.
FOREIGN_FILES = "DAC_OVERRIDE"
PRIVILEGED_PORTS = 1024
HANG_TIMEOUT_S = 600  # a server under full load may keep /health waiting for minutes
VISIBLE_DEVICES = "HABANA_VISIBLE_DEVICES"
ALWAYS_SET = {"OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
# Models that generate no text are asked for what they do.
SMOKE_OF_TASK = {"embed": ["embedding"], "embedding": ["embedding"], "score": ["rerank"]}


def planned_model(spec: Model, host: Mapping[str, Any], cards: list[int], release: str) -> Model:
    """Return everything that a launch of this model on these cards needs.

    Raises:
        InputError: when the profile refuses the wish.
    """
    placed = {**spec, "module_ids": cards} if cards else dict(spec)
    cache = _cache_path(spec, host, release)
    if cache:
        placed["recipe_cache_path"] = cache
    launch, platform = launched(placed, _without_own_use(host)), platform_of(host)
    numactl = _numactl(launch, host, cards)
    nodes = {int(module["numa_node"]) for module in host.get("modules", []) if int(module["module_id"]) in cards}
    model = {
        **_wish(spec),
        "module_ids": cards,
        "cpus": numactl[1].split(",") if numactl else None,
        "numa_node": nodes.pop() if len(nodes) == 1 else None,
        "env": _environment(launch, spec, cards, platform),
        "args": launch.args,
        "numactl": numactl,
        "runtime": platform.runtime if cards else None,
        "cap_add": _capabilities(spec),
        "read_only": spec.get("read_only", True),
        "ulimits": list(spec.get("ulimits", engine_of(spec).ulimits)),
        "mounts": _mounts(spec, cache),
    }
    model["args"] = _arguments(model, spec, placed, host)
    ranges = launch.buckets.changed_by(model["env"]) if launch.buckets else None
    model.update(_cost(spec, host, model, ranges))
    warnings = [
        *launch.warnings,
        *_core_warnings(launch, numactl, cards),
        *_memory_warnings(spec, model["memory"]),
        *_unknown_warnings(spec, host, model),
        *_ignored_warnings(spec),
        *_danger_warnings(spec),
    ]
    return {**model, "warnings": warnings, "digest": digest(model)}


def _wish(spec: Model) -> Model:
    keys = ("name", "state", "launch_profile", "image", "host", "port", "served_model_name", "weights")
    named = {key: spec[key] for key in keys}
    return {
        **named,
        **{key: spec.get(key) for key in ("max_model_len", "max_num_seqs")},
        "dtype": engine_of(spec).precision or spec.get("dtype"),
        "smoke": spec.get("smoke") or SMOKE_OF_TASK.get(str(spec.get("task")), ["text"]),
    }


def _capabilities(spec: Model) -> list[str]:
    named = {FOREIGN_FILES, *engine_of(spec).capabilities, *spec.get("cap_add", [])}
    return sorted(named | ({"NET_BIND_SERVICE"} if spec["port"] < PRIVILEGED_PORTS else set()))


def _environment(launch: Launch, spec: Model, cards: list[int], platform: Platform) -> dict[str, str]:
    # The supervisor alone sets it: the runtime takes the first of two, and the exact launch of deepseek_r1 says ALL,
    # which the runtime does not know.
    env = {key: value for key, value in {**ALWAYS_SET, **launch.environment}.items() if key != VISIBLE_DEVICES}
    if not engine_of(spec).own_options and len(cards) > 1:
        env.update(platform.env_between)
    return {**env, **{name: str(value) for name, value in spec.get("env", {}).items()}}


def _arguments(model: Model, spec: Model, placed: Model, host: Mapping[str, Any]) -> list[str]:
    """Return the exact launch, plus what a user adds: the served name, and further options of vLLM.

    The options stand in the order of their names: an inventory's own order says nothing, and gets lost in AWX, which
    gives every variable with sorted keys. Only where a server runs with the very same options in another order, since a
    version before this one has launched it in the order that its user wrote, does that order stay: then digest and
    files are the ones that are there, and nothing is restarted. Such an order is known from the launch file on the
    host, and where that is lost from the digest of the order in the inventory.

    Args:
        model: everything else of the planned model, with the profile's own arguments in ``args``.
        spec: the model as it is wished for.
        placed: the same as its launch has seen it.
        host: host facts, with ``services``.
    """
    engine = engine_of(spec)
    if not engine.own_options:
        head, tail = model["args"][:1], []
        wished = {key: value for key, value in placed.items() if key in OPTION_NAMES}
    else:
        head, tail = list(model["args"]), ["--served-model-name", spec["served_model_name"]]
        used = OWN_KEYS | engine.consumed
        wished = {key: value for key, value in spec.items() if key not in used}
    options = [part for key, value in wished.items() if (part := option_arguments(key, value))]
    live: Mapping[str, Any] = host.get("services", {}).get(spec["name"]) or {}
    by_name = [*head, *chain(*sorted(options)), *tail]
    present = _present_arguments(model, live)
    same = _same_options(present[len(head) : len(present) - len(tail)], options)
    for args in (by_name, [*head, *chain(*options), *tail], present if same else by_name):
        if digest({**model, "args": args}) == live.get("digest"):
            return args
    return by_name


def _present_arguments(model: Model, live: Mapping[str, Any]) -> list[str]:
    """Return the arguments of the launch file on the host."""
    command = [str(part) for part in (live.get("launch") or {}).get("command", [])]
    before = len(engine_of(model).command) + (1 + len(model["numactl"]) if model["numactl"] else 0)
    return command[before:]


def _same_options(present: list[str], options: list[list[str]]) -> bool:
    """Tell whether arguments are these options, in whatever order."""
    left = {option[0]: option for option in options}
    place = 0
    while place < len(present):
        option = left.pop(present[place], [])
        if not option or present[place : place + len(option)] != option:
            return False
        place += len(option)
    return not left


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
    numactl = launch.numactl
    cores = disjoint_cores(host)
    if numactl and all(number in cores for number in cards):
        numactl = ["-C", ",".join(cores[number] for number in cards), *numactl[2:]]
    # More cards on a node than cores: a range such as 4-3, which numactl refuses.
    bounds = [part.partition("-") for part in numactl[1].split(",")] if numactl else []
    return numactl if all(int(first) <= int(last) for first, _, last in bounds) else None


def _core_warnings(launch: Launch, numactl: list[str] | None, cards: list[int]) -> list[str]:
    if launch.numactl and not numactl:
        return ["this host has more cards than cores on a NUMA node: no core binding"]
    if launch.numactl and numactl != launch.numactl and numactl:
        return [
            f"cards {cards} get cores {numactl[1]}: the vendor's rule ({launch.numactl[1]}) would give "
            "cards of one NUMA node the same cores, as their module_ids are not consecutive"
        ]
    return []


def _cost(spec: Model, host: Mapping[str, Any], model: Model, ranges: BucketRanges | None) -> Model:
    """Return memory, graphs, warm-up and start timeout of a model; None for what cannot be known."""
    config, size = model_config(spec, host), weight_bytes(spec, host)
    memory = None
    if model["module_ids"]:
        sized = {"max_model_len": longest_context(config), **spec}
        memory = plan_memory(
            sized, model["env"], model["args"], host, config, size, ranges.decode_block[1] if ranges else 1
        )
    depth = layers(config) or likely_layers(size / 2 or 8e9)
    share = size * (0.5 if quantised_at_load(spec, config) else 1) / GIB / max(1, len(model["module_ids"]))
    generation = platform_of(host).generation(host) if model["module_ids"] else None
    device = DEVICE_GIB[generation] if generation else None
    known: Model = {"weights_gib": round(share, 1), "device_gib": device}
    known |= {"memory": memory, **_warmup(spec, model, memory, depth, ranges)}
    seconds = spec["warmup_budget_minutes"] * 15 if known["warmup_s"] is None else known["warmup_s"]
    known["start_timeout_s"] = spec.get("start_timeout_s") or start_timeout(seconds, size)
    return {**known, "hang_timeout_s": spec.get("hang_timeout_s", HANG_TIMEOUT_S)}


def _warmup(
    spec: Model, model: Model, memory: Mapping[str, Any] | None, depth: float, ranges: BucketRanges | None
) -> Model:
    """Return the graphs of a model and the seconds that they take."""
    counts = BucketCounts()
    engine = engine_of(spec)
    skipped = str(model["env"].get("VLLM_SKIP_WARMUP", "")).lower() in ("true", "1")
    if ranges is None and model["module_ids"] and not skipped:
        # The server chooses its own buckets.
        return {"buckets": dataclasses.asdict(counts), "graphs": None, "warmup_s": None, "warmup_cached_s": None}
    if ranges is not None and not skipped:
        most = ranges.decode_block[2]
        tokens = int(spec.get("max_num_batched_tokens") or spec["max_model_len"])
        held = (memory["num_hpu_blocks"] if memory and engine.capped else 0) or most
        counts = bucket_counts(ranges, tokens, min(most, held))
    graphs = counts.prompt + counts.decode
    full, cached = warmup_seconds(graphs, depth, max(1, len(model["module_ids"])), engine.served_in(spec))
    has_cache = bool(spec.get("recipe_cache_path")) or not graphs
    known: Model = {"buckets": dataclasses.asdict(counts), "graphs": graphs}
    return {**known, "warmup_s": full, "warmup_cached_s": cached if has_cache else None}


def _unknown_warnings(spec: Model, host: Mapping[str, Any], model: Model) -> list[str]:
    """Return what of a model on cards could not be checked, and what would make it known."""
    if not model["module_ids"]:
        return []
    config, size = model_config(spec, host), weight_bytes(spec, host)
    lacks = [name for name, known in (("config", memory_names(config)), ("weight_bytes", size)) if not known]
    warnings = []
    here = bytes_here(spec, host)
    if here and here < 0.95 * size:
        warnings.append(f"the folder holds {here / 1e9:.0f} of {size / 1e9:.0f} GB; the rest is counted in")
    if lacks:
        what = " and ".join(lacks)
        warnings.append(f"memory is not checked, since the model is not known; give {what}, or bring its weights")
    elif len(model["module_ids"]) > MOST_CARDS:
        warnings.append(f"memory is not checked: the rules for it are known for up to {MOST_CARDS} cards")
    elif not model["memory"]:
        warnings.append("memory is not checked: give max_model_len")
    if model["graphs"] is None:
        minutes = spec["warmup_budget_minutes"]
        warnings.append(
            "graphs and warm-up are not known, since profile vllm lets the server choose its buckets; the start "
            f"timeout gives it warmup_budget_minutes ({minutes}) and the time to read the weights"
        )
    elif model["graphs"] and not layers(config):
        assumed = f"of {size / 2e9:.0f} billion parameters" if size else "of 8 billion parameters"
        warnings.append(f"the warm-up is estimated as that of a model {assumed}; give config for its layers")
    return warnings


def _ignored_warnings(spec: Model) -> list[str]:
    ignored = sorted(key for key in engine_of(spec).ignored if spec.get(key) is not None)
    profile = spec["launch_profile"]
    return [f"profile {profile} takes no notice of {', '.join(ignored)}"] if ignored else []


def _danger_warnings(spec: Model) -> list[str]:
    """Return what is allowed and gives a server more than a user may think."""
    sockets = [mount["source"] for mount in spec.get("mounts", []) if mount["source"].endswith("/docker.sock")]
    found = [f"mounts {path}: who gets into the server is root on the host then" for path in sockets]
    names = sorted({"LD_PRELOAD", "LD_LIBRARY_PATH", "PATH"} & set(spec.get("env", {})))
    found += [f"env sets {name}, in place of the image's own" for name in names]
    if spec["port"] < PRIVILEGED_PORTS:
        found.append(f"port {spec['port']} is below {PRIVILEGED_PORTS}: the server gets NET_BIND_SERVICE for it")
    return found


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
    """Return the digest of all that a running server depends on: if it differs, a restart is due.

    Its value is pinned by a test: a new version of the toolkit restarts no server whose launch did not change.
    """
    keys = (
        "image",
        "env",
        "args",
        "numactl",
        "runtime",
        "cap_add",
        "read_only",
        "ulimits",
        "mounts",
        "module_ids",
        "launch_profile",
    )
    text = json.dumps({key: model[key] for key in keys}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
