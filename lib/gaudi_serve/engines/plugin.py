"""Engine ``plugin``: vLLM with the vendor's plugin vllm-gaudi, the current way of serving on Gaudi2 and Gaudi3.

It starts ``vllm serve``. The plugin reports no device memory, so vLLM would use its defaults for small devices. The
launch sets these values explicitly. Without them, a plain start of a small model requests ten times the available
KV cache blocks, and fails in the warm-up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from ..buckets.plugin_input import DIMENSIONS, PARTS, TRUE, PluginInput, PluginRange, PluginRanges, PluginSettings
from ..buckets.plugin_plan import PluginBucketing
from ..buckets.plugin_rules import PluginRules, rules_of
from ..buckets.warmup import SKIPPED, plugin_warmup_seconds
from ..core.errors import Problem
from ..core.versions import comparable
from ..model.architecture import Architecture
from ..model.draft import MOST_GUESSED, Speculation
from ..model.vllm_options import BLOCK, FORK_ONLY
from ..model.weights import architecture_of
from ..platforms import platform_of
from ..platforms.releases import RELEASES, vllm_of
from .base import FINISHED, LOADING, UNWARMED, Dequantised, Engine, Host, Launch, LogPatterns, Spec, option_arguments
from .inc import refuse_generation
from .linear import OF_AICE_1_22, OF_BUCKETS
from .plugin_env import start_problems
from .quantisations import OF_PLUGIN

DEFAULTS: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 8000,
    "dtype": "bfloat16",
    "tensor_parallel_size": 1,
    "max_model_len": 16384,
    "max_num_seqs": 128,
    "max_num_batched_tokens": 8192,
    "gpu_memory_utilization": 0.9,
    # Without prefix caching, the buckets end at the device's blocks. With it, decode steps may count shared blocks
    # twice.
    "enable_prefix_caching": False,
    "skip_warmup": False,
}
CONSTANTS = {
    # The plugin's images have the upstream PyTorch, which has no lazy mode.
    "PT_HPU_LAZY_MODE": "0",
    "PT_HPU_WEIGHT_SHARING": "0",
    "VLLM_GRAPH_RESERVED_MEM": "0.1",
    # Without these, a warm-up of an hour prints nothing until it ends: it draws one progress bar per phase, which
    # Docker outputs only at the end, and the developer lines wait in Python's buffer.
    "VLLM_DEVELOPER_MODE": "true",
    "PYTHONUNBUFFERED": "1",
    # Next to the lines, the bars are useless, and each of their states would be a line in the journal.
    "TQDM_DISABLE": "1",
}
PROGRESS = (
    (r"\[Warmup\]\[(?:\w+/)?(Prompt|Decode)\]\[(\d+)/(\d+)\]", r"warming up: \1 graph \2 of \3"),
    (r"(Prompt|Decode) warmup processing:.*\| (\d+)/(\d+) \[", r"warming up: \1 graph \2 of \3"),
    LOADING,
)
JOURNAL = LogPatterns(
    graph=(
        r"(?i)\[Warmup\]\[(?:\w+/)?(?P<phase>Prompt|Decode)\]\[(?P<done>\d+)/(?P<total>\d+)\]",
        r"(?P<phase>Prompt|Decode) warmup processing:.*\| (?P<done>\d+)/(?P<total>\d+) \[",
    ),
    phases=("prompt", "decode"),
    finished=(FINISHED,),
    # This is the number of usable blocks. Upstream's line counts the blocks planned before.
    cache=(r"Usable num_blocks: (?P<blocks>\d+)",),
    unwarmed=(UNWARMED,),
)
# Methods of speculative decoding at which its server stops (Medusa, and all that are neither n-grams nor like Eagle).
NOT_GUESSED_BY = ("draft_model", "medusa", "mlp_speculator", "suffix")
# From this vLLM on, the plugin never puts several prompts of a hybrid into one step (vllm-gaudi#1725), and reads
# sliding windows correctly with contiguous PA (#1715).
SEPARATES_PROMPTS = READS_WINDOWS = "0.27.0"
NEWEST_VLLM = str(max(row.newest for row in RELEASES if row.vllm))
FP8_CACHE = "fp8_inc"  # The only FP8 cache of vLLM that the plugin supports.
# The order is that of vLLM's own pages.
SAID = ("dtype", "tensor_parallel_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens")


def launch(spec: Spec, host: Host) -> Launch:
    """Return ``vllm serve`` with explicit values for everything that affects buckets and memory.

    Raises:
        InputError: The vendor's server would not start, or would silently do something else.
    """
    refuse_generation(spec, host, "env: QUANT_CONFIG", str((spec.get("env") or {}).get("QUANT_CONFIG", "")))
    buckets = bucketing(spec, host)
    env = dict(CONSTANTS)
    if spec.get("recipe_cache_path"):
        env["PT_HPU_RECIPE_CACHE_CONFIG"] = f"{spec['recipe_cache_path']},false,40960"
    if spec["skip_warmup"]:
        env["VLLM_SKIP_WARMUP"] = "true"
    args = [spec.weights, "--host", str(spec["host"]), "--port", str(spec.port), "--block-size", str(BLOCK)]
    for key in (*SAID, "gpu_memory_utilization", "enable_prefix_caching"):
        args += option_arguments(key, spec[key])
    if spec.tensors > 1 and spec.get("distributed_executor_backend") is None:
        args += ["--distributed-executor-backend", "mp"]
    given = buckets.given
    path, tokens = given.settings.from_file or None, given.max_num_batched_tokens
    return Launch(env, args, None, _warnings(spec, host), buckets, given.file, path, tokens)


def bucketing(spec: Spec, host: Host) -> PluginBucketing:
    """Return the server's buckets, from the model's ``bucketing`` and its options."""
    said: Mapping[str, Any] = spec.get("bucketing") or {}
    text = said.get("file")
    ranges = PluginRanges(
        **{name: PluginRange(**said[name]) for name in map(str.lower, DIMENSIONS) if said.get(name) is not None}
    )
    settings = PluginSettings(
        strategy="file" if text is not None else said.get("strategy", "exp"),
        ranges=ranges,
        from_file="" if text is None else bucket_path(spec, text),
        use_contiguous_pa=not spec["enable_prefix_caching"],
    )
    caching, chunked = bool(spec["enable_prefix_caching"]), spec.get("enable_chunked_prefill") is not False
    model = architecture_of(spec, host)
    chunk, hybrid, version = model.mamba_chunk, model.stateful_layers > 0, version_of(spec)
    return PluginBucketing(
        PluginInput(
            max_num_seqs=int(spec["max_num_seqs"]),
            max_num_prefill_seqs=settings.prefill_seqs(int(spec["max_num_seqs"])),
            block_size=model.granite_block(spec.tensors, caching=caching) or BLOCK,
            max_num_batched_tokens=int(spec["max_num_batched_tokens"]),
            max_model_len=int(spec["max_model_len"]),
            num_hpu_blocks=1,
            settings=settings,
            num_speculative_tokens=max(0, Speculation.of(spec).tokens),
            # A hybrid without a chunk size reads its prompts in chunks of one block.
            mamba_chunk_size=chunk or (BLOCK if hybrid else 0),
            mamba_chunk_size_is_explicit=bool(chunk),
            skip_decode_block_clamp=hybrid or model.interleaved,
            file=text,
            vllm_version=version,
            prefix_caching=caching,
        ),
        prefix_caching=caching,
        chunked_prefill=chunked,
        warms=not spec.get("enforce_eager"),
        one_prompt=_one_prompt(model, version, caching) if hybrid else "",
    )


def _one_prompt(model: Architecture, version: str, caching: bool) -> str:
    """Return why a hybrid must read its prompts one by one; empty if it need not."""
    if not comparable("0.14.1") <= comparable(version) < comparable(SEPARATES_PROMPTS):
        return ""
    if model.is_granite_hybrid:
        return f"vLLM {version} stops with granitemoehybrid"
    shared = caching and comparable(version) >= comparable("0.17.1")
    return f"vLLM {version} stops with a hybrid model and prefix caching" if shared else ""


def version_of(spec: Spec) -> str:
    """Return the version of vLLM for a model's launch: the newest of all releases if nothing sets it."""
    return str(spec.get("vllm_version") or vllm_of(str(spec.get("image"))) or NEWEST_VLLM)


