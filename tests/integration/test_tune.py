"""Buckets from traffic: reading a trace, learning from servers, what is shown and what is refused."""

from __future__ import annotations

import json
import sys
import threading
import xml.etree.ElementTree as ET  # the picture is the project's own
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from math import inf
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.buckets.bucket_plan import hpu_bucket_plan
from gaudi_serve.buckets.plan_limits import read_limits
from gaudi_serve.buckets.traffic import Request, decode_step_of, fitting, shapes_of, token_seconds
from gaudi_serve.core.errors import InputError
from gaudi_serve.host import observe_traffic
from gaudi_serve.host.observe_traffic import Unread, compiled_shapes, histogram, metrics, observe, samples
from gaudi_serve.plan.host import vllm_plan
from gaudi_serve.tune import trace_file
from gaudi_serve.tune.learned import Histogram, learned
from gaudi_serve.tune.report import tune_refusal, tune_report
from gaudi_serve.tune.target import target
from gaudi_serve.tune.trace_file import Columns, read_trace_file
from helpers.plans import gaudi_host, model
from helpers.plugins import load

METRICS = (Path(__file__).parents[1] / "unit/golden/vllm_metrics.txt").read_text()
PLUGIN = {"launch_profile": "plugin", "max_num_seqs": 16, "max_model_len": 8192}
LIMITS = {"max_num_seqs": 16, "max_model_len": 8192, "max_num_batched_tokens": 8192, "num_hpu_blocks": 3276}
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def fleet(*models: Mapping[str, Any], **hosts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a fleet of the models on host g1, and of those of ``hosts``, one each."""
    found: dict[str, Any] = {"hosts": {}, "errors": [], "warnings": []}
    for name, wanted in {"g1": models, **{host: (one,) for host, one in hosts.items()}}.items():
        if not wanted:
            continue
        plan = vllm_plan([dict(one) for one in wanted], gaudi_host(), host_name=name, release="1.22.2")
        found["hosts"][name] = {"models": plan["models"]}
        found["errors"] += plan["errors"]
    return found


def plugin(**more: Any) -> dict[str, Any]:
    """Return a model of the plugin."""
    wish = {key: value for key, value in model().items() if key not in ("input_range", "output_range")}
    return {**wish, **PLUGIN, **more}


def traffic(**more: Any) -> dict[str, Any]:
    """Return what module vllm_traffic reports of the server of METRICS."""
    found = samples(METRICS)
    numbers = {"requests": 500.0, "uptime_s": 1000.0, "running": 0.0, "waiting": 0.0, "mean_request_s": 3.2}
    told = {"num_blocks": 3000, "compiled": 2, "journal_problem": ""}
    tokens = {f"{kind}_tokens": histogram(found, f"vllm:request_{kind}_tokens") for kind in ("prompt", "generation")}
    return {"traffic": {**tokens, **numbers, **told, **more}, "problem": ""}


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Return a trace file of 60 requests."""
    rows = [{"arrival_s": n / 4, "input_tokens": 50 + 40 * n, "output_tokens": n} for n in range(60)]
    (tmp_path / "t.json").write_text(json.dumps(rows))
    return str(tmp_path / "t.json")


@pytest.mark.parametrize(
    "text",
    [
        AZURE + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n",
        AZURE + "2023-11-16T18:15:46.680590+00:00,374,44\n\n2023-11-16T19:15:50.995169+01:00,396,109\n",
        "\ufeffoutput_tokens,model,input_tokens,arrival_s\r\n44,x,374,7.0\r\n109,x,396,11.314579\r\n",
        '[{"arrival_s": 7, "input_tokens": 374, "output_tokens": 44},\n'
        ' {"arrival_s": 11.314579, "input_tokens": 396, "output_tokens": 109}]',
        '{"arrival_s": 7, "input_tokens": "374", "output_tokens": 44}\n\n'
        '{"TIMESTAMP": 11.314579, "ContextTokens": 396, "GeneratedTokens": 109}\n',
    ],
)
def test_a_trace_is_read_in_every_form(tmp_path: Path, text: str) -> None:
    (tmp_path / "t").write_text(text, encoding="utf-8", newline="")
    one, other = read_trace_file(str(tmp_path / "t"))
    assert one == Request(0, 374, 44)
    assert (round(other.arrival_s, 5), other.input_tokens, other.output_tokens) == (4.31458, 396, 109)


MOONCAKE = {"arrival_s": "timestamp", "input_tokens": "input_length", "output_tokens": "output_length"}
BURST = {"arrival_s": "Timestamp", "input_tokens": "Request tokens", "output_tokens": "Response tokens"}


@pytest.mark.parametrize(
    ("text", "columns", "unit"),
    [
        (
            '{"timestamp": 7000, "input_length": 374, "output_length": 44, "hash_ids": [1]}\n'
            '{"timestamp": 11314.579, "input_length": 396, "output_length": 109, "hash_ids": [1, 2]}\n',
            MOONCAKE,
            "ms",
        ),
        (
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
            "5,ChatGPT,374,44,418,Conversation log\n9.314579,GPT-4,396,109,505,API log\n",
            BURST,
            "",
        ),
        # Names that are the usual ones need not be set, and a time of day has no unit.
        (
            AZURE.replace("ContextTokens", "in")
            + "2023-11-16 18:15:46.68,374,44\n2023-11-16 18:15:50.994579,396,109\n",
            {"input_tokens": "in"},
            "ms",
        ),
    ],
)
def test_columns_of_other_traces_are_read_by_the_names_and_the_unit_that_a_user_gives(
    tmp_path: Path, text: str, columns: dict[str, str], unit: str
) -> None:
    (tmp_path / "t").write_text(text, encoding="utf-8")
    one, other = read_trace_file(str(tmp_path / "t"), Columns.of(columns, unit))
    assert one == Request(0, 374, 44)
    assert (round(other.arrival_s, 5), other.input_tokens, other.output_tokens) == (4.31458, 396, 109)


@pytest.mark.parametrize(
    ("columns", "unit", "sentence"),
    [
        ("timestamp", "", "trace_columns: 'timestamp': must be a mapping of arrival_s, input_tokens, output_tokens"),
        ({"arrival": "t"}, "", "trace_columns: 'arrival': must be a mapping of arrival_s, .*; did you mean arrival_s"),
        ({"arrival_s": 1}, "", "trace_columns: arrival_s: 1 is not a name of a column"),
        ({}, "minutes", "trace_time_unit: 'minutes': must be one of s, ms, us, ns"),
    ],
)
def test_wrong_columns_of_a_trace_are_refused(columns: Any, unit: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Columns.of(columns, unit)


def test_a_column_that_the_user_has_named_and_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("time,input_tokens,output_tokens\n1,1,1\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"line 1: timestamp \(arrival_s\) is missing among 'time, input_tokens"):
        read_trace_file(str(tmp_path / "t.csv"), Columns.of({"arrival_s": "timestamp"}, ""))
    with pytest.raises(InputError, match=r"arrival_s \(or TIMESTAMP\) is missing .*; name them with trace_columns"):
        read_trace_file(str(tmp_path / "t.csv"))


def test_files_beside_the_inventory_are_named_by_its_own_folder(trace: str) -> None:
    asked = {"model": "qwq", "trace": trace, "inventory_dir": "/srv/site/inventory", "tune_max_graphs": "12"}
    inside = tune_report(fleet(plugin()), asked, "/srv/site/inventory/buckets")["lines"]
    assert inside[-1].endswith("lookup('file', inventory_dir ~ '/buckets/qwq.buckets') }}\"}")
    outside = tune_report(fleet(plugin()), asked, "/srv/buckets")["lines"]
    assert outside[-1].endswith("lookup('file', '/srv/buckets/qwq.buckets') }}\"}")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty; it must be a CSV file with a head, a JSON list of mappings, or a JSON mapping a line"),
        ("[]", "has no request; it must have at least one, as a CSV file with a head"),
        (AZURE, "has no request; it must have at least one, as a CSV file with a head"),
        ("a,b\n1,2\n", "line 1: arrival_s (or TIMESTAMP) is missing among 'a, b'"),
        (
            "arrival,input_tokens,output_tokens\n",
            "missing among 'arrival, input_tokens, output_tokens'; did you mean ar",
        ),
        (AZURE + "2023-11-16 18:15:46,1\n", "line 2: has 2 values, of 3 columns"),
        (AZURE + "1,1,1\n1,x,1\n", "line 3: ContextTokens 'x' is not an integer from 1 to 1000000000000"),
        (AZURE + "1,0,1\n", "line 2: ContextTokens '0' is not an integer from 1 to 1000000000000"),
        (AZURE + "1,1,-1\n", "line 2: GeneratedTokens '-1' is not an integer from 0 to 1000000000000"),
        (AZURE + "noon,1,1\n", "line 2: TIMESTAMP 'noon' is neither a number of seconds nor a time such as 2023"),
        (AZURE + "nan,1,1\n", "line 2: TIMESTAMP 'nan' is neither a number of seconds"),
        (AZURE + '1,"1,1\n', "not CSV: "),
        ("[1", "line 1: not JSON: "),
        ("[1]", "request 1: 1 is not a mapping with arrival_s, input_tokens, output_tokens"),
        ('[{"arrival_s": 1, "output_tokens": 1}]', "request 1: input_tokens (or ContextTokens) is missing among"),
        ('{"arrival_s": 1}\n', "line 1: input_tokens (or ContextTokens) is missing among 'arrival_s'"),
        ("{]\n", "line 1: not a JSON mapping: "),
        ('[{"arrival_s": true, "input_tokens": 1, "output_tokens": 1}]', "request 1: arrival_s true is neither"),
        (
            '[{"arrival_s": 1, "input_tokens": 1.5, "output_tokens": 1}]',
            "request 1: input_tokens 1.5 is not an integer",
        ),
    ],
)
def test_what_is_wrong_with_a_trace_names_file_line_and_value(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_trace_file(str(path))
    assert str(caught.value).startswith(f"trace: {path}: ")
    assert sentence in str(caught.value)


def test_a_trace_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "large").write_text(AZURE + "1,1,1\n" * 3)
    for name, sentence in (
        ("none", "no such file; it must be a CSV file"),
        ("binary", "is not a UTF-8 text; it must be"),
        ("", "cannot be read: Is a directory"),
    ):
        with pytest.raises(InputError, match=sentence):
            read_trace_file(str(tmp_path / name))
    monkeypatch.setattr(trace_file, "MOST_REQUESTS", 2)
    with pytest.raises(InputError, match="line 4: is one request more than 2; use a part of them"):
        read_trace_file(str(tmp_path / "large"))
    monkeypatch.setattr(trace_file, "LARGEST_FILE", 10)
    with pytest.raises(InputError, match="is larger than 0 MiB; use a part of it"):
        read_trace_file(str(tmp_path / "large"))


# ---- learning


def test_lengths_keep_to_their_buckets_and_to_the_mean() -> None:
    one = Histogram(((10, 50.0), (100, 90.0), (1000, 100.0), (inf, 100.0)), 5000.0)
    lengths = one.lengths(1000, 1, 8192)
    assert lengths == sorted(lengths)
    assert [sum(length <= edge for length in lengths) for edge in (10, 100, 1000)] == [500, 900, 1000]
    assert sum(lengths) / 1000 == pytest.approx(50, rel=0.02)
    # What lies above the last edge is below the longest that a server takes; a sum that cannot be moves no bucket.
    above = Histogram(((10, 0.0), (inf, 5.0)), 1e9)
    assert set(above.lengths(5, 1, 300)) <= set(range(11, 301))
    assert Histogram(((10, 5.0), (inf, 5.0)), 0.0).lengths(3, 1, 300) == [1, 1, 1]


def test_servers_with_other_edges_are_merged() -> None:
    one = Histogram(((10, 2.0), (100, 4.0), (inf, 4.0)), 100.0)
    other = Histogram(((10, 1.0), (inf, 2.0)), 60.0)
    assert Histogram.merged([one, other]) == Histogram(((10, 3.0), (100, 5.0), (inf, 6.0)), 160.0)


def test_the_rate_is_that_of_the_busiest_server() -> None:
    asked = {"g1": traffic(), "g2": traffic(uptime_s=500.0), "g3": traffic(running=6.0, waiting=2.0)}
    assert learned("m", ["g1"], asked).rate == 0.5
    found = learned("m", ["g1", "g2"], asked)
    assert (found.rate, found.prompt.count) == (1.0, 1000)
    # Eight in a server whose requests take 3.2 s each: 2.5 a second come.
    assert learned("m", ["g1", "g2", "g3"], asked).rate == 2.5
    requests = found.requests(8192)
    assert requests == found.requests(8192)
    assert len(requests) == 1000
    assert requests[-1].arrival_s == pytest.approx(1000, rel=0.1)
    assert sum(one.input_tokens for one in requests) == pytest.approx(1000 * 530, rel=0.02)
    assert sum(one.output_tokens for one in requests) == pytest.approx(1000 * 144, rel=0.02)


def test_hosts_that_report_nothing_are_named_and_none_left_is_an_error() -> None:
    lost = {"g2": {"unreachable": True, "msg": "timed out"}, "g3": {"traffic": None, "problem": "/metrics: refused"}}
    found = learned("m", ["g1", "g2", "g3"], {"g1": traffic(compiled=None, journal_problem="no journal"), **lost})
    assert found.notes == [
        "g1: the shapes compiled while serving are unknown: no journal",
        "g2: cannot be reached: timed out",
        "g3: /metrics: refused",
    ]
    with pytest.raises(InputError) as caught:
        learned("m", ["g2", "g3", "g4"], lost)
    assert str(caught.value) == (
        "model m: no server of it reports its traffic; start it, or set a trace (-e trace=FILE): "
        "g2: cannot be reached: timed out; g3: /metrics: refused; g4: cannot be reached"
    )
    few = {"buckets": [["10.0", 3.0], ["+Inf", 3.0]], "sum": 20.0}
    with pytest.raises(InputError) as caught:
        learned("m", ["g1"], {"g1": traffic(generation_tokens=few)})
    assert str(caught.value) == (
        "model m: its servers have had 3 requests since they started (g1), and a plan needs 100; wait for "
        "more, or set a trace (-e trace=FILE)"
    )


def test_the_speed_is_that_of_the_weights_or_of_the_servers_that_run(trace: str) -> None:
    limits = read_limits({**LIMITS, "like": "exp"})[0]
    requests = learned("m", ["g1"], {"g1": traffic()}).requests(8192)
    for step in (0.004, 0.012, 0.05):
        told = token_seconds(requests, limits, 0.012 / step)
        assert decode_step_of(requests, limits, told) == pytest.approx(step, rel=0.03)
    asked = {"model": "qwq", "tune_max_graphs": 4}
    assert learned("m", ["g1"], {"g1": traffic(mean_token_s=0.03)}).token_s == 0.03
    lines = tune_report(fleet(plugin()), asked, "/b", {"g1": traffic(mean_token_s=0.03)})["lines"]
    assert lines[3].endswith(" ms: its answers have a token every 30.0 ms")
    assert lines[3] != tune_report(fleet(plugin()), asked, "/b", {"g1": traffic(mean_token_s=0.06)})["lines"][3]
    unknown = fleet(plugin())
    unknown["hosts"]["g1"]["models"][0]["weights_gib"] = 0
    lines = tune_report(unknown, {**asked, "trace": trace}, "/b")["lines"]
    assert lines[3] == (
        "a decode step of one sequence takes about 12.0 ms: as for a model of 8B, because the size of its weights is "
        "unknown"
    )


@pytest.mark.parametrize("name", ["inter_token_latency", "time_per_output_token", "request_time_per_output_token"])
def test_the_time_between_tokens_is_read_by_all_its_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe_traffic, "journal_count", lambda *_: (0, ""))
    sums = f'vllm:{name}_seconds_sum{{engine="0"}} 12.0\nvllm:{name}_seconds_count{{engine="0"}} 400\n'
    with serving(METRICS + sums) as port:
        assert observe("qwq", "127.0.0.1", port)["mean_token_s"] == 0.03
    with serving(METRICS) as port:
        assert observe("qwq", "127.0.0.1", port)["mean_token_s"] == 0


