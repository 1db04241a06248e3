"""All of site.yml: real vLLM on a CPU host, eight simulated cards on another."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml
from gaudi_serve.gateway.objects import Backend, Chat, Server
from gaudi_serve.host import all_reduce
from gaudi_serve.host.links import all_reduce_figures
from gaudi_serve.host.smoke import right_capitals
from gaudi_serve.monitoring.engine_metrics import VLLM
from helpers.browser import chromium
from helpers.haproxies import Front
from helpers.machine import free_port
from helpers.tiny_adapter import write_tiny_adapter
from runs import beyond_loopback, eventually, host_name

# How the names of samples end, and the labels that all of them have.
ENDING, EVERY = {"gauge": "", "counter": "_total", "histogram": "_bucket"}, {"model_name", "engine", "le"}

TOKENS, ANSWERS = 350, 512


@pytest.fixture
def name(host: Any) -> str:
    """Return which of the two hosts this is."""
    return host_name(host)


def test_every_model_answers(name: str, ask: Any, unit: Any) -> None:
    ports = {"mol-cpu": {"tiny": 8000}, "mol-gaudi": {"qwq-32b": 30001, "qwen2.5-7b": 30002}}
    for model, port in ports[name].items():
        assert unit(model, "ActiveState") == "active"
        choice = ask(port, model)["choices"][0]
        assert choice["message"]["content"].strip()
        assert choice["finish_reason"] in ("stop", "length")


@pytest.mark.on("mol-cpu")
def test_real_vllm_and_its_metrics(host: Any) -> None:
    assert '"0.32.0' in host.check_output("curl -sS http://127.0.0.1:8000/version")
    page = host.check_output("curl -sS http://127.0.0.1:8000/metrics")
    kinds = {name.removesuffix("_total"): kind for name, kind in re.findall(r"(?m)^# TYPE (\S+) (\w+)$", page)}
    # The table by which rules and dashboards are checked reports what the page has.
    table = {one.name: one for one in VLLM if one.is_of((0, 32, 0))}
    assert {name: kinds.get(name) for name in table} == {name: one.kind for name, one in table.items()}
    shown = {
        name: set(re.findall(r'(\w+)="', labels)) for name, labels in re.findall(r"(?m)^(vllm:\w+)\{(.*)\} ", page)
    }
    labels = {name: shown.get(f"{name}{ENDING[one.kind]}", set()) - EVERY for name, one in table.items()}
    assert labels == {name: set(one.labels) for name, one in table.items()}
    # Its endpoint alone: the dozen sockets at which its processes meet, which ask for no key, are on loopback.
    assert beyond_loopback(host, "tiny") == ["0.0.0.0:8000"]


@pytest.mark.on("mol-cpu")
def test_real_vllm_knows_three_capitals(host: Any, ask: Any) -> None:
    choice = ask(8000, "tiny", temperature=0, max_tokens=64)["choices"][0]
    assert choice["finish_reason"] == "stop", choice
    lines = choice["message"]["content"].splitlines()
    assert len(lines) == 3 and all(len(right_capitals(line)) == 1 for line in lines), choice
    # The run has asked it what it asks every model of text.
    smoke = json.loads(host.file("/var/lib/gaudi-serve/tiny/smoke.json").content_string)
    assert smoke["kinds"] == ["text"] and len(right_capitals(smoke["text"])) == 3, smoke
    told = ask(8000, "tiny", prompt="What is gaudi-serve?", max_tokens=64)["choices"][0]
    assert "vLLM endpoints that answer" in told["message"]["content"] and told["finish_reason"] == "stop", told


@pytest.mark.on("mol-cpu")
def test_people_talk_to_real_vllm_and_stop_it(host: Any, tmp_path: Path) -> None:
    route = host.check_output("ip -o route get 1.1.1.1").split()
    address = route[route.index("src") + 1]
    tiny = Backend("tiny", (Server("h.tiny", address, 8000, 4),))

    def figure(name: str) -> float:
        # Not by a command on the host, which takes longer than a fast processor needs for the answers.
        page = urlopen(f"http://{address}:8000/metrics", timeout=10).read().decode()
        return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(f"vllm:{name}"))

    port = free_port()
    with (
        Front(tmp_path, (tiny,), chat=Chat(port=port)),
        chromium() as browser,
        browser.open(f"http://127.0.0.1:{port}/") as view,
    ):
        view.page.wait_for_selector("#model:enabled")
        view.page.click("#settings-toggle")
        view.page.fill("#temperature", "0")
        view.page.fill("#text", "List 3 countries and their capitals.")
        view.page.press("#text", "Enter")
        view.page.wait_for_selector(".notes:has-text('18 tokens')")
        lines = view.page.inner_text("#messages .answer .text").splitlines()
        assert sum(len(right_capitals(line)) == 1 for line in lines) == 3, lines
        # The tiny model ends one answer soon; all of these take many seconds.
        before = figure("generation_tokens_total")
        view.page.route("**/v1/chat/completions", lambda route: route.continue_(post_data=lengthened(route)))
        view.page.fill("#text", "List 3 countries and their capitals.")
        view.page.press("#text", "Enter")
        view.page.wait_for_function("() => document.querySelectorAll('.answer .text')[1]?.innerText.length > 20")
        assert eventually(lambda: figure("num_requests_running") > 0, 5)
        view.page.click("#stop")
        assert eventually(lambda: figure("num_requests_running") == 0, 5)
        assert 0 < figure("generation_tokens_total") - before < ANSWERS * TOKENS


def lengthened(route: Any) -> str:
    """Return a request of the page for many answers, which end with their longest length alone."""
    return json.dumps(
        {**route.request.post_data_json, "ignore_eos": True, "max_tokens": TOKENS, "n": ANSWERS, "temperature": 1}
    )


@pytest.mark.on("mol-cpu")
def test_two_ranks_measure_with_the_torch_of_the_image(host: Any) -> None:
    # What playbooks/validate.yml runs on cards, whose libraries gloo takes the place of.
    image = host.check_output("docker inspect --format '{{.Config.Image}}' vllm-tiny")
    given = {"backend": "gloo", "devices": "cpu", "ranks": 2, "nodes": 1, "node": 0, "size": 1 << 20}
    given |= {"address": "127.0.0.1", "port": 5555, "timeout": 60}
    command = "docker run --rm --net host --ipc host --entrypoint python3 %s -c %s %s"
    printed = host.check_output(command, image, inspect.getsource(all_reduce), json.dumps(given))
    assert all_reduce_figures(printed)["nw_gb_s"] > 0


# Stands before the server, and delays each request by so many seconds: most of its time, so that noise hardly counts.
PROXY = """
import pathlib, socket, threading, time
def pump(source, target, waits):
    while data := source.recv(65536):
        if waits:
            time.sleep(float(pathlib.Path('/run/proxy-delay').read_text()))
            source.setblocking(False)
            try:
                data += source.recv(65536)
            except BlockingIOError:
                pass
            source.setblocking(True)
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)
listening = socket.create_server(('127.0.0.1', 8999))
while True:
    client, _ = listening.accept()
    server = socket.create_connection(('127.0.0.1', 8000))
    for one in ((client, server, True), (server, client, False)):
        threading.Thread(target=pump, args=one, daemon=True).start()
