"""Engine ``aice_1_22``: the vendor's fork, branch aice/v1.22.0, as its launch script starts it.

The rules come from measurements of the script. The golden vectors in tests/unit/golden are authoritative. The plan adds
what the script forgets. It refuses what the script silently drops, or what makes vLLM fail later.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ..buckets.base import up
from ..buckets.linear import BucketRanges
from ..buckets.warmup import SKIPPED
from ..core.errors import Problem, is_number, label, refusal, whole
from ..model.vllm_options import BLOCK, OPTION_NAMES
from .aice import cards_of, executor, model_name, node_warnings
from .base import Engine, Host, Launch, Spec
from .inc import refuse_generation
from .linear import JOURNAL, OF_BUCKETS, PROGRESS, refuse_buckets
from .quantisations import OF_FORK

CHECKOUT = "/opt/vllm-fork"
FP32_SOFTMAX = ("deepseek-r1-distill-qwen-7b", "qwen2-7b-instruct", "qwen2.5-7b-instruct")
CONSTANTS = {
    "PT_HPU_LAZY_MODE": "1",
    "PT_HPU_SDPA_QKV_SLICE_MODE_FWD": "0",
    "TOKENIZERS_PARALLELISM": "true",
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
    "VLLM_DELAYED_SAMPLING": "true",
    "VLLM_EXPONENTIAL_BUCKETING": "false",
    "VLLM_GRAPH_RESERVED_MEM": "0.1",
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ZERO_PADDING": "true",
}
DEFAULTS: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 30001,
    "dtype": "bfloat16",
    "tensor_parallel_size": 1,
    "max_model_len": 16384,
    "max_num_seqs": 128,
    "max_num_prefill_seqs": 1,
    "max_seq_len_to_capture": 8192,
    "gpu_memory_utilization": 0.9,
    "max_padding_ratio": 0.25,
    "skip_warmup": False,
    "profile": False,
}
LEAST_TOKENS, MOST_PADDING = 2048, 0.5
DTYPES = ("bfloat16", "float16", "fp8", "awq", "gptq")
EVERY_ADDRESS = "0.0.0.0"  # noqa: S104
# Model keys that the toolkit uses in calculations. The script's further arguments must not set them.
COUNTED = (
    *("host", "port", "tensor_parallel_size", "max_model_len", "max_num_seqs", "max_num_prefill_seqs"),
    *("gpu_memory_utilization", "max_seq_len_to_capture", "dtype", "served_model_name"),
)
# Options that the script sets itself. No model key sets them.
FIXED = ("model", "block_size", "max_num_batched_tokens")


def launch(spec: Spec, host: Host) -> Launch:
    """Return the launch of the vendor's script.

    Raises:
        InputError: The script refuses a value, vLLM refuses the number of prompts, or there are too many buckets.
    """
    ratio, prefills = spec["max_padding_ratio"], spec["max_num_prefill_seqs"]
    if spec["dtype"] not in DTYPES:
        raise refusal(label(spec), "dtype", spec["dtype"], f"is not one of {', '.join(DTYPES)}")
    if not is_number(ratio, 0, MOST_PADDING):
        raise refusal(label(spec), "max_padding_ratio", ratio, f"is not a number from 0 to {MOST_PADDING}")
    whole(label(spec), "max_num_prefill_seqs", prefills, 1, 65536)
    numactl, cards = cards_of(spec, host)
    length, batch = up(int(spec["max_model_len"]), BLOCK), up(int(spec["max_num_seqs"]), 2)
    ranges = BucketRanges(
        prompt_bs=(1, 1, int(prefills)),
        prompt_seq=(BLOCK, BLOCK, length),
        decode_bs=(1, 2, batch),
        decode_block=(BLOCK, BLOCK, up(length // BLOCK * batch, BLOCK)),
        padding_limit=ratio,
    )
    tokens = max(length, LEAST_TOKENS)
    refuse_buckets(spec.but(max_num_batched_tokens=tokens), ranges, _too_narrow, _too_wide)
    env = {**CONSTANTS, **_network(spec, host), **_switches(spec, host), **cards}
    warnings = node_warnings(spec, host)
    if spec["skip_warmup"]:
        warnings.append(SKIPPED)
    return Launch(env, _arguments(spec, length, tokens), numactl, warnings, ranges, tokens=tokens)


def _network(spec: Spec, host: Host) -> dict[str, str]:
    address = str(spec["host"])
    # If the server listens on every address, the script finds no interface and leaves both variables empty.
    interface = "" if address == EVERY_ADDRESS else str(host.interface)
    return {"VLLM_HOST_IP": address, "GLOO_SOCKET_IFNAME": interface, "HCCL_SOCKET_IFNAME": interface}


def precision(spec: Spec) -> str:
    """Return the precision that the script uses. A file of measurements makes it FP8."""
    return "fp8" if spec.get("quant_config") else str(spec["dtype"])


def _switches(spec: Spec, host: Host) -> dict[str, str]:
    name, dtype = model_name(spec), precision(spec)
    env = {}
    if spec.tensors > 1:
        env["PT_HPU_ENABLE_LAZY_COLLECTIVES"] = "true"
    if dtype == "fp8":
        own = f"{CHECKOUT}/scripts/quantization/{name}/maxabs_quant_g2.json"
        env |= {"QUANT_CONFIG": str(spec.get("quant_config") or own), "PT_HPU_WEIGHT_SHARING": "0"}
    if any(part in name for part in FP32_SOFTMAX):
        env["VLLM_FP32_SOFTMAX"] = "true"
    if spec.get("recipe_cache_path"):
        env["PT_HPU_RECIPE_CACHE_CONFIG"] = f"{spec['recipe_cache_path']},false,40960"
    if spec["skip_warmup"]:
        env["VLLM_SKIP_WARMUP"] = "true"
    if spec["profile"]:
        model = spec.weights.rstrip("/").rpartition("/")[2]
        sizes = f"len{spec['max_model_len']}_bs{spec['max_num_seqs']}_tp{spec.tensors}"
        env["VLLM_PROFILER_ENABLED"] = "true"
        env["VLLM_PROFILE_FILE"] = f"serve_{model}_{dtype}_{host.device_name}_{sizes}_DATE_profile.json"
    return env


def _arguments(spec: Spec, length: int, tokens: int) -> list[str]:
    args: list[Any] = ["--block-size", BLOCK, "--host", spec["host"], "--port", spec.port, "--model", spec.weights]
    args += ["--dtype", "bfloat16", "--max-num-seqs", spec["max_num_seqs"]]
    args += ["--max-num-prefill-seqs", spec["max_num_prefill_seqs"], "--max-num-batched-tokens", tokens]
    args += ["--max-seq-len-to-capture", spec["max_seq_len_to_capture"]]
    args += ["--gpu-memory-utilization", spec["gpu_memory_utilization"], "--max-model-len", length]
    args += ["--tensor-parallel-size", spec.tensors, "--trust-remote-code", "--seed", 2025]
    args += ["--distributed_executor_backend", executor(spec), *spec.get("extra_args", [])]
    if precision(spec) in ("awq", "gptq"):
        args += ["--quantization", f"{precision(spec)}_hpu"]
    args += [] if spec["profile"] else ["--disable-log-requests"]
    args += [] if "llama-4-scout-17b-16e-instruct" in model_name(spec) else ["--enable-expert-parallel"]
    return [str(argument) for argument in args]


def _too_narrow(_: Spec, dimension: str) -> tuple[str, str]:
    return "max_model_len", f"{dimension} begins at {BLOCK} tokens"


def _too_wide(_: Spec, dimension: str) -> str:
    """Return the key of a model that makes a dimension wide."""
    return {"PROMPT_BS": "max_num_prefill_seqs", "PROMPT_SEQ": "max_model_len"}.get(dimension, "max_num_seqs")


def amended(found: Launch, spec: Spec, host: Host) -> Launch:
    """Return the launch with the parts that the script forgets.

    Raises:
        InputError: The measurements are for the other generation of cards.
    """
    config = found.env.get("QUANT_CONFIG", "")
    refuse_generation(spec, host, "quant_config" if spec.get("quant_config") else "dtype", config)
    warnings = list(found.warnings)
    brought = [mount["target"].rstrip("/") + "/" for mount in spec.get("mounts", [])]
    if config and not config.startswith((*brought, f"{CHECKOUT}/")):
        warnings.append(f"{config} must be in the image: no mount provides it, and vLLM ends without it")
    env = found.env
    if spec["host"] == EVERY_ADDRESS:
        env = {**env, "GLOO_SOCKET_IFNAME": str(host.interface), "HCCL_SOCKET_IFNAME": str(host.interface)}
    return replace(found, env=env, warnings=warnings)


def _problems(spec: Spec) -> list[Problem]:
    problems: list[Problem] = []
    if spec["dtype"] == "float16":
        problems.append(("dtype", "float16", "the script silently serves it in bfloat16; set bfloat16"))
    if spec.get("quant_config") and spec["dtype"] in ("awq", "gptq"):
        allowed = "makes the script serve in fp8 and ignore this model's own quantization; leave one of the two out"
        problems.append(("quant_config", spec["quant_config"], allowed))
    for argument in spec.get("extra_args", []):
        name = argument.removeprefix("--").partition("=")[0].replace("-", "_")
        if argument.startswith("--") and name in FIXED:
            problems.append(("extra_args", argument, "is set by the script itself, and the plan relies on that"))
        elif argument.startswith("--") and name in COUNTED:
            problems.append(("extra_args", argument, f"belongs in the model's key {name}, which the plan uses"))
        elif re.match(r"-[A-Za-z]", argument):
            problems.append(("extra_args", argument, "is the short form of an option; write the long one"))
        elif re.search(r"[\s\"'{}]", argument):
            option = "its own name, such as override_generation_config: {temperature: 0.5}"
            problems.append(("extra_args", argument, f"loses its quotes in the script; set the option by {option}"))
        elif argument.startswith("--") and name not in OPTION_NAMES:
            problems.append(("extra_args", argument, "is not an option of vLLM"))
    first = {key: (key, value, allowed) for key, value, allowed in reversed(problems)}
    return list(first.values())


ENGINE = Engine(
    name="aice_1_22",
    platforms=("gaudi",),
    command=("python3", "-m", "vllm.entrypoints.openai.api_server"),
    loads={"gaudi": OF_FORK},
    defaults=DEFAULTS,
    launch=launch,
    executors=("ray",),
    stages=True,
    amended=amended,
    reads=("ip", "interface"),
    reads_cards=True,
    problems=_problems,
    consumed=frozenset({"block_size", "gpu_memory_utilization", "max_num_prefill_seqs", "max_seq_len_to_capture"}),
    ignored=("max_num_batched_tokens", "bucketing", *OF_BUCKETS),
    progress=PROGRESS,
    journal=JOURNAL,
)