# ---- what a server reports


@contextmanager
def serving(text: str, status: int = 200) -> Iterator[int]:
    """Answer everything with a text on loopback; yield the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Put a journalctl of our own before all others."""
    path = folder / "journalctl"
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


COLD = """\
(Worker_TP0 pid=7) WARNING 11-23 [hpu_model_runner.py:3643] Configuration: ('decode', 8, 1, 128) was not warmed-up!
(Worker_TP1 pid=8) WARNING 11-23 [hpu_model_runner.py:3643] Configuration: ('decode', 8, 1, 128) was not warmed-up!
INFO: 127.0.0.1 - "POST /v1/completions HTTP/1.1" 200 OK
WARNING 11-23 [common.py:295] Prompt bucket for (1, 900, 0) was not prepared. Adding new bucket: (1, 960, 0)
WARNING 11-23 [hpu_model_runner.py:3643] Configuration: ('prompt', 1, 960, 0) was not warmed-up!
"""


def test_compiled_shapes_are_counted_once_who_reports_it() -> None:
    assert compiled_shapes(COLD.splitlines()) == 2
    assert compiled_shapes([line for line in COLD.splitlines() if "prepared" in line] * 2) == 1
    assert compiled_shapes([]) == 0


def test_a_server_is_read_with_its_journal_since_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log").write_text(COLD)
    program(
        tmp_path,
        monkeypatch,
        f"import sys; open({str(tmp_path / 'asked')!r}, 'w').write(' '.join(sys.argv[1:]))\n"
        f"print(open({str(tmp_path / 'log')!r}).read())",
    )
    with serving(METRICS) as port:
        found = observe("qwq", "0.0.0.0", port)
    assert (tmp_path / "asked").read_text() == ("-u vllm-qwq.service -o cat --no-pager --quiet --since @1763920000")
    assert found["prompt_tokens"]["buckets"][5] == ["50.0", 10.0]
    assert found["prompt_tokens"]["sum"] == 265000
    names = ("requests", "running", "waiting", "mean_request_s", "num_blocks", "compiled", "journal_problem")
    assert [found[name] for name in names] == [500, 6, 2, 3.2, 3000, 2, ""]
    program(tmp_path, monkeypatch, "import time; time.sleep(60)")
    with serving(METRICS.replace("process_start_time_seconds 1", "other 1")) as port:
        found = observe("qwq", "127.0.0.1", port, journal_timeout=0.2)
    assert found["compiled"] is None
    assert found["journal_problem"] == "journalctl did not end well within 0.2 s (status -9)"
    monkeypatch.setenv("PATH", "/nowhere")
    with serving(METRICS) as port:
        assert observe("qwq", "127.0.0.1", port)["journal_problem"] == "journalctl: No such file or directory"


