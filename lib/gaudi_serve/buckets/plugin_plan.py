"""The buckets of a server of the plugin in a plan, before the device has reported its number of blocks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..core.errors import InputError, refusal
from ..core.words import counted
from .base import BucketCounts, Rounding
from .coverage import uncovered
from .exponential import decode_blocks
from .plan_limits import PlanLimits
from .plugin import PluginBuckets, plugin_buckets
from .plugin_input import PluginInput, PluginSettings, caches_prefixes
from .plugin_slicing import refuse_slicing

# Up to vLLM 0.26, the plugin's exponential strategy makes decode buckets for as many blocks as all sequences could
# have. With several times the device's blocks, the warm-up fails (vllm-gaudi#1700). Later versions stop at three times.
MOST_TIMES = 3
# The least part of the blocks counted by memory.autocalc that a device really has.
BLOCKS_KNOWN = 0.9
VARIABLE = re.compile(r"VLLM_(?:PROMPT_BS|PROMPT_QUERY|PROMPT_CTX|DECODE_BS|DECODE_BLOCK)_BUCKET_\w+")


@dataclass(frozen=True)
class PluginBucketing:
    """The bucket settings of a server, and its limits.

    given: the server; its number of blocks is not used. own: variables that the model's ``env`` sets itself.
    prefix_caching, chunked_prefill: whether sequences may share blocks, and whether prompts are cut. warms: false if
    the server compiles nothing at start (enforce_eager). one_prompt: why its prompts must come one by one; empty if
    they need not.
    """

    given: PluginInput
    own: frozenset[str] = frozenset()
    prefix_caching: bool = False
    chunked_prefill: bool = True
    warms: bool = True
    one_prompt: str = ""

    @property
    def rounding(self) -> Rounding:
        """Return the rounding to all blocks but one, which the plugin uses for padding."""
        return Rounding(spare=1)

    @property
    def unknown(self) -> list[str]:
        """Return the features of the server that give its steps other shapes than limits and traffic show."""
        given = self.given
        said = {
            "speculative decoding": given.num_speculative_tokens,
            "merged prefill": given.settings.merged_prefill,
            "mamba chunks": given.mamba_chunk_size,
            "sliced attention": given.settings.slice_tokens,
        }
        return [name for name, value in said.items() if value]

    def env(self) -> dict[str, str]:
        """Return the variables that set these buckets for a server.

        Raises:
            InputError: The server's version does not have the strategy.
        """
        try:
            return self.given.settings.env(self.given.rules)
        except InputError as problem:
            raise self._of_model(problem) from None

    def changed_by(self, env: Mapping[str, str]) -> PluginBucketing:
        """Return the buckets with the changes of a user's environment.

        Raises:
            InputError: A variable stops the server at start.
        """
        said = frozenset(name for name, value in env.items() if self.env().get(name) != value)
        try:
            settings = PluginSettings.read(env, self.given.rules)
        except InputError as problem:
            raise replace(self, own=said)._of_model(problem) from None
        prefills = settings.prefill_seqs(self.given.max_num_seqs)
        given = replace(self.given, settings=settings, max_num_prefill_seqs=prefills)
        if "VLLM_PREFIX_CACHING" in env:
            given = replace(given, prefix_caching=caches_prefixes(env, given.rules))
        changed = replace(self, given=given, own=said)
        try:
            refuse_slicing(given, env)
            changed._refuse_several_prompts()
        except InputError as problem:
            raise changed._of_model(problem) from None
        return changed

    def _refuse_several_prompts(self) -> None:
        """Refuse several prompts per step if the server stops at such a step."""
        most, merged = self.given.max_num_prefill_seqs, self.given.settings.merged_prefill
        if most > 1 and self.one_prompt:
            key, value = ("VLLM_MERGED_PREFILL", "true") if merged else ("VLLM_PROMPT_BS_BUCKET_MAX", most)
            remedy = "leave it out" if merged else "leave it out, which means 1"
            raise refusal("", key, value, f"puts several prompts into one step, at which {self.one_prompt}; {remedy}")

    def counts(self, max_num_batched_tokens: int, num_hpu_blocks: int | None) -> BucketCounts:
        """Return the graphs that a start warms up; without the device's blocks, those of the worst case.

        Raises:
            InputError: The server would stop, or fail in the warm-up. The message names the model's key to change.
        """
        if not self.warms:
            return BucketCounts()
        given = replace(
            self.given,
            max_num_batched_tokens=max_num_batched_tokens,
            num_hpu_blocks=num_hpu_blocks or self.worst_blocks(),
        )
        if num_hpu_blocks:
            self._refuse_worst(given)
        try:
            found = plugin_buckets(given)
        except InputError as problem:
            raise self._of_model(problem) from None
        notes = (
            self._gaps(found, num_hpu_blocks)
            if given.settings.strategy == "file"
            else self._amiss(found, num_hpu_blocks)
        )
        return BucketCounts(len(found.prompt), len(found.decode), 0, num_hpu_blocks is None, notes)

    def _amiss(self, found: PluginBuckets, held: int | None) -> tuple[str, ...]:
        """Return notes about a strategy's buckets that do not cover the model's other keys, or exceed the cards."""
        given, decode = self.given, found.seeds.rows
        if not decode:
            return ()
        most, tokens = max(row[0] for row in decode), max((row[1] for row in found.prompt.rows), default=0)
        longest = min(given.max_num_batched_tokens, given.max_model_len)
        notes = []
        if tokens < longest and not self.unknown:
            notes.append(f"prompt steps above {tokens} tokens, of up to {longest}, compile while serving")
        needed, blocks = min(self.worst_blocks(), held or 0), found.seeds.most_blocks()
        if most < given.max_num_seqs:
            notes.append(
                f"more than {counted(most, 'request')} at a time, of max_num_seqs {given.max_num_seqs}, "
                "compile while serving"
            )
        elif blocks < needed and not given.settings.use_contiguous_pa:
            notes.append(f"decode steps above {blocks} KV-cache blocks, of up to {needed}, compile while serving")
        return (*notes, *self._beyond(found, held))

    def _beyond(self, found: PluginBuckets, held: int | None) -> tuple[str, ...]:
        """Return a note if ranges far exceed the blocks of a device, which may be too much for a warm-up."""
        most = found.seeds.most_blocks()
        if held is None or self.given.settings.use_contiguous_pa or most <= MOST_TIMES * held:
            return ()
        key, limit = "VLLM_DECODE_BLOCK_BUCKET_MAX", MOST_TIMES * held if self.prefix_caching else held
        named = f"env: {key}" if key in self.own else _written(key)
        written = self.given.settings.ranges.decode_block.max
        by = "" if written is None else f" by {named} {written}"
        if self.prefix_caching:
            why, off = "with prefix caching no", "enable_prefix_caching: false"
        else:
            why, off = "no", "leave VLLM_CONTIGUOUS_PA out of env"
        return (
            f"decode buckets go up to {most} blocks{by}, and the cards have {held}: {why} step needs more than {limit}"
            f", and the server may fail in the warm-up; set {named} {limit}, or {off}",
        )

    def _gaps(self, found: PluginBuckets, held: int | None) -> tuple[str, ...]:
        """Return notes about a bucket file that is too small, as far as the device's blocks are known.

        Raises:
            InputError: The file has no bucket for a step that the model's other keys allow.
        """
        given = self.given
        if self.unknown:
            what = " and ".join(self.unknown)
            return (f"it is not checked whether bucketing.file covers every step: the steps of {what} are unknown",)
        most = found.decode.most_blocks()
        blocks = most if held is None or most >= BLOCKS_KNOWN * held else held
        server = PlanLimits(
            *(given.max_num_seqs, given.max_num_prefill_seqs, given.max_model_len, given.max_num_batched_tokens),
            *(given.block_size, min(blocks, held or blocks)),
            use_contiguous_pa=given.settings.use_contiguous_pa,
            prefix_caching=self.prefix_caching,
        )
        lacks = uncovered(found, server, context=self.chunked_prefill or self.prefix_caching)
        if lacks:
            sequences, tokens, more = lacks
            if tokens > 1 and not given.rules.whole_context:
                version, ways = given.vllm_version, "use strategy exp, or a newer vLLM"
                dropped = f"vLLM {version} drops buckets whose tokens and context together are above max_model_len"
                step = f"a prompt step of {sequences} x {tokens} tokens after {counted(more, 'block')} of context"
                return (f"{dropped}: {step} has no bucket in bucketing.file and compiles while serving; {ways}",)
            step = f"decode step of {counted(sequences, 'sequence')} and {counted(more, 'block')}"
            if tokens > 1:
                step = f"prompt step of {sequences} x {tokens} tokens after {counted(more, 'block')} of context"
            allowed = f"has no bucket for a {step}, which would compile while serving"
            raise refusal("", "bucketing.file", None, f"{allowed}; playbooks/tune.yml plans one that covers every step")
        if held and uncovered(found, replace(server, num_hpu_blocks=held)):
            return (
                f"bucketing.file covers decode steps of up to {most} blocks, and the cards have about {held}: if the "
                f"server reports more than {most}, plan it again, or set num_gpu_blocks_override: {most}",
            )
        return ()

    def worst_blocks(self) -> int:
        """Return the blocks of max_num_seqs sequences of max_model_len tokens."""
        return -(-self.given.max_model_len // self.given.block_size) * self.given.max_num_seqs

    def _refuse_worst(self, given: PluginInput) -> None:
        """Refuse decode buckets of several times the cards' blocks, with which a warm-up fails."""
        settings, held = given.settings, given.num_hpu_blocks
        if settings.use_contiguous_pa or settings.strategy != "exp" or given.rules.first_form:
            return
        most, _ = decode_blocks(given)
        if most <= MOST_TIMES * held or given.rules.decode_blocks == "clamped":
            return
        fitting = MOST_TIMES * held // -(-given.max_model_len // given.block_size)
        fewer = f"max_num_seqs {fitting} is the most, or " if fitting else ""
        pad = f", or bucketing.strategy pad with decode_block.max {MOST_TIMES * held}"
        raise refusal(
            "",
            "max_num_seqs",
            given.max_num_seqs,
            f"makes decode buckets of {most} blocks at max_model_len {given.max_model_len}, and the cards "
            f"have {held}: without contiguous PA the server fails in the warm-up; {fewer}enable_prefix_caching: false"
            f"{pad if given.rules.names_strategy else ''}",
        )

    def _of_model(self, problem: InputError) -> InputError:
        """Return an error about a variable as an error about the model's key that sets it."""
        key, value, allowed = problem.finding or ("bucketing", None, str(problem))
        if key in self.own:
            named = f"env: {key}"
        elif VARIABLE.fullmatch(key):
            named = _written(key)
        elif key.startswith("file"):
            named = f"bucketing.{key}"
        else:
            named = NAMES.get(key, f"env: {key}" if key.isupper() else key)
        for name in VARIABLE.findall(allowed):
            allowed = allowed if name in self.own else allowed.replace(name, _written(name))
        return refusal("", named, value, allowed)


def _written(variable: str) -> str:
    """Return the model's key for a variable of the plugin such as VLLM_DECODE_BS_BUCKET_MAX."""
    dimension, part = variable.removeprefix("VLLM_").split("_BUCKET_")
    return f"bucketing.{dimension.lower()}.{part.lower()}"


# Keys of a model, by the names in the vendor's code.
NAMES = {
    "VLLM_BUCKETING_STRATEGY": "bucketing.strategy",
    "VLLM_BUCKETING_FROM_FILE": "bucketing.file",
    "max_num_prefill_seqs": "bucketing.prompt_bs.max",
}
