"""The input of the buckets of the vendor's plugin (vllm-gaudi)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import InputError, known, mapping, near, refusal, whole
from .plugin_rules import NEWEST, PluginRules, rules_of

LARGEST = 10**12  # The largest number allowed here.
# The vendor's own linear defaults give a million buckets at a context of 131,072 tokens. A range above these numbers is
# a mistake, and would need too much memory and time on the machine that plans.
MOST_VALUES, MOST_BUCKETS = 1_000_000, 5_000_000
PARTS = ("MIN", "STEP", "MAX", "PAD_MAX", "PAD_PERCENT")
# PROMPT_SEQ is the old name of PROMPT_QUERY.
DIMENSIONS = ("PROMPT_BS", "PROMPT_QUERY", "PROMPT_SEQ", "PROMPT_CTX", "DECODE_BS", "DECODE_BLOCK")
STRATEGIES = ("exp", "lin", "pad")
# Versions before 0.21 accept these in VLLM_BUCKETING_STRATEGY and ignore them.
LONG_NAMES = ("exponential_bucketing", "linear_bucketing")
TRUE = ("true", "t", "1", "yes", "y", "on")
SLICES, SLICE, SLICED_FROM = "PT_HPU_SDPA_QKV_SLICE_MODE_FWD", "PT_HPU_SDPA_BC_FACTOR", "VLLM_FUSEDSDPA_SLIDE_THLD"


@dataclass(frozen=True)
class PluginRange:
    """The variables of one dimension. None is not set, and the strategy has a default for it."""

    min: int | None = None
    step: int | None = None
    max: int | None = None
    pad_max: int | None = None
    pad_percent: int | None = None

    def values(self) -> tuple[int | None, ...]:
        """Return the five values in the order of PARTS."""
        return self.min, self.step, self.max, self.pad_max, self.pad_percent

    def over(self, other: PluginRange) -> PluginRange:
        """Return this range, with another one's values for those that are not set."""
        pairs = zip(self.values(), other.values(), strict=True)
        return PluginRange(*(theirs if own is None else own for own, theirs in pairs))


@dataclass(frozen=True)
class PluginRanges:
    """The ranges as the variables set them or, from ``linear_ranges`` and ``padded_ranges``, the effective ones.

    prompt_bs, decode_bs: sequences of one step. prompt_query: tokens of one prompt step; prompt_seq is its old name,
    and is used if prompt_query is not set. prompt_ctx: KV cache blocks before those tokens. decode_block: KV cache
    blocks of all sequences of a decode step.
    """

    prompt_bs: PluginRange = PluginRange()
    prompt_query: PluginRange = PluginRange()
    prompt_seq: PluginRange = PluginRange()
    prompt_ctx: PluginRange = PluginRange()
    decode_bs: PluginRange = PluginRange()
    decode_block: PluginRange = PluginRange()

    def of(self, dimension: str) -> PluginRange:
        """Return the range of a dimension such as ``PROMPT_QUERY``. prompt_seq fills the gaps of that one."""
        found: PluginRange = getattr(self, dimension.lower())
        return found.over(self.prompt_seq) if dimension == "PROMPT_QUERY" else found

    def env(self) -> dict[str, str]:
        """Return the variables that set these ranges for a server, without those that are not set."""
        return {
            f"VLLM_{dimension}_BUCKET_{part}": str(value)
            for dimension in DIMENSIONS
            for part, value in zip(PARTS, getattr(self, dimension.lower()).values(), strict=True)
            if value is not None
        }

    def variable(self, dimension: str, part: str) -> str:
        """Return the variable that sets a part. It is VLLM_PROMPT_SEQ_BUCKET_x only if only that one is set."""
        if dimension == "PROMPT_QUERY" and getattr(self.prompt_query, part.lower()) is None:
            dimension = "PROMPT_SEQ" if getattr(self.prompt_seq, part.lower()) is not None else dimension
        return f"VLLM_{dimension}_BUCKET_{part}"