def test_a_number_that_is_none_counts_for_nothing() -> None:
    assert samples('a{x="1"} NaN\na{x="2"} 3\na{x="3"} +Inf\nb one\n# a 7\n') == {"a": [({"x": "2"}, 3.0)]}


def test_what_is_no_vllm_or_does_not_answer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, status, sentence in (
        ("nothing here", 404, "answered status 404: 'nothing here'"),
        ("hello", 200, "does not show since when it counts"),
        (
            "process_start_time_seconds 1\n",
            200,
            "has no vllm:request_prompt_tokens; is another program there, or --dis",
        ),
        ("x" * 200_000, 200, "is larger than 0 MiB; is another program there?"),
    ):
        monkeypatch.setattr(observe_traffic, "LARGEST", 100_000)
        monkeypatch.setattr(observe_traffic, "journal_count", lambda *_: (0, ""))
        with serving(text, status) as port, pytest.raises(Unread) as caught:
            observe("m", "127.0.0.1", port)
        assert sentence in str(caught.value)
    with pytest.raises(Unread, match=f"/metrics on port {port}: .*refused"):
        metrics("127.0.0.1", port, 1)


def test_the_module_never_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = load("library/vllm_traffic.py")

    class Module:
        params = {"name": "m", "host": "127.0.0.1", "port": 1, "timeout": 1.0, "journal_timeout": 1.0}  # noqa: RUF012

        def __init__(self, **_: Any) -> None:
            self.told: dict[str, Any] = {}

        def exit_json(self, **told: Any) -> None:
            print(json.dumps(told))

    monkeypatch.setattr(module, "AnsibleModule", Module)
    module.main()
    told = json.loads(capsys.readouterr().out)
    assert (told["changed"], told["traffic"]) == (False, None)
    assert "/metrics on port 1: " in told["problem"]
    monkeypatch.setattr(module, "observe", lambda **_: {"requests": 1})
    module.main()
    assert json.loads(capsys.readouterr().out) == {"changed": False, "traffic": {"requests": 1}, "problem": ""}


