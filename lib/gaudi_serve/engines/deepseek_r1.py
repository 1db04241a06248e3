"""Engine ``deepseek_r1``: DeepSeek-R1 on machines with eight cards, from the vendor's branch and scripts of that name.

The rules come from measurements of the script. The golden vectors in tests/unit/golden are authoritative.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..buckets.linear import BucketRanges
from ..core.errors import Problem, label, refusal, whole
from ..model.spec import size_key
from ..model.vllm_options import BLOCK
from ..platforms.gaudi import VISIBLE
from ..platforms.hl_smi import device_family, family_of
from .base import Engine, Host, Launch, Spec
from .linear import JOURNAL, OF_AICE_1_22, OF_BUCKETS, PROGRESS, refuse_buckets
from .quantisations import OF_FORK

CHECKOUT = "/opt/vllm-fork"
CARDS = 8
DEFAULTS: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 8688,
    "tensor_parallel_size": 8,
    "max_model_len": 16384,
    "max_num_seqs": 128,
    "max_num_prefill_seqs": 1,
    "recipe_cache_path": "/data/warmup_cache",
    "skip_warmup": False,
}
CONSTANTS = {
    VISIBLE: "ALL",
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
MEASUREMENTS = f"{CHECKOUT}/scripts/nc_workspace_measure_kvcache"
INC = {
    "INC_FORCE_NAIVE_SCALING": "1",
    "INC_MEASUREMENT_DUMP_PATH_PREFIX": CHECKOUT,
    "VLLM_ENABLE_RUNTIME_DEQUANT": "1",
    "VLLM_HPU_MARK_SCALES_AS_CONST": "false",
    "VLLM_REQUANT_FP8_INC": "1",
}
# Sequences per step of the decode batch, by device.
DECODE_STEP = {"HL-225": 8, "HL-288": 2}
LONGEST, SHORT_CONTEXT = 32768, 18432


def launch(spec: Spec, host: Host) -> Launch:
    """Return the launch of the vendor's script.

    Raises:
        InputError: The script cannot start with these values, or there are too many buckets.
    """
    length = int(spec["max_model_len"])
    if length > LONGEST:
        raise refusal(label(spec), "max_model_len", length, f"is above {LONGEST}, the most for one host")
    if length < BLOCK:
        raise refusal(label(spec), "max_model_len", length, f"is below {BLOCK}, the tokens of one block")
    whole(label(spec), "max_num_prefill_seqs", spec["max_num_prefill_seqs"], 1, 65536)
    if spec.get("quantization") not in (None, "inc"):
        raise refusal(label(spec), "quantization", spec["quantization"], "is not inc, the only one allowed here")
    if spec.members:
        return _over_hosts(spec, host)
    utilization = "0.85" if length <= SHORT_CONTEXT else "0.65"
    env, ranges = {**CONSTANTS, "VLLM_GPU_MEMORY_UTILIZATION": utilization}, _buckets(spec, host)
    refuse_buckets(spec, ranges, _too_narrow, _too_wide)
    env["PT_HPU_RECIPE_CACHE_CONFIG"] = f"{spec['recipe_cache_path']},false,16384"
    cache = _cache(spec)
    env.update(_quantization(spec, cache))
    if spec["skip_warmup"]:
        env["VLLM_SKIP_WARMUP"] = "True"
    args: list[Any] = ["--host", spec["host"], "--port", spec["port"], "--block-size", BLOCK]
    args += ["--model", spec["weights"], "--device", "hpu", "--dtype", "bfloat16", "--kv-cache-dtype", cache]
    args += ["--tensor-parallel-size", CARDS, "--max-num-prefill-seqs", spec["max_num_prefill_seqs"]]
    args += ["--trust-remote-code", "--max-model-len", length, "--max-num-seqs", spec["max_num_seqs"]]
    args += ["--max-num-batched-tokens", length, "--use-padding-aware-scheduling", "--use-v2-block-manager"]
    args += ["--distributed_executor_backend", "ray", "--gpu_memory_utilization", utilization]
    args += ["--disable-log-requests", "--enable-reasoning", "--reasoning-parser", "deepseek_r1"]
    return Launch(env, [str(argument) for argument in args], buckets=ranges, tokens=length)


def _over_hosts(spec: Spec, host: Host) -> Launch:
    """Return the launch of the scripts for several hosts: the variables of each host, and the head's server."""
    length, ranges, cache = int(spec["max_model_len"]), _buckets(spec, host), _cache(spec)
    refuse_buckets(spec, ranges, _too_narrow, _too_wide)
    env = {
        **CONSTANTS,
        **_quantization(spec, cache),
        "PT_HPU_RECIPE_CACHE_CONFIG": f"{spec['recipe_cache_path']},false,32768",
        "VLLM_EP_SIZE": str(spec.tensors),
        "VLLM_GPU_MEMORY_UTILIZATION": "0.9",
        "VLLM_GRAPH_RESERVED_MEM": "0.2",
    }
    env.update({"VLLM_SKIP_WARMUP": "True"} if spec["skip_warmup"] else {})
    args: list[Any] = ["--host", spec["host"], "--port", spec["port"], "--block-size", BLOCK]
    args += ["--model", spec["weights"], "--device", "hpu", "--dtype", "bfloat16", "--kv-cache-dtype", cache]
    args += ["--tensor-parallel-size", spec.tensors, "--distributed-executor-backend", "ray"]
    args += ["--max-num-seqs", spec["max_num_seqs"], "--max-num-batched-tokens", length, "--max-model-len", length]
    args += ["--num-scheduler-steps", 1, "--use-v2-block-manager", "--gpu-memory-utilization", "0.9"]
    args += ["--trust-remote-code", "--disable-log-requests", "--enable-reasoning", "--reasoning-parser", "deepseek_r1"]
    return Launch(env, [str(argument) for argument in args], buckets=ranges, tokens=length)