@dataclass(frozen=True)
class PluginSettings:
    """The settings of the plugin's buckets in the environment.

    Attributes:
        strategy: exp, lin, pad, or file.
        ranges: the ranges in the variables. exp reads only the largest prompt_bs and prompt_ctx, and the smallest
            prompt_query.
        from_file: path of the file of strategy ``file``; empty otherwise.
        use_contiguous_pa: contiguous paged attention, which turns prefix caching off.
        merged_prefill: all prompts of a step as one.
        enabled: without it, no shape is padded or warmed up.
        slice_tokens: tokens of a slice; 0: prompts are not cut into slices.
        sliced_from: prompts from this number of tokens on are cut into slices.
    """

    strategy: str = "exp"
    ranges: PluginRanges = PluginRanges()
    from_file: str = ""
    use_contiguous_pa: bool = False
    merged_prefill: bool = False
    enabled: bool = True
    slice_tokens: int = 0
    sliced_from: int = 8192

    @classmethod
    def read(cls, env: Mapping[str, Any], rules: PluginRules = NEWEST) -> PluginSettings:
        """Return the settings of an environment, by the vendor's precedence. Variables that are not read may be wrong.

        Args:
            env: The environment.
            rules: The rules of the plugin's version.

        Raises:
            InputError: A variable stops the server at start.
        """
        variables = _texts(env)
        numbers = {
            dimension: PluginRange(*(integer(variables, f"VLLM_{dimension}_BUCKET_{part}") for part in rules.parts))
            for dimension in rules.dimensions
        }
        slice_tokens, sliced_from = integer(variables, SLICE), integer(variables, SLICED_FROM)
        contiguous = variables.get("VLLM_CONTIGUOUS_PA")
        slice_tokens = 1024 if slice_tokens is None else slice_tokens
        sliced = _true(variables.get(SLICES)) and not rules.first_form
        if sliced and slice_tokens < 1:
            divides = "is below 1: the server divides by it; write 1 or more, or leave it out, which is 1024"
            raise refusal("", SLICE, slice_tokens, divides)
        return cls(
            strategy=_strategy(variables, rules),
            ranges=PluginRanges(**{dimension.lower(): found for dimension, found in numbers.items()}),
            from_file=variables.get("VLLM_BUCKETING_FROM_FILE", "") if rules.reads_file else "",
            use_contiguous_pa=not caches_prefixes(variables, rules) if contiguous is None else _true(contiguous),
            merged_prefill=_true(variables.get("VLLM_MERGED_PREFILL")),
            enabled=_true(variables.get("VLLM_ENABLE_BUCKETING", "true")),
            slice_tokens=slice_tokens if sliced else 0,
            sliced_from=8192 if sliced_from is None else sliced_from,
        )

    def prefill_seqs(self, max_num_seqs: int) -> int:
        """Return the most sequences of a prompt step. The vendor's server derives it from its buckets."""
        most = self.ranges.prompt_bs.max
        return max_num_seqs if self.merged_prefill else 1 if most is None else most

    def env(self, rules: PluginRules = NEWEST) -> dict[str, str]:
        """Return the variables that set this for a server with these rules. ``read`` returns the same settings.

        Raises:
            InputError: The version does not have the strategy.
        """
        since = {"pad": rules.names_strategy or "0.21.0", "file": rules.reads_file or "0.11.2"}.get(self.strategy, True)
        if since is not True:
            newer = f"needs vLLM {since} or newer, and this one has the buckets of {rules.since}"
            raise refusal(
                "",
                "VLLM_BUCKETING_STRATEGY",
                self.strategy,
                f"{newer}: use exp or lin, or set vllm_version for a newer image",
            )
        found = {"VLLM_CONTIGUOUS_PA": str(self.use_contiguous_pa).lower(), **self.ranges.env()}
        if self.strategy == "file":
            found["VLLM_BUCKETING_FROM_FILE"] = self.from_file
        elif rules.names_strategy:
            found["VLLM_BUCKETING_STRATEGY"] = self.strategy
        elif self.strategy == "lin":
            found["VLLM_EXPONENTIAL_BUCKETING"] = "false"
        if self.merged_prefill:
            found["VLLM_MERGED_PREFILL"] = "true"
        if not self.enabled:
            found["VLLM_ENABLE_BUCKETING"] = "false"
        if self.slice_tokens:
            found |= {SLICES: "true", SLICE: str(self.slice_tokens)}
        return found | ({SLICED_FROM: str(self.sliced_from)} if self.sliced_from != 8192 else {})


