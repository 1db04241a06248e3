"""The rules for buckets in each version of the vendor's plugin: one row per version that changed them.

The golden vectors (tests/unit/golden/buckets_plugin_releases.jsonl.gz) are authoritative.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ..core.errors import refusal
from ..core.versions import comparable

VERSION = re.compile(r"\d{1,4}\.\d{1,4}\.\d{1,4}")


@dataclass(frozen=True)
class PluginRules:
    """The rules from one version up to the next row. The defaults are those of the newest version.

    Attributes:
        since: the first version with these rules.
        first_form: buckets of the plugin's first version (``plugin_first``), without ranges of context.
        names_strategy: VLLM_BUCKETING_STRATEGY chooses exp, lin or pad; before, only VLLM_EXPONENTIAL_BUCKETING
            chooses exp or lin, and the short names stop the server.
        reads_file: VLLM_BUCKETING_FROM_FILE is read.
        one_beside: a minimum of 1 is added to a row that begins with the step, as 0 always is; and exp uses
            VLLM_PROMPT_QUERY_BUCKET_MIN 1.
        ends_at_most: the largest value of exp does not exceed its maximum. Rounding can otherwise exceed it.
        edge_context: from a context of 8,192 tokens on, exp and lin have a separate context for each query.
        bounded_edge: that context stays below VLLM_PROMPT_CTX_BUCKET_MAX.
        whole_context: prompts may have any context that one sequence may have; before, tokens and blocks of
            context had to fit into one sequence together.
        decode_blocks: how exp determines the most blocks of a decode step, and the number of values up to them
            (``exponential.decode_blocks``).
        always_on_device: lin ends at the blocks of the device without contiguous PA too.
        chunked: models whose queries are rounded up to chunks of mamba layers: none (``none``), all that have such
            layers (``all``), or those whose configuration sets the chunk (``explicit``).
        checks_chunk: the tokens of a step must be a multiple of the chunk, and fallbacks use chunks too.
        seeds: speculative decoding has its own buckets.
        fallback_context: the limit for the blocks of a shape without a bucket: those of the device, the most of
            decode buckets, or, for prompts, those of one sequence (``sequence``).
        bounds_sequences: a shape without a bucket has no more sequences than the server.
    """

    since: str
    first_form: bool = False
    names_strategy: bool = True
    reads_file: bool = True
    one_beside: bool = True
    ends_at_most: bool = True
    edge_context: bool = True
    bounded_edge: bool = True
    whole_context: bool = True
    decode_blocks: str = "clamped"
    always_on_device: bool = False
    chunked: str = "explicit"
    checks_chunk: bool = True
    seeds: bool = True
    fallback_context: str = "sequence"
    bounds_sequences: bool = True

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the parts of a range for which this version has variables."""
        return ("MIN", "STEP", "MAX", *(("PAD_MAX", "PAD_PERCENT") if self.names_strategy else ()))

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Return the dimensions for which this version has variables. PROMPT_SEQ is the old name of PROMPT_QUERY."""
        queries = () if self.first_form else ("PROMPT_QUERY",)
        return ("PROMPT_BS", *queries, "PROMPT_SEQ", *(() if self.first_form else ("PROMPT_CTX",)), *DECODE)


DECODE = ("DECODE_BS", "DECODE_BLOCK")
NEWEST = PluginRules("0.27.0")
# Each row is the next one with the changes of that version reverted.
_0_24 = replace(NEWEST, since="0.24.0", decode_blocks="denser")
_0_21 = replace(_0_24, since="0.21.0", decode_blocks="worst")
_0_19 = replace(_0_21, since="0.19.0", decode_blocks="scaled", names_strategy=False, always_on_device=True)
_0_17 = replace(
    _0_19,
    since="0.17.1",
    decode_blocks="triple",
    whole_context=False,
    chunked="all",
    fallback_context="decode",
)
_0_15 = replace(_0_17, since="0.15.1", decode_blocks="quarter", checks_chunk=False, fallback_context="device")
_0_14 = replace(_0_15, since="0.14.1", bounded_edge=False)
_0_13 = replace(
    _0_14,
    since="0.13.0",
    decode_blocks="device",
    edge_context=False,
    ends_at_most=False,
    bounds_sequences=False,
    chunked="none",
)
_0_11 = replace(_0_13, since="0.11.2", one_beside=False, seeds=False)
_0_10 = replace(_0_11, since="0.10.1", first_form=True, reads_file=False)
RULES = (_0_10, _0_11, _0_13, _0_14, _0_15, _0_17, _0_19, _0_21, _0_24, NEWEST)


def rules_of(version: str | None) -> PluginRules:
    """Return the rules of a version of vLLM; without a version those of the newest.

    Raises:
        InputError: The text is not a version, or the version is before the first one with a plugin.
    """
    if version is None:
        return NEWEST
    if not isinstance(version, str) or not VERSION.fullmatch(version):
        raise refusal("", "vllm_version", version, "is not a version of vLLM, such as '0.26.0'")
    found = [row for row in RULES if comparable(row.since) <= comparable(version)]
    if not found:
        raise refusal("", "vllm_version", version, f"is before {RULES[0].since}, the first with the plugin's buckets")
    return found[-1]
