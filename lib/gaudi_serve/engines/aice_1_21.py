"""Engine ``aice_1_21``: the vendor's fork, branch aice/v1.21.0, as its launch script starts it.

The rules come from measurements of the script. The golden vectors in tests/unit/golden are authoritative.
"""

from __future__ import annotations

from typing import Any

from ..buckets.linear import BucketRanges
from ..buckets.script_ranges import bucket_ranges
from ..buckets.warmup import coverage_warnings
from ..core.errors import Problem
from ..model.vllm_options import BLOCK
from .aice import cards_of, executor, flag_text, model_name, node_warnings
from .base import Engine, Host, Launch, Spec
from .inc import refuse_generation
from .linear import JOURNAL, OF_AICE_1_22, PROGRESS, refuse_buckets
from .quantisations import OF_FORK

CHECKOUT = "/opt/vllm-fork"
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


def launch(spec: Spec, host: Host) -> Launch:
    """Return the launch of the vendor's script.

    Raises:
        InputError: Cards are not free, or there are no or too many buckets.
    """
    numactl, cards = cards_of(spec, host)
    ranges = bucket_ranges(spec)
    refuse_buckets(spec, ranges, _too_narrow, _cause)
    env = {**CONSTANTS, **_network(host), **_switches(spec), **_quantization_env(spec), **cards}
    warnings = launch_warnings(spec, ranges) + coverage_warnings(spec, ranges) + node_warnings(spec, host)
    return Launch(env, _arguments(spec), numactl, warnings, ranges, tokens=int(spec["max_num_batched_tokens"]))


def _network(host: Host) -> dict[str, str]:
    interface = str(host.interface)
    return {"VLLM_HOST_IP": str(host.ip), "GLOO_SOCKET_IFNAME": interface, "HCCL_SOCKET_IFNAME": interface}


def _switches(spec: Spec) -> dict[str, str]:
    name = model_name(spec)
    low, high = spec["input_range"]
    env = {
        "VLLM_EP_SIZE": str(spec.tensors),
        "VLLM_ZERO_PADDING": flag_text(spec["zero_padding"] and low != high),
        "VLLM_PROMPT_USE_FUSEDSDPA": flag_text(spec["fused_sdpa"]),
    }
    if spec.tensors > 1:
        env["PT_HPU_ENABLE_LAZY_COLLECTIVES"] = "true"
    if spec.get("recipe_cache_path"):
        env["PT_HPU_RECIPE_CACHE_CONFIG"] = f"{spec['recipe_cache_path']},false,16384"
    if spec["skip_warmup"]:
        env["VLLM_SKIP_WARMUP"] = "True"
    if spec.get("reduce_warmup"):
        env["VLLM_SKIP_LAZY_WARMUP"] = "true"
    if any(part in name for part in FP32_SOFTMAX_OFF):
        env["VLLM_FP32_SOFTMAX"] = "false"
    return env


def _too_narrow(spec: Spec, dimension: str) -> tuple[str, str]:
    """Return the key of a model that leaves a dimension without buckets, and the allowed values."""
    low = spec["input_range"][0]
    if dimension != "PROMPT_BS":
        return "reduce_warmup", f"it must reach input_range, whose minimum is {low} tokens"
    # Name the key that the user wrote, because the other has its default.
    key, other = "max_num_batched_tokens", "input_range"
    if spec[key] == LAUNCH_DEFAULTS[key] and spec[other] != LAUNCH_DEFAULTS[other]:
        return other, f"its minimum must be within max_num_batched_tokens, {spec[key]} tokens"
    return key, f"it must be at least the minimum of input_range, {low} tokens"


def _cause(spec: Spec, dimension: str) -> str:
    """Return the key of a model that makes a dimension wide: the one furthest above its default."""
    if spec.get("reduce_warmup") and dimension != "PROMPT_BS":
        return "reduce_warmup"
    if dimension != "DECODE_BLOCK":
        return "input_range" if dimension == "PROMPT_SEQ" else "max_num_seqs"
    excess = {key: spec[key][1] / LAUNCH_DEFAULTS[key][1] for key in ("input_range", "output_range")}
    excess["max_num_seqs"] = spec["max_num_seqs"] / LAUNCH_DEFAULTS["max_num_seqs"]
    return max(excess, key=lambda key: float(excess[key]))