@dataclass(frozen=True)
class PluginInput:
    """A server of the plugin with everything that affects its buckets, by the vendor's names.

    Attributes:
        max_num_seqs: most sequences of a decode step.
        max_num_prefill_seqs: most sequences of a prompt step.
        block_size: tokens of a KV cache block.
        max_num_batched_tokens: tokens of one prompt step.
        max_model_len: tokens of one sequence.
        num_hpu_blocks: KV cache blocks on the device.
        settings: from the environment.
        num_speculative_tokens: predicted tokens per step.
        mamba_chunk_size: tokens of a chunk of a mamba model; 0 for others.
        mamba_chunk_size_is_explicit: the model's configuration sets that chunk.
        skip_decode_block_clamp: the model's decode steps may count more than three times the blocks of the device.
        file: the text of the file of strategy ``file``.
        vllm_version: its rules apply; None for the newest.
        prefix_caching: sequences share blocks. Only the first version's prompt buckets use this.
    """

    max_num_seqs: int
    max_num_prefill_seqs: int
    block_size: int
    max_num_batched_tokens: int
    max_model_len: int
    num_hpu_blocks: int
    settings: PluginSettings = field(default_factory=PluginSettings)
    num_speculative_tokens: int = 0
    mamba_chunk_size: int = 0
    mamba_chunk_size_is_explicit: bool = False
    skip_decode_block_clamp: bool = False
    file: str | None = None
    vllm_version: str | None = None
    prefix_caching: bool = False

    @property
    def rules(self) -> PluginRules:
        """Return the rules of its version."""
        return rules_of(self.vllm_version)

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> PluginInput:
        """Return the input from a mapping with these fields, but ``env`` in place of ``settings``.

        ``strategy`` is optional and only a check.

        Raises:
            InputError: A field is missing, unknown or out of its limits, or ``strategy`` is not the one that the
                environment chooses. See also PluginSettings.read.
        """
        names = mapping("", "input", given, "a mapping with max_num_seqs, env and so on")
        known("", names, {*LIMITS, *FLAGS, "strategy", "env", "file", "vllm_version"})
        found: dict[str, Any] = {
            key: whole("", key, names.get(key, 0 if key in OPTIONAL else None), *limits)
            for key, limits in LIMITS.items()
        }
        found |= {key: _flag(key, names.get(key, False)) for key in FLAGS}
        env: Any = names.get("env")
        version = names.get("vllm_version")
        rules = rules_of(version)
        settings = PluginSettings.read(env, rules)
        text = names.get("file")
        if text is not None and not isinstance(text, str):
            raise refusal("", "file", text, "is not the text of a bucket file")
        if text is not None and settings.strategy != "file":
            raise refusal("", "file", None, "is set, but VLLM_BUCKETING_FROM_FILE names none: the server reads none")
        wanted = names.get("strategy", settings.strategy)
        if wanted != settings.strategy:
            chosen = f"is not what env chooses, which is {settings.strategy}"
            variable = "VLLM_BUCKETING_STRATEGY" if rules.names_strategy else "VLLM_EXPONENTIAL_BUCKETING"
            raise refusal("", "strategy", wanted, f"{chosen}; set {variable}, or leave strategy out")
        caching = caches_prefixes(_texts(env), rules)
        return cls(**found, settings=settings, file=text, vllm_version=version, prefix_caching=caching)


LIMITS = {
    **dict.fromkeys(("max_num_seqs", "block_size", "max_num_batched_tokens"), (1, LARGEST)),
    **dict.fromkeys(("max_model_len", "num_hpu_blocks"), (1, LARGEST)),
    **dict.fromkeys(("max_num_prefill_seqs", "num_speculative_tokens", "mamba_chunk_size"), (0, LARGEST)),
}
OPTIONAL = ("num_speculative_tokens", "mamba_chunk_size")
FLAGS = ("mamba_chunk_size_is_explicit", "skip_decode_block_clamp")


