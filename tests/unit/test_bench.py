"""Benchmarks: loads, the tool's command lines by release, kept results, statistics, comparisons, sweeps, refusals."""

from __future__ import annotations

import json
import math
import random
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.bench import published
from gaudi_serve.bench.ask import read_ask
from gaudi_serve.bench.compare import Comparison, compare
from gaudi_serve.bench.loads import PROFILES, benchmark_names, digest, load_of_trace, site_profiles, trace_text
from gaudi_serve.bench.plan import targets_of
from gaudi_serve.bench.records import not_comparable, seeds
from gaudi_serve.bench.report import benchmark_plan
from gaudi_serve.bench.results import append, client_limit, failed, figures, printed, read_results
from gaudi_serve.bench.statistics import FIGURES, LEAST_RUNS, MOST_RUNS
from gaudi_serve.bench.sweep import Point, answer, broken, next_value, read_limits
from gaudi_serve.bench.tool import NEEDED, Endpoint, Tool
from gaudi_serve.buckets.traffic import Request
from gaudi_serve.core.errors import InputError
from gaudi_serve.host import bench
from gaudi_serve.inventory.variables import inventory_refusal

ENDPOINT = Endpoint("http://127.0.0.1:8000", "m", "/data/m")
BENCH, SCRIPT = ["vllm", "bench", "serve"], ["python3", "/opt/vllm-fork/benchmarks/benchmark_serving.py"]
# What each release's tool has beside what all have.
RELEASES: dict[str, dict[str, Any]] = {
    "0.9.2": {"command": BENCH, "options": ["--endpoint-type", "--temperature"], "range_default": "0.0"},
    "0.11.0": {"command": BENCH, "options": ["--endpoint-type", "--temperature"], "range_default": "0.0"},
    "0.13.0": {"command": BENCH, "options": ["--backend", "--num-warmups"], "range_default": "0.0"},
    "0.33.0": {
        **{"command": BENCH, "options": ["--backend", "--num-warmups", "--ready-check-timeout-sec", "--temperature"]},
        **{"datasets": ["random", "timed_trace"], "range_default": "0.0"},
    },
    "deepseek": {"command": SCRIPT, "options": ["--backend", "--random-range-ratio"], "range_default": "1.0"},
}


def tool(release: str) -> Tool:
    """Return the tool of a release."""
    given = RELEASES[release]
    return Tool.of({"version": release, **given, "options": [*NEEDED, *given["options"]]})


@pytest.mark.parametrize("release", RELEASES)
def test_each_release_gets_the_options_that_it_has(release: str) -> None:
    found = tool(release)
    argv = found.argv(PROFILES["deepseek-32"], ENDPOINT, 7, [95])
    assert argv[: len(found.command)] == RELEASES[release]["command"]
    words = {word for word in argv[3 if found.command[0] == "vllm" else 2 :] if word.startswith("--")}
    assert words <= found.options
    given = dict(pairwise(argv))
    assert given.get("--backend", given.get("--endpoint-type")) == "openai"
    assert (given["--num-prompts"], given["--max-concurrency"], given["--seed"]) == ("96", "32", "7")
    assert given["--metric-percentiles"] == "50,90,95,99"
    # Lengths are fixed by default, in releases where that is 0 and in those where it is 1.
    assert "--random-range-ratio" not in argv


def test_lengths_that_differ_are_refused_where_the_option_means_something_else() -> None:
    load = PROFILES["deepseek-1"].but(spread=0.2)
    assert tool("0.33.0").refusal(load) == "" and "--random-range-ratio" in tool("0.33.0").argv(load, ENDPOINT, 1)
    assert "spread 0.2: vLLM deepseek in its image draws only lengths below the given one" in tool("deepseek").refusal(
        load
    )


