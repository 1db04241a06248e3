"""Features of a model that a platform's devices cannot handle; each platform's file adds its data to the sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..core.errors import Problem, shown
from ..model.architecture import Architecture
from ..model.spec import Spec

FP8_CACHE = ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla")
MX = ("mxfp4", "mxfp8", "gpt_oss_mxfp4", "modelopt_mxfp8", "mxfp6")


def method_of(spec: Spec, model: Architecture) -> tuple[str, str, str]:
    """Return the method by which a model's weights are quantised, with key and text of its source; empty for none.

    The model's key quantization takes precedence over the config.json of its weights.
    """
    said = spec.get("quantization")
    if isinstance(said, str) and said:
        return said.lower(), "quantization", said
    method = model.quantisation.get("quant_method")
    if not isinstance(method, str) or not method:
        return "", "", ""
    return method.lower(), "weights", f"quantization_config.quant_method {shown(method)}"


def method_problems(spec: Spec, model: Architecture, works: Callable[[str], bool], allowed: str) -> list[Problem]:
    """Return why a model's quantised weights cannot be loaded.

    Args:
        spec: the model.
        model: its architecture.
        works: whether a method works, by its name.
        allowed: the end of the sentence: where it does not work and what works.
    """
    method, key, said = method_of(spec, model)
    if not method or works(method):
        return []
    if key == "quantization":
        return [(key, said, allowed)]
    return [(key, spec.get("weights"), f"{said} of its config.json: {allowed}")]


def cache_problems(spec: Spec, allowed: str) -> list[Problem]:
    """Return why a KV cache of FP8 is impossible; its key must have another value."""
    dtype = spec.get("kv_cache_dtype")
    return [("kv_cache_dtype", dtype, allowed)] if dtype in FP8_CACHE else []


def is_fp8(method: str, model: Architecture) -> bool:
    """Return whether weights are of FP8, by their method or by the settings of compressed-tensors."""
    return method in ("fp8", "fbgemm_fp8", "fp8_per_tensor", "fp8_per_block") or (
        method in ("compressed-tensors", "modelopt", "quark") and model.precision == "fp8"
    )


def is_bfloat16(spec: Spec, model: Architecture) -> bool:
    """Return whether a model would be served in bfloat16: by its dtype, or by default for such weights."""
    dtype = spec.get("dtype")
    return dtype == "bfloat16" or (dtype in (None, "auto") and model.dtype in ("bfloat16", "torch.bfloat16"))


def unknown_executor(spec: Spec, executors: Sequence[str], allowed: str) -> list[Problem]:
    """Return why an executor over several processes is impossible."""
    executor = spec.get("distributed_executor_backend")
    return [] if executor in (None, *executors) else [("distributed_executor_backend", executor, allowed)]
