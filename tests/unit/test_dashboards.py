"""The dashboards for Grafana: files that it provisions as they are, with queries that answer on every engine."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from gaudi_serve.model.objectives import Objectives
from gaudi_serve.monitoring.engine_metrics import RELEASES, TARGET_LABELS, VLLM, engine_metrics
from gaudi_serve.monitoring.rules import all_rules
from gaudi_serve.monitoring.thresholds import Thresholds
from helpers import promql, recorded
from helpers.dashboards import FILES, board, queries
from helpers.known_metrics import known_labels, unknown_metrics
from helpers.monitoring_tools import tool

ROOT = Path(__file__).parents[2]
QUERIES = list(queries())
RECORDED = {
    rule.name
    for groups in all_rules({"m": Objectives(1.0, 1.0, 0.1)}, Thresholds(), {}).values()
    for rule in chain.from_iterable(groups.values())
}
# What servers of the fork do not count, and what vLLM counts from a release on.
NOT_ON_THE_FORK = {"Prompt tokens that the prefix cache had", "Rejected requests"}
NEWER = {"Rejected requests": (0, 32)}


@pytest.mark.skipif(
    not importlib.util.find_spec("grafana_foundation_sdk"),
    reason="grafana-foundation-sdk is missing; requirements-dev.txt has it",
)
def test_the_files_are_what_the_script_writes() -> None:
    command = [sys.executable, ROOT / "scripts/dashboards", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + "run scripts/dashboards"


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    """Return whether two panels lie on each other."""
    return all(
        one[at] < other[at] + other[size] and other[at] < one[at] + one[size] for at, size in (("x", "w"), ("y", "h"))
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_grafana_takes_a_file_as_it_is(path: Path) -> None:
    found = board(path)
    assert found["uid"] == path.stem and found["title"] and found["schemaVersion"] >= 36
    assert "__inputs" not in found and "id" not in found
    datasource, *others = found["templating"]["list"]
    assert (datasource["name"], datasource["type"], datasource["query"]) == ("datasource", "datasource", "prometheus")
    assert all(one["datasource"]["uid"] == "${datasource}" and one["includeAll"] for one in others)
    panels = found["panels"]
    assert len({one["id"] for one in panels}) == len(panels)
    assert [(a["title"], b["title"]) for a, b in combinations(panels, 2) if overlap(a["gridPos"], b["gridPos"])] == []
    assert all(one["gridPos"]["x"] + one["gridPos"]["w"] <= 24 for one in panels)
    known = {f"${one['name']}" for one in found["templating"]["list"]} | {"$__rate_interval", "$1"}
    for panel in (one for one in panels if one["type"] != "row"):
        assert panel["type"] in ("timeseries", "stat", "table") and panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert len({one["refId"] for one in panel["targets"]}) == len(panel["targets"]) >= 1
        for one in (panel, *panel["targets"]):
            assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        if panel["type"] == "timeseries":
            # Elsewhere Grafana ignores it silently.
            assert panel["fieldConfig"]["defaults"]["custom"]["spanNulls"] is False
        assert set(re.findall(r"\$\w+", " ".join(one["expr"] for one in panel["targets"]))) <= known


def test_promtool_takes_every_query(tmp_path: Path) -> None:
    rules = [{"record": f"query{place}", "expr": query.filled({})} for place, query in enumerate(QUERIES)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    command = [tool("promtool"), "check", "rules", str(tmp_path / "rules.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout


@pytest.mark.parametrize("release", [None, *RELEASES], ids=lambda one: ".".join(map(str, one)) if one else "fork")
def test_every_metric_of_a_panel_exists(release: Any) -> None:
    missing = {query.panel for query in QUERIES if unknown_metrics(query.filled({}), release, RECORDED)}
    assert missing == ({panel for panel, since in NEWER.items() if release < since} if release else NOT_ON_THE_FORK)


@pytest.mark.parametrize("name", recorded.NAMES)
def test_the_tables_have_what_a_server_shows(name: str) -> None:
    release, shown = recorded.release(name), recorded.shown(name)
    table = engine_metrics(release)
    assert {metric: shown.get(metric) for metric in table} == {metric: set(labels) for metric, labels in table.items()}
    # What the tables have of other releases alone, this server does not show.
    others = set(chain.from_iterable(engine_metrics(one) for one in (None, *RELEASES)))
    assert others & shown.keys() == table.keys()


@pytest.mark.parametrize("name", recorded.NAMES)
def test_histograms_have_the_limits_of_the_tables(name: str) -> None:
    for metric in VLLM:
        limits = [one.labels["le"] for one in recorded.page(name) if one.name == f"{metric.name}_bucket"]
        # Those of tokens end at the longest context of the server.
        assert limits == [repr(one) for one in metric.buckets[: len(limits) - 1]] + ["+Inf"] or not limits
        assert len(limits) > len(metric.buckets) or metric.name.endswith("_tokens") or not limits


def test_the_labels_of_a_panel_exist() -> None:
    labels = known_labels()
    for query in QUERIES:
        found = promql.names(query.filled({}))
        every = {*TARGET_LABELS, *chain.from_iterable(labels.get(one, ()) for one in found.metrics), *found.texts}
        # Of ALERTS, what alerts have.
        every |= {"card", "proxy"} if "ALERTS" in found.metrics else set()
        assert set(found.labels) <= every, query
        assert all(set(one.labels) <= {*TARGET_LABELS, *labels.get(one.metric, ())} for one in found.selectors), query
        kept = {*found.labels, *(TARGET_LABELS if found.metrics & RECORDED else ())}
        assert set(re.findall(r"\{\{(\w+)\}\}", query.legend)) <= kept, query


def test_shares_are_averaged_and_never_summed() -> None:
    share = re.compile(r"sum[^(]*(\([^)]*\) )?\((vllm:\w+_perc|gaudi_serve_\w+_ratio|habanalabs_utilization)\b")
    assert share.search("sum by (host) (vllm:kv_cache_usage_perc{})") and share.search("sum(gaudi_serve_a_ratio)")
    assert [query for query in QUERIES if share.search(query.expr)] == []


def test_the_dashboards_show_what_operators_ask_for() -> None:
    shown = set(chain.from_iterable(promql.names(query.filled({})).metrics for query in QUERIES))
    for group in ("model", "card", "host", "fleet", "collector"):
        assert any(name.startswith(f"gaudi_serve_{group}_") for name in shown), group
    assert "ALERTS" in shown and len(FILES) == 4