@pytest.mark.parametrize(
    ("probed", "sentence"),
    [
        ({"problem": "exec: python3: not found"}, "its image does not show its benchmark tool: exec: python3"),
        (
            {"version": "0.8.5"},
            "its image (vLLM 0.8.5) has neither vllm bench serve nor benchmarks/benchmark_serving.py",
        ),
        ({"command": BENCH, "lacks": ["aiohttp"]}, "its image lacks aiohttp, which its benchmark tool imports"),
        ({"command": BENCH, "options": sorted(NEEDED - {"--seed"})}, "the benchmark tool of its image has no --seed;"),
    ],
)
def test_an_image_without_a_tool_is_refused_in_a_sentence(probed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        Tool.of(probed)
    assert str(caught.value).startswith(sentence)
    assert "problem" in probed or "profile short" in str(caught.value)


def test_a_trace_is_replayed_at_its_times_and_no_two_prompts_begin_alike() -> None:
    load = load_of_trace("trace:t", [Request(0.0, 600, 0), Request(1.5, 10, 7)])
    assert "--request-rate" not in tool("0.33.0").argv(load, ENDPOINT, 1)
    assert tool("0.33.0").refusal(load) == ""
    assert "cannot replay a trace" in tool("0.13.0").refusal(load)
    rows = [json.loads(line) for line in trace_text(load.trace).splitlines()]
    assert [one["hash_ids"] for one in rows] == [[0, 1], [2]]
    assert [(one["timestamp"], one["input_length"], one["output_length"]) for one in rows] == [
        (0.0, 600, 1),
        (1.5, 10, 7),
    ]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("fast", "benchmark_profiles: 'fast' must be a mapping of names"),
        (
            {"x": {"input_tokens": 0, "output_tokens": 1, "concurrency": 1}},
            "benchmark_profiles.x.input_tokens: 0 must be",
        ),
        ({"x": {"input_tokens": 1, "output_tokens": 1}}, "must have either concurrency or request_rate"),
        ({"x": {"input_tokens": 1, "output_tokens": 1, "concurency": 1}}, "did you mean concurrency"),
        ({"short": {"input_tokens": 1, "output_tokens": 1, "concurrency": 1}}, "that no profile of the toolkit has"),
    ],
)
def test_a_sites_profiles_are_checked(given: Any, sentence: str) -> None:
    assert site_profiles(given)[1]
    _, wrong = read_ask({"model": "m", "benchmark_profiles": given})
    assert any(sentence in one for one in wrong), wrong
    assert any("benchmark_profiles" in line for line in inventory_refusal({"benchmark_profiles": given}, "h"))


def test_a_sites_profile_has_ten_requests_for_each_at_a_time() -> None:
    own = {"input_tokens": 10, "output_tokens": 20}
    site, _ = site_profiles({"a": {**own, "concurrency": 8}, "b": {**own, "request_rate": 0.5}})
    assert (site["a"].requests, site["b"].requests) == (80, 60)
    assert benchmark_names([{}, {"a": {**own, "concurrency": 8}}])[0::8] == ["short", "a"]
    assert site["a"].with_concurrency(2).requests == 20
    assert digest(site["a"].case("direct")) != digest(site["a"].case("gateway"))
    assert digest(site["a"].but(profile="c").case("direct")) == digest(site["a"].case("direct"))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"profile": "deepseek-1"}, "-e model=NAME is missing: profile deepseek-1 is of one model"),
        ({"model": "m", "profile": "deepsek-1"}, "profile: 'deepsek-1' is not a profile; did you mean deepseek-1"),
        (
            {"model": "m", "profile": "deepseek-1", "repetitions": "0"},
            "repetitions: '0': must be an integer from 1",
        ),
        ({"model": "m", "profile": "deepseek-1", "warmup": "no way"}, "warmup: 'no way': must be true or false"),
        ({"model": "m", "profile": "deepseek-1", "through": "http://u:p@x"}, "through: 'http://***@x': must be direct"),
        ({"model": "m", "profile": "deepseek-1", "compare": "gone"}, "compare: 'gone': must be last, a file"),
        ({"model": "m", "profile": "deepseek-1", "sweep": "x"}, "sweep: 'x': must be concurrency or rate"),
        ({"model": "m", "profile": "deepseek-1", "objectives": {"ttft": 1}}, "objectives: 'ttft' is not an objective"),
        (
            {"model": "m", "profile": "deepseek-1", "trace": "/x"},
            "profile 'deepseek-1' and trace '/x': give one of them",
        ),
        ({"model": "m", "sweep": "rate"}, "sweep: the short profile takes none of these"),
        ({"compare_fails": True}, "compare_fails: the short profile takes none of these"),
        ({"repetitions": 3, "warmup": False}, "repetitions, warmup: the short profile takes none of these"),
        (
            {"model": "m", "profile": "deepseek-1", "compare_fails": True},
            "compare_fails: has no effect without compare",
        ),
        ({"model": "m", "profile": "deepseek-1", "sweep_most": 4}, "sweep_most: has no effect without sweep"),
        (
            {"model": "m", "profile": "deepseek-1", "sweep": "rate", "compare": "last"},
            "compare: has no effect with sweep",
        ),
        (
            {"model": "m", "profile": "deepseek-1", "sweep": "concurrency", "sweep_most": 0.5},
            "sweep_most: 0.5: must be an integer of at least 1",
        ),
        (
            {"model": "m", "unknown": ["benchmark_dirr"]},
            "benchmark_dirr is not a variable of a benchmark; did you mean",
        ),
    ],
)
def test_what_is_asked_wrongly_is_reported(given: dict[str, Any], sentence: str) -> None:
    ask, wrong = read_ask(given)
    assert ask is None and any(one.startswith(sentence) for one in wrong), wrong


