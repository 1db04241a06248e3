"""playbooks/benchmark.yml over hosts that are a file each: what is refused, announced, kept and compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import forked
import pytest
from gaudi_serve.bench.results import append, read_results
from helpers.simulated.fleet import ROOT, change, fleet, serving_state, state_of

LOADS = {"near": {"input_tokens": 100, "output_tokens": 50, "concurrency": 4}}


class Hosts:
    """Hosts that serve one model."""

    def __init__(self, folder: Path, state: dict[str, Any], count: int = 2) -> None:
        self.folder = folder
        self.environment = fleet(folder, count, state, benchmark_profiles=LOADS)
        self.environment |= {"ANSIBLE_STDOUT_CALLBACK": "default"}

    def play(self, *arguments: str, **given: Any) -> tuple[int, str]:
        """Run the playbook, and return its status and all that it printed, in one line."""
        argv = ["ansible-playbook", "-i", str(self.folder / "hosts.json"), "playbooks/benchmark.yml", *arguments]
        status, text = forked.playbook([*argv, "-e", json.dumps(given)], ROOT, self.environment, 300)
        return status, " ".join(text.split())

    @property
    def kept(self) -> list[dict[str, Any]]:
        """Return the kept lines."""
        return read_results(self.folder / "benchmarks/results.jsonl").records


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what a host has on which site.yml has run."""
    return serving_state(tmp_path_factory.mktemp("served"))


@pytest.fixture
def hosts(tmp_path: Path, served: dict[str, Any]) -> Hosts:
    """Return two hosts that serve."""
    return Hosts(tmp_path, served)


def test_a_load_is_kept_and_a_slower_one_is_called_worse(hosts: Hosts) -> None:
    asked = {"model": "m", "profile": "near", "repetitions": 3}
    status, text = hosts.play("--check", **asked)
    assert status == 0, text
    assert "Would measure:" in text and "vllm bench serve --backend openai" in text and not hosts.kept
    status, text = hosts.play(**asked)
    assert status == 0, text
    assert "near: 40 requests, 100 tokens in and 50 out, 4 at a time; 3 times after a warm-up" in text
    assert len(hosts.kept) == 6 and len({one["seed"] for one in hosts.kept}) == 6
    # Four earlier runs more, of equal speed.
    for number in range(4):
        for one in hosts.kept[:6]:
            append(hosts.folder / "benchmarks", {**one, "run": f"{one['run']}-{number}"})
    before = (hosts.folder / "benchmarks/results.jsonl").read_bytes()
    # h01 alone is slower.
    change(hosts.folder, "h01", tokens_s=80.0)
    change(hosts.folder, "h02", tokens_s=98.0)
    status, text = hosts.play(**asked, compare="last", compare_fails=True)
    assert status == 2, text
    assert "h01: model m: worse than before (compare_fails)" in text
    assert (
        text.count("verdict: same, against the best 5 consecutive of 5 earlier runs") == 1 and "verdict: worse" in text
    )
    assert (hosts.folder / "benchmarks/results.jsonl").read_bytes().startswith(before)
    first = hosts.kept[0]
    raw = hosts.folder / "benchmarks" / first["raw"]
    assert json.loads(raw.read_text())["output_throughput"] == first["figures"]["output_tokens_s"]


def test_a_sweep_finds_the_highest_load_that_keeps_the_objectives(hosts: Hosts) -> None:
    asked = {"model": "m", "profile": "near", "sweep": "concurrency", "warmup": False}
    status, text = hosts.play(**asked)
    assert status == 3 and "has no objectives (slo) that a sweep could break" in text
    # A request waits 10 ms for each that is under way.
    status, text = hosts.play(**asked, objectives={"ttft_s": 0.125})
    assert status == 0, text
    assert "h01: model m: the objectives hold up to 12 requests at a time" in text
    assert [one["concurrency"] for one in hosts.kept if one["host"] == "h01"] == [1, 2, 4, 8, 16, 12, 14]
    status, text = hosts.play("--limit", "h02", **asked, objectives={"ttft_s": 9})
    assert "the objectives hold up to 32 requests at a time, the most that was tried, where the sweep ends" in text


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"model": "m", "profile": "vendor-128-128"}, "max_num_seqs 32: give -e concurrency=32, or fewer"),
        ({"model": "m", "profile": "plugin-2048-2048-8", "benchmark_onserving": 1}, "benchmark_on_serving?"),
        ({"model": "m", "profile": "near", "through": "gateway"}, "no host of the inventory has fleet_gateway"),
    ],
)
def test_what_cannot_be_measured_is_refused_before(hosts: Hosts, given: dict[str, Any], sentence: str) -> None:
    status, text = hosts.play(**given)
    # Refused, not failed.
    assert status == 3, text
    assert sentence in text and "Nothing has been changed on any host" in text
    assert not hosts.kept


def test_a_model_that_serves_others_is_left_alone_or_measured_within_bounds(hosts: Hosts) -> None:
    change(hosts.folder, "h02", running=3.0)
    asked = {"model": "m", "profile": "near", "concurrency": 16, "repetitions": 1}
    status, text = hosts.play(**asked)
    assert status == 3 and "h02: model m: it has 3 requests of others (3 run, 0 wait)" in text
    assert "-e benchmark_on_serving=true measures it beside them, 8 at a time at most" in text
    status, text = hosts.play(**asked, benchmark_on_serving=True)
    assert status == 0, text
    assert {one["host"]: one["concurrency"] for one in hosts.kept} == {"h01": 16, "h02": 8}
    assert state_of(hosts.folder, "h02")["sent"] == {"key": "", "own_key": True}


def test_a_servers_own_key_goes_to_no_other_address(hosts: Hosts) -> None:
    asked = {"model": "m", "profile": "near", "repetitions": 1, "warmup": False, "through": "http://models.example"}
    for more, key in (({}, ""), ({"benchmark_api_key": "key-of-a-vault"}, "key-of-a-vault")):
        status, text = hosts.play(**asked, **more)
        assert status == 0, text
        assert state_of(hosts.folder, "h01")["sent"] == {"key": key, "own_key": False}
        assert "key-of-a-vault" not in text + (hosts.folder / "benchmarks/results.jsonl").read_text()


def test_the_short_measurement_is_kept_and_shown_as_before(hosts: Hosts) -> None:
    status, text = hosts.play()
    assert status == 0, text
    assert "h02 m 50 ms 50" in text
    # Both hosts are measured at the same time, and stored as they end.
    assert sorted((one["host"], one["profile"], one["by"]) for one in hosts.kept) == [
        ("h01", "short", "benchmark"),
        ("h02", "short", "benchmark"),
    ]
    status, text = hosts.play(benchmark_dir="/proc/none")
    assert status == 0 and "benchmark_dir: /proc/none: cannot be written" in text and "h02 m 50 ms 50" in text
