"""What the page of a fleet reports, and what it never has."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.bench.results import benchmark_kept
from gaudi_serve.core.version import toolkit_version
from gaudi_serve.show.page.advice import attention
from gaudi_serve.show.page.html import fleet_page_html, json_text
from gaudi_serve.show.page.machine import card_rows, link_rows
from gaudi_serve.show.page.view import fleet_page
from helpers.pages import fleet_parts, keep_results, plan_of, result, status_of
from helpers.plans import gaudi_host

MADE = ("plan", "2026-11-27 09:30 UTC", ["/home/somebody/ansible/inventory/mine"])
NAMES = ["g1", "g2"]
ERROR = {"host": "g1", "key": "port", "message": "g1: model m: port: 0 is not a port", "model": "m"}
ERROR |= {"value": 0, "allowed": "is not a port"}


def page(parts: dict[str, Any], folder: str = "") -> dict[str, Any]:
    return fleet_page(parts, *MADE, benchmark_kept(folder) if folder else None)


def lost(plan: dict[str, Any]) -> dict[str, Any]:
    """Return a plan that could not read its first host."""
    error = {**ERROR, "key": "facts", "message": "g1: cannot be reached"}
    return {**plan, "hosts": {name: one for name, one in plan["hosts"].items() if name != "g1"}, "errors": [error]}


@pytest.mark.parametrize(
    ("parts", "kind", "sentence"),
    [
        ({"plan": plan_of(NAMES)}, "good", "All 2 hosts are as planned."),
        ({"plan": plan_of(["g1"])}, "good", "All is as planned."),
        (
            {"plan": plan_of(NAMES, restarts=["g2"])},
            "changes",
            "A run would change 1 of 2 hosts and take 4 models down.",
        ),
        ({"plan": {**plan_of(NAMES), "errors": [ERROR]}}, "refused", "1 refusal: fix it before a run."),
        ({"plan": {**plan_of(NAMES), "errors": [ERROR, ERROR]}}, "refused", "2 refusals: fix them before a run."),
        ({"plan": lost(plan_of(NAMES))}, "attention", "g1 could not be read."),
        (
            {"plan": lost(plan_of(NAMES, restarts=["g2"]))},
            "attention",
            "g1 could not be read; a run would change 1 other host.",
        ),
        (
            {"status": {**status_of(plan_of(NAMES)), "drifted": ["g1"]}},
            "attention",
            "1 of 2 hosts differs from the plan.",
        ),
        ({"benchmark": {"g1": {"m": {"first_token_s": 0.1, "tokens_s": 50.0}}}}, "good", "1 model measured on 1 host."),
        (
            {
                "plan": plan_of(NAMES),
                "rollout": {"hosts": {"g1": {"outcome": "rolled_back", "why": "slow", "text": "g1: m is slower"}}},
            },
            "refused",
            "The rollout stopped at g1.",
        ),
        (
            {
                "plan": plan_of(NAMES, restarts=NAMES),
                "rollout": {"waves": [["g1"], ["g2"]], "hosts": {"g1": {"outcome": "verified", "text": "g1 serves"}}},
            },
            "changes",
            "1 host changed and verified; 1 host left.",
        ),
        ({}, "good", "Nothing was measured."),
    ],
)
def test_the_verdict_comes_first(parts: dict[str, Any], kind: str, sentence: str) -> None:
    document = page(parts)
    assert (document["verdict"]["kind"], document["verdict"]["sentence"]) == (kind, sentence)
    assert f"<h1>{sentence}</h1>" in fleet_page_html(document)


def test_what_needs_attention_is_reported_once_with_a_remedy() -> None:
    found = page(fleet_parts())["attention"]
    assert [one["kind"] for one in found[:3]] == ["unreachable", "drift", "reboot"]
    assert [one["hosts"] for one in found[:3]] == [["gaudi06"], ["gaudi05"], ["gaudi05"]]
    assert all(one["remedy"] for one in found[:3])
    several = next(one for one in found if one["kind"] == "warning")
    assert several["hosts"] == [f"gaudi0{number}" for number in range(1, 6)]


def test_what_is_not_known_is_not_shown_as_none_or_as_planned() -> None:
    def figures(plan: dict[str, Any]) -> dict[str, str]:
        return {one["label"]: one["value"] for one in page({"plan": plan})["verdict"]["figures"]}

    plan = plan_of(NAMES)
    assert figures(plan)["Longest downtime"] == "none"
    assert figures({**plan, "errors": [ERROR]})["Longest downtime"] == "unknown"
    assert figures({**plan_of(NAMES, restarts=["g2"]), "errors": [ERROR]})["Longest downtime"] == "at least 21 min"
    for host in plan["hosts"].values():
        del host["due"]
    assert figures(plan)["Longest downtime"] == "unknown"
    told = page({"plan": plan})["verdict"]
    assert (told["kind"], told["sentence"]) == ("changes", "Planned from saved facts, without the live hosts.")


def test_a_card_of_a_refused_model_awaits_no_run() -> None:
    plan = plan_of(["g1"])
    gone = plan["hosts"]["g1"]["models"].pop()
    texts = {card["text"] for group in page({"plan": plan})["hosts"][0]["cards"] for card in group["cards"]}
    assert f"{gone['name']} until the run" in texts
    plan["errors"] = [{**ERROR, "model": gone["name"]}]
    texts = {card["text"] for group in page({"plan": plan})["hosts"][0]["cards"] for card in group["cards"]}
    assert f"{gone['name']}, refused" in texts and f"{gone['name']} until the run" not in texts


def test_a_note_needs_no_attention() -> None:
    status = status_of(plan_of(["g1"]))
    status["hosts"]["g1"]["notes"] = ["HCCL all_reduce: all 258.3 GB/s"]
    document = page({"status": status})
    assert (document["attention"], [one["text"] for one in document["notes"]]) == (
        [],
        ["HCCL all_reduce: all 258.3 GB/s"],
    )
    text = fleet_page_html(document)
    assert "What needs attention" not in text and "<h2>Notes</h2>" in text


def test_a_model_shows_where_it_answers_and_by_which_name() -> None:
    plan = plan_of(["g1"])
    model = plan["hosts"]["g1"]["models"][0]
    model["served"] = [{"served_model_name": "the-name"}]
    text = fleet_page_html(page({"plan": plan, "status": status_of(plan)}))
    assert f"http://g1:{model['port']}/v1, as the-name" in text
    assert f"{model['host']}:{model['port']}, as the-name" in fleet_page_html(page({"plan": plan}))


def test_cards_show_who_uses_them() -> None:
    host = next(one for one in page(fleet_parts())["hosts"] if one["name"] == "gaudi05")
    cards = [card for group in host["cards"] for card in group["cards"]]
    assert [(card["number"], card["kind"], card["text"]) for card in cards][3:7] == [
        ("3", "model", "llama-70b"),
        ("4", "model", "qwq-32b"),
        ("5", "model", "qwq-32b"),
        ("6", "model", "qwen3-8b"),
    ]
    facts = gaudi_host(driver_version="1.21.3-57")
    facts["modules"][0] |= {"in_use": True, "held_by": "python3 (4711)"}
    assert card_rows(facts)[0]["held_by"] == "python3 (4711)"
    assert [card["card"] for card in card_rows(facts)] == list(range(8))


def test_downtimes_follow_the_waves() -> None:
    parts = fleet_parts()
    times = page(parts)["timeline"]
    begins = {row["host"]: row["start"] for row in times["rows"]}
    assert begins == {"gaudi01": 0, "gaudi02": 21, "gaudi03": 21, "gaudi04": 42}
    assert (times["longest"], times["minutes"], times["total"]) == (21, 63, 4 * (12 + 21 + 4 + 3))
    # A model that does not come back has no minutes, and is shown.
    parts["plan"]["hosts"]["gaudi01"]["down"][0]["minutes"] = None
    assert "for good" in fleet_page_html(page(parts))


def test_a_rollout_leaves_what_is_left_of_its_plan() -> None:
    figures = {
        "before": {"m": {"first_token_s": 0.2, "tokens_s": 40.0}},
        "after": {"m": {"first_token_s": 0.1, "tokens_s": 50}},
    }
    proven = {"outcome": "verified", "text": "g serves with the change", **figures}
    parts = {"plan": plan_of([*NAMES, "gateway"], restarts=[*NAMES, "gateway"])}
    waves = [["g1"], ["g2"]]
    half = page(parts | {"rollout": {"waves": waves, "hosts": {"g1": proven}}})
    assert [host["state"] for host in half["hosts"]] == ["good", "changes", "changes"]
    assert {row["host"] for row in half["timeline"]["rows"]} == {"g2", "gateway"}
    back = {"outcome": "rolled_back", "why": "m is slower", "text": "g2 failed its checks"}
    failed = page(parts | {"rollout": {"waves": waves, "hosts": {"g1": proven, "g2": back}}})
    assert failed["verdict"]["sentence"] == "The rollout stopped at g2."
    assert [host["state"] for host in failed["hosts"]] == ["good", "changes", "changes"]
    # What comes after the waves, as a gateway does, is done as well.
    whole = page(parts | {"rollout": {"waves": waves, "hosts": {"g1": proven, "g2": proven}}})
    assert [host["state"] for host in whole["hosts"]] == ["good", "good", "good"]
    assert whole["timeline"]["rows"] == [] and whole["verdict"]["sentence"] == "2 hosts changed and verified."
    assert [
        (one["host"], one["before"]["tokens_s"], one["after"]["tokens_s"]) for one in whole["rollout"]["compared"]
    ] == [
        ("g1", 40.0, 50),
        ("g2", 40.0, 50),
    ]
    assert "Before and after the change" in fleet_page_html(whole)


def test_kept_benchmarks_are_read_and_a_broken_line_is_reported(tmp_path: Path) -> None:
    folder = keep_results(tmp_path / "kept")
    path = folder / "results.jsonl"
    count = len(path.read_text().splitlines())
    path.write_text(path.read_text() + "{broken\n" + json.dumps({"date": "x"}) + "\n")
    document = page({}, str(folder))
    assert document["missing"] == [
        f"{path}: line {count + 1}: is not JSON; it is left out",
        f"{path}: line {count + 2}: host null is not a text; it is left out",
    ]
    titles = [one["title"] for one in document["charts"]]
    assert titles == ["qwq-32b: Output", "qwq-32b: Time to first token, median", "qwq-32b: output over load"]
    newest = next(one for one in document["benchmarks"] if one["host"] == "gaudi02")
    assert newest["runs"] == 15 and newest["change"] is not None
    assert page({}, str(tmp_path / "none"))["missing"] == [
        "No benchmark result is stored yet; benchmark.yml stores them."
    ]


def test_runs_of_different_kinds_are_no_line() -> None:
    dates = [f"2026-11-{day:02}T03:00:00+00:00" for day in range(1, 7)]
    ways = ["direct", "direct", "gateway", "gateway", "direct", "direct"]
    records = [result(date, through=way) for date, way in zip(dates, ways, strict=True)]
    records[-1]["not_comparable"] = ["2 shapes were compiled while it was measured"]
    document = page({}) | fleet_page({}, *MADE, {"records": records, "problems": []})
    first, _, second, _ = document["charts"]
    assert [len(one["x"]) for one in (first, second)] == [3, 2]
    assert "through gateway" in second["caption"] and "through" not in first["caption"]
    assert document["missing"] == ["1 stored repetition cannot be compared with others, and benchmark.yml shows why."]


def test_a_run_is_compared_with_the_run_before_and_not_with_its_own_repetitions() -> None:
    def of_run(day: int, speed: float) -> list[dict[str, Any]]:
        figures = {"output_tokens_s": speed, "ttft_ms": {"median": 90.0, "p99": None}}
        return [result(f"2026-11-0{day}T03:0{number}:00+00:00", run=str(day), figures=figures) for number in range(5)]

    document = fleet_page({}, *MADE, {"records": of_run(1, 100) + of_run(2, 50), "problems": []})
    (row,) = document["benchmarks"]
    assert (row["runs"], row["change"], row["output_tokens_s"]) == (2, -50.0, 50)
    assert [len(one["x"]) for one in document["charts"]] == [2, 2]


def test_the_page_of_a_benchmark_reports_what_it_has_found() -> None:
    figures = {"output_tokens_s": 80.0, "ttft_ms": {"median": 120.0}}
    data = {"g1": {"m": {"figures": figures, "comparison": {"verdict": "worse"}}}, "g2": {}}
    document = page({"benchmark": data})
    assert document["verdict"]["sentence"] == "Slower than before: m on g1."
    assert document["measured"] == [
        {"host": "g1", "model": "m", "first_token_s": 0.12, "tokens_s": 80.0, "verdict": "worse", "answer": ""}
    ]
    swept = {"g1": {"m": {"sweep": {"answer": "the objectives hold up to 12 requests at a time"}}}}
    sentence = "m: the objectives hold up to 12 requests at a time."
    assert page({"benchmark": swept})["verdict"]["sentence"] == sentence
    assert sentence in fleet_page_html(page({"benchmark": swept}))


def test_nothing_secret_is_in_it(tmp_path: Path) -> None:
    parts = fleet_parts()
    canaries = ["canary-7f31", "canary-88aa", "canary-0c5d"]
    host = parts["plan"]["hosts"]["gaudi01"]
    host["models"][0]["env"]["HF_TOKEN"] = canaries[0]
    host["models"][0]["args"] += ["--api-key", canaries[1]]
    host["models"][0]["image"] = f"https://user:{canaries[2]}@registry.example.net/vllm:1"
    parts["plan"]["warnings"].append(f"gaudi01: git clone https://git:{canaries[2]}@git.example.net/x fails")
    for text in (fleet_page_html(page(parts)), json.dumps(page(parts))):
        assert [one for one in canaries if one in text] == []
    # Nor where somebody's files are.
    assert "/home/somebody" not in fleet_page_html(page(parts))


def test_a_text_cannot_become_a_part_of_the_page() -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)> {{ 7 * 7 }}"
    parts = fleet_parts()
    parts["plan"]["warnings"].append(f"gaudi01: {evil}")
    parts["status"]["hosts"]["gaudi06"]["problem"] = evil
    text = fleet_page_html(page(parts))
    assert "<script>alert" not in text and "<img src=x" not in text
    assert text.count("</script>") == text.count("<script")
    assert json.loads(json_text({"a": "</script><!--"})) == {"a": "</script><!--"}
    assert "<" not in json_text("</script><!--")


def test_the_policy_allows_the_own_scripts_alone() -> None:
    text = fleet_page_html(page({}))
    policy = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)[0]
    assert "unsafe" not in policy and policy.startswith("default-src &#39;none&#39;")
    assert policy.count("sha256-") == text.count("<style>") + text.count("<script>")
    # No address of anything elsewhere, but for what libraries report about themselves.
    assert re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', text) == []


def test_buckets_come_with_their_picture() -> None:
    plan = {"model": "qwq", "hosts": ["g1"], "graphs": 40, "padding": {}, "compiled_while_serving": 0, "speeds": []}
    files = [{"path": "qwq.svg", "content": "<svg/>"}, {"path": "qwq.buckets", "content": "x"}]
    document = page({"tune": {"plan": plan, "lines": ["a", "b"], "files": files}})
    assert document["tune"]["picture"].startswith("data:image/svg+xml;base64,")
    assert document["verdict"]["sentence"] == "qwq: 40 graphs cover its traffic."
    assert "Buckets over traffic: qwq" in fleet_page_html(document)


def test_links_are_kept_where_they_were_measured() -> None:
    run = {"name": "all", "cards": 8, "nw_gb_s": 258.0, "threshold": 240.0, "passed": True}
    found = link_rows({"time": 1.0, "passed": True, "runs": [run]})
    assert found and found["runs"][0]["nw_gb_s"] == 258.0 and link_rows({}) is None


def test_a_version_is_that_of_the_checkout(tmp_path: Path) -> None:
    assert toolkit_version(tmp_path) == "unknown"
    (tmp_path / "galaxy.yml").write_text("name: serve\nversion: 2.0.1\n")
    assert toolkit_version(tmp_path) == "2.0.1"
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/HEAD").write_text("ref: refs/heads/main\n")
    assert toolkit_version(tmp_path) == "2.0.1"
    (tmp_path / ".git/packed-refs").write_text(f"# pack-refs\n{'ab' * 20} refs/heads/main\n")
    assert toolkit_version(tmp_path) == "2.0.1 (abababa)"
    (tmp_path / ".git/HEAD").write_text("cd" * 20)
    assert toolkit_version(tmp_path) == "2.0.1 (cdcdcdc)"
    # Of a submodule the path is relative.
    (tmp_path / ".git").rename(tmp_path / "modules")
    (tmp_path / ".git").write_text("gitdir: ./modules\n")
    assert toolkit_version(tmp_path) == "2.0.1 (cdcdcdc)"


def test_the_same_parts_give_the_same_document() -> None:
    parts = fleet_parts()
    before = copy.deepcopy(parts)
    assert page(parts) == page(parts) and parts == before
    assert result("2026-11-27T00:00:00+00:00")["profile"] == "short"


def test_a_warning_of_several_models_stands_once() -> None:
    plan = plan_of(NAMES)
    plan["warnings"] = [f"{host}: model {name}: its cards are slow" for host in NAMES[:2] for name in ("a", "b")]
    plan["warnings"].append(f"{NAMES[1]}: model a: its cards are hot")
    found = [(one["hosts"], one["text"]) for one in attention(plan, {}, {}) if one["kind"] == "warning"]
    assert found == [(NAMES[:2], "models a, b: its cards are slow"), (NAMES[1:2], "model a: its cards are hot")]