def bucket_path(spec: Spec, text: str) -> str:
    """Return the server's path of its bucket file. The name contains a digest, so that a new file restarts it."""
    return f"/etc/gaudi-serve/{spec.get('name', 'model')}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.buckets"


def _warnings(spec: Spec, host: Host) -> list[str]:
    found = []
    model = architecture_of(spec, host)
    method = model.quantisation.get("quant_method")
    gaudi2 = host.device_name is not None and platform_of(host.accelerator).generation(host) == "GAUDI2"
    if method == "fp8" and gaudi2:
        found.append("FP8 weights need no conversion: the plugin changes their scales while it loads them on Gaudi2")
    said = spec.get("bucketing") or {}
    if unread := _unread(said, rules_of(version_of(spec))):
        found.append(f"bucketing.strategy {said.get('strategy', 'exp')} ignores {', '.join(unread)}")
    found += _contradictions(spec, said)
    if model.known and method is None:
        found += _half_quantised(spec)
    if spec["skip_warmup"]:
        found.append(SKIPPED)
    if model.interleaved and not spec["enable_prefix_caching"] and _blind(spec):
        slow = "reads the blocks of sliding windows wrongly with contiguous PA: 7 to 18 % slower, and graphs recompile"
        found.append(f"vLLM {version_of(spec)} {slow}; set enable_prefix_caching: true to avoid it")
    return found


