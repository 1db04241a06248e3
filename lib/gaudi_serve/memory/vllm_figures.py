"""The figures by which vLLM's memory on CUDA and ROCm is planned, and since which release each counts.

Rules are those of vLLM's source (0.32.0); what only a start can tell was fitted to reported starts, which
tests/unit/data/kv_reports.yml has: one figure for all of them, never one for a case.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

GIB = 2**30
NEWEST = "0.33.0"  # taken where an image's name says none

# What CUDA says that a card has is less than what nvidia-smi says: a part of its own, and a part of the card.
CUDA_KEEPS_GIB, CUDA_KEEPS_SHARE = 0.42, 0.0016

# Cards whose memory is the host's, by name or capability; vLLM takes them for small ones where it has defaults.
UNIFIED, UNIFIED_GFX = "GB10", "gfx115"

# gpu_memory_utilization where a user says none.
UTILIZATION, UTILIZATION_BEFORE, UTILIZATION_SINCE = 0.92, 0.9, "0.21"
MOST_UTILIZATION = 0.95  # that is suggested

BLOCK = 16  # tokens of a block of KV cache, unless said
# Bytes of a number of the cache, by how kv_cache_dtype begins; int8 and fp8 with scales a token and head count as one.
CACHE_BYTES = (
    *(("fp8", 1.0), ("int8", 1.0), ("int4", 0.5), ("nvfp4", 0.5625), ("turboquant_k8v4", 0.75)),
    *(("turboquant", 0.5), ("ultraquant", 0.53), ("bfloat16", 2.0), ("float16", 2.0), ("float32", 4.0)),
)
SPARSE_LATENT_BYTES = 656  # of a token in an FP8 cache of sparse MLA, with scales
CHECKPOINT_SAYS_SINCE = "0.12"  # kv_cache_dtype auto is that of the checkpoint
GROUPS_SINCE = "0.10"  # windows free what lies behind them
ASYNC_SINCE = "0.14"  # two batches are in flight
PADDED_BELOW = 1.5  # times as many layers of one kind as of another are padded to groups of the larger number
ALIGNED_STATES = 2  # blocks of state a request with prefix caching
CACHING_SINCE = "0.26"  # models with states have prefix caching where nobody says it


@cache
def _numbers(release: str) -> tuple[int, ...]:
    parts = release.lstrip("v").split(".")[:2]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)


def at_least(release: str, since: str) -> bool:
    """Return whether a release, such as 0.10.2, is ``since`` or newer."""
    return _numbers(release) >= _numbers(since)


@dataclass(frozen=True)
class Defaults:
    """What a release takes on cards of at least so many GiB: tokens of a batch, requests at once.

    but: what the name of a card has to which the row does not apply.
    """

    since: str
    gib: float
    tokens: int
    requests: int
    but: str = ""


# max_num_batched_tokens and max_num_seqs of a server where nobody says them; the first row that applies counts.
BATCH_DEFAULTS = (
    Defaults("0.28", 160, 16384, 1024),
    Defaults("0.9", 70, 8192, 1024, "A100"),
    Defaults("0.9", 0, 2048, 256),
    Defaults("0.8", 70, 8192, 1024),
    Defaults("0", 0, 2048, 256),
)


@dataclass(frozen=True)
class AtLoad:
    """What is left of weights of 16 bits that a server quantises while it loads them.

    method: how quantization begins. part: that is left, with scales. experts: of experts alone; other layers stay.
    """

    method: str
    part: float
    experts: bool = False


# The first that fits counts. NVFP4 has a scale of 8 bits for 16 numbers of 4; MXFP4 and MXFP8 have one for 32.
AT_LOAD = (
    *(AtLoad(method, 1 / 2, experts=True) for method in ("experts_int8", "int8_per_channel_weight_only")),
    *(AtLoad(method, 1 / 2) for method in ("fp8", "ptpc_fp8", "int8")),
    *(AtLoad("nvfp4", 4.5 / 16, experts=True), AtLoad("mxfp4", 4.25 / 16), AtLoad("mxfp8", 8.25 / 16)),
    AtLoad("bitsandbytes", 0.28),
)

CHUNKS_SINCE, CHUNKS_ABOVE = "0.8", 32768  # before, prompts were cut only where the context was longer

# Bytes a token and number of a layer's inner width: as compiled, and before.
INNER_BYTES = (("0.8", 8.0), ("0", 6.5))
# Bytes a request and word of the vocabulary while tokens are chosen: logits alone, more copies, and a sort of all.
REQUESTS_BYTES = (("0.27", 6), ("0.17", 15), ("0", 38))
MOST_EXPERT_TOKENS = 32768  # go through experts at once
WORKSPACE_SINCE = "0.12"  # what experts compute in stays allocated
OWN_WORKSPACE = ("mxfp4",)  # of weights whose kernels for experts need none of it
MXFP4_STEP = 256  # to which the width of MXFP4 experts is padded

# Of libraries besides PyTorch, on one card; what those add by which several cards talk, over NVLink or XGMI.
LIBRARIES_GIB = (("0.18", 0.25), ("0", 0.13))
LINKED_GIB = (("0.12", 1.85), ("0", 0.42))

# CUDA graphs: since when vLLM deducts what it expects of them, for which batches, and what each takes.
GRAPHS_COUNT_SINCE = "0.21"
GRAPH_SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
FULL_GRAPH_SIZES = 256
GRAPHS_MIB = 60  # for all of them
GRAPH_MIB = (("0.27", 0.4), ("0", 0.25))  # for one layer of each

# The most tokens of one picture and of one film, by how model_type begins; others have fewer than a batch.
OF_ITEMS = (
    ("qwen2_vl", {"image": 16384, "video": 114688}),
    ("qwen2_5_vl", {"image": 16384, "video": 114688}),
    ("qwen3", {"image": 16384, "video": 16384}),
)
SEEING = ("qwen2_vl", "qwen2_5_vl")  # every model of these kinds does
VISION_BYTES = 96  # a token and number of width, while pictures are encoded: four patches of it
VISION_SIZE = 1152  # where a config.json does not say how wide that part is