def test_what_is_as_it_is_by_itself_is_no_mistake() -> None:
    given = {"compare_fails": "false", "warmup": True, "through": "direct", "repetitions": "5", "sweep": ""}
    ask, wrong = read_ask({**given, "benchmark_on_serving": False})
    assert wrong == [] and ask and ask.load is None


RAW = {"output_throughput": 100.0, "total_token_throughput": 200.0, "request_throughput": 2.0, "median_ttft_ms": 30.0}
RAW |= {"p99_ttft_ms": 50.0, "p99.9_ttft_ms": 60.0, "mean_e2el_ms": 2000.0, "num_prompts": 40, "completed": 38}


def test_results_of_old_and_new_tools_are_read() -> None:
    found = figures(RAW)
    assert (found["output_tokens_s"], found["ttft_ms"]["p99"], found["ttft_ms"]["p99.9"]) == (100.0, 50.0, 60.0)
    assert found["itl_ms"]["median"] is None
    assert (failed(RAW, 40), failed({**RAW, "failed": 1}, 40)) == (2, 1)
    text = "Successful requests:   20\n"
    text += "Total Token throughput (tok/s):   4067.55\nMean TTFT (ms):  11.81\nP99 ITL (ms): 4.62"
    known = {"completed": 20.0, "total_token_throughput": 4067.55, "mean_ttft_ms": 11.81, "p99_itl_ms": 4.62}
    assert printed(text) == known


