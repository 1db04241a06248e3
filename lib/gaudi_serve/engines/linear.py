"""Common parts of the engines with linear buckets."""

from __future__ import annotations

from collections.abc import Callable

from ..buckets.linear import DIMENSIONS, BucketRanges, bucket_rows, refuse_wide
from ..core.errors import InputError, label, refusal
from .base import FINISHED, LOADING, UNWARMED, LogPatterns, Spec

# Model keys from which bucket ranges are made. Other engines ignore them.
OF_BUCKETS = ("input_range", "output_range", "reduce_warmup", "zero_padding", "fused_sdpa", "num_scheduler_steps")

# Model keys that only the script of release 1.22 uses.
OF_AICE_1_22 = ("max_padding_ratio", "quant_config", "extra_args", "profile")
# Lines of the fork's log during the two passes of its warm-up.
PROGRESS = ((r"\[Warmup\]\[(?:Graph/)?(Prompt|Decode)\]\[(\d+)/(\d+)\]", r"warming up: \1 graph \2 of \3"), LOADING)
JOURNAL = LogPatterns(
    graph=(r"\[Warmup\]\[(?P<phase>(?:Graph/)?(?:Prompt|Decode))\]\[(?P<done>\d+)/(?P<total>\d+)\]",),
    phases=("prompt", "decode", "graph/prompt", "graph/decode"),
    finished=(FINISHED,),
    cache=(r"# \w+ blocks: (?P<blocks>\d+), # CPU blocks",),
    unwarmed=(UNWARMED,),
)


def refuse_buckets(
    spec: Spec,
    ranges: BucketRanges,
    too_narrow: Callable[[Spec, str], tuple[str, str]],
    too_wide: Callable[[Spec, str], str],
) -> None:
    """Refuse ranges without a bucket, and ranges with too many. The message names the key to change.

    Args:
        spec: The complete model.
        ranges: The ranges of the launch.
        too_narrow: Returns the key that leaves a dimension without buckets, and its allowed values.
        too_wide: Returns the key that makes a dimension wide.
    """
    for dimension in DIMENSIONS:
        low, _, high = ranges.of(dimension)
        if low > high:
            key, wanted = too_narrow(spec, dimension)
            empty = f"empties VLLM_{dimension}_BUCKET: minimum {low} is above maximum {high}; vLLM would stop at start"
            raise refusal(label(spec), key, spec[key], f"{empty}; {wanted}")
    tokens = int(spec.get("max_num_batched_tokens", spec["max_model_len"]))
    try:
        refuse_wide({dimension: ranges.of(dimension) for dimension in DIMENSIONS})
        # The number of decode buckets depends on the device's blocks, which a launch does not know.
        bucket_rows(ranges, tokens, 1)
    except InputError as problem:
        variable = problem.finding[0] if problem.finding else ""
        key = too_wide(spec, variable.removeprefix("VLLM_").partition("_BUCKET")[0])
        reason = str(problem).partition("; ")[0]
        raise refusal(label(spec), key, spec[key], f"makes too many buckets; lower it: {reason}") from None