def refuse_range(given: PluginInput, dimension: str, part: str, value: int, allowed: str) -> InputError:
    """Return the error for a part of a range, with the variable that sets it."""
    return refusal("", given.settings.ranges.variable(dimension, part), value, allowed)


def refuse_above(given: PluginInput, dimension: str, least: int, most: int) -> None:
    """Refuse a minimum above its maximum, and one below 0.

    Raises:
        InputError: The message names the variable of the minimum.
    """
    upper = given.settings.ranges.variable(dimension, "MAX")
    if least > most:
        stops = "the server stops at start; lower the minimum or raise the maximum"
        raise refuse_range(given, dimension, "MIN", least, f"is above {upper}, which is {most}: {stops}")
    if least < 0:
        raise refuse_range(
            given, dimension, "MIN", least, "is below 0: the server would not stop counting; write 0 or more"
        )


def refuse_many(given: PluginInput, dimension: str, count: int, most: int) -> None:
    """Refuse a range of more than MOST_VALUES values before they are computed.

    Raises:
        InputError: The message names the variable of the maximum.
    """
    if count > MOST_VALUES:
        gives = f"gives {count:,} values, above {MOST_VALUES:,}; lower it or raise the step"
        raise refuse_range(given, dimension, "MAX", most, gives)


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise refusal("", key, value, "is not true or false")
    return value


def _true(text: str | None) -> bool:
    return text is not None and text.lower() in TRUE


def _texts(env: Any) -> dict[str, str]:
    """Return an environment's variables as texts. Numbers of YAML are converted."""
    found = {}
    for name, value in mapping("", "env", env, "a mapping of environment variables").items():
        if not isinstance(value, (str, int)):
            raise refusal("", str(name), value, "is not the text of an environment variable")
        try:
            found[str(name)] = str(value)
        except ValueError:  # Python does not convert integers with too many digits.
            raise refusal("", str(name), value, f"is above {LARGEST}") from None
    return found


def integer(variables: Mapping[str, str], name: str) -> int | None:
    """Return a variable as the server reads it, with Python's int; None if it is not set."""
    text = variables.get(name)
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        stops = "the server reads it at start, used or not, and stops; write an integer, or leave it out"
        raise refusal("", name, text, f"is not an integer: {stops}") from None
    if abs(number) > LARGEST:
        raise refusal("", name, text, f"is not an integer up to {LARGEST}")
    return number


def caches_prefixes(variables: Mapping[str, str], rules: PluginRules) -> bool:
    """Return whether sequences share blocks. Since the second version this is the default."""
    said = variables.get("VLLM_PREFIX_CACHING")
    return not rules.first_form if said is None else _true(said)


def _strategy(variables: Mapping[str, str], rules: PluginRules) -> str:
    """Return the effective strategy. An unknown word stops the server, even with a file."""
    word = variables.get("VLLM_BUCKETING_STRATEGY")
    if not rules.names_strategy and word not in (None, *LONG_NAMES):
        remedy = "leave it out, which is exp, or set VLLM_EXPONENTIAL_BUCKETING to false, which is lin"
        raise refusal("", "VLLM_BUCKETING_STRATEGY", word, f"stops every server before vLLM 0.21; {remedy}")
    if rules.names_strategy and word not in (None, *STRATEGIES):
        allowed = f"is not one of {', '.join(STRATEGIES)}: the server stops at start{near(word, STRATEGIES)}"
        raise refusal("", "VLLM_BUCKETING_STRATEGY", word, allowed)
    if rules.reads_file and variables.get("VLLM_BUCKETING_FROM_FILE"):
        return "file"
    old = variables.get("VLLM_EXPONENTIAL_BUCKETING")
    chosen = (rules.names_strategy and word) or "exp"
    return chosen if old is None else "exp" if _true(old) else "lin"