# ---- what is refused


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({}, "-e model=NAME is missing: the name of one model; g1: its models are qwq"),
        ({"model": "qwg"}, "model 'qwg': no host has it; g1: its models are qwq; did you mean qwq?"),
        ({"model": "qwq", "tune_like": "expo"}, "tune_like: 'expo' is not one of exp, lin, pad"),
        (
            {"model": "qwq", "tune_max_graphs": "x"},
            "tune_max_graphs: 'x' is not an integer from 2 to 1000000000000",
        ),
        (
            {"model": "qwq", "tune_max_padding": {"prompt_tokens": 2}},
            "tune_max_padding.prompt_tokens: 2 is not a number from 0 to 1",
        ),
        (
            {"model": "qwq", "tune_like": "exp", "tune_max_graphs": "9"},
            "tune_like and tune_max_graphs: only one of them can be the goal; leave the others out",
        ),
        (
            {"model": "qwq", "trace": "/nowhere/t.csv"},
            "trace: /nowhere/t.csv: no such file; it must be a CSV file with a "
            "head, a JSON list of mappings, or a JSON mapping a line",
        ),
    ],
)
def test_what_was_asked_is_refused_before_any_server_is_asked(asked: dict[str, Any], sentence: str) -> None:
    assert tune_refusal(fleet(plugin()), {"model": "", "trace": "", **asked}) == [sentence]


