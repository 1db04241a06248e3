"""The metrics and labels of a PromQL expression."""

from __future__ import annotations

import re
from dataclasses import dataclass

TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
    |(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)
    |(?P<duration>(?:[0-9]+(?:ms|[smhdwy]))+)
    |(?P<number>0x[0-9a-fA-F]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    |(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)
    |(?P<sign>=~|!~|!=|==|<=|>=|[-+*/%^=<>(){}\[\],:@])""",
    re.VERBOSE,
)
GROUPING = {"by", "without", "on", "ignoring", "group_left", "group_right"}
WORDS = GROUPING | {"and", "or", "unless", "bool", "offset", "atan2", "inf", "nan", "start", "end"}


@dataclass(frozen=True)
class Selector:
    """A metric (empty if only labels select the series), and the labels that the selector compares."""

    metric: str
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Names:
    """The names in an expression. labels: labels for grouping and matching. texts: its strings."""

    selectors: tuple[Selector, ...]
    labels: tuple[str, ...]
    texts: tuple[str, ...]

    @property
    def metrics(self) -> set[str]:
        """Return the names of all metrics."""
        return {one.metric for one in self.selectors if one.metric}


def tokens(expr: str) -> list[tuple[str, str]]:
    """Return kind and text of each token.

    Raises:
        ValueError: if the expression contains anything else.
    """
    found, at = [], 0
    while at < len(expr):
        match = TOKEN.match(expr, at)
        if not match:
            raise ValueError(f"no PromQL at {expr[at : at + 20]!r}")
        at = match.end()
        if match.lastgroup != "space":
            found.append((str(match.lastgroup), match[0]))
    return found


def names(expr: str) -> Names:
    """Return the names in an expression; promtool checks its syntax."""
    parts = [*tokens(expr), ("end", "")]
    selectors, labels = [], []
    at = 0
    while at < len(parts):
        kind, text = parts[at]
        after = parts[at + 1][1] if at + 1 < len(parts) else ""
        at += 1
        if kind == "name" and text.lower() in GROUPING and after == "(":
            inside, at = _until(parts, at + 1, ")")
            labels += [one for which, one in inside if which == "name"]
        elif kind == "name" and text.lower() not in WORDS and not _is_call(after, text):
            inside, at = _until(parts, at + 1, "}") if after == "{" else ([], at)
            selectors.append(Selector(text, _compared(inside)))
        elif text == "{":
            inside, at = _until(parts, at, "}")
            selectors.append(Selector("", _compared(inside)))
    texts = [text[1:-1] for kind, text in parts if kind == "string"]
    return Names(tuple(selectors), tuple(labels), tuple(texts))


AGGREGATIONS = {
    *("sum", "min", "max", "avg", "group", "stddev", "stdvar", "count", "count_values", "bottomk", "topk", "quantile"),
}


def _is_call(after: str, text: str) -> bool:
    """Return whether a name is a function, or an aggregation before its labels."""
    return after == "(" or (text in AGGREGATIONS and after in ("by", "without"))


def _until(parts: list[tuple[str, str]], at: int, end: str) -> tuple[list[tuple[str, str]], int]:
    """Return the tokens up to a character, and the place after it."""
    stop = next(place for place in range(at, len(parts)) if parts[place][1] == end)
    return parts[at:stop], stop + 1


def _compared(inside: list[tuple[str, str]]) -> tuple[str, ...]:
    """Return the labels inside of braces."""
    return tuple(text for kind, text in inside if kind == "name" and text != "__name__")