def record(speed: float = 100.0, run: str = "1", **more: Any) -> dict[str, Any]:
    """Return a kept line."""
    times = {name: {"mean": 10.0, "median": 10.0, "p99": 20.0} for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms")}
    rates = {"output_tokens_s": speed, "total_tokens_s": 2 * speed, "requests_s": speed / 50}
    return {
        **{"run": run, "date": f"2026-11-0{run}T10:00:00+00:00", "host": "h", "model": "m", "profile": "p"},
        **{"case": "c", "load": {"requests": 40}, "launch": "abcdef12", "repetition": 1, "requests": 40, "failed": 0},
        **{"concurrency": 4, "request_rate": None, "figures": {**rates, **times}, "not_comparable": []},
        **more,
    }


def test_lines_are_only_added_and_a_broken_one_is_named(tmp_path: Path) -> None:
    first = append(tmp_path, record(), "{}")
    with (tmp_path / "results.jsonl").open("a") as file:
        # A machine was switched off while it wrote.
        file.write('{"run": "2", "da')
    before = (tmp_path / "results.jsonl").read_bytes()
    second = append(tmp_path, record(), "{}")
    after = (tmp_path / "results.jsonl").read_bytes()
    assert after.startswith(before) and first["raw"] != second["raw"]
    found = read_results(tmp_path / "results.jsonl")
    assert found.records == [first, second]
    assert found.problems == [f"{tmp_path}/results.jsonl: line 2: is not JSON; it is left out"]
    with pytest.raises(InputError, match=r"^a result cannot be stored: failed 'x' is not an integer$"):
        append(tmp_path, record(failed="x"))
    with pytest.raises(InputError, match=r"^benchmark_dir: /proc/none: cannot be written"):
        append("/proc/none", record())


def test_the_clients_limit_is_seen_by_littles_law() -> None:
    line = record()
    line["figures"] |= {"requests_s": 2.0, "e2el_ms": {"mean": 1000.0}}
    assert client_limit(line).startswith("only 2.0 of 4 requests were under way at a time: the client may")
    line["figures"]["e2el_ms"]["mean"] = 1990.0
    assert client_limit(line) == ""


GATED = [figure for figure in FIGURES if figure.gate]
STEP_S = 86_400.0  # between two runs


class Box:
    """A host whose runs differ by more than the repetitions of one run.

    spreads: the relative spread between runs of each figure that decides, in the order of GATED. inside: the part of it
    inside a run. tail: degrees of freedom of the differences (Student's t); 0 for a normal distribution.
    """

    def __init__(self, draw: random.Random, spreads: list[float], inside: float, tail: int = 0) -> None:
        self.draw, self.spreads, self.inside, self.tail = draw, spreads, inside, tail
        self.runs: list[list[dict[str, Any]]] = []

    @classmethod
    def any(cls, seed: str) -> Box:
        """Return a box with a noise of its own: 0.5 to 4 % of throughput, and more of latencies."""
        draw = random.Random(seed)  # noqa: S311 - reproducible, not secret
        scale = draw.uniform(0.005, 0.04)
        return cls(draw, [scale, 2 * scale, 3 * scale], draw.uniform(0.1, 0.7), draw.choice([0, 0, 5]))

    def run(self, slower: float = 0.0, names: int = 5, **more: Any) -> list[dict[str, Any]]:
        """Return the repetitions of another run, by this part slower, and keep them."""
        number = len(self.runs)
        between = [math.log1p(-slower if figure.more else slower) for figure in GATED]
        levels = [change + spread * self._drawn() for change, spread in zip(between, self.spreads, strict=True)]
        found = []
        for _ in range(names):
            line = record(run=str(number), **more)
            line["date"] = datetime.fromtimestamp(number * STEP_S, timezone.utc).isoformat()
            for figure, level, spread in zip(GATED, levels, self.spreads, strict=True):
                value = 100 * math.exp(level + spread * self.inside * self.draw.gauss(0, 1))
                times = line["figures"][figure.name]
                line["figures"][figure.name] = {**times, figure.which: value} if figure.which else value
            found.append(line)
        self.runs.append(found)
        return found

    def _drawn(self) -> float:
        value = self.draw.gauss(0, 1)
        if not self.tail:
            return value
        # Student's t with the spread of a normal distribution.
        return value * math.sqrt((self.tail - 2) / self.draw.gammavariate(self.tail / 2, 2))

    def compare(self, slower: float = 0.0) -> Comparison:
        """Return the comparison of another run with all before."""
        new = self.run(slower)
        return compare(new, self.kept, "last")

    @property
    def kept(self) -> list[dict[str, Any]]:
        """Return the lines of all runs."""
        return [line for run in self.runs for line in run]


def verdicts(slower: float, seed: str, boxes: int = 300) -> dict[str, float]:
    """Return the part of the boxes that each verdict has after 5 to 20 equal runs and one by this part slower."""
    found = dict.fromkeys(("same", "better", "worse", "not known"), 0.0)
    for number in range(boxes):
        box = Box.any(f"{seed}-{number}")
        for _ in range(box.draw.choice([5, 6, 8, 12, 20])):
            box.run()
        found[box.compare(slower).verdict] += 1 / boxes
    return found


@pytest.mark.parametrize("seed", ["a", "b", "c", "d"])
def test_equal_boxes_are_called_better_or_worse_in_at_most_5_of_100_cases(seed: str) -> None:
    found = verdicts(0.0, seed)
    assert found["better"] + found["worse"] <= 0.05 and found["not known"] == 0, found


def test_2_in_100_slower_is_rarely_called_and_a_fifth_is_nearly_always() -> None:
    assert verdicts(0.02, "e")["worse"] <= 0.10
    found = verdicts(0.20, "f")
    assert found["worse"] >= 0.93 and found["better"] == 0, found


@pytest.mark.parametrize("spread", [0.005, 0.015, 0.03])
def test_a_creep_of_2_5_in_100_a_run_is_found_within_ten_runs(spread: float) -> None:
    found = 0
    for number in range(40):
        box = Box(random.Random(f"creep-{spread}-{number}"), [spread, 0.05, 0.05], 0.3)  # noqa: S311 - not secret
        for _ in range(5):
            box.run()
        found += "worse" in {box.compare(1 - 0.975**step).verdict for step in range(1, 11)}
    assert found == 40


def test_one_lucky_run_is_no_reference_and_two_steps_hide_no_drop() -> None:
    box = Box(random.Random(1), [0.01, 0.03, 0.03], 0.3)  # noqa: S311 - not secret
    for slower in (0, 0, 0, -0.12, 0, 0, 0):
        box.run(slower)
    assert box.compare().verdict == "same"
    box = Box(random.Random(2), [0.01, 0.03, 0.03], 0.3)  # noqa: S311 - not secret
    for slower in (*[0.0] * 8, *[-0.25] * 6):
        box.run(slower)
    assert box.compare(-0.25).verdict == "same" and box.compare(0.0).verdict == "worse"


def test_before_five_runs_of_the_box_nothing_is_known() -> None:
    box = Box(random.Random(3), [0.01, 0.03, 0.03], 0.3)  # noqa: S311 - not secret
    for _ in range(LEAST_RUNS - 1):
        box.run()
    found = box.compare(0.5)
    assert found.verdict == "not known" and found.lines[-1] == (
        "verdict: not known: 4 of 4 stored runs of this case on this host can be compared (three repetitions each), "
        "and 5 are needed to know how much its runs differ"
    )
    # Runs of fewer repetitions, disturbed runs and other hosts do not help.
    for names, more in ((2, {}), (5, {"not_comparable": ["others were served"]}), (5, {"host": "other"})):
        box = Box(random.Random(3), [0.01, 0.03, 0.03], 0.3)  # noqa: S311 - not secret
        box.run(names=names, **more)
        for _ in range(LEAST_RUNS - 1):
            box.run()
        assert box.compare().verdict == "not known"


@pytest.mark.parametrize("figure", GATED, ids=lambda figure: figure.text)
@pytest.mark.parametrize("missing", ["new", "earlier", "both"])
def test_a_missing_figure_is_not_called_the_same(figure: Any, missing: str) -> None:
    box = Box(random.Random(4), [0.01, 0.03, 0.03], 0.3)  # noqa: S311 - not secret
    for _ in range(5):
        box.run()
    new = box.run()
    for line in new if missing == "new" else box.kept[:5] if missing == "earlier" else box.kept:
        times = line["figures"][figure.name]
        # A tool shows 0 where it measured nothing.
        line["figures"][figure.name] = {**times, figure.which: 0.0} if figure.which else None
    found = compare(new, box.kept, "last")
    assert found.verdict == "not known"
    assert any(line.startswith(f"{figure.text} is not known: ") for line in found.lines)
    # A figure that is known to be worse still decides.
    other = next(one for one in GATED if one is not figure and not one.more)
    for line in new:
        line["figures"][other.name][other.which] = 1000.0
    assert compare(new, box.kept, "last").verdict == "worse"


def test_an_answer_of_one_token_has_no_gap_to_compare() -> None:
    box = Box(random.Random(5), [0.01, 0.03, 0.03], 0.3)  # noqa: S311 - not secret
    load = {"load": {"output_tokens": 1}}
    for _ in range(6):
        box.run(**load)
    for line in box.kept:
        line["figures"]["itl_ms"] = {"median": 0.0, "p99": 0.0}
    assert compare(box.runs[-1], box.kept, "last").verdict == "same"


def test_the_output_shows_reference_limits_and_one_verdict() -> None:
    box = Box(random.Random(6), [0.01, 0.03, 0.03], 0.3)  # noqa: S311 - not secret
    for _ in range(MOST_RUNS + 3):
        box.run()
    found = box.compare(0.3)
    head, tail = found.lines[1], found.lines[-1]
    assert head.split("  ")[0] == "FIGURE" and "SAME WITHIN" in head
    assert tail == (
        "verdict: worse, against the best 5 consecutive of 20 earlier runs; of equal runs at most 5 in 100 are called "
        "better or worse"
    )
    data = found.as_dict()
    first = data["figures"][0]
    assert (data["verdict"], first["figure"], first["verdict"]) == ("worse", "output tokens/s", "worse")
    assert first["same"][0] < 1 < first["same"][1] and first["ratio"] < first["same"][0]
    # Figures beside the three are shown, and decide nothing.
    assert {one["verdict"] for one in data["figures"]} == {"worse", ""}
    json.dumps(data, allow_nan=False)
    assert found.as_dict() == compare(box.runs[-1], box.kept, "last").as_dict()


def test_runs_are_in_the_order_of_time_whatever_their_zone() -> None:
    box = Box(random.Random(7), [0.005, 0.03, 0.03], 0.3)  # noqa: S311 - not secret
    for slower in (0.4, 0.4, 0, 0, 0, 0, 0):
        box.run(slower)
    box.compare()
    for line in box.runs[0]:
        line["date"] = "1970-01-03T00:30:00+12:00"
    # Only the newest runs count: the slow ones are the oldest.
    lines = compare(box.runs[-1], box.kept, "last").lines
    assert "since the newest earlier run (1970-01-07T00:00:00+00:00): nothing differs" in lines


def test_what_others_had_of_a_server_is_reported() -> None:
    measured = {"compiled": 2, "of_others": 3, "before": {"running": 1}}
    assert not_comparable(measured, 4) == [
        "2 shapes were compiled while it was measured",
        "3 requests of others were served meanwhile",
        "the server had requests of others when it began",
        "4 requests failed",
    ]


def test_only_like_cases_are_compared(tmp_path: Path) -> None:
    old, new = history(100), of_run("n", 80, date="2026-12-02T00:00:00+00:00")
    other = [{**one, "case": "d", "load": {"requests": 80}} for one in old]
    found = compare(new, [*other, *new], "last")
    assert found.verdict == "not known" and "has another load: requests 80 then and 40 now" in found.lines[-1]
    assert "no result of model m is stored there yet" in compare(new, new, "last").lines[0]
    assert compare(new, [*old, *new], "abcdef").verdict == "worse"
    assert "is stored there yet" in compare(new, [*old, *new], "123456").lines[0]
    for one in old:
        append(tmp_path, one)
    assert compare(new, new, str(tmp_path / "results.jsonl")).verdict == "worse"
    cold = [{**one, "not_comparable": ["3 shapes were compiled while it was measured"]} for one in new]
    found = compare(cold, [*old, *cold], "last")
    assert found.verdict == "not known" and "such as: 3 shapes were compiled" in " ".join(found.lines)
    few = "the new run has 2 comparable repetitions, and 3 are needed"
    assert few in compare(new[:2], [*old, *new], "last").lines[-1]


@pytest.mark.parametrize(
    ("kind", "most", "holds", "expected", "sentence"),
    [
        ("concurrency", 32, 13, [1, 2, 4, 8, 16, 12, 14], "hold up to 12 requests at a time"),
        ("concurrency", 24, 99, [1, 2, 4, 8, 16, 24], "the most that was tried, where the sweep ends"),
        ("concurrency", 2.5, 99, [1, 2], "hold up to 2 requests at a time, the most that was tried, where the sweep"),
        ("concurrency", None, 0, [1], "do not hold even at 1 requests at a time"),
        ("request_rate", 1, 0.6, [0.25, 0.5, 1, 0.75, 0.625], "hold up to 0.5 requests a second"),
    ],
)
def test_a_sweep_doubles_until_the_objectives_break(
    kind: str, most: float | None, holds: float, expected: list[float], sentence: str
) -> None:
    points: list[Point] = []
    while (value := next_value(kind, points, most)) is not None:
        points.append(Point(value, value <= holds))
    assert [one.value for one in points] == expected and sentence in answer(kind, points, most)


def test_objectives_break_by_their_share_of_requests() -> None:
    line = record()
    line["figures"]["ttft_ms"]["p95"] = 90.0
    assert broken(line, read_limits({"ttft_s": 0.1, "share": 0.95})) == []
    assert broken(line, read_limits({"ttft_s": 0.05, "share": 0.95})) == ["p95 TTFT is 90 ms, above 50 ms"]
    assert broken({**line, "failed": 4}, read_limits({"itl_s": 1})) == ["10.0% of the requests failed"]


def test_published_figures_are_shown_of_like_cases_alone() -> None:
    line = record(served="Llama-3.1-8B-Instruct", cards={"kind": "HL-325L", "number": 1})
    line["load"] = {"input_tokens": 2048, "output_tokens": 2048, "concurrency": 64}
    found = published.published_lines(line, 3000.0)
    assert (
        "3,644.6 output tokens/s" in found[0] and "82% of it" in found[0] and found[-1].startswith("why it may differ")
    )
    assert published.published_lines({**line, "cards": {"kind": "HL-225H", "number": 2}}, 1.0) == []


PROBED: dict[str, Any] = {
    "models": [{"model": "m", "served": "m", "max_model_len": 4096, "tokenizer": "/data/m", "kinds": ["text"]}],
    "tool": {"version": "0.33.0", **RELEASES["0.33.0"], "options": [*NEEDED, "--backend"]},
    **{"url": "http://127.0.0.1:8000", "max_num_seqs": 32, "tokenizer_mode": "", "trust_remote_code": False},
    **{"running": 0.0, "waiting": 0.0, "mean_token_s": 0.02, "unread": "", "others": {"n": "2"}},
}


def planned(asked: dict[str, Any], **more: Any) -> tuple[list[Any], list[str]]:
    """Return what is planned for a host, and what is refused."""
    ask, wrong = read_ask({"model": "m", "profile": "deepseek-32", **asked})
    assert ask, wrong
    clients = {"app": {"key": "a-key-of-a-client"}}
    gateway = {"address": "10.0.0.9", "clients": clients, "plain_allowed": True, "port": 8080}
    return targets_of("h", ask, {**PROBED, **more}, {"h": {}, "g": {"fleet_gateway": gateway}})


@pytest.mark.parametrize(
    ("asked", "more", "sentence"),
    [
        ({"profile": "vendor-128-128"}, {}, "the server works on max_num_seqs 32: give -e concurrency=32, or fewer"),
        ({"profile": "vendor-4096-128"}, {}, "the server takes max_model_len 4096 together"),
        ({}, {"running": 3.0}, "it has 3 requests of others (3 run, 0 wait); -e benchmark_on_serving=true measures it"),
        ({}, {"running": None, "unread": "no answer"}, "it is not known whether it serves others (no answer)"),
        ({"sweep": "concurrency"}, {}, "has no objectives (slo) that a sweep could break"),
        ({"sweep": "rate", "objectives": {"itl_s": 1}}, {"waiting": 1.0}, "and a sweep loads it to its limit"),
        ({}, {"models": [{**PROBED["models"][0], "kinds": ["embedding"]}]}, "generates no text"),
        ({}, {"tool": {"version": "0.8.5"}}, "has neither vllm bench serve"),
    ],
)
def test_what_a_server_cannot_take_is_refused(asked: dict[str, Any], more: dict[str, Any], sentence: str) -> None:
    _, wrong = planned(asked, **more)
    assert len(wrong) == 1 and wrong[0].startswith("h: model m: ") and sentence in wrong[0], wrong


def test_a_target_reports_what_it_does_and_its_key_is_in_no_line() -> None:
    (target,), wrong = planned({"through": "gateway", "repetitions": "2"})
    assert not wrong and (target.endpoint.url, target.key) == ("http://10.0.0.9:8080", "a-key-of-a-client")
    text = " ".join([*target.lines([]), *target.argv(target.load, 1)])
    assert "96 requests, 1024 tokens in and 1024 out, 32 at a time; 2 times after a warm-up" in text
    assert "other models of the host have requests (n has 2)" in text and "a-key" not in text
    (beside,), _ = planned({"benchmark_on_serving": "true"}, running=2.0)
    assert (beside.load.concurrency, beside.load.requests) == (8, 24)
    assert "the result is not comparable" in " ".join(beside.lines([]))


def test_the_probe_reads_a_tool_without_importing_it(tmp_path: Path) -> None:
    import subprocess
    import sys

    folder = tmp_path / "vllm/benchmarks"
    folder.mkdir(parents=True)
    (tmp_path / "vllm/__init__.py").write_text("raise RuntimeError('imported')\n")
    text = (
        'p.add_argument("--seed")\np.add_argument("--random-range-ratio", type=float, default=1.0)\nx = "timed_trace"\n'
    )
    (folder / "serve.py").write_text(text)
    done = subprocess.run([sys.executable, "-c", bench.PROBE], cwd=tmp_path, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert (found["command"], found["range_default"], found["datasets"]) == (BENCH, "1.0", ["timed_trace"])
    assert "--seed" in found["options"]


def test_a_key_is_in_the_environment_file_and_in_no_command(tmp_path: Path) -> None:
    model = {"mounts": [{"source": "/w", "target": "/data/m"}]}
    argv = bench._docker("vllm-benchmark-m", model, tmp_path, "sha256:1", 60)
    assert bench._environment(["x"], "k")[-1] == "OPENAI_API_KEY=k" and "OPENAI_API_KEY" not in " ".join(argv)
    assert "type=bind,source=/w,target=/data/m,readonly" in argv and argv[-4:] == ["sha256:1", "-k", "10", "60"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"concurrency": "32"}, "concurrency '32' is not a number"),
        ({"concurrency": [1]}, "concurrency [1] is not a number"),
        ({"launch": {"a": 1}}, 'launch {"a": 1} is not a text'),
        ({"date": "yesterday"}, "date 'yesterday' is not a date of ISO 8601"),
        ({"requests": True}, "requests true is not an integer"),
        ({"figures": {"ttft_ms": {"median": "9"}}}, "figures.ttft_ms.median is not a number"),
        ({}, ""),
    ],
)
def test_an_odd_line_is_named_and_the_others_count(change: dict[str, Any], problem: str, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in ({**record(), **change}, record())))
    found = read_results(path)
    assert found.problems == ([f"{path}: line 1: {problem}; it is left out"] if problem else [])
    assert len(found.records) == 2 - bool(problem)