def test_models_without_plans_are_refused() -> None:
    upstream = {key: value for key, value in plugin(launch_profile="vllm").items() if key != "max_num_seqs"}
    said = tune_refusal(fleet(upstream), {"model": "qwq"})
    assert said == [
        "g1: model qwq: launch_profile vllm: its server chooses its own buckets; use a profile of the plugin or "
        "of the vendor's fork, which accept them"
    ]
    kept = "buckets cannot be planned with it; use a strategy of the plugin (exp, lin, pad)"
    for more, what in (
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}, "speculative decoding"),
        ({"env": {"VLLM_MERGED_PREFILL": "true"}}, "merged prefill"),
        ({"env": {"PT_HPU_SDPA_QKV_SLICE_MODE_FWD": "true"}}, "sliced attention"),
        ({"weights": "/data/M", "config": {**QWQ, "mamba_chunk_size": 256}, "weight_bytes": 10**9}, "mamba chunks"),
    ):
        assert tune_refusal(fleet(plugin(**more)), {"model": "qwq"}) == [f"g1: model qwq: {what}: {kept}"]
    # What is wrong with the model itself is reported in its own words.
    assert tune_refusal(fleet(plugin(port=0)), {"model": "qwq"})[0].startswith("g1: model qwq: port 0: must be")
    assert tune_refusal({"hosts": {}, "errors": [], "warnings": []}, {"model": "m"}) == [
        "model 'm': no host has it; no host has a model"
    ]
    unread = {"host": "g1", "key": "facts", "model": None, "message": "g1: could not be read"}
    assert tune_refusal({"hosts": {}, "errors": [unread], "warnings": []}, {"model": "m"})[1] == unread["message"]


