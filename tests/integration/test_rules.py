"""The rules for Prometheus: each alert fires when the thing happens and is silent else, as promtool evaluates them."""

from __future__ import annotations

import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from gaudi_serve.core.errors import InputError
from gaudi_serve.model.objectives import BETWEEN_TOKENS, FIRST_TOKEN, Objectives, limit_text, read_objectives
from gaudi_serve.monitoring.alerts import ALERTS, QUANTILES, Alert, Recording
from gaudi_serve.monitoring.engine_metrics import RELEASES, TARGET_LABELS
from gaudi_serve.monitoring.rules import all_rules, rules_text
from gaudi_serve.monitoring.settings import Monitoring
from gaudi_serve.monitoring.thresholds import Thresholds
from helpers import promql
from helpers.known_metrics import known_labels, unknown_metrics
from helpers.monitoring_tools import tool
from helpers.rule_cases import OBJECTIVES, TABLE, Case, kept_silent
from helpers.synthetic_load import HEALTHY, SICK, Load, series

ROOT = Path(__file__).parents[2]


def rules(objectives: dict[str, Any] = OBJECTIVES) -> list[Alert | Recording]:
    """Return all rules."""
    read = {name: read_objectives(name, slo) for name, slo in objectives.items() if slo}
    files = all_rules(read, Thresholds(), {})
    return [rule for groups in files.values() for rule in chain.from_iterable(groups.values())]


RULES = rules()
NAMES = sorted({rule.name for rule in RULES if isinstance(rule, Alert)})
SOURCES = {one.name: one for one in (*chain.from_iterable(ALERTS.values()), *QUANTILES.values())}


def while_quiet() -> Iterator[Case]:
    """Give each firing case of an alert that a rollout, or a start, keeps silent, during one."""
    over = {"keeps ending", "starts too long", "rollout left half-way", "one drained and one down"}
    for case in TABLE:
        source = SOURCES.get(case.alert)
        if case.labels is None or case.what in over or source is None:
            continue
        if "<quiet" in source.expr:
            yield kept_silent(case, starting=False)
        if "<quiet>" in source.expr and case.alert != "ModelRestarts":
            yield kept_silent(case, starting=True)


CASES = [*TABLE, *while_quiet()]


def test_every_alert_has_a_firing_and_a_silent_case() -> None:
    for always, labels, what in ((set(), True, "firing"), ({"Watchdog"}, False, "silent")):
        found = {one.alert for one in TABLE if (one.labels is not None) == labels}
        assert sorted(found | always) == NAMES and not found & always, what


def played(cases: list[Case]) -> dict[str, Any]:
    """Return the file of promtool that plays cases of one step through the rules."""
    tests = []
    for case in cases:
        severity = {one.name: one.severity for one in RULES if isinstance(one, Alert)}[case.alert]
        labels = {"alertname": case.alert, "alertstate": "firing", "severity": severity, **(case.labels or {})}
        texts = ",".join(f'{key}="{value}"' for key, value in labels.items())
        tests.append(
            {
                "name": case.name,
                "interval": f"{case.step}m",
                "input_series": [{"series": name, "values": values} for name, values in case.series()],
                "promql_expr_test": [
                    {
                        # promtool shows the expression of what fails, and no name.
                        "expr": f'ALERTS{{alertname="{case.alert}",alertstate="firing"}} # {case.name}',
                        "eval_time": f"{case.minutes}m",
                        "exp_samples": [] if case.labels is None else [{"labels": f"ALERTS{{{texts}}}", "value": 1}],
                    }
                ],
            }
        )
    return {"rule_files": [f"{cases[0].alert}.yml"], "evaluation_interval": f"{cases[0].step}m", "tests": tests}


def write_rules(folder: Path) -> list[Path]:
    """Write the rules of the cases."""
    paths = []
    for name, text in rules_text(OBJECTIVES).items():
        paths.append(folder / name)
        paths[-1].write_text(text, encoding="utf-8")
    return paths