def test_no_browser_gets_a_number_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps({**record(), "concurrency": float("nan")}) + "\n")
    assert read_results(path).problems == [f"{path}: line 1: is not JSON; it is left out"]


def of_run(name: str, speed: float, **more: Any) -> list[dict[str, Any]]:
    """Return five repetitions of a run."""
    found = []
    for number in range(5):
        line = record(**{"run": name, "repetition": number + 1, "date": "2026-11-01T00:00:00+00:00", **more})
        line["figures"]["output_tokens_s"] = speed * (1 + number / 1000)
        found.append(line)
    return found


def history(speed: float, name: str = "a", **more: Any) -> list[dict[str, Any]]:
    """Return five runs of the same speed."""
    days = (f"2026-11-0{day}T00:00:00+00:00" for day in range(1, 6))
    return [line for number, day in enumerate(days) for line in of_run(f"{name}{number}", speed, date=day, **more)]


def test_a_run_is_compared_with_no_line_of_its_own(tmp_path: Path) -> None:
    old, new = history(100), of_run("b", 70, date="2026-12-02T00:00:00+00:00")
    path = tmp_path / "results.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in old + new))
    assert compare(new, old + new, str(path)).verdict == compare(new, old + new, "last").verdict == "worse"


def test_models_that_share_a_server_are_compared_each_with_itself() -> None:
    old = history(100, served="x") + history(300, served="y")
    new = of_run("b", 80, served="x", date="2026-12-02T00:00:00+00:00")
    found = compare(new, [*old, *new], "last")
    assert found.verdict == "worse" and found.figures[0].old == pytest.approx(100.2)