QWQ = gaudi_host()["weights"]["/data/QwQ-32B"]["config"]


def test_hosts_that_differ_and_unknown_memory_have_no_plan(trace: str) -> None:
    asked = {"model": "qwq", "trace": trace}
    both = fleet(plugin(), g2=plugin(max_num_seqs=8))
    assert tune_report(both, asked, "/b")["errors"] == [
        "model qwq: max_num_seqs is 16 on g1 and 8 on g2, and one list of buckets cannot be for both; select one host, "
        "such as --limit g1"
    ]
    unknown = fleet(plugin())
    unknown["hosts"]["g1"]["models"][0]["memory"] = None
    assert tune_report(unknown, asked, "/b")["errors"] == [
        "g1: model qwq: its KV-cache blocks are unknown, because its memory is; set config and "
        "weight_bytes, download its weights,"
        " or tune it while it serves"
    ]
    assert target(unknown, "qwq", {"g1": 3000}).limits.num_hpu_blocks == 3000


def test_goals_out_of_reach_and_requests_that_do_not_fit_have_no_plan(trace: str, tmp_path: Path) -> None:
    few = tune_report(fleet(plugin()), {"model": "qwq", "trace": trace, "tune_max_graphs": "5"}, "/b")
    assert few["errors"] == [] and few["plan"]["graphs"] == 5
    (tmp_path / "long").write_text(AZURE + "1,9000,1\n")
    found = tune_report(fleet(plugin()), {"model": "qwq", "trace": str(tmp_path / "long")}, "/b")
    assert found["errors"] == [
        "model qwq: trace long: no request fits: a prompt of 9000 tokens leaves no room for an answer within 8192, "
        "max_model_len"
    ]
    ranges = fleet(model(max_num_seqs=16))
    found = tune_report(ranges, {"model": "qwq", "trace": trace, "tune_max_graphs": "2"}, "/b")
    assert found["errors"] == ["model qwq: no ranges reach this goal; allow more graphs, or more padding"]


# ---- what is shown and written

TABLE = """\
qwq on g1: 60 requests (trace t.json)
within max_num_seqs 16, max_model_len 8192, max_num_batched_tokens 8192, num_hpu_blocks 3276
prefix caching off, contiguous PA on
a decode step of one sequence takes about 18.8 ms: 30.3 GiB of weights a card, read at 2.45 TB/s

BUCKETS      GRAPHS  WARM-UP    PROMPT TOKENS  SEQUENCES  BLOCKS   COMPILED
-----------  ------  ---------  -------------  ---------  -------  --------
today (exp)  101     2.6 min    21.6 %         18.1 %     27.4 %   0
planned      76      2.0 min    8.9 %          15.1 %     19.5 %   0
lin          4198    109.2 min  5.3 %          29.5 %     37.8 %   0
pad          288     7.5 min    15.2 %         11.6 %     169.6 %  0

Padding at other speeds of the server, and in brackets that of exp. The last third of the requests
is padded with a plan of 74 graphs that was made without it:
TIMES AS FAST    PROMPT TOKENS    SEQUENCES        BLOCKS
---------------  ---------------  ---------------  ----------------
0.25             8.9 % (21.6 %)   8.0 % (8.3 %)    19.0 % (24.4 %)
0.5              8.9 % (21.6 %)   7.9 % (8.9 %)    20.5 % (23.8 %)
1                8.9 % (21.6 %)   15.1 % (18.1 %)  19.5 % (27.4 %)
2                8.9 % (21.6 %)   0.0 % (11.0 %)   26.7 % (33.9 %)
4                8.9 % (21.6 %)   0.0 % (0.0 %)    27.7 % (49.4 %)
0.5, last third  23.1 % (23.1 %)  7.0 % (7.0 %)    52.7 % (21.6 %)
1, last third    23.0 % (23.0 %)  22.7 % (22.7 %)  58.1 % (25.1 %)
2, last third    23.0 % (23.0 %)  19.0 % (19.0 %)  200.2 % (18.0 %)

For any requests: prompts and sequences are padded as by exp or less, blocks to 1.25 times exp or pad.

Nothing restarts now. Review /srv/buckets/qwq.buckets. To use it, write into the model's entry:
  bucketing: {strategy: file, file: "{{ lookup('file', '/srv/buckets/qwq.buckets') }}"}
"""
RANGES = """\
BUCKETS         GRAPHS  WARM-UP  PROMPT TOKENS  SEQUENCES  BLOCKS   COMPILED
--------------  ------  -------  -------------  ---------  -------  --------
today (ranges)  136     3.5 min  5.3 %          7.9 %      169.6 %  0
planned         136     3.5 min  5.3 %          7.9 %      169.6 %  0

Padding at other speeds of the server, and in brackets that of today. The last third of the requests
is padded with a plan of 118 graphs that was made without it:
TIMES AS FAST    PROMPT TOKENS  SEQUENCES        BLOCKS
---------------  -------------  ---------------  -----------------
0.25             5.3 % (5.3 %)  4.0 % (4.0 %)    45.9 % (45.9 %)
"""


