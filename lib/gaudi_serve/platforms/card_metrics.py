"""How the collector on a host reads its cards: only data, so that the collector contains no vendor's or tool's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PERCENT, MIB, MICROSECONDS = 0.01, float(1 << 20), 1e-6
# Cache times of an answer in seconds: for constant values, and for slow calls.
FIXED_S, SLOW_S = 3600, 120


@dataclass(frozen=True)
class Value:
    """One number of a card, and its metric.

    source: the column of a table, or the keys of a JSON value joined by dots; for lines, the group ``value``. metric:
    its name after ``gaudi_serve_card_``. factor: multiplier of the number. labels: those of the metric in addition to
    the card's own. words: texts that stand for numbers; ``{}`` is any list or mapping. Of several values for one sample
    the largest counts. A text that is not a number, such as N/A, gives no sample.
    """

    source: str
    metric: str
    factor: float = 1.0
    labels: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Only:
    """A filter for the lines of an answer: those whose groups also occur in another answer.

    argv: the command of the other answer. pattern: a regular expression with the groups. every_s: as in Query.
    """

    argv: tuple[str, ...]
    pattern: str
    every_s: int = FIXED_S


@dataclass(frozen=True)
class Query:
    """One call of a tool.

    argv: with ``{bus_id}`` or ``{key}`` it is called for each card. key: the column, or the keys of a JSON value, that
    identifies a row's card; a call for one card needs none. columns: of a table without a header, whose cells are
    separated by commas; rows with another number of cells are ignored. pattern: a regular expression of lines, with the
    group ``value``; its other groups are labels. With neither, the answer is JSON: a list of rows, a mapping that
    contains one, or a single row. every_s: for how many seconds an answer is reused. A query whose values all have
    samples already is skipped: it is a fallback for an older tool.
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

    cards: the query that finds them; if it has no row, nothing is known of the cards. card: the value of its rows for
    the label ``card``; bus_id: the place on the PCI bus; ``details`` a text with names of its columns in braces.
    queries: the other calls; each may fail by itself, for example if a release does not know one of its fields.
    """

    cards: Query
    card: str
    bus_id: str
    details: str
    queries: tuple[Query, ...] = ()