def _cache(spec: Spec) -> str:
    """Return the type of the KV cache: the user's, or that of the vendor's scripts."""
    return str(spec.get("kv_cache_dtype") or ("auto" if spec.members else "fp8_inc"))


def _quantization(spec: Spec, cache: str) -> dict[str, str]:
    """Return the variables of INC, whose configuration belongs to the type of the KV cache, or those without it."""
    if not spec.get("quantization"):
        return {"VLLM_MOE_N_SLICE": "8"}
    config = f"inc_quant_per_channel_{'with_fp8kv_config' if cache.startswith('fp8') else 'bf16kv'}"
    return {**INC, "QUANT_CONFIG": f"{CHECKOUT}/scripts/quant_configs/{config}.json", "VLLM_MOE_N_SLICE": "1"}


def amended(found: Launch, spec: Spec, _host: Host) -> Launch:
    """Return the launch with a warning if no mount has the measurements, which belong to a number of cards."""
    targets = [str(one["target"]).rstrip("/") for one in spec.get("mounts", [])]
    own = {"QUANT_CONFIG", "INC_MEASUREMENT_DUMP_PATH_PREFIX"} & {*(spec.get("env") or {})}
    if not spec.get("quantization") or own or any(f"{MEASUREMENTS}/".startswith(f"{one}/") for one in targets):
        return found
    text = f"{MEASUREMENTS}: INC's measurements for {spec.tensors} cards must be in the image: no mount provides them"
    return replace(found, warnings=[*found.warnings, text])


def _buckets(spec: Spec, host: Host) -> BucketRanges:
    device, batch, length = str(host.device_name), int(spec["max_num_seqs"]), int(spec["max_model_len"])
    family = family_of(host.device_name, host.device_family) or device_family(device)
    if family not in DECODE_STEP:
        known = ", ".join(f"{name}*" for name in DECODE_STEP)
        raise refusal(label(spec), "launch_profile", "deepseek_r1", f"is made for {known}, and this host has {device}")
    return BucketRanges(
        prompt_bs=(1, 1, int(spec["max_num_prefill_seqs"])),
        prompt_seq=(BLOCK, BLOCK, length),
        decode_bs=(1, min(batch, DECODE_STEP[family]), batch),
        decode_block=(BLOCK, BLOCK, max(BLOCK, batch * length // BLOCK)),
        # The fourth value of every dimension on this branch.
        padding_limit=0.25,
    )


def _too_narrow(spec: Spec, dimension: str) -> tuple[str, str]:
    return "max_model_len", f"{dimension} begins at {BLOCK} tokens"


def _too_wide(_: Spec, dimension: str) -> str:
    """Return the key of a model that makes a dimension wide."""
    return {"PROMPT_BS": "max_num_prefill_seqs", "PROMPT_SEQ": "max_model_len"}.get(dimension, "max_num_seqs")


def _problems(spec: Spec) -> list[Problem]:
    hosts = len(spec.members.names) if spec.members else 1
    if spec.tensors == CARDS * hosts:
        return []
    made = "the cards of profile deepseek_r1" if hosts == 1 else f"the cards of {hosts} hosts"
    return [(*size_key(spec), f"must be {CARDS * hosts}, {made}")]


ENGINE = Engine(
    name="deepseek_r1",
    platforms=("gaudi",),
    command=("python3", "-m", "vllm.entrypoints.openai.api_server"),
    loads={"gaudi": OF_FORK},
    defaults=DEFAULTS,
    launch=launch,
    reads=("device_name",),
    problems=_problems,
    consumed=frozenset({"quantization", "max_num_prefill_seqs"}),
    ignored=("dtype", "max_num_batched_tokens", "bucketing", *OF_AICE_1_22, *OF_BUCKETS),
    capabilities=("SYS_NICE", "SYS_PTRACE", "IPC_LOCK"),
    ulimits=("memlock=-1:-1",),
    no_adapters="is not possible here: the vendor's fork loads no LoRA adapters for DeepSeek's models",
    precision="fp8",
    executors=("ray",),
    amended=amended,
    # Its measured warm-ups, one hour and 15 minutes with a cache, are for buckets without a cap.
    capped=False,
    progress=PROGRESS,
    journal=JOURNAL,
)
