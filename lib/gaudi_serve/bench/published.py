"""Published figures with their sources, and which of them match the case of a measurement.

docs/guides/benchmark.md has the same table with further explanations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TUTORIALS = "HabanaAI/Gaudi-tutorials, Deploying_vLLM (2025), vLLM 0.7.2 of the fork, software 1.21.1"
OFFLINE_3 = "vendor's Model Performance Data for Gaudi 3, software 1.18.0, FP8, HL-325L, offline, batch {}"
OFFLINE_2 = "vendor's Model Performance Data for Gaudi 2, software 1.18.0, FP8, HL-225H, offline, batch {}"
SERVED_LESS = "a served endpoint reaches less than an offline batch; an offline figure is the upper bound of the cards"
MAY_DIFFER = "precision, release, cards' power limit, buckets and a client on the same host make a difference"


@dataclass(frozen=True)
class Published:
    """One published figure: its model (a pattern of name or folder), cards and lengths.

    concurrency: None for an offline batch.
    """

    model: str
    card: str
    cards: int
    input_tokens: int
    output_tokens: int
    output_tokens_s: float
    source: str
    concurrency: int | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None

    @property
    def text(self) -> str:
        """Return the figure as a sentence."""
        times = [
            f"mean {name} {value:g} ms" for name, value in (("TTFT", self.ttft_ms), ("TPOT", self.tpot_ms)) if value
        ]
        return f"{self.output_tokens_s:,.1f} output tokens/s{''.join(f', {one}' for one in times)} ({self.source})"


def _offline(
    model: str, card: str, cards: int, source: str, rows: Mapping[tuple[int, int], tuple[int, float]]
) -> list[Published]:
    return [
        Published(model, card, cards, *lengths, value, source.format(batch)) for lengths, (batch, value) in rows.items()
    ]


AT = ((128, 128), (128, 2048), (2048, 128), (2048, 2048))


def _rows(*pairs: tuple[int, float]) -> dict[tuple[int, int], tuple[int, float]]:
    return dict(zip(AT, pairs, strict=True))


GAUDI2, GAUDI3 = "gaudi2", "gaudi3"
LLAMA_2_7B, LLAMA_2_70B, MISTRAL = r"llama-?2-7b", r"llama-?2-70b", r"mistral-7b"
LLAMA_3_8B, LLAMA_3_70B = r"llama-3\.1-8b", r"llama-3\.1-70b"
PUBLISHED = (
    Published(LLAMA_3_8B, GAUDI3, 1, 2048, 2048, 3644.6, f"{TUTORIALS}, BF16, 640 prompts", 64, 1803, 16.7),
    Published(r"llama-3\.1-405b", GAUDI3, 8, 2048, 2048, 865.7, f"{TUTORIALS}, 640 prompts", 64, 15475, 66.4),
    *_offline(LLAMA_2_7B, GAUDI3, 1, OFFLINE_3, _rows((1536, 19810), (217, 6763), (153, 2029), (75, 2734))),
    *_offline(LLAMA_2_70B, GAUDI3, 2, OFFLINE_3, _rows((1750, 4433), (512, 6026), (231, 498), (240, 2641))),
    *_offline(LLAMA_3_8B, GAUDI3, 1, OFFLINE_3, _rows((1536, 24310), (768, 18830), (256, 2652), (364, 7405))),
    *_offline(LLAMA_3_70B, GAUDI3, 2, OFFLINE_3, _rows((3516, 3711), (450, 5776), (223, 497), (175, 2588))),
    *_offline(LLAMA_3_70B, GAUDI3, 8, OFFLINE_3, _rows((4000, 15008), (600, 15711), (400, 1600), (600, 8946))),
    *_offline(MISTRAL, GAUDI3, 1, OFFLINE_3, _rows((896, 24433), (120, 13726), (120, 2085), (44, 4970))),
    *_offline(LLAMA_2_7B, GAUDI2, 1, OFFLINE_2, _rows((1230, 13137), (163, 4791), (94, 1449), (81, 1953))),
    *(
        one
        for one in _offline(LLAMA_2_70B, GAUDI2, 2, OFFLINE_2, _rows((1750, 2844), (327, 3211), (95, 310), (78, 1438)))
        if (one.input_tokens, one.output_tokens) != (128, 2048)
    ),
    Published(LLAMA_2_70B, GAUDI2, 4, 128, 2048, 3211, OFFLINE_2.format(327)),
    *_offline(MISTRAL, GAUDI2, 1, OFFLINE_2, _rows((896, 18023), (120, 11294), (120, 1427), (44, 3947))),
    *_offline(LLAMA_3_8B, GAUDI2, 1, OFFLINE_2, _rows((2429, 18201), (289, 11138), (179, 2028), (155, 5511))),
)
# Beginnings of device names.
CARDS = {"hl-2": GAUDI2, "hl-3": GAUDI3}


def published_for(record: Mapping[str, Any]) -> list[Published]:
    """Return the published figures for a saved line's model, cards, lengths and concurrency (if published)."""
    load, cards = record.get("load") or {}, record.get("cards") or {}
    kind = next((name for begin, name in CARDS.items() if str(cards.get("kind")).lower().startswith(begin)), "")
    names = " ".join(str(record.get(key) or "") for key in ("model", "served", "weights")).lower()
    return [
        one
        for one in PUBLISHED
        if re.search(one.model, names)
        and (one.card, one.cards) == (kind, cards.get("number"))
        and (one.input_tokens, one.output_tokens) == (load.get("input_tokens"), load.get("output_tokens"))
        and one.concurrency in (None, load.get("concurrency"))
    ]


def published_lines(record: Mapping[str, Any], measured: float) -> list[str]:
    """Return the published figures compared with a measurement, and why they may differ."""
    found = published_for(record)
    lines = [f"published: {one.text}: this is {measured / one.output_tokens_s:.0%} of it" for one in found]
    offline = [SERVED_LESS] if any(one.concurrency is None for one in found) else []
    return [*lines, f"why it may differ: {'; '.join([*offline, MAY_DIFFER])}"] if lines else []


__all__ = ["PUBLISHED", "Published", "published_for", "published_lines"]
