"""How the collector on a host reads its cards: as data, since the collector knows no vendor and no tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PERCENT, MIB, MICROSECONDS = 0.01, float(1 << 20), 1e-6
# Seconds for which an answer is used again: of what never changes, and of what is slow to ask.
FIXED_S, SLOW_S = 3600, 120


@dataclass(frozen=True)
class Value:
    """One number of a card, and the metric that it becomes.

    source: the column of a table, or the keys of a JSON value joined by dots; of lines the group ``value``. metric: its
    name after ``gaudi_serve_card_``. factor: what the number is multiplied by. labels: those of the metric beside the
    card's own. words: texts that stand for numbers; ``{}`` is any list or mapping. Of several values for one sample the
    largest counts. A text that is not a number, such as N/A, gives no sample.
    """

    source: str
    metric: str
    factor: float = 1.0
    labels: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Only:
    """Which lines of an answer count: those whose groups are also found in another one.

    argv: the command of the other answer. pattern: a regular expression with the groups. every_s: as in Query.
    """

    argv: tuple[str, ...]
    pattern: str
    every_s: int = FIXED_S


@dataclass(frozen=True)
class Query:
    """One call of a tool.

    argv: with ``{bus_id}`` or ``{key}`` it is called for each card. key: the column, or the keys of a JSON value, that
    tells which card a row is of; a call for one card needs none. columns: of a table without a head, whose cells are
    separated by commas; rows with another number of cells are ignored. pattern: a regular expression of lines, with the
    group ``value``; its other groups are labels. With neither, the answer is JSON: a list of rows, a mapping that has
    one, or a single row. every_s: for so many seconds an answer is used again. A query whose values all have samples
    already is not asked: an older tool may need another one.
    """

    argv: tuple[str, ...]
    values: tuple[Value, ...]
    key: str = ""
    columns: tuple[str, ...] = ()
    pattern: str = ""
    only: Only | None = None
    every_s: int = 0


@dataclass(frozen=True)
class CardMetrics:
    """How a platform's cards are read.

    cards: the query that finds them; where it has no row, nothing of the cards is known. card: what of its rows the
    label ``card`` has, bus_id: the place on the PCI bus; ``details`` a text with names of its columns in braces.
    queries: what else is asked; each may fail by itself, as where a release does not know one of its fields.
    """

    cards: Query
    card: str
    bus_id: str
    details: str
    queries: tuple[Query, ...] = ()