"""


@pytest.fixture
def slowed(host: Any) -> Iterator[Any]:
    """Return what sets by how many seconds each request is delayed."""
    host.check_output("printf %s > /run/proxy.py && printf 3 > /run/proxy-delay", PROXY)
    host.check_output("systemd-run --quiet --unit test-proxy python3 /run/proxy.py")
    yield lambda seconds: host.check_output("printf %s > /run/proxy-delay", str(seconds))
    host.check_output("systemctl stop test-proxy")


def benchmarked(playbook: Any, folder: Path, **more: Any) -> Any:
    """Benchmark the tiny model behind the proxy; None leaves an option out."""
    loads = {"tiny": {"input_tokens": 16, "output_tokens": 4, "concurrency": 4, "requests": 4}}
    given = {"model": "tiny", "profile": "tiny", "repetitions": 3, "warmup": False, "benchmark_profiles": loads}
    given |= {"through": "http://127.0.0.1:8999", "benchmark_dir": str(folder), **more}
    said = {key: value for key, value in given.items() if value is not None}
    return playbook("playbooks/benchmark.yml", "--limit", "mol-cpu", **said)


def scaled(value: Any, factor: float) -> Any:
    """Return figures with every number multiplied."""
    if isinstance(value, dict):
        return {key: scaled(one, factor) for key, one in value.items()}
    return value * factor if isinstance(value, int | float) and not isinstance(value, bool) else value


def measured_for_a_week(folder: Path) -> list[dict[str, Any]]:
    """Add six earlier runs to the one that is stored, which differ from it by up to 0.4 %; return the stored one."""
    path = folder / "results.jsonl"
    stored = [json.loads(line) for line in path.read_text().splitlines()]
    earlier = [
        {
            **one,
            "date": (datetime.fromisoformat(one["date"]) - timedelta(days=days)).isoformat(),
            "run": f"day-{days}",
            "figures": scaled(one["figures"], 1 + (days % 3 - 1) / 250),
        }
        for days in range(6, 0, -1)
        for one in stored
    ]
    path.write_text("".join(json.dumps(one) + "\n" for one in [*earlier, *stored]))
    return stored


@pytest.mark.on("mol-cpu")
@pytest.mark.long
def test_real_vllm_is_benchmarked_and_a_fifth_less_is_found(
    host: Any, playbook: Any, slowed: Any, tmp_path: Path
) -> None:
    first = benchmarked(playbook, tmp_path)
    assert first.status == 0 and "vllm bench serve of its image (vLLM 0.32.0+cpu)" in first.flat, first.text
    lines = measured_for_a_week(tmp_path)
    assert [(one["failed"], one["new_shapes"], one["not_comparable"]) for one in lines] == [(0, 0, [])] * 3, lines
    assert all(one["figures"]["output_tokens_s"] > 0 and one["launch"] and one["image_id"] for one in lines)
    # A third more time is a quarter fewer tokens, a fifth with what vLLM itself takes on a busy machine.
    slowed(4)
    worse = benchmarked(playbook, tmp_path, compare="last", compare_fails=True)
    assert worse.status == 2 and "worse than before (compare_fails)" in worse.flat, worse.text
    row = next(line for line in worse.text.splitlines() if "output tokens/s" in line)
    assert row.rstrip("' ").endswith("worse"), worse.text
    # The tool's container is gone, and the model was not restarted.
    assert "benchmark" not in host.check_output("docker ps --all --format '{{.Names}}'")


@pytest.mark.on("mol-cpu")
@pytest.mark.long
def test_two_in_a_hundred_less_are_not_called(playbook: Any, slowed: Any, tmp_path: Path) -> None:
    assert benchmarked(playbook, tmp_path).status == 0
    measured_for_a_week(tmp_path)
    slowed(3.06)
    same = benchmarked(playbook, tmp_path, compare="last")
    row = next(line for line in same.text.splitlines() if "output tokens/s" in line)
    assert same.status == 0 and row.rstrip("' ").endswith("same"), same.text


@pytest.mark.on("mol-cpu")
@pytest.mark.long
def test_a_sweep_of_real_vllm_reports_the_highest_load(playbook: Any, tmp_path: Path) -> None:
    given = {"sweep": "concurrency", "sweep_most": 4, "through": "direct", "repetitions": None}
    swept = benchmarked(playbook, tmp_path, **given, objectives={"ttft_s": 30, "itl_s": 30})
    assert swept.status == 0 and "the objectives hold up to 4 requests at a time" in swept.flat, swept.text
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [(one["concurrency"], one["breaks"]) for one in lines] == [(1, []), (2, []), (4, [])], lines
    broken = benchmarked(playbook, tmp_path, **given, objectives={"ttft_s": 0.0001})
    assert broken.status == 0 and "the objectives do not hold even at 1 requests at a time" in broken.flat, broken.text


def test_kernel_settings_are_live(host: Any) -> None:
    assert host.file("/proc/sys/kernel/numa_balancing").content_string.strip() == "0"
    assert host.file("/proc/sys/vm/nr_hugepages").content_string.strip() == "64"


def test_the_run_has_restarted_the_host_with_the_arguments(host: Any) -> None:
    words = host.file("/proc/cmdline").content_string.split()
    assert {"cpufreq.default_governor=performance", "intel_idle.max_cstate=0"} <= set(words)


@pytest.mark.on("mol-gaudi")
def test_table_of_the_run_and_second_run(playbook: Any) -> None:
    run = playbook("site.yml")
    assert run.changed_nothing, run.text
    for row in ("mol-cpu tiny cpu active", "mol-gaudi qwq-32b", "mol-gaudi qwen2.5-7b"):
        assert row in run.flat, run.text
    assert "reboot required" not in run.text


@pytest.mark.on("mol-gaudi")
def test_a_mistake_of_one_host_stops_all_before_anything_is_changed(playbook: Any) -> None:
    run = playbook("site.yml", accelerator_cards=7)
    text = run.flat
    assert run.status != 0
    assert "Nothing has been changed on any host, because the plan of mol-gaudi has errors" in text, run.text
    assert "accelerator_cards" in text
    assert "TASK [host_tuning : Report" not in run.text
    assert "TASK [Show the table]" not in run.text
    alone = playbook("site.yml", accelerator_cards=7, fleet_stop_on_errors=False)
    assert alone.status != 0
    assert "mol-cpu tiny cpu active" in alone.flat, alone.text


@pytest.mark.on("mol-gaudi")
def test_status_names_what_has_drifted_and_changes_nothing(host: Any, name: str, playbook: Any, tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    playbook("playbooks/status.yml", "--check", status_file=str(path))
    before = json.loads(path.read_text())
    assert not any(one["drift"] for one in before["hosts"].values()), before
    assert all(model["answers"] for one in before["hosts"].values() for model in one["models"])
    host.check_output("systemctl stop vllm-qwen2.5-7b")
    host.check_output("rm /etc/sysctl.d/zz-gaudi-serve.conf")
    ghost = tmp_path / "ghost.yml"
    where = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    models = [{"name": "tiny", "weights": "/data/tiny", "image": "vllm:1"}]
    ghost.write_text(json.dumps({"all": {"hosts": {"ghost": {**where, "vllm_models": models}}}}))
    run = playbook("playbooks/status.yml", "-i", str(ghost), status_file=str(path))
    text = run.flat
    assert run.status != 0
    assert "3 hosts: 1 as planned, 1 drifted, 1 could not be read" in text, run.text
    assert "ghost: cannot be reached" in text
    assert "mol-gaudi: answers: qwen2.5-7b does not answer: GET /health on port 30002" in text
    drift = json.loads(path.read_text())["hosts"][name]["drift"]
    assert "model qwen2.5-7b: not running" in drift["models"]
    assert any("sysctl" in line for line in drift["host"])
    assert host.run("systemctl is-active vllm-qwen2.5-7b").stdout.strip() == "inactive"
    mended = playbook("site.yml")
    assert mended.status == 0, mended.text


@pytest.mark.on("mol-gaudi")
def test_a_plan_from_saved_facts_is_the_plan_of_the_live_hosts(playbook: Any, tmp_path: Path) -> None:
    facts = tmp_path / "facts"
    live = playbook("playbooks/plan.yml", "--check", plan_save_facts_dir=str(facts), plan_file=str(tmp_path / "a"))
    assert live.status == 0, live.text
    assert "2 hosts, 3 models, 0 hosts would change, 0 errors" in live.text
    desk = playbook("playbooks/plan.yml", plan_facts_dir=str(facts), plan_file=str(tmp_path / "b"))
    assert desk.status == 0, desk.text
    seen, planned = (json.loads((tmp_path / name).read_text()) for name in "ab")
    # What a run would do below the models, and what was measured, only the live host shows.
    assert all((one.pop("due"), one.pop("down"), one.pop("reboot")) == ({}, [], []) for one in seen["hosts"].values())
    assert [bool(one.pop("links")) for one in seen["hosts"].values()] == [False, True]
    assert seen == planned
    # A change is seen before it is made, and nothing is made of it.
    models = [{"name": "qwq-32b", "model": "qwq-32b", "max_num_seqs": 16}]
    change = playbook("playbooks/plan.yml", plan_facts_dir=str(facts), vllm_models=models)
    text = change.flat
    for line in (
        "~ qwq-32b: restart",
        "~ --max-num-seqs: 32 -> 16",
        "~ env VLLM_DECODE_BS_BUCKET_MAX: 32 -> 16",
        "- qwen2.5-7b: stop and remove",
    ):
        assert line in text, change.text


@pytest.mark.on("mol-cpu")
@pytest.mark.long
def test_real_vllm_serves_an_adapter_by_its_name(host: Any, ask: Any, playbook: Any, tmp_path: Path) -> None:
    write_tiny_adapter(tmp_path / "other")
    subprocess.run(["docker", "cp", str(tmp_path / "other"), "mol-cpu:/data/models/other"], check=True)
    variables = yaml.safe_load((Path(__file__).parents[1] / "inventory/host_vars/mol-cpu.yml").read_text())
    model = {**variables["vllm_models"][0], "adapters": [{"name": "other", "folder": "/data/models/other"}]}
    run = playbook("site.yml", "--limit", "mol-cpu", vllm_models=[model])
    assert run.status == 0 and "mol-cpu tiny cpu active" in run.flat, run.text
    assert "other=/data/models/other" in host.check_output("docker inspect --format '{{.Args}}' vllm-tiny")
    first, other = (ask(8000, name, temperature=0, max_tokens=16)["choices"][0] for name in ("tiny", "other"))
    assert first["message"]["content"] != other["message"]["content"] and other["message"]["content"]


@pytest.mark.on("mol-gaudi")  # the last test of all: the other host is no more what it was
@pytest.mark.long
def test_a_host_without_cards_is_reset(playbook: Any) -> None:
    told = playbook("playbooks/reset.yml", "--limit", "mol-cpu", "--check")
    assert told.status == 0, told.text
    assert "would undo: model tiny: unit, settings, secrets, container" in told.flat
    run = playbook("playbooks/reset.yml", "--limit", "mol-cpu", reset_confirm="reset")
    assert run.status == 0, run.text
    assert "undone: governor of CPUs" in run.flat
    assert playbook("playbooks/reset.yml", "--limit", "mol-cpu", reset_confirm="reset").changed_nothing
    gone = playbook("playbooks/reset.yml", "--start-at-task", "Lock the host", reset_confirm="perhaps")
    assert "changed=0" in gone.flat and "Models" not in gone.text