def test_the_plan_is_that_of_the_filter_and_the_second_look_finds_it_taken(trace: str) -> None:
    asked = {"model": "qwq", "trace": trace, "tune_max_graphs": 6}
    found = tune_report(fleet(plugin()), asked, "/b")
    limits = {"max_num_seqs": 16, "max_model_len": 8192, "max_num_batched_tokens": 8192, "use_contiguous_pa": True}
    rows = json.loads(Path(trace).read_text())
    step = 0.0055 + 30.3 * 2**30 / 2.45e12  # QwQ-32B on two Gaudi2
    same = hpu_bucket_plan(rows, {**limits, "num_hpu_blocks": 3276, "max_graphs": 6, "decode_step_s": step})
    bare = [line for line in found["plan"]["file"].splitlines() if not line.startswith("#")]
    assert bare == [line for line in same["file"].splitlines() if not line.startswith("#")]
    assert (found["plan"]["graphs"], found["plan"]["padding"]) == (same["graphs"], same["padding"])
    assert [one["path"] for one in found["files"]] == ["/b/qwq.buckets", "/b/qwq.svg"]
    assert tune_report(fleet(plugin()), asked, "/b") == found
    taken = plugin(bucketing={"strategy": "file", "file": found["plan"]["file"].rstrip()})
    again = tune_report(fleet(taken), asked, "/b")
    assert again["lines"][-1] == "qwq already has this list"
    assert again["plan"] == found["plan"]
    today, planned = (line.split()[-10:] for line in again["lines"] if line.startswith(("today (file)", "planned")))
    assert today[-9:] == planned[-9:]


def test_today_and_the_plan_stand_beside_each_other(trace: str) -> None:
    asked = {"model": "qwq", "trace": trace}
    assert tune_report(fleet(plugin()), asked, "/srv/buckets")["lines"] == TABLE.splitlines()
    lines = tune_report(fleet(model(max_num_seqs=16)), asked, "/srv/buckets")["lines"]
    assert lines[5:15] == RANGES.splitlines()
    assert lines[-1] == "  env: \"{{ lookup('file', '/srv/buckets/qwq.env.yml') | from_yaml }}\""


def test_the_list_covers_what_any_host_has(trace: str) -> None:
    # Few graphs, for a quick plan.
    asked = {"model": "qwq", "tune_max_graphs": 4}
    for blocks in (3000, 4000):
        found = tune_report(fleet(plugin()), asked, "/b", {"g1": traffic(num_blocks=blocks)})
        assert f"num_hpu_blocks {max(blocks, 3276)}" in found["plan"]["file"]
        assert found["lines"][1].endswith(f"num_hpu_blocks {blocks}")
        said = f"g1: its server has {blocks} KV-cache blocks, but the plan estimates 3276: the server's count is used"
        assert said in found["lines"]
    same = tune_report(fleet(plugin()), asked, "/b", {"g1": traffic(num_blocks=3276)})
    assert not any("KV-cache" in line for line in same["lines"])


def test_no_name_breaks_a_line_of_the_list(tmp_path: Path, trace: str) -> None:
    strange = tmp_path / "t\n(1, 1, 1)"
    strange.write_text(Path(trace).read_text())
    found = tune_report(fleet(plugin()), {"model": "qwq", "trace": str(strange), "tune_max_graphs": 6}, "/b")
    assert found["plan"]["file"].startswith("# Planned by hpu_bucket_plan from 60 requests (trace 't\\n(1, 1, 1)').\n")
    with pytest.raises(InputError) as caught:
        read_trace_file(f"{strange}x")
    assert "\n" not in str(caught.value)
    lost = {"g2": {"unreachable": True, "msg": "two\nlines"}}
    assert learned("m", ["g1", "g2"], {"g1": traffic(), **lost}).notes[1] == r"g2: cannot be reached: two\nlines"


