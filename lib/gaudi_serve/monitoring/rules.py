"""The rule files for Prometheus 2.42 and newer: recordings and alerts as YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from textwrap import dedent, indent
from typing import Any

from ..model.objectives import Objectives, read_all
from .alerts import ALERTS, QUANTILES, QUIET, RECORDINGS, Alert, Recording
from .burn import burn_alerts, burn_recordings
from .settings import Monitoring
from .thresholds import Thresholds, figure

RUNBOOK = "docs/reference/alerts.md"
PLACE = re.compile(r"<([a-z]\w*)>")
# PromQL needs quotes and special characters of regular expressions escaped.
SIGN = re.compile(r"[^A-Za-z0-9_-]")
Rule = Alert | Recording


def rules_text(
    objectives: Mapping[str, Any], settings: Monitoring | None = None, served: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the rule files by name. The file of objectives exists only if a model has objectives.

    Args:
        objectives: ``slo`` of each model by the model's name, as the user wrote it; None for a model without.
        settings: the settings of monitoring; only its thresholds and runbooks count.
        served: the names of models for clients, if they differ.

    Raises:
        InputError: for an invalid threshold or objective.
    """
    settings = settings or Monitoring()
    files = all_rules(read_all(objectives), Thresholds.read(settings.thresholds), served or {})
    head = "# Written by gaudi-serve; the next run overwrites changes.\ngroups:\n"
    return {
        name: head + "".join(_group(*one, settings.runbooks or RUNBOOK) for one in groups.items())
        for name, groups in files.items()
    }


def all_rules(
    objectives: Mapping[str, Objectives], thresholds: Thresholds, served: Mapping[str, str]
) -> dict[str, dict[str, list[Rule]]]:
    """Return the rules by file and group, with all numbers in their expressions."""
    values = {**{name: figure(value) for name, value in asdict(thresholds).items()}, **QUIET}
    groups: dict[str, list[Rule]] = {"recordings": [*RECORDINGS]}
    groups |= {name: [*alerts] for name, alerts in ALERTS.items()}
    groups["models"] += _quantiles(objectives)
    files = {"gaudi-serve-rules.yml": groups}
    if objectives:
        burns = {name: value for name, value in asdict(thresholds).items() if name.endswith("_burn")}
        rules: list[Rule] = [*burn_recordings(objectives, served), *burn_alerts(objectives, burns)]
        files["gaudi-serve-objectives.yml"] = {"objectives": rules}
    return {
        file: {group: [_filled(rule, values) for rule in rules] for group, rules in of_file.items()}
        for file, of_file in files.items()
    }


def _quantiles(objectives: Mapping[str, Objectives]) -> Iterator[Alert]:
    """Yield the alerts on quantiles, for the models without such an objective."""
    for key, alert in QUANTILES.items():
        own = [SIGN.sub(lambda one: f"[{one[0]}]", model) for model, one in objectives.items() if getattr(one, key)]
        others = f'{{model!~"{"|".join(own)}"}}' if own else ""
        yield replace(alert, expr=alert.expr.replace("<others>", others))


def _filled(rule: Rule, values: Mapping[str, str]) -> Rule:
    """Return a rule with numbers in place of the names in angle brackets."""

    def filled(text: str) -> str:
        return PLACE.sub(lambda one: values[one[1]], dedent(text).strip())

    if isinstance(rule, Recording):
        return replace(rule, expr=filled(rule.expr))
    return replace(rule, expr=filled(rule.expr), lasts=filled(rule.lasts))


def _group(name: str, rules: Iterable[Rule], runbook: str) -> str:
    """Return a group as YAML."""
    return f"  - name: gaudi-serve-{name}\n    rules:\n" + "".join(_rule(rule, runbook) for rule in rules)


def _rule(rule: Rule, runbook: str) -> str:
    """Return a rule as YAML; JSON strings are valid YAML."""
    kind, labels = ("record", dict(rule.labels)) if isinstance(rule, Recording) else ("alert", _labels(rule))
    lines = [f"      - {kind}: {rule.name}", "        expr: |-", indent(rule.expr, " " * 10)]
    if isinstance(rule, Alert) and rule.lasts:
        lines.append(f"        for: {rule.lasts}")
    parts = {"labels": labels}
    if isinstance(rule, Alert):
        link = f"{runbook}#{rule.name.lower()}"
        parts["annotations"] = {"summary": rule.summary, "description": rule.description, "runbook_url": link}
    for part, texts in parts.items():
        lines += [f"        {part}:"] if texts else []
        lines += [f"          {key}: {json.dumps(text)}" for key, text in texts.items()]
    return "\n".join(lines) + "\n"


def _labels(alert: Alert) -> dict[str, str]:
    """Return the labels that an alert adds to those of its expression."""
    return {"severity": alert.severity, **dict(alert.labels)}
