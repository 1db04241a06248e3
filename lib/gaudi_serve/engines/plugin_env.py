"""Variables that a server of the plugin reads at start as numbers or choices. Another text, or an empty one, stops it.

Variables of buckets are read with the buckets (``plugin_input``). ``spec.keys`` refuses some for every engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..core.errors import Problem, near
from ..core.versions import comparable

Reader = Callable[[str], object]


def _integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _one_of(*words: str) -> Reader:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError
        return text

    return read


def _some_of(*words: str) -> Reader:
    one = _one_of(*words)
    return lambda text: [one(part) for part in text.split(",")]


@dataclass(frozen=True)
class StartVariable:
    """A variable: its reader, its allowed values, and the versions that read it: from ``since``, before ``before``."""

    read: Reader
    allowed: str
    since: str = "0.10.1"
    before: str = "9999.0.0"
    words: tuple[str, ...] = ()

    def wrong(self, text: str, version: str) -> str | None:
        """Return the problem with a text for a server of this version; None if it is allowed or not read."""
        if not comparable(self.since) <= comparable(version) < comparable(self.before):
            return None
        try:
            self.read(text)
        except ValueError:
            stops = "the server reads it at start, used or not, and stops"
            return f"is not {self.allowed}: {stops}{near(text, self.words)}"
        return None


INTEGER, INTEGERS = "an integer", "integers with commas between them"
ATTENTION = ("flex_impl", "fsdpa_impl", "naive_impl")
DEBUG = ("steps", "defrag", "fwd")
CARDS, BRIDGES = ("cpu", "gaudi", "gaudi2", "gaudi3"), ("eager", "lazy")


def _choice(words: tuple[str, ...], since: str = "0.10.1") -> StartVariable:
    return StartVariable(_one_of(*words), f"one of {', '.join(words)}", since, words=words)


VARIABLES: Mapping[str, StartVariable] = {
    "MAX_EXPERTS_PER_SLICE": StartVariable(int, INTEGER),
    "VLLM_BRIDGE_MODE": _choice(BRIDGES),
    "VLLM_CONFIG_HIDDEN_LAYERS": StartVariable(int, INTEGER, "0.11.2"),
    "VLLM_DEBUG": StartVariable(_some_of(*DEBUG), f"of {', '.join(DEBUG)}, with commas between", "0.11.2", words=DEBUG),
    "VLLM_DECODE_BLOCK_BUCKET_LIMIT": StartVariable(int, INTEGER, before="0.21.0"),
    **{
        f"VLLM_{name}_BUCKET_LIMIT": StartVariable(int, INTEGER, before="0.11.2")
        for name in ("PROMPT_BS", "PROMPT_SEQ", "DECODE_BS")
    },
    "VLLM_DEFRAG_THRESHOLD": StartVariable(int, INTEGER, "0.11.2"),
    "VLLM_HPU_FSDPA_SLICE_CHUNK_SIZE": StartVariable(int, INTEGER, "0.21.0"),
    "VLLM_HPU_FSDPA_SLICE_SEQ_LEN_THLD": StartVariable(int, INTEGER, "0.21.0"),
    "VLLM_HW": _choice(CARDS),
    "VLLM_MOE_CHUNK": StartVariable(_integers, INTEGERS, "0.13.0"),
    "VLLM_MOE_TOKEN_BOUNDARY": StartVariable(_integers, INTEGERS, "0.13.0"),
    "VLLM_PROFILE_STEPS": StartVariable(_integers, INTEGERS, "0.11.2"),
    "VLLM_PROMPT_ATTN_IMPL": _choice(ATTENTION),
    "VLLM_ROW_PARALLEL_CHUNKS": StartVariable(int, INTEGER, "0.17.1"),
    "VLLM_ROW_PARALLEL_CHUNK_THRESHOLD": StartVariable(int, INTEGER, "0.17.1"),
}


def start_problems(env: Mapping[str, object], version: str) -> list[Problem]:
    """Return the problems with variables of a model's environment at which a server of this version stops."""
    return [
        (f"env: {name}", str(env[name]), f"{wrong}; leave it out if you do not need it")
        for name, variable in VARIABLES.items()
        if name in env and (wrong := variable.wrong(str(env[name]), version))
    ]
