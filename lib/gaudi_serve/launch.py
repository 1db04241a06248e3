"""From a model and a host to the exact launch of its vLLM server.

The rules are those of the vendor's launch scripts (vLLM fork, branches aice/v1.21.0 and deepseek_r1),
found by measuring what they set; the golden vectors in tests/unit/golden decide.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .buckets import BLOCK, DIMENSIONS, bucket_range, bucket_rows, refuse_wide
from .errors import InputError, mapping, refusal, whole
from .hl_smi import LARGEST_NUMBER, device_family, is_cpu_range
from .vllm_options import OPTION_NAMES
from .warmup import coverage_warnings

CHECKOUT = "/opt/vllm-fork"
Launch = dict[str, Any]

FP32_SOFTMAX_OFF = (
    "deepseek-r1-distill-qwen-14b",
    "deepseek-r1-distill-qwen-32b",
    "deepseek-r1-distill-llama-8b",
    "deepseek-r1-distill-llama-70b",
    "qwen3-8b",
    "qwen3-14b",
    "qwen3-32b",
    "qwq-32b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
)
KV_CACHE_AUTO = (
    "deepseek-r1-distill-llama-8b",
    "deepseek-r1-distill-qwen-7b",
    "qwen2-7b-instruct",
    "qwen2.5-7b-instruct",
)
CONSTANTS = {
    "PT_HPU_WEIGHT_SHARING": "0",
    "PT_HPU_LAZY_MODE": "1",
    "VLLM_GPU_MEMORY_UTILIZATION": "0.9",
    "VLLM_GRAPH_RESERVED_MEM": "0.2",
    "VLLM_GRAPH_PROMPT_RATIO": "0.8",
    "VLLM_MAX_SEQ_LEN_TO_CAPTURE": "8192",
    "VLLM_DELAYED_SAMPLING": "true",
    "VLLM_DYNAMIC_MOE_MIN_TOKENS": "256",
    "VLLM_DYNAMIC_MOE_MIN_EXPERTS_SINGLEHPU": "32",
    "VLLM_PROFILER_ENABLED": "false",
    "VLLM_ENGINE_PROFILER_ENABLED": "false",
    "VLLM_ENGINE_PROFILER_WARMUP_STEPS": "0",
    "VLLM_ENGINE_PROFILER_STEPS": "1",
    "VLLM_ENGINE_PROFILER_REPEAT": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "TOKENIZERS_PARALLELISM": "true",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    "VLLM_RAY_DISABLE_LOG_TO_DRIVER": "1",
}
LAUNCH_DEFAULTS: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 30001,
    "dtype": "bfloat16",
    "tensor_parallel_size": 1,
    "input_range": [4, 16384],
    "output_range": [4, 2048],
    "max_num_batched_tokens": 20480,
    "max_model_len": 20480,
    "max_num_seqs": 32,
    "num_scheduler_steps": 1,
    "zero_padding": True,
    "fused_sdpa": True,
    "skip_warmup": False,
}


DEEPSEEK_DEFAULTS: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 8688,
    "tensor_parallel_size": 8,
    "max_model_len": 16384,
    "max_num_seqs": 128,
    "max_num_prefill_seqs": 1,
    "recipe_cache_path": "/data/warmup_cache",
    "skip_warmup": False,
}
DEEPSEEK_CONSTANTS = {
    "HABANA_VISIBLE_DEVICES": "ALL",
    "HABANA_VISIBLE_MODULES": "0,1,2,3,4,5,6,7",
    "PT_HPUGRAPH_DISABLE_TENSOR_CACHE": "1",
    "PT_HPU_ENABLE_LAZY_COLLECTIVES": "true",
    "PT_HPU_LAZY_MODE": "1",
    "PT_HPU_WEIGHT_SHARING": "0",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    "VLLM_DELAYED_SAMPLING": "true",
    "VLLM_EP_SIZE": "8",
    "VLLM_GRAPH_PROMPT_RATIO": "0",
    "VLLM_GRAPH_RESERVED_MEM": "0.1",
    "VLLM_MLA_DISABLE_REQUANTIZATION": "0",
    "VLLM_MLA_PERFORM_MATRIX_ABSORPTION": "0",
    "VLLM_RAY_DISABLE_LOG_TO_DRIVER": "1",
}
DEEPSEEK_INC = {
    "INC_FORCE_NAIVE_SCALING": "1",
    "INC_MEASUREMENT_DUMP_PATH_PREFIX": CHECKOUT,
    "QUANT_CONFIG": f"{CHECKOUT}/scripts/quant_configs/inc_quant_per_channel_with_fp8kv_config.json",
    "VLLM_ENABLE_RUNTIME_DEQUANT": "1",
    "VLLM_HPU_MARK_SCALES_AS_CONST": "false",
    "VLLM_REQUANT_FP8_INC": "1",
}
# How many sequences one step of the decode batch has, by device.
DEEPSEEK_DECODE_STEP = {"HL-225": 8, "HL-288": 2}
DEEPSEEK_LONGEST, DEEPSEEK_SHORT_CONTEXT = 32768, 18432


def vllm_launch(spec: Mapping[str, Any], host: Mapping[str, Any]) -> Launch:
    """Return how a model's server is started.

    Args:
        spec: a model as a user declares it (``weights``, ``tensor_parallel_size``, ...).
        host: host facts: ``device_name``, ``ip``, ``interface``, ``modules``, ``accelerator``.

    Returns:
        ``env`` (strings), ``args`` (after the server's module, or after ``vllm serve``),
        ``numactl`` (arguments or None), ``warnings`` (sentences).

    Raises:
        InputError: for keys and values that docs/models.md does not allow, a host without the facts that
            the profile reads, a profile that does not exist, cards that are not free, and buckets that are
            none or too many; the message names the model, the key and what is allowed.
    """
    spec = _checked_spec(spec, host)
    profile = launch_profile(spec, host)
    _check_host(spec, host, profile)
    if profile == "vllm":
        return _plain(spec, host)
    if profile == "aice_1_21":
        return _aice(spec, host)
    return _deepseek(spec, host)


# What each profile reads of a host.
PROFILES: dict[str, tuple[str, ...]] = {"aice_1_21": ("ip", "interface"), "deepseek_r1": ("device_name",), "vllm": ()}


def _checked_spec(given: Any, host: Any) -> dict[str, Any]:
    # Those checks know the profiles of this module.
    from .spec import findings

    wish = mapping("vllm_launch", "model", given, "a mapping, such as {weights: /data/QwQ-32B}")
    spec = {key: value for key, value in wish.items() if value is not None}
    profile = launch_profile(spec, mapping(label(spec), "host", host, "a mapping of host facts"))
    if profile not in PROFILES:
        raise refusal(label(spec), "launch_profile", profile, f"is not one of {', '.join(PROFILES)}")
    for key, value, allowed in findings({"name": "model", **spec}):
        error = refusal(label(spec), key, value, f"is refused: {allowed}" if value is not None else allowed)
        error.finding = (key, value, allowed)
        raise error
    return spec


def _check_host(spec: Mapping[str, Any], host: Mapping[str, Any], profile: str) -> None:
    for key in PROFILES[profile]:
        if not isinstance(host.get(key), str) or not host[key]:
            raise refusal(label(spec), f"host.{key}", host.get(key), "must be a text, as module gaudi_facts returns it")
    modules = host.get("modules") if profile == "aice_1_21" else []
    if not isinstance(modules, list):
        raise refusal(label(spec), "host.modules", modules, "must be a list of cards")
    seen = set()
    for place, module in enumerate(modules):
        key = f"host.modules[{place}]"
        card = mapping(label(spec), key, module, "a mapping of module_id, numa_node and cpus")
        number = whole(label(spec), f"{key}.module_id", card.get("module_id"), 0, LARGEST_NUMBER)
        if number in seen:
            raise refusal(label(spec), f"{key}.module_id", number, "came before")
        seen.add(number)
        if spec.get("module_ids"):
            node = card.get("numa_node")
            whole(label(spec), f"{key}.numa_node", 0 if node == -1 else node, 0, LARGEST_NUMBER)
            cpus = card.get("cpus") or []
            if not isinstance(cpus, list) or not all(map(is_cpu_range, cpus)):
                raise refusal(label(spec), f"{key}.cpus", cpus, "are not ranges of cores, such as [0-39]")


def launch_profile(spec: Mapping[str, Any], host: Mapping[str, Any]) -> str:
    """Return the profile of a model: its own, else ``vllm`` on a CPU host and ``aice_1_21`` on Gaudi."""
    default = "vllm" if host.get("accelerator") == "cpu" else "aice_1_21"
    return str(spec.get("launch_profile", default))


def label(spec: Mapping[str, Any]) -> str:
    """Return the name by which messages call a model: ``name``, or the last part of its weights."""
    return str(spec.get("name") or str(spec.get("weights", "?")).rstrip("/").rpartition("/")[2])


def pass_through(spec: Mapping[str, Any]) -> list[str]:
    """Return the arguments for those keys of a model that are vLLM's own options."""
    args: list[str] = []
    for key, value in spec.items():
        if key in OPTION_NAMES:
            args += option_arguments(key, value)
    return args


def option_arguments(key: str, value: Any) -> list[str]:
    """Return one vLLM option as arguments: true is a flag, false its negation, a mapping JSON."""
    flag = "--" + key.replace("_", "-")
    if value is None:
        return []
    if value is True:
        return [flag]
    if value is False:
        return ["--no-" + key.replace("_", "-")]
    if isinstance(value, Mapping):
        return [flag, _sorted_json(value)]
    if isinstance(value, list):
        return [flag, *[_sorted_json(item) if isinstance(item, Mapping) else str(item) for item in value]]
    return [flag, str(value)]


def _sorted_json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _plain(spec: Mapping[str, Any], host: Mapping[str, Any]) -> Launch:
    env = {} if host.get("accelerator") == "cpu" else {"PT_HPU_LAZY_MODE": "1"}
    return {"env": env, "args": [str(spec["weights"]), *pass_through(spec)], "numactl": None, "warnings": []}


def _aice(given: Mapping[str, Any], host: Mapping[str, Any]) -> Launch:
    spec = {**LAUNCH_DEFAULTS, **given}
    numactl, cards = _cards(spec, host)
    env = {**CONSTANTS, **_network(host), **_switches(spec), **bucket_env(spec), **cards}
    env.update(_quantization_env(spec))
    _refuse_buckets(spec, env)
    warnings = launch_warnings(spec, env) + coverage_warnings(spec, env) + _node_warnings(spec, host)
    return {"env": env, "args": _aice_args(spec), "numactl": numactl, "warnings": warnings}


def _deepseek(given: Mapping[str, Any], host: Mapping[str, Any]) -> Launch:
    spec = {**DEEPSEEK_DEFAULTS, **given}
    length = int(spec["max_model_len"])
    if length > DEEPSEEK_LONGEST:
        raise refusal(label(spec), "max_model_len", length, f"is above {DEEPSEEK_LONGEST}, the most of one host")
    if length < BLOCK:
        raise refusal(label(spec), "max_model_len", length, f"is below {BLOCK}, the tokens of one block")
    whole(label(spec), "max_num_prefill_seqs", spec["max_num_prefill_seqs"], 1, 65536)
    if spec.get("quantization") not in (None, "inc"):
        raise refusal(label(spec), "quantization", spec["quantization"], "is not inc, the only one here")
    utilization = "0.85" if length <= DEEPSEEK_SHORT_CONTEXT else "0.65"
    env = {**DEEPSEEK_CONSTANTS, **_deepseek_buckets(spec, host), "VLLM_GPU_MEMORY_UTILIZATION": utilization}
    _refuse_buckets(spec, env)
    env["PT_HPU_RECIPE_CACHE_CONFIG"] = f"{spec['recipe_cache_path']},false,16384"
    env["VLLM_MOE_N_SLICE"] = "1" if spec.get("quantization") else "8"
    env.update(DEEPSEEK_INC if spec.get("quantization") else {})
    if spec["skip_warmup"]:
        env["VLLM_SKIP_WARMUP"] = "True"
    args: list[Any] = ["--host", spec["host"], "--port", spec["port"], "--block-size", BLOCK]
    args += ["--model", spec["weights"], "--device", "hpu", "--dtype", "bfloat16", "--kv-cache-dtype", "fp8_inc"]
    args += ["--tensor-parallel-size", 8, "--max-num-prefill-seqs", spec["max_num_prefill_seqs"]]
    args += ["--trust-remote-code", "--max-model-len", length, "--max-num-seqs", spec["max_num_seqs"]]
    args += ["--max-num-batched-tokens", length, "--use-padding-aware-scheduling", "--use-v2-block-manager"]
    args += ["--distributed_executor_backend", "ray", "--gpu_memory_utilization", utilization]
    args += ["--disable-log-requests", "--enable-reasoning", "--reasoning-parser", "deepseek_r1"]
    return {"env": env, "args": [str(argument) for argument in args], "numactl": None, "warnings": []}


def _deepseek_buckets(spec: Mapping[str, Any], host: Mapping[str, Any]) -> dict[str, str]:
    device, batch, length = str(host["device_name"]), int(spec["max_num_seqs"]), int(spec["max_model_len"])
    family = device_family(device)
    if family not in DEEPSEEK_DECODE_STEP:
        known = ", ".join(f"{name}*" for name in DEEPSEEK_DECODE_STEP)
        raise refusal(label(spec), "launch_profile", "deepseek_r1", f"is made for {known}, and this host has {device}")
    ranges = {
        "PROMPT_BS": (1, 1, spec["max_num_prefill_seqs"]),
        "PROMPT_SEQ": (BLOCK, BLOCK, length),
        "DECODE_BS": (1, min(batch, DEEPSEEK_DECODE_STEP[family]), batch),
        "DECODE_BLOCK": (BLOCK, BLOCK, max(BLOCK, batch * length // BLOCK)),
    }
    # 0.25 of a shape may be padding: the fourth value of every dimension on this branch.
    parts = ("MIN", "STEP", "MAX", "LIMIT")
    return {
        f"VLLM_{dimension}_BUCKET_{part}": str(value)
        for dimension in DIMENSIONS
        for part, value in zip(parts, (*ranges[dimension], 0.25), strict=True)
    }


def _network(host: Mapping[str, Any]) -> dict[str, str]:
    interface = str(host["interface"])
    return {"VLLM_HOST_IP": str(host["ip"]), "GLOO_SOCKET_IFNAME": interface, "HCCL_SOCKET_IFNAME": interface}


def _switches(spec: Mapping[str, Any]) -> dict[str, str]:
    cards = int(spec["tensor_parallel_size"])
    name = _model(spec)
    low, high = spec["input_range"]
    env = {
        "VLLM_EP_SIZE": str(cards),
        "VLLM_ZERO_PADDING": _text(spec["zero_padding"] and low != high),
        "VLLM_PROMPT_USE_FUSEDSDPA": _text(spec["fused_sdpa"]),
    }
    if cards > 1:
        env["PT_HPU_ENABLE_LAZY_COLLECTIVES"] = "true"
    if spec.get("recipe_cache_path"):
        env["PT_HPU_RECIPE_CACHE_CONFIG"] = f"{spec['recipe_cache_path']},false,16384"
    if spec["skip_warmup"]:
        env["VLLM_SKIP_WARMUP"] = "True"
    if any(part in name for part in FP32_SOFTMAX_OFF):
        env["VLLM_FP32_SOFTMAX"] = "false"
    return env


def bucket_env(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the twelve bucket variables of profile ``aice_1_21``."""
    (low, high), (_, out) = spec["input_range"], spec["output_range"]
    batch = int(spec["max_num_seqs"])
    batch_step = min(_ceil(batch, 16), 16)
    batch_max = _up(batch, batch_step)
    ranges = {
        "PROMPT_BS": (1, 1, min(int(spec["max_num_batched_tokens"]) // low, batch)),
        "PROMPT_SEQ": (_up(low, BLOCK), BLOCK, _up(high, BLOCK) + BLOCK),
        "DECODE_BS": (1, batch_step, batch_max),
        "DECODE_BLOCK": (
            _up(_ceil(low, BLOCK), BLOCK),
            BLOCK,
            _up((_ceil(high + out, BLOCK) + 1) * batch_max, BLOCK),
        ),
    }
    env = {}
    if spec.get("reduce_warmup"):
        hot_batch, hot_length = (int(spec["reduce_warmup"][key]) for key in ("max_num_seqs", "max_seq_len"))
        maxima = {
            "PROMPT_SEQ": hot_length,
            "DECODE_BS": hot_batch,
            "DECODE_BLOCK": _up((hot_length + out) * hot_batch // BLOCK, BLOCK),
        }
        ranges = {key: (*value[:2], maxima.get(key, value[2])) for key, value in ranges.items()}
        env["VLLM_SKIP_LAZY_WARMUP"] = "true"
    for dimension in DIMENSIONS:
        for part, value in zip(("MIN", "STEP", "MAX"), ranges[dimension], strict=True):
            env[f"VLLM_{dimension}_BUCKET_{part}"] = str(value)
    return env


def _refuse_buckets(spec: Mapping[str, Any], env: Mapping[str, str]) -> None:
    """Refuse ranges without a bucket, and ranges with too many of them, by the key that is to change."""
    for dimension in DIMENSIONS:
        low, high = (int(env[f"VLLM_{dimension}_BUCKET_{part}"]) for part in ("MIN", "MAX"))
        if low > high:
            key, wanted = _too_narrow(spec, dimension)
            empty = f"leaves VLLM_{dimension}_BUCKET: minimum {low} is above maximum {high}; vLLM would stop at start"
            raise refusal(label(spec), key, spec[key], f"{empty}; {wanted}")
    tokens = int(spec.get("max_num_batched_tokens", spec["max_model_len"]))
    try:
        refuse_wide({dimension: bucket_range(env, dimension) for dimension in DIMENSIONS})
        # How many decode buckets there are depends on the blocks of the device, which a launch does not know.
        bucket_rows(env, tokens, 1)
    except InputError as problem:
        variable = problem.finding[0] if problem.finding else ""
        key, reason = _cause(spec, variable), str(problem).partition("; ")[0]
        raise refusal(label(spec), key, spec[key], f"makes too many buckets; lower it: {reason}") from None


def _too_narrow(spec: Mapping[str, Any], dimension: str) -> tuple[str, str]:
    """Return the key of a model that leaves a dimension without buckets, and what it takes."""
    low = spec["input_range"][0]
    if dimension != "PROMPT_BS":
        return "reduce_warmup", f"it must reach input_range, whose minimum is {low} tokens"
    # The one that a user wrote: the other is at its default.
    key, other = "max_num_batched_tokens", "input_range"
    if spec[key] == LAUNCH_DEFAULTS[key] and spec[other] != LAUNCH_DEFAULTS[other]:
        return other, f"its minimum must be within max_num_batched_tokens, {spec[key]} tokens"
    return key, f"it must be at least the minimum of input_range, {low} tokens"


def _cause(spec: Mapping[str, Any], variable: str) -> str:
    """Return the key of a model that makes the range of a variable wide: the one furthest above its default."""
    dimension = variable.removeprefix("VLLM_").partition("_BUCKET")[0]
    if spec.get("launch_profile") == "deepseek_r1":
        return {"PROMPT_BS": "max_num_prefill_seqs", "PROMPT_SEQ": "max_model_len"}.get(dimension, "max_num_seqs")
    if spec.get("reduce_warmup") and dimension != "PROMPT_BS":
        return "reduce_warmup"
    if dimension != "DECODE_BLOCK":
        return "input_range" if dimension == "PROMPT_SEQ" else "max_num_seqs"
    excess = {key: spec[key][1] / LAUNCH_DEFAULTS[key][1] for key in ("input_range", "output_range")}
    excess["max_num_seqs"] = spec["max_num_seqs"] / LAUNCH_DEFAULTS["max_num_seqs"]
    return max(excess, key=lambda key: float(excess[key]))


def launch_warnings(spec: Mapping[str, Any], env: Mapping[str, str]) -> list[str]:
    """Return what the vendor's script accepts in silence but a user should know."""
    warnings = []
    need = spec["input_range"][1] + spec["output_range"][1]
    if spec["max_model_len"] < need:
        warnings.append(
            f"max_model_len {spec['max_model_len']} is below {need}, the sum of the input and output maxima: "
            "the longest requests are refused"
        )
    prompt_max = int(env["VLLM_PROMPT_SEQ_BUCKET_MAX"])
    if prompt_max % BLOCK:
        warnings.append(
            f"reduce_warmup.max_seq_len {prompt_max} is not a multiple of {BLOCK}: lengths from "
            f"{prompt_max // BLOCK * BLOCK + 1} to {prompt_max} compile while serving"
        )
    return warnings


def _aice_args(spec: Mapping[str, Any]) -> list[str]:
    cards = int(spec["tensor_parallel_size"])
    dtype = "float16" if spec["dtype"] == "float16" else "bfloat16"
    expert = [] if _model(spec) == "llama-4-scout-17b-16e-instruct" else ["--enable-expert-parallel"]
    args: list[Any] = ["--host", spec["host"], "--port", spec["port"], "--device", "hpu", "--dtype", dtype]
    args += _quantization_args(spec)
    args += ["--model", spec["weights"], "--trust-remote-code", "--tensor-parallel-size", cards, *expert]
    args += ["--seed", 0, "--block-size", BLOCK, "--max-num-seqs", spec["max_num_seqs"]]
    args += ["--max-num-batched-tokens", spec["max_num_batched_tokens"]]
    args += ["--max-model-len", spec["max_model_len"], "--max-seq-len-to-capture", 8192]
    args += ["--disable-log-requests", "--use-v2-block-manager", "--use-padding-aware-scheduling"]
    args += ["--num-scheduler-steps", spec["num_scheduler_steps"]]
    args += ["--distributed_executor_backend", "ray" if cards > 8 else "mp", "--gpu-memory-utilization", "0.9"]
    return [str(argument) for argument in args]


def _quantization_args(spec: Mapping[str, Any]) -> list[str]:
    if spec["dtype"] in ("awq", "gptq"):
        return ["--quantization", f"{spec['dtype']}_hpu"]
    if spec["dtype"] != "fp8":
        return []
    name = _model(spec)
    qwen3 = name.startswith("qwen3") and name not in ("qwen3-32b", "qwen3-30b-a3b")
    cache = "auto" if name in KV_CACHE_AUTO or qwen3 else "fp8_inc"
    device = ["--weights-load-device", "cpu"] if name == "qwen3-235b-a22b" else []
    return ["--quantization", "inc", "--kv-cache-dtype", cache, *device]


def _quantization_env(spec: Mapping[str, Any]) -> dict[str, str]:
    if spec["dtype"] != "fp8":
        return {}
    return {
        "QUANT_CONFIG": f"{CHECKOUT}/scripts/quantization/{_model(spec)}/maxabs_quant_g2.json",
        "VLLM_DISABLE_MARK_SCALES_AS_CONST": "true",
    }


def _cards(spec: Mapping[str, Any], host: Mapping[str, Any]) -> tuple[list[str] | None, dict[str, str]]:
    modules = {int(module["module_id"]): module for module in host["modules"]}
    free = [number for number in sorted(modules) if not modules[number].get("in_use")]
    wanted = spec.get("module_ids")
    if not wanted:
        return None, {"HABANA_VISIBLE_MODULES": ",".join(map(str, free))}
    count = int(spec["tensor_parallel_size"])
    if len(wanted) != count:
        raise refusal(label(spec), "module_ids", wanted, f"are {len(wanted)} cards, tensor_parallel_size is {count}")
    taken = [number for number in wanted if number not in free]
    if taken:
        raise refusal(label(spec), "module_ids", taken, f"are not free; free on this host: {free}")
    ids = ",".join(map(str, wanted))
    variable = "HLS_MODULE_ID" if len(wanted) == 1 else "HABANA_VISIBLE_MODULES"
    return _numactl([modules[number] for number in wanted], list(modules.values())), {variable: ids}


def _node_warnings(spec: Mapping[str, Any], host: Mapping[str, Any]) -> list[str]:
    cards = list(spec.get("module_ids") or [])
    nodes = sorted({int(module["numa_node"]) for module in host["modules"] if int(module["module_id"]) in cards})
    return [f"cards {cards} lie on NUMA nodes {nodes}: no core binding, slower transfers"] if len(nodes) > 1 else []


def _numactl(mine: list[dict[str, Any]], every: list[dict[str, Any]]) -> list[str] | None:
    nodes = {module["numa_node"] for module in mine}
    # A node of -1 is none, as machines without NUMA have it; numactl refuses it.
    if len(nodes) != 1 or -1 in nodes or not mine[0].get("cpus"):
        return None
    node = nodes.pop()
    neighbours = sum(module["numa_node"] == node for module in every)
    low, _, high = str(mine[0]["cpus"][0]).partition("-")
    first = int(low)
    share = (int(high or low) - first + 1) // neighbours
    ranges = []
    for module in mine:
        start = first + share * (int(module["module_id"]) % neighbours)
        ranges.append(f"{start}-{start + share - 1}")
    return ["-C", ",".join(ranges), "-p", str(node)]


def _model(spec: Mapping[str, Any]) -> str:
    return str(spec["weights"]).rstrip("/").rpartition("/")[2].lower()


def _text(value: Any) -> str:
    return "true" if value else "false"


def _ceil(value: int, by: int) -> int:
    return -(-value // by)


def _up(value: int, step: int) -> int:
    return _ceil(value, step) * step