def write_each_alert(folder: Path) -> None:
    """Write a file for each alert with what it reads of recordings: promtool takes a tenth of the time for it."""
    written = [yaml.safe_load(text) for text in rules_text(OBJECTIVES).values()]
    every = [rule for file in written for group in file["groups"] for rule in group["rules"]]
    for name in NAMES:
        own = [rule for rule in every if rule.get("alert") == name]
        read = set(chain.from_iterable(promql.names(rule["expr"]).metrics for rule in own))
        # Each recording stands before those that read it.
        for rule in reversed(every):
            if rule.get("record") in read and rule not in own:
                own.insert(0, rule)
                read |= promql.names(rule["expr"]).metrics
        text = yaml.safe_dump({"groups": [{"name": "rules", "rules": own}]})
        (folder / f"{name}.yml").write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what promtool reports of the cases that fail, by their names."""
    folder = tmp_path_factory.mktemp("rules")
    write_each_alert(folder)
    files: dict[str, list[Case]] = defaultdict(list)
    for case in CASES:
        files[f"{case.alert}-{case.step}.yml"].append(case)
    for name, cases in files.items():
        (folder / name).write_text(yaml.safe_dump(played(cases)), encoding="utf-8")
    command = [tool("promtool"), "test", "rules", *files]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    found = {text.split('"')[0].strip("\\"): text for text in said.split("# ")[1:]}
    assert (done.returncode == 0) == (not found), said
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_alert_fires_when_it_should(case: Case, failures: dict[str, str]) -> None:
    assert case.name not in failures, failures[case.name]


def test_the_names_of_cases_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


def test_promtool_takes_the_rules(tmp_path: Path) -> None:
    done = subprocess.run(
        [tool("promtool"), "check", "rules", *write_rules(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Of duplicates it only warns.
    assert "duplicate" not in done.stdout + done.stderr


def test_the_files_are_yaml_with_every_rule() -> None:
    files = {name: yaml.safe_load(text) for name, text in rules_text(OBJECTIVES).items()}
    written = [rule for file in files.values() for group in file["groups"] for rule in group["rules"]]
    assert len(written) == len(RULES)
    for rule, source in zip(written, RULES, strict=True):
        assert rule["expr"] == source.expr
        if isinstance(source, Recording):
            assert rule["record"] == source.name and rule.get("labels", {}) == dict(source.labels)
        else:
            assert rule["alert"] == source.name and rule["labels"]["severity"] == source.severity
            assert rule.get("for", "") == source.lasts
            assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
            assert rule["annotations"]["runbook_url"] == f"docs/reference/alerts.md#{source.name.lower()}"
    assert rules_text({"qwq": None}).keys() == {"gaudi-serve-rules.yml"}
    page = rules_text({}, Monitoring(runbooks="https://wiki.example.net/alerts"))["gaudi-serve-rules.yml"]
    assert 'runbook_url: "https://wiki.example.net/alerts#endpointdown"' in page


@pytest.mark.parametrize("name", NAMES)
def test_the_texts_of_an_alert_use_labels_that_it_has(name: str) -> None:
    fired = [case.labels for case in TABLE if case.alert == name and case.labels is not None]
    for rule in (one for one in RULES if isinstance(one, Alert) and one.name == name):
        # The fork has no engines, and the text then names none.
        used = set(re.findall(r"\$labels\.(\w+)", rule.summary + rule.description)) - {"engine"}
        assert all(used <= labels.keys() for labels in fired)
        assert rule.severity in ("critical", "warning", "info") or rule.name == "Watchdog"
        assert re.fullmatch(r"[A-Z][A-Za-z]+", rule.name)


RECORDED = {rule.name: dict(rule.labels) for rule in RULES if isinstance(rule, Recording)}


@pytest.mark.parametrize("release", [None, *RELEASES], ids=lambda one: ".".join(map(str, one)) if one else "fork")
def test_every_metric_of_a_rule_exists_on_every_engine(release: tuple[int, ...] | None) -> None:
    allowed = {"RequestsRejected"} if not release or release < (0, 32) else set()
    # The fork does not count its prefix cache.
    allowed |= {"host_model:vllm_prefix_cache_hits:ratio_1h"} if not release else set()
    assert {rule.name for rule in RULES if unknown_metrics(rule.expr, release, RECORDED)} == allowed


def test_a_metric_that_does_not_exist_is_found() -> None:
    for expr, release, unknown in (
        ("vllm:kv_cache_usage_perc", None, ["vllm:kv_cache_usage_perc"]),
        ("vllm:gpu_prefix_cache_hits_total + up", (0, 12, 0), ["vllm:gpu_prefix_cache_hits_total"]),
        ("vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc", (0, 33, 0), []),
        ("gaudi_serve_card_temperature", None, ["gaudi_serve_card_temperature"]),
    ):
        assert unknown_metrics(expr, release) == unknown


def test_the_labels_of_a_rule_exist_and_differ_by_no_release() -> None:
    labels = known_labels()
    for rule in RULES:
        found = promql.names(rule.expr)
        if isinstance(rule, Recording):
            labels[rule.name] = (*found.labels, *found.texts, *dict(rule.labels))
        for selector in found.selectors:
            known = {*TARGET_LABELS, *labels.get(selector.metric, ())}
            assert set(selector.labels) <= known, (rule.name, selector)
        every = {*TARGET_LABELS, *chain.from_iterable(labels.get(one, ()) for one in found.metrics), *found.texts}
        assert set(found.labels) <= every, rule.name
        compared = {*chain.from_iterable(one.labels for one in found.selectors)}
        # A group by the engine has one member on the fork. A comparison with it would have none.
        assert "model_name" not in {*found.labels, *compared} and "engine" not in compared


def test_each_recording_that_a_rule_reads_stands_before_it() -> None:
    seen: set[str] = set()
    for rule in RULES:
        read = {one for one in promql.names(rule.expr).metrics if one in RECORDED}
        assert read <= seen, rule.name
        seen |= {rule.name} if isinstance(rule, Recording) else set()


def test_every_recording_is_read_by_a_rule_or_a_dashboard() -> None:
    read = set(chain.from_iterable(promql.names(rule.expr).metrics for rule in RULES))
    assert RECORDED.keys() <= read


def test_objectives() -> None:
    assert read_objectives("m", None) == read_objectives("m", {}) == Objectives()
    slo = {"ttft_s": 10, "itl_s": 0.1, "errors": 0.001, "share": 0.999}
    assert read_objectives("m", slo) == Objectives(10.0, 0.1, 0.001, 0.999)
    assert (limit_text(10), limit_text(2.5)) == ("10.0", "2.5")
    texts = rules_text({"m": slo})["gaudi-serve-objectives.yml"]
    assert 'le="10.0"' in texts and "> 0.0144" in texts
    assert all(read_objectives("m", {"ttft_s": one}) for one in FIRST_TOKEN)
    assert all(read_objectives("m", {"itl_s": one}) for one in BETWEEN_TOKENS)


def test_a_budget_that_is_nearly_all_still_burns() -> None:
    text = rules_text({"m": {"ttft_s": 1, "share": 0.5}})["gaudi-serve-objectives.yml"]
    assert 'model:gaudi_serve_ttft_bad:ratio_1h{model="m"} > 0.9' in text
    assert "is used up within 17 days" in text


def test_a_gateway_knows_a_model_by_its_name_for_clients() -> None:
    text = rules_text({"m": {"errors": 0.01}}, served={"m": "Qwen/QwQ-32B"})["gaudi-serve-objectives.yml"]
    assert 'proxy="Qwen_QwQ-32B-' in text and 'model="m"' in text


@pytest.mark.parametrize(
    ("slo", "message"),
    [
        ({"ttft_s": 3}, "m: slo.ttft_s: 3 is not a limit of vLLM's histogram; the nearest is 2.5 or 5"),
        ({"itl_s": 0.12}, "m: slo.itl_s: 0.12 is not a limit of vLLM's histogram; the nearest is 0.1 or 0.15"),
        ({"itl_s": 0}, "m: slo.itl_s: 0 is not a limit of vLLM's histogram; the nearest is 0.01"),
        ({"itl_s": 100}, "m: slo.itl_s: 100 is not a limit of vLLM's histogram; the nearest is 80"),
        ({"ttft_s": "2.5"}, "m: slo.ttft_s: '2.5' is not a number of seconds"),
        ({"ttft_s": float("nan")}, "m: slo.ttft_s: NaN is not a number of seconds"),
        ({"ttft_s": None}, "m: slo.ttft_s: is not a number of seconds"),
        ({"errors": 1}, "m: slo.errors: 1 is not a part between 0 and 1, both excluded"),
        ({"errors": True}, "m: slo.errors: true is not a part between 0 and 1, both excluded"),
        ({"share": 0.9, "errors": 0.1}, "m: slo.share: 0.9 has no meaning without ttft_s or itl_s"),
        ({"ttft": 1}, "m: slo: 'ttft' is not an objective; known are ttft_s, itl_s, errors, share"),
        ([1], "m: slo: [1] is not a mapping of objectives, such as {ttft_s: 2.5}"),
    ],
)
def test_an_objective_that_cannot_be_counted_is_refused(slo: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        rules_text({"m": slo})


def test_thresholds() -> None:
    text = rules_text({}, Monitoring(thresholds={"ttft_p95_s": 2, "kv_cache_ratio": 0.5, "drained_s": 600}))[
        "gaudi-serve-rules.yml"
    ]
    assert "p95 > 2 and" in text and ") > 0.5" in text and "for: 600s" in text
    assert rules_text({}, Monitoring()) == rules_text({})


@pytest.mark.parametrize(
    ("thresholds", "message"),
    [
        ({"ttft": 2}, "fleet_monitoring.thresholds: 'ttft' is not a threshold; known are restarts, start_factor"),
        ({"ttft_p95_s": 0}, "fleet_monitoring.thresholds.ttft_p95_s: 0 is not a number above 0, and 1e+12 at most"),
        (
            {"kv_cache_ratio": 95},
            "fleet_monitoring.thresholds.kv_cache_ratio: 95 is not a number above 0, and 1 at most",
        ),
        ({"waiting": "20"}, "fleet_monitoring.thresholds.waiting: '20' is not a number above 0, and 1e+12 at most"),
        ("many", "fleet_monitoring.thresholds: 'many' is not a mapping of thresholds to numbers"),
    ],
)
def test_a_threshold_that_cannot_be_is_refused(thresholds: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        rules_text({}, Monitoring(thresholds=thresholds))


def test_a_model_with_an_objective_of_its_own_has_no_alert_on_quantiles() -> None:
    text = rules_text({"a.b": {"ttft_s": 1}, "c": {"ttft_s": 1}, "d": {"itl_s": 1}})["gaudi-serve-rules.yml"]
    assert 'vllm_time_to_first_token_seconds:p95{model!~"a[.]b|c"} > 5' in text
    assert 'vllm_inter_token_latency_seconds:p95{model!~"d"} > 0.2' in text


def test_names_of_an_expression() -> None:
    found = promql.names(
        'sum by (host, le) (rate(a:b{x="{y}", z=~"q"}[5m] offset 1h)) > 1e3 and on (m) c or {__name__=~"d", k="v"}'
    )
    assert [(one.metric, one.labels) for one in found.selectors] == [("a:b", ("x", "z")), ("c", ()), ("", ("k",))]
    assert found.labels == ("host", "le", "m") and "{y}" in found.texts
    assert promql.names("sum(x) by (l) / count without (k) (y) * 3600s").metrics == {"x", "y"}
    with pytest.raises(ValueError, match="no PromQL at '\\$x'"):
        promql.names("a + $x")


# These report what nobody may miss, whatever is under way.
NEVER_QUIET = {
    *("CardEccUncorrected", "CardFaulty", "CardRowReplacementPending", "CardHot", "CardThrottled", "CardPcieDegraded"),
    *("TextfileBroken", "DiskFull", "DiskFullSoon", "LinkValidationOld", "RolloutLeftHalfway", "CertificateExpires"),
    *("ServerDrained", "DroppedLogs", "AlertmanagerUnreachable", "RuleEvaluationFails", "Watchdog"),
}


def test_which_alerts_a_rollout_does_not_silence() -> None:
    assert {name for name, alert in SOURCES.items() if "<quiet" not in alert.expr} == NEVER_QUIET
    assert all("<quiet>" in alert.expr for alert in ALERTS["models"] if alert.name != "ModelStartsTooLong")


def both_engines(ending: str, more: str, values: str) -> list[dict[str, str]]:
    """Return the series of a time between tokens: of the plugin's engine on g1, and of the fork's on g2."""
    named = (("inter_token_latency", "g1", ',engine="0"'), ("time_per_output_token", "g2", ""))
    return [
        {
            "series": f'vllm:{name}_seconds_{ending}{{job="vllm",host="{host}",model="promised"{engine}{more}}}',
            "values": values,
        }
        for name, host, engine in named
    ]


def test_what_prometheus_records_of_two_engines_together(tmp_path: Path) -> None:
    series = both_engines("bucket", ',le="0.1"', "0+90x90") + both_engines("bucket", ',le="+Inf"', "0+100x90")
    wanted = {
        "round(model:gaudi_serve_itl_bad:ratio_1h, 0.001)": ('{model="promised"}', 0.1),
        "count(host_model_engine:vllm_inter_token_latency_seconds:p95 > 0)": ("{}", 2),
    }
    checks = [
        {"expr": expr, "eval_time": "80m", "exp_samples": [{"labels": labels, "value": value}]}
        for expr, (labels, value) in wanted.items()
    ]
    test = {
        "interval": "1m",
        "input_series": series + both_engines("count", "", "0+100x90"),
        "promql_expr_test": checks,
    }
    files = [path.name for path in write_rules(tmp_path)]
    text = yaml.safe_dump({"rule_files": files, "evaluation_interval": "1m", "tests": [test]})
    (tmp_path / "test.yml").write_text(text, encoding="utf-8")
    command = [tool("promtool"), "test", "rules", "test.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def firing(load: Load, seed: int, folder: Path) -> set[str]:
    """Return the alerts that fire within hours of a simulated load, by the rules of models and gateways."""
    parts = [group for text in rules_text(OBJECTIVES).values() for group in yaml.safe_load(text)["groups"]]
    groups = [group for group in parts if group["name"].rpartition("-")[2] in READ]
    (folder / "rules.yml").write_text(json.dumps({"groups": groups}), encoding="utf-8")
    engines = [load, *(replace(HEALTHY["busy"], engine=one) for one in range(1, 4))] if load.frozen else [load]
    found = dict(chain.from_iterable(series(one, MINUTES, seed + one.engine) for one in engines))
    # promtool shows what fires as the difference from nothing.
    every = f'count by (alertname) (count_over_time(ALERTS{{alertstate="firing",alertname!="Watchdog"}}[{MINUTES}m]))'
    check = {"expr": every, "eval_time": f"{MINUTES}m", "exp_samples": []}
    test = {"interval": "1m", "input_series": [{"series": name, "values": values} for name, values in found.items()]}
    text = {"rule_files": ["rules.yml"], "evaluation_interval": "2m", "tests": [{**test, "promql_expr_test": [check]}]}
    (folder / "test.yml").write_text(json.dumps(text), encoding="utf-8")
    command = [tool("promtool"), "test", "rules", "test.yml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return set(re.findall(r'alertname="(\w+)"', (done.stdout + done.stderr).partition("got:")[2]))


MINUTES, READ = 180, {"recordings", "models", "gateway", "objectives"}
EXPECTED = {
    "frozen": {"EngineStalled"},
    "slow": {"QueueStalled", "QueueTimeHigh"},
    "failing": {"GatewayErrors", "ErrorBudgetBurnsFast"},
    "failing in a quiet time": {"ErrorBudgetBurnsFast"},
}


@pytest.mark.parametrize("name", HEALTHY)
def test_no_alert_fires_on_a_healthy_server(name: str, tmp_path: Path) -> None:
    assert firing(HEALTHY[name], 1, tmp_path) == set()


@pytest.mark.parametrize("name", SICK)
def test_an_alert_fires_on_a_sick_server(name: str, tmp_path: Path) -> None:
    assert EXPECTED[name] <= firing(SICK[name], 1, tmp_path)


def test_the_text_of_an_alert_names_the_engine_of_a_server_that_has_engines(tmp_path: Path) -> None:
    files = [path.name for path in write_rules(tmp_path)]
    tests = []
    for label, place in ((',engine="3"', "qwq on g1, engine 3"), ("", "qwq on g1")):
        target = f'{{job="vllm",host="g1",model="qwq"{label}}}'
        waiting = {f"vllm:num_requests_waiting{target}": "2x9", f"vllm:num_requests_running{target}": "0x9"}
        alert = {
            "exp_labels": {"severity": "critical", "host": "g1", "model": "qwq", **({"engine": "3"} if label else {})},
            "exp_annotations": {
                "summary": f"The queue of {place} is stuck",
                "description": "2 requests wait, and the server works on none.",
                "runbook_url": "docs/reference/alerts.md#queuestuck",
            },
        }
        check = {"eval_time": "6m", "alertname": "QueueStuck", "exp_alerts": [alert]}
        series_of = [{"series": name, "values": values} for name, values in waiting.items()]
        tests.append({"interval": "1m", "input_series": series_of, "alert_rule_test": [check]})
    text = json.dumps({"rule_files": files, "evaluation_interval": "1m", "tests": tests})
    (tmp_path / "test.yml").write_text(text, encoding="utf-8")
    command = [tool("promtool"), "test", "rules", "test.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


PAGE = (ROOT / "docs/reference/alerts.md").read_text(encoding="utf-8")


def test_every_alert_has_its_section() -> None:
    sections = re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]
    assert sorted(section.splitlines()[0] for section in sections) == NAMES
    for section in sections:
        parts = re.findall(r"^\*\*(\w+)\.\*\* \S", section, re.MULTILINE)
        assert parts == ["Meaning", "Look", "Do"], section.splitlines()[0]


def test_the_page_names_what_exists() -> None:
    headings = [
        re.sub(r"[^a-z0-9 -]", "", one.lower()).replace(" ", "-") for one in re.findall(r"^#+ (.+)$", PAGE, re.M)
    ]
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= set(headings)
    for path in set(re.findall(r"\]\((\w+\.md)\)", PAGE)):
        assert (ROOT / "docs" / path).exists(), path
    # That of monitoring is part of the same stage.
    playbooks = set(re.findall(r"playbooks/(\w+)\.yml", PAGE)) - {"monitoring"}
    assert all((ROOT / f"playbooks/{name}.yml").exists() for name in playbooks)


def test_the_page_has_the_limits_of_objectives() -> None:
    for key, limits in (("ttft_s", FIRST_TOKEN), ("itl_s", BETWEEN_TOKENS)):
        (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{key}` |")]
        assert row.endswith(f"| {', '.join(f'{one:g}' for one in limits)} |")
