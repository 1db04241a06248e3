"""The dashboards of role monitoring, and the queries of their panels."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "roles/monitoring/files/dashboards"
FILES = sorted(FOLDER.glob("*.json"))


@dataclass(frozen=True)
class Query:
    """A query of a panel: its place, its expression, and the name of its lines."""

    board: str
    panel: str
    expr: str
    legend: str

    def filled(self, values: Mapping[str, str]) -> str:
        """Return the expression with the values of its variables."""
        expr = self.expr.replace("$__rate_interval", "5m")
        for name, value in values.items():
            expr = expr.replace(f'"${name}"', f'"{value}"')
        return expr


def board(path: Path) -> dict[str, Any]:
    """Return a dashboard."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def queries() -> Iterator[Query]:
    """Yield the queries of all panels of all dashboards."""
    for path in FILES:
        for panel in board(path)["panels"]:
            for target in panel.get("targets", ()):
                yield Query(path.stem, panel["title"], target["expr"], target["legendFormat"])
