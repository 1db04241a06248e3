"""Engine ``vllm``: plain vLLM, with its own options and its own choice of buckets."""

from __future__ import annotations

from dataclasses import replace

from ..core.errors import Problem
from ..model.vllm_options import OPTION_NAMES
from ..platforms import platform_of
from .base import UPSTREAM, Engine, Host, Launch, Spec, pass_through
from .linear import JOURNAL, OF_AICE_1_22, OF_BUCKETS, PROGRESS
from .quantisations import OF_CPU, OF_FORK

DEFAULTS = {"host": "127.0.0.1", "port": 8000, "tensor_parallel_size": 1}
DTYPES = ("auto", "bfloat16", "float16", "float32")


def launch(spec: Spec, host: Host) -> Launch:
    """Return ``vllm serve`` with the model's options."""
    return Launch(dict(platform_of(host.accelerator).env), [str(spec["weights"]), *pass_through(spec)])


def _problems(spec: Spec) -> list[Problem]:
    if spec.get("dtype") in (None, *DTYPES):
        return []
    allowed = f"must be one of {', '.join(DTYPES)} in profile vllm; quantization sets the others"
    return [("dtype", spec["dtype"], allowed)]


ENGINE = Engine(
    name="vllm",
    platforms=("cpu", "gaudi"),
    command=("vllm", "serve"),
    loads={"cpu": OF_CPU, "gaudi": OF_FORK},
    defaults=DEFAULTS,
    launch=launch,
    problems=_problems,
    own_options=False,
    executors=("mp", "ray"),
    stages=True,
    # An option that the launch passes on is not ignored. If the server does not have it, the plan refuses it.
    ignored=tuple(
        key
        for key in ("recipe_cache_path", "skip_warmup", "bucketing", *OF_AICE_1_22, *OF_BUCKETS)
        if key not in OPTION_NAMES
    ),
    expert_parallel=False,
    # On a Gaudi host the image can be the fork.
    progress=PROGRESS,
    journal=replace(JOURNAL, finished=(*JOURNAL.finished, *UPSTREAM.finished), cache=(*JOURNAL.cache, *UPSTREAM.cache)),
)