def test_a_file_of_another_host_is_the_reference_where_it_has_none_of_this_one(tmp_path: Path) -> None:
    # Runs of two hosts are not one history.
    other = history(100, host="o") + history(50, name="z", host="p", launch="1")
    path = tmp_path / "results.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in other))
    new = of_run("b", 80, date="2026-12-02T00:00:00+00:00")
    found = compare(new, new, str(path))
    assert found.figures[0].old in (pytest.approx(100.2), pytest.approx(50.1)) and "host " in found.lines[0]


def test_a_host_with_nothing_to_measure_stops_no_other_one() -> None:
    asked = {"model": "m", "profile": "deepseek-1"}
    absent = {"probed": None, "absent": "model m: does not serve here; start it first", "refusal": ""}
    good = {"probed": PROBED, "absent": "", "refusal": ""}
    found = benchmark_plan({"h1": {}, "h2": {}}, asked, {"h1": good, "h2": absent, "h3": {}})
    assert (found["hosts"], found["errors"]) == (["h1"], [])
    assert "skipped: h2: model m: does not serve here; start it first" in found["lines"]
    assert benchmark_plan({}, asked, {"h2": absent})["errors"] == ["h2: model m: does not serve here; start it first"]
    assert benchmark_plan({}, asked, {})["errors"] == ["model m: serves on no host of this run"]
    refused = {"probed": None, "absent": "", "refusal": "model m: does not answer: no"}
    assert benchmark_plan({"h1": {}}, asked, {"h1": good, "h2": refused})["hosts"] == []


def test_through_what_stands_before_them_no_server_may_have_requests_of_others() -> None:
    asked = {"model": "m", "profile": "deepseek-1", "through": "https://models.example"}
    busy = {**PROBED, "running": 20.0, "waiting": 0.0}
    found = benchmark_plan({"h1": {}, "h2": {}}, asked, {"h1": {"probed": PROBED}, "h2": {"probed": busy}})
    assert found["hosts"] == [] and found["errors"][0].startswith("h2: model m: it has 20 requests of others")


def test_two_hosts_of_one_run_never_send_the_same_prompts() -> None:
    own = [set(seeds(where, 1_764_000_000.25, 46)) for where in ("h01 m", "h02 m", "h01 other")]
    own.append(set(seeds("h01 m", 1_764_000_000.251, 46)))
    assert len(set().union(*own)) == 4 * 46