def _blind(spec: Spec) -> bool:
    return comparable(version_of(spec)) < comparable(READS_WINDOWS)


def _half_quantised(spec: Spec) -> list[str]:
    """Return warnings about unquantised weights for which INC is only half configured."""
    inc, measured = spec.get("quantization") == "inc", "QUANT_CONFIG" in (spec.get("env") or {})
    if measured and not inc:
        return [
            "env: QUANT_CONFIG makes INC convert the weights, but the plan counts bfloat16: set quantization: inc too"
        ]
    if spec.get("kv_cache_dtype") == FP8_CACHE and not measured:
        scale = "stores keys and values in FP8 unchanged, with a scale of 1"
        return [
            f"kv_cache_dtype {FP8_CACHE} without QUANT_CONFIG {scale}: add quantization: inc and QUANT_CONFIG in env"
        ]
    return []


def _contradictions(spec: Spec, said: Mapping[str, Any]) -> list[str]:
    """Return warnings about variables in ``env`` that contradict the model's own keys."""
    wanted: dict[str, tuple[str, Any]] = {
        f"VLLM_{name}_BUCKET_{part}": (f"bucketing.{name.lower()}.{part.lower()}", value)
        for name in DIMENSIONS
        for part in PARTS
        if (value := (said.get(name.lower()) or {}).get(part.lower())) is not None
    }
    if said.get("strategy") is not None:
        wanted["VLLM_BUCKETING_STRATEGY"] = ("bucketing.strategy", said["strategy"])
    env = spec.get("env") or {}
    found = [
        _counts(name, env[name], f"{key} {value}", key)
        for name, (key, value) in wanted.items()
        if name in env and str(env[name]) != str(value)
    ]
    caching = env.get("VLLM_PREFIX_CACHING")
    if caching is not None and (str(caching).lower() in TRUE) != bool(spec["enable_prefix_caching"]):
        key = "enable_prefix_caching"
        found.append(_counts("VLLM_PREFIX_CACHING", caching, f"{key} {str(bool(spec[key])).lower()}", key))
    return found


def _counts(name: str, value: Any, other: str, key: str) -> str:
    """Return the warning that a variable contradicts a key, with the remedy."""
    return f"env: {name} {value} contradicts {other}; set only {key}, and remove {name} from env"


def _unread(said: Mapping[str, Any], rules: PluginRules) -> list[str]:
    """Return the parts of a model's ``bucketing`` that its strategy, or its vLLM, ignores."""
    strategy = said.get("strategy", "exp")
    if strategy in ("lin", "pad"):
        of_pad = () if strategy == "pad" else ("pad_max", "pad_percent")
        read = {(name.lower(), part) for name in DIMENSIONS for part in map(str.lower, PARTS) if part not in of_pad}
    else:
        read = {("prompt_bs", "max")}
        if strategy == "exp":
            least = (said.get("prompt_query") or {}).get("min") if rules.one_beside else None
            bound = [("prompt_ctx", "max")] if rules.bounded_edge else []
            read |= {*bound, *([("prompt_query", "min")] if least == 1 else [])}
    if rules.first_form:
        read = {(name, part) for name, part in read if name.upper() in rules.dimensions and strategy == "lin"}
    return [
        f"{name}.{part}"
        for name in map(str.lower, DIMENSIONS)
        for part, value in (said.get(name) or {}).items()
        if value is not None and (name, part) not in read
    ]