def test_a_strategy_that_stops_the_server_reports_why(trace: str) -> None:
    wanted = fleet(plugin())
    wanted["hosts"]["g1"]["models"][0]["env"]["VLLM_BUCKETING_FROM_FILE"] = "/nowhere"
    lines = tune_report(wanted, {"model": "qwq", "trace": trace, "tune_max_graphs": 6}, "/b")["lines"]
    assert any(line.startswith("today (file)  -       -") for line in lines)
    assert any(line.startswith("file: VLLM_BUCKETING_FROM_FILE: '/nowhere' names a missing file") for line in lines)


def test_hosts_that_could_not_be_planned_are_reported_beside_the_plan(trace: str) -> None:
    both = fleet(plugin())
    both["errors"].append({"host": "g2", "key": "facts", "model": None, "message": "g2: could not be read"})
    assert (
        "g2: could not be read"
        in tune_report(both, {"model": "qwq", "trace": trace, "tune_max_graphs": 6}, "/b")["lines"]
    )


def test_the_picture_shows_every_bucket_of_both_lists(trace: str) -> None:
    found = tune_report(fleet(plugin()), {"model": "qwq", "trace": trace, "tune_max_graphs": 6}, "/b")
    text = found["files"][1]["content"]
    root = ET.fromstring(text)  # noqa: S314
    kinds = [one.get("class") for one in root.iter() if one.tag.endswith("circle")]
    plan = found["plan"]
    assert kinds.count("planned") == plan["graphs"] + 1  # the legend
    words = [one.text for one in root.iter() if one.tag.endswith("text")]
    for wanted in (
        "Prompt steps",
        "Decode steps",
        "tokens",
        "blocks of context",
        "sequences",
        "blocks of all sequences",
    ):
        assert wanted in words
    assert f"planned: {plan['graphs']} graphs" in words
    assert "prefers-color-scheme: dark" in text
    width, height = (float(part) for part in root.attrib["viewBox"].split()[2:])
    for one in root.iter():
        if one.tag.endswith("rect") and one.get("class") == "heat":
            assert 0 <= float(one.attrib["x"]) <= width and 0 <= float(one.attrib["y"]) <= height
            assert 0.1 <= float(one.attrib["fill-opacity"]) <= 0.9


def test_every_step_of_a_trace_is_within_the_picture(trace: str) -> None:
    limits = read_limits({**LIMITS, "like": "exp"})[0]
    shapes = shapes_of(fitting(read_trace_file(trace), limits)[0], limits)
    found = tune_report(fleet(plugin()), {"model": "qwq", "trace": trace, "tune_max_graphs": 6}, "/b")
    root = ET.fromstring(found["files"][1]["content"])  # noqa: S314
    squares = [one for one in root.iter() if one.tag.endswith("rect") and one.get("class") == "heat"]
    assert 2 < len(squares) - 1 <= len(shapes.prompt) + len(shapes.decode)


def test_squares_of_the_picture_are_whole_and_within_its_fields(tmp_path: Path) -> None:
    # All at once, so that as many sequences run as may.
    rows = [{"arrival_s": 0, "input_tokens": 50 + 40 * n, "output_tokens": 20} for n in range(60)]
    (tmp_path / "t.json").write_text(json.dumps(rows))
    found = tune_report(
        fleet(plugin()), {"model": "qwq", "trace": str(tmp_path / "t.json"), "tune_max_graphs": 6}, "/b"
    )
    root = ET.fromstring(found["files"][1]["content"])  # noqa: S314
    fields = [one for one in root.iter() if one.tag.endswith("}g")]
    assert len(fields) == 2
    for field in fields:
        frame = next(one for one in field if one.get("class") == "line")
        squares = [one for one in field if one.get("class") == "heat"]
        assert squares and len({(one.get("width"), one.get("height")) for one in squares}) == 1
        for one in squares:
            for start, size in (("x", "width"), ("y", "height")):
                assert 0 <= float(one.attrib[start]) <= float(frame.attrib[size]) - float(one.attrib[size])


def test_the_largest_value_of_an_axis_is_written_and_a_long_title_is_cut(trace: str) -> None:
    name = "q" * 60
    hosts = {f"gaudi{number:02}": plugin(name=name) for number in range(2)}
    report = tune_report(fleet(**hosts), {"model": name, "trace": trace, "tune_max_graphs": 6}, "/b")
    root = ET.fromstring(report["files"][1]["content"])  # noqa: S314
    words = [str(one.text) for one in root.iter() if one.tag.endswith("text")]
    assert "3276" in words
    assert all(len(word) <= 120 for word in words)