def launch_warnings(spec: Spec, ranges: BucketRanges) -> list[str]:
    """Return warnings about values that the vendor's script silently accepts."""
    warnings = []
    need = spec["input_range"][1] + spec["output_range"][1]
    if spec["max_model_len"] < need:
        warnings.append(
            f"max_model_len {spec['max_model_len']} is below {need}, the sum of the input and output maxima: "
            "the longest requests are refused"
        )
    prompt_max = ranges.prompt_seq[2]
    if prompt_max % BLOCK:
        warnings.append(
            f"reduce_warmup.max_seq_len {prompt_max} is not a multiple of {BLOCK}: lengths from "
            f"{prompt_max // BLOCK * BLOCK + 1} to {prompt_max} compile while serving"
        )
    return warnings


def _arguments(spec: Spec) -> list[str]:
    dtype = "float16" if spec["dtype"] == "float16" else "bfloat16"
    expert = [] if model_name(spec) == "llama-4-scout-17b-16e-instruct" else ["--enable-expert-parallel"]
    args: list[Any] = ["--host", spec["host"], "--port", spec["port"], "--device", "hpu", "--dtype", dtype]
    args += _quantization_args(spec)
    args += ["--model", spec["weights"], "--trust-remote-code", "--tensor-parallel-size", spec.tensors, *expert]
    args += ["--seed", 0, "--block-size", BLOCK, "--max-num-seqs", spec["max_num_seqs"]]
    args += ["--max-num-batched-tokens", spec["max_num_batched_tokens"]]
    args += ["--max-model-len", spec["max_model_len"], "--max-seq-len-to-capture", 8192]
    args += ["--disable-log-requests", "--use-v2-block-manager", "--use-padding-aware-scheduling"]
    args += ["--num-scheduler-steps", spec["num_scheduler_steps"]]
    args += ["--distributed_executor_backend", executor(spec), "--gpu-memory-utilization", "0.9"]
    return [str(argument) for argument in args]


def _quantization_args(spec: Spec) -> list[str]:
    if spec["dtype"] in ("awq", "gptq"):
        return ["--quantization", f"{spec['dtype']}_hpu"]
    if spec["dtype"] != "fp8":
        return []
    name = model_name(spec)
    qwen3 = name.startswith("qwen3") and name not in ("qwen3-32b", "qwen3-30b-a3b")
    cache = "auto" if name in KV_CACHE_AUTO or qwen3 else "fp8_inc"
    device = ["--weights-load-device", "cpu"] if name == "qwen3-235b-a22b" else []
    return ["--quantization", "inc", "--kv-cache-dtype", cache, *device]


def _quantization_env(spec: Spec) -> dict[str, str]:
    if spec["dtype"] != "fp8":
        return {}
    return {
        "QUANT_CONFIG": f"{CHECKOUT}/scripts/quantization/{model_name(spec)}/maxabs_quant_g2.json",
        "VLLM_DISABLE_MARK_SCALES_AS_CONST": "true",
    }


def amended(found: Launch, spec: Spec, host: Host) -> Launch:
    """Return the launch unchanged.

    Raises:
        InputError: The measurements are for the other generation of cards.
    """
    refuse_generation(spec, host, "dtype", found.env.get("QUANT_CONFIG", ""))
    return found


def _problems(spec: Spec) -> list[Problem]:
    low, length = spec["input_range"][0], spec["max_model_len"]
    if low < length:
        return []
    return [("input_range", spec["input_range"], f"must begin below max_model_len {length}, the limit of every prompt")]


def _late_problems(spec: Spec) -> list[Problem]:
    batched = spec.get("max_num_batched_tokens")
    if spec.get("enable_chunked_prefill") or not batched:
        return []
    key = "max_num_batched_tokens"
    if batched < spec["max_model_len"]:
        return [(key, batched, f"is below max_model_len {spec['max_model_len']}; vLLM would stop at start")]
    if batched < spec["max_num_seqs"]:
        return [(key, batched, f"is below max_num_seqs {spec['max_num_seqs']}; vLLM would stop at start")]
    return []


ENGINE = Engine(
    name="aice_1_21",
    platforms=("gaudi",),
    command=("python3", "-m", "vllm.entrypoints.openai.api_server"),
    loads={"gaudi": OF_FORK},
    defaults=LAUNCH_DEFAULTS,
    launch=launch,
    executors=("ray",),
    stages=True,
    amended=amended,
    reads=("ip", "interface"),
    reads_cards=True,
    problems=_problems,
    late_problems=_late_problems,
    ignored=("bucketing", *OF_AICE_1_22),
    progress=PROGRESS,
    journal=JOURNAL,
)