def _of_fork(spec: Spec) -> list[Problem]:
    """Return the problems with options that only the fork has. vLLM with the plugin would stop at them."""
    instead = {
        "max_num_prefill_seqs": "set bucketing: {prompt_bs: {max: NUMBER}}",
        "task": "a model without text needs runner: pooling, and convert: embed or classify if it is made for text",
    }
    return [
        (key, spec[key], f"is an option of the fork only: the server stops at it; {instead.get(key, 'leave it out')}")
        for key in sorted(FORK_ONLY & spec.keys())
        if spec[key] is not None
    ]


def _problems(spec: Spec) -> list[Problem]:
    problems: list[Problem] = _of_fork(spec) + start_problems(spec.get("env") or {}, version_of(spec))
    if spec.get("distributed_executor_backend") == "ray" and not spec.members:
        allowed = "is not validated with the plugin: leave it out, which means mp for several cards"
        problems.append(("distributed_executor_backend", "ray", allowed))
    if spec["dtype"] not in ("auto", "bfloat16"):
        remedies = {
            **dict.fromkeys(("float16", "float32"), "the plugin would silently serve in bfloat16; set bfloat16"),
            "fp8": "FP8 weights are served unchanged with bfloat16; for others use quantization: inc and QUANT_CONFIG",
        }
        of_weights = "the weights themselves determine their quantisation; set bfloat16"
        problems.append(("dtype", spec["dtype"], remedies.get(str(spec["dtype"]), of_weights)))
    guesses = Speculation.of(spec)
    if guesses.tokens < 0:
        allowed = f"must set num_speculative_tokens, an integer from 1 to {MOST_GUESSED}: buckets depend on it"
        problems.append(("speculative_config", spec["speculative_config"], allowed))
    if guesses.method in NOT_GUESSED_BY:
        allowed = f"has method {guesses.method}, at which the plugin stops; allowed are ngram, eagle, eagle3 and mtp"
        problems.append(("speculative_config", spec["speculative_config"], allowed))
    tokens, length, count = spec["max_num_batched_tokens"], spec["max_model_len"], spec["max_num_seqs"]
    if tokens < count:
        problems.append(("max_num_batched_tokens", tokens, f"is below max_num_seqs {count}; vLLM would stop at start"))
    if spec.get("enable_chunked_prefill") is False and tokens < length:
        allowed = f"is below max_model_len {length}, and chunked prefill is off; vLLM would stop at start"
        problems.append(("max_num_batched_tokens", tokens, allowed))
    contiguous = (spec.get("env") or {}).get("VLLM_CONTIGUOUS_PA")
    if spec["enable_prefix_caching"] and str(contiguous).lower() in TRUE:
        allowed = "silently turns enable_prefix_caching off; set enable_prefix_caching: false, which does both"
        problems.append(("env: VLLM_CONTIGUOUS_PA", contiguous, allowed))
    if spec.get("quantization") == "inc" and not (spec.get("env") or {}).get("QUANT_CONFIG"):
        allowed = "needs QUANT_CONFIG in env: the file that names INC's measurements"
        problems.append(("quantization", "inc", allowed))
    cache = str(spec.get("kv_cache_dtype"))
    if cache.startswith("fp8") and cache != FP8_CACHE:
        problems.append(("kv_cache_dtype", cache, f"is not a cache of the plugin: the server stops; set {FP8_CACHE}"))
    source = spec.get("source")
    if isinstance(source, Mapping) and source.get("convert"):
        allowed = "must have no convert: the plugin serves the original weights on Gaudi2 and on Gaudi3"
        problems.append(("source", None, allowed))
    return problems


ENGINE = Engine(
    name="plugin",
    platforms=("gaudi",),
    command=("vllm", "serve"),
    loads={"gaudi": OF_PLUGIN},
    defaults=DEFAULTS,
    launch=launch,
    executors=("ray", "mp"),
    over_hosts="the vendor has planned them, but not validated them",
    problems=_problems,
    consumed=frozenset({"block_size", "gpu_memory_utilization", "enable_prefix_caching"}),
    ignored=(*OF_AICE_1_22, *OF_BUCKETS),
    dequantised_at_load={name: Dequantised("HPU_MXFP4_NATIVE", "0.24.0") for name in ("mxfp4", "gpt_oss_mxfp4")},
    expert_parallel=False,
    copies_heads=True,
    warmup=plugin_warmup_seconds,
    progress=PROGRESS,
    journal=JOURNAL,
)
