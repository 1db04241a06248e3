"""The constants of the memory plan for CUDA and ROCm, with the first vLLM release of each.

The rules are from vLLM's source (0.32.0). Numbers that only a start shows are fitted to reported starts in
tests/unit/data/kv_reports.yml: one number for all reports, never one for a single case.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

GIB = 2**30
NEWEST = "0.33.0"  # Used if an image's name has no version.

# CUDA reports less memory than nvidia-smi: it subtracts a fixed part, and a share of the card.
CUDA_KEEPS_GIB, CUDA_KEEPS_SHARE = 0.42, 0.0016

# Cards that use the host's memory, by name or capability. vLLM's defaults count them as small.
UNIFIED, UNIFIED_GFX = "GB10", "gfx115"
# A server starts only if its whole share of a card is free. GiB that its own processes have by then: a context on the
# card, and on those cards also the memory of its programs.
CONTEXT_GIB, UNIFIED_PROCESS_GIB = 0.4, 4.0
# On NVIDIA's cards of this kind, vLLM measures the memory that the host has available: its programs count as libraries.
UNIFIED_HOST_GIB, UNIFIED_HOST_SINCE = 3.0, "0.12"

# The defaults of gpu_memory_utilization.
UTILIZATION, UTILIZATION_BEFORE, UTILIZATION_SINCE = 0.92, 0.9, "0.20"
MOST_UTILIZATION = 0.95  # The largest suggested value.

BLOCK = 16  # The default tokens of a KV cache block.
# Bytes of a number in the cache, by the start of kv_cache_dtype. int8 and fp8 count as one, without their scales.
CACHE_BYTES = (
    *(("fp8", 1.0), ("int8", 1.0), ("int4", 0.5), ("nvfp4", 0.5625), ("turboquant_k8v4", 0.75)),
    *(("turboquant", 0.5), ("ultraquant", 0.53), ("bfloat16", 2.0), ("float16", 2.0), ("float32", 4.0)),
)
SPARSE_LATENT_BYTES = 656  # Per token in an FP8 cache of sparse MLA, with scales.
CHECKPOINT_SAYS_SINCE = "0.12"  # kv_cache_dtype auto then uses the checkpoint's type.
GROUPS_SINCE = "0.10"  # Windowed layers then free the tokens before the window.
ASYNC_SINCE = "0.20"  # Two batches are then in flight.
PADDED_BELOW = 1.5  # Below this ratio of layers per kind, groups are padded to the larger number.
ALIGNED_STATES = 2  # Blocks of state per request with prefix caching.
CACHING_SINCE = "0.26"  # Models with states then have prefix caching by default.


@cache
def _numbers(release: str) -> tuple[int, ...]:
    parts = release.lstrip("v").split(".")[:2]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)


def at_least(release: str, since: str) -> bool:
    """Return whether a release, such as 0.10.2, is ``since`` or newer."""
    return _numbers(release) >= _numbers(since)


@dataclass(frozen=True)
class Defaults:
    """A release's defaults on cards of at least ``gib`` GiB: tokens of a batch, requests at once.

    but: the row does not apply to cards with this text in their name.
    """

    since: str
    gib: float
    tokens: int
    requests: int
    but: str = ""


# Defaults of max_num_batched_tokens and max_num_seqs. The first row that applies counts.
BATCH_DEFAULTS = (
    Defaults("0.28", 160, 16384, 1024),
    Defaults("0.9", 70, 8192, 1024, "A100"),
    Defaults("0.9", 0, 2048, 256),
    Defaults("0.8", 70, 8192, 1024),
    Defaults("0", 0, 2048, 256),
)


@dataclass(frozen=True)
class AtLoad:
    """The remaining part of 16-bit weights that a server quantises at load.

    method: the start of quantization. part: the remaining part, with scales. experts: only experts are quantised.
    """

    method: str
    part: float
    experts: bool = False


# The first match counts. NVFP4 has an 8-bit scale per 16 numbers of 4 bits. MXFP4 and MXFP8 have one per 32 numbers.
AT_LOAD = (
    *(AtLoad(method, 1 / 2, experts=True) for method in ("experts_int8", "int8_per_channel_weight_only")),
    *(AtLoad(method, 1 / 2) for method in ("fp8", "ptpc_fp8", "int8")),
    *(AtLoad("nvfp4", 4.5 / 16, experts=True), AtLoad("mxfp4", 4.25 / 16), AtLoad("mxfp8", 8.25 / 16)),
    AtLoad("bitsandbytes", 0.28),
)

# Before the first release, prompts were split only if a user set it, or if the context of a text model was longer.
# Before the second, steps of split prompts had fewer tokens.
CHUNKS_SINCE, CHUNKS_ABOVE, CHUNKS_LARGER_SINCE, SMALL_CHUNK = "0.8", 32768, "0.6.5", 512
# From the first release to before the second, vLLM compares the cache of all layers with the memory of the stage that
# has the least, and refuses pipelines whose stages have enough (vllm#33698).
WHOLE_CHECKED_SINCE, WHOLE_CHECKED_BEFORE = "0.14", "0.16"
# The variable that sets the layers of each stage of a pipeline, such as 20,12.
PARTITION = "VLLM_PP_LAYER_PARTITION"

# Bytes per token and number of a layer's inner width: compiled, and before that.
INNER_BYTES = (("0.8", 8.0), ("0", 6.5))
# Bytes per request and vocabulary entry while tokens are chosen: logits alone, more copies, and a sort of all.
REQUESTS_BYTES = (("0.27", 6), ("0.17", 15), ("0", 38))
MOST_EXPERT_TOKENS = 32768  # Tokens that experts process at once.
WORKSPACE_SINCE = "0.12"  # The workspace of experts then stays allocated.
OWN_WORKSPACE = ("mxfp4",)  # Weights whose expert kernels need no workspace.
# The width of MXFP4 experts is padded to a multiple of the first on each card. Before Hopper, it is the second, and the
# first is for the width of the model.
MXFP4_STEP, MXFP4_OLD_STEP = 256, 128

# GiB of libraries other than PyTorch on one card, and of those for communication over NVLink or XGMI.
LIBRARIES_GIB = (("0.18", 0.25), ("0", 0.13))
LINKED_GIB = (("0.12", 1.85), ("0", 0.42))

# CUDA graphs: the release since which vLLM subtracts their estimate, their batch sizes, and the memory of each.
GRAPHS_COUNT_SINCE = "0.20"
GRAPH_SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
FULL_GRAPH_SIZES = 256
GRAPHS_MIB = 60  # For all graphs together.
GRAPH_MIB = (("0.27", 0.4), ("0", 0.25))  # For one layer of each graph.

# The most tokens of one image and of one video, by the start of model_type. Other models need fewer than a batch.
OF_ITEMS = (
    ("qwen2_vl", {"image": 16384, "video": 114688}),
    ("qwen2_5_vl", {"image": 16384, "video": 114688}),
    ("qwen3", {"image": 16384, "video": 16384}),
)
SEEING = ("qwen2_vl", "qwen2_5_vl")  # All models of these types accept images.
# Per token and number of width, while images are encoded, with four patches per token: split over the cards, and whole.
VISION_BYTES, VISION_WHOLE_BYTES = 72, 24
VISION_SIZE = 1152  # The default width of the vision part.

# NUMA nodes of processors. Since the first release, a worker takes gpu_memory_utilization of its node, and starts only
# if that is available; since the second, its cache is half of the node's memory, and before that it has this size.
NODE = "node"
NODE_SHARE_SINCE, NODE_HALF_SINCE, NODE_CACHE_GIB = "0.20", "0.13", 4.0
SHARE, KV_SPACE = "gpu_memory_utilization", "VLLM_CPU_KVCACHE_SPACE"  # The variable counts GiB and wins over all keys.
NODE_BLOCK, NODE_BATCH = 128, (2048, 128)  # Defaults: tokens of a block; tokens and requests of a batch, per worker.
NODE_PROCESS_GIB = 1.0  # A worker without its weights: Python, PyTorch and its libraries.
CACHE_STEP = 2**28  # Suggested and computed caches are multiples of this.
