"""The page of the toolkit's own metrics."""

from __future__ import annotations

from pathlib import Path

from gaudi_serve.monitoring.metrics import METRICS, REASONS, STATES

HEAD = """# Metrics

The collector on every host counts these metrics, in addition to those of vLLM, node exporter and HAProxy
([monitoring](../guides/monitoring.md)). Prometheus stores them with `job="node"` and the label `host`. A
value that cannot be read has no sample; it is never 0. `scripts/reference` writes this page.

- `card` identifies a card permanently: its module_id on Gaudi, its UUID on NVIDIA, its PCI address on other platforms.
- `model` is the model's name on its host.

| metric | type | own labels | meaning |
|---|---|---|---|
"""


def pages(root: Path) -> dict[Path, str]:
    """Return the files that this part writes, by their paths."""
    rows = []
    for one in METRICS:
        labels = ", ".join(f"`{label}`" for label in one.labels)
        rows.append(f"| `{one.name}` | {one.kind} | {labels} | {one.help} |\n")
    values = f"\n`state` is one of {', '.join(STATES)}. `reason` of a restart is one of {', '.join(REASONS)}.\n"
    return {root / "docs/reference/metrics.md": HEAD + "".join(rows) + values}
