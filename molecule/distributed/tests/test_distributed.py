"""Real vLLM over two hosts: tensor parallel by processes and by Ray, and two copies behind one endpoint."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from clients import inside
from helpers.over_hosts import LAUNCHES, over_two_hosts, parts, write_launch
from runs import Run, eventually, reboot

A, B = "mol-dist-a", "mol-dist-b"
# What each model's hosts are, the head first, and its port.
HOSTS, PORTS = {"split": (A, B)}, {"split": 30001}
if os.environ.get("GAUDI_SERVE_LONG"):
    HOSTS |= {"copies": (A, B), "rayed": (B, A)}
    PORTS |= {"copies": 30002, "rayed": 30003}
# What the docs promise, and what a start takes on a busy machine.
SEEN_S, START_S = 30, 720
SHUT = "iptables -I INPUT ! -i lo -j DROP; iptables -I OUTPUT ! -o lo -j DROP"
OPEN = "iptables -D INPUT ! -i lo -j DROP; iptables -D OUTPUT ! -o lo -j DROP"


class Answer(NamedTuple):
    """What a request gave, and after how many seconds; 000 where its connection ended without an answer."""

    status: str
    seconds: float


def asked(model: str, limit: int = 20, tokens: int = 2) -> Answer:
    """Ask the head of a model."""
    body = f'{{"model": "{model}", "prompt": "a", "max_tokens": {tokens}, "ignore_eos": true}}'
    url = f"http://127.0.0.1:{PORTS[model]}/v1/completions"
    begun = time.monotonic()
    status = inside(
        HOSTS[model][0],
        f"curl -s -o /dev/null -w '%{{http_code}}' --max-time {limit} -H 'Content-Type: application/json' "
        f"-d '{body}' {url}",
    )
    return Answer(status, time.monotonic() - begun)


def shown(name: str, model: str, *properties: str) -> list[str]:
    """Return properties of a model's unit on a host."""
    given = " ".join(f"--property={one}" for one in properties)
    return inside(name, f"systemctl show vllm-{model} --value {given}").splitlines()


def starts(model: str) -> list[str]:
    """Return the start that each host of a model has a part of."""
    label = '{{index .Config.Labels "gaudi-serve.incarnation"}}'
    return [inside(name, f"docker inspect --format '{label}' vllm-{model}") for name in HOSTS[model]]


def serves(model: str) -> bool:
    """Return whether a model answers, with all its parts in one start."""
    active = all(shown(name, model, "ActiveState") == ["active"] for name in HOSTS[model])
    return active and len(set(starts(model))) == 1 and asked(model).status == "200"


def logged(name: str, model: str, text: str, since: float = 0) -> bool:
    """Return whether the journal of a part has a text, written since a time (in seconds since 1970)."""
    return text in inside(
        name, f"journalctl --unit=vllm-{model} --output=cat --no-pager --since=@{since:.0f} --lines=4000"
    )


def all_serve() -> str:
    """Wait until every model serves; return which do not, and why."""
    eventually(lambda: all(serves(model) for model in PORTS), START_S, pause=5)
    said = {m: [" ".join(shown(name, m, "StatusText")) for name in HOSTS[m]] for m in PORTS if not serves(m)}
    return str(said) if said else ""


@pytest.fixture
def load() -> Iterator[list[Answer]]:
    """Ask every model all the time, one request at a time; return the answers, which grow."""
    answers: list[Answer] = []
    end = threading.Event()

    def client(model: str) -> None:
        while not end.is_set():
            answers.append(asked(model, limit=120, tokens=16))
            # The starts of the servers need the processors more than questions to servers that are not there.
            end.wait(0.5 if answers[-1].status == "200" else 5)

    clients = [threading.Thread(target=client, args=(model,)) for model in PORTS]
    for one in clients:
        one.start()
    yield answers
    end.set()
    for one in clients:
        one.join()


@pytest.mark.on(A)
def test_every_model_answers_at_its_head_and_nowhere_else(playbook: Any) -> None:
    for model, port in PORTS.items():
        assert serves(model), model
        listening = [bool(inside(name, f"ss -Hltn sport = {port}")) for name in HOSTS[model]]
        assert listening == [True, False], model
    run: Run = playbook("molecule/shared/converge.yml")
    assert run.changed_nothing, run.text
    report = playbook("playbooks/report.yml")
    for model, (head, other) in HOSTS.items():
        assert f"{head}, {other} {model} cpu active" in report.flat, report.text
    assert report.text.count("split ") == 1


@pytest.mark.on(A)
def test_nothing_but_the_secret_opens_the_hosts_to_each_other(host: Any) -> None:
    for model in PORTS:
        tokens = [inside(name, f"cat /etc/gaudi-serve/{model}.token") for name in HOSTS[model]]
        modes = [inside(name, f"stat -c '%a %U' /etc/gaudi-serve/{model}.token") for name in HOSTS[model]]
        assert len(set(tokens)) == 1 and len(tokens[0]) == 64
        assert modes == ["600 root", "600 root"]
        for name in HOSTS[model]:
            # A pattern that the process that looks for it does not have itself.
            pattern = f"'[{tokens[0][0]}]{tokens[0][1:]}'"
            assert inside(name, f"journalctl --no-pager | grep -c {pattern}") == "0"
            assert inside(name, f"cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ | grep -ac {pattern}") == "0"


@pytest.mark.on(A)
@pytest.mark.long
def test_ray_refuses_who_has_not_the_secret(host: Any) -> None:
    asked_ray = "docker exec --env RAY_AUTH_TOKEN_PATH={} vllm-rayed python3 -m ray.scripts.scripts status 2>&1"
    assert "/2.0 HPU" in inside(A, asked_ray.format("/etc/gaudi-serve/rayed.token"))
    assert "HPU" not in inside(A, asked_ray.format("/dev/null"))


def joined(name: str, folder: Path, rank: int, head: str) -> subprocess.Popen[str]:
    """Start one host's part of the process groups of all launches of a folder."""
    subprocess.run(["docker", "cp", f"{folder}/.", f"{name}:/srv/gloo"], check=True)
    image = inside(name, "docker inspect --format '{{.Config.Image}}' vllm-split")
    supervisor = "/usr/local/lib/gaudi-serve/vllm-supervisor"
    options = f"--rm --network host --volume /srv/gloo:/gloo:ro --volume {supervisor}:{supervisor}:ro"
    command = f"docker run {options} --entrypoint python3 {image} /gloo/gloo_member.py /gloo {rank} {head}"
    argv = ["docker", "exec", name, "timeout", "600", *command.split()]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


@pytest.mark.long
@pytest.mark.on(A)
def test_gloo_connects_the_hosts_for_every_engine_and_executor(host: Any, tmp_path: Path) -> None:
    # Not the first of the host's own list: the bridge of its engine is there too, with the same address on both.
    shown_by = ["docker", "inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", A, B]
    addresses = subprocess.run(shown_by, capture_output=True, text=True, check=True).stdout.split()
    for number, (platform, release, keys) in enumerate(LAUNCHES):
        plan = over_two_hosts(platform, release, keys, addresses)
        for rank, part in enumerate(parts(plan)):
            folder = tmp_path / str(rank) / f"{number:02}"
            folder.mkdir(parents=True)
            write_launch(part, folder)
    members = []
    for rank, name in enumerate((A, B)):
        shutil.copy(Path(__file__).with_name("gloo_member.py"), tmp_path / str(rank))
        members.append(joined(name, tmp_path / str(rank), rank, addresses[0]))
    for one in members:
        found = json.loads(one.communicate(timeout=900)[0])
        assert found == {f"{number:02}": 3.0 for number in range(len(LAUNCHES))}


@pytest.mark.long
@pytest.mark.on(A)
def test_supervisors_that_are_killed_and_an_engine_that_restarts_cost_no_request(host: Any, load: list[Answer]) -> None:
    before = {model: starts(model) for model in PORTS}
    for name in (A, B):
        inside(name, "systemctl kill --signal=KILL --kill-whom=main 'vllm-*.service'")
        assert not all_serve()
    inside(B, "systemctl restart docker")
    assert not all_serve()
    assert {model: starts(model) for model in PORTS} == before
    assert load and {one.status for one in load} == {"200"}


def begins_anew(model: str, kill: str) -> None:
    """Kill a part of a model on the second host, and see that all its parts start again, and no other model's."""
    before = {one: starts(one) for one in PORTS}
    assert inside(B, f"{kill} >/dev/null && echo killed") == "killed"
    assert eventually(lambda: asked(model, 5).status != "200", SEEN_S)
    assert eventually(lambda: starts(model)[0] != before[model][0], START_S)
    assert not all_serve()
    assert {one for one in PORTS if starts(one) != before[one]} == {model}


@pytest.mark.on(A)
def test_a_worker_that_dies_takes_all_parts_with_it_and_no_other_model(host: Any) -> None:
    begins_anew("split", "docker kill vllm-split")
    # With the head's own end before it, where the head's server noticed it first.
    assert logged(A, "split", f"{B}: the server ended with status 137")


@pytest.mark.on(A)
@pytest.mark.long
def test_a_ray_that_dies_takes_all_parts_with_it_and_no_other_model(host: Any) -> None:
    # On the head: its global control store.
    begins_anew("rayed", "pkill --signal KILL gcs_server")
    assert logged(A, "rayed", f"gaudi-serve: {B} stops this start: the server ended with status 1")


@pytest.mark.long
@pytest.mark.on(A)
def test_a_frozen_copy_is_seen_although_the_other_one_works(host: Any, load: list[Answer]) -> None:
    before, since = starts("copies"), time.time()
    inside(B, "pkill --signal STOP --full [E]ngineCore_DP1")  # not the shell itself
    seen = partial(logged, A, "copies", "its engine 1 does no work", since)
    assert eventually(seen, 600, pause=5)
    assert not all_serve()
    assert starts("copies")[0] not in before


@pytest.mark.long
@pytest.mark.on(A)
def test_a_model_that_is_stopped_has_failed_on_no_host(playbook: Any) -> None:
    for _ in range(2):
        stopped = playbook("playbooks/stop.yml", model="split")
        assert stopped.status == 0, stopped.text
        assert [shown(name, "split", "ActiveState") for name in HOSTS["split"]] == [["inactive"], ["inactive"]]
        begun = playbook("playbooks/start.yml", model="split")
        assert begun.status == 0, begun.text
    assert not all_serve()


@pytest.mark.long
@pytest.mark.on(A)
def test_a_cut_network_is_seen_within_the_time_and_heals_by_itself(host: Any, load: list[Answer]) -> None:
    before = {model: starts(model) for model in PORTS}
    begun, since = time.monotonic(), time.time()
    inside(B, SHUT)
    try:
        # No socket is closed, and /health of a head reports 200 all the time.
        for name, model in product((A, B), PORTS):
            seen = partial(logged, name, model, "was silent for", since)
            assert eventually(seen, 2 * SEEN_S), (name, model)
        assert time.monotonic() - begun < 2 * SEEN_S
    finally:
        inside(B, OPEN)
    assert not all_serve()
    assert all(starts(model)[0] not in before[model] for model in PORTS)
    # Requests under way failed, and none hung until its own limit.
    assert max(one.seconds for one in load) < 100, load


@pytest.mark.long
@pytest.mark.on(A)
def test_a_rollout_changes_all_hosts_of_a_model_at_once(playbook: Any) -> None:
    before = {model: starts(model) for model in PORTS}
    refused = playbook("playbooks/rollout.yml", mol_seqs=4)
    assert refused.status != 0 and "has one server on the hosts of this run" in refused.flat
    # Other tests may have the processors meanwhile: how fast the models are is not matter here.
    allowed = {"rollout_downtime_allowed": True, "rollout_approved": True, "rollout_least_speed": 0}
    run = playbook("playbooks/rollout.yml", mol_seqs=4, **allowed)
    assert run.status == 0, run.text
    assert f"1 canary {A}" in run.flat and f"1 canary {B}" in run.flat, run.text
    for name in (A, B):
        assert "--max-num-seqs 4" in inside(name, "docker inspect --format '{{join .Config.Cmd \" \"}}' vllm-split")
    assert serves("split")
    assert {model: starts(model) for model in ("copies", "rayed")} == {m: before[m] for m in ("copies", "rayed")}


@pytest.mark.on(A)
@pytest.mark.anyhow
def test_one_host_of_a_model_alone_is_refused(playbook: Any) -> None:
    run = playbook("molecule/shared/converge.yml", "--limit", B, mol_seqs=4)
    assert run.status != 0
    assert f"model split: hosts {[A, B]}".replace("'", "") in run.flat.replace('"', "").replace("'", ""), run.text
    assert f"--limit ({A},{B})" in run.flat
    stopped = playbook("playbooks/stop.yml", "--limit", B, model="split")
    assert stopped.status != 0 and f"Use --limit {A},{B}" in stopped.flat, stopped.text
    assert serves("split")


@pytest.mark.on(A)
@pytest.mark.long
def test_models_over_hosts_are_benchmarked_at_their_heads(playbook: Any, tmp_path: Path) -> None:
    before = {model: starts(model) for model in PORTS}
    loads = {"few": {"input_tokens": 16, "output_tokens": 4, "concurrency": 2, "requests": 4}}
    for model, (head, _) in HOSTS.items():
        given = {"model": model, "profile": "few", "benchmark_profiles": loads, "benchmark_dir": str(tmp_path)}
        run = playbook("playbooks/benchmark.yml", repetitions=1, warmup=False, **given)
        assert run.status == 0, run.text
        line = json.loads((tmp_path / "results.jsonl").read_text().splitlines()[-1])
        assert (line["model"], line["host"], line["failed"]) == (model, head, 0), line
    assert {model: starts(model) for model in PORTS} == before


@pytest.mark.on(A)
@pytest.mark.long
def test_a_host_that_reboots_comes_back_with_its_models(host: Any) -> None:
    reboot(host)
    assert not all_serve()


@pytest.mark.on(A)
@pytest.mark.long
def test_worker_first_head_first_and_a_while_apart(host: Any) -> None:
    for first, last in ((B, A), (A, B)):
        for name in (A, B):
            subprocess.run(["docker", "exec", name, "systemctl", "stop", "vllm-split"], check=True)
        subprocess.run(["docker", "exec", first, "systemctl", "start", "--no-block", "vllm-split"], check=True)
        time.sleep(10)
        assert shown(first, "split", "StatusText")[0].startswith("waiting for")
        subprocess.run(["docker", "exec", last, "systemctl", "start", "--no-block", "vllm-split"], check=True)
        assert eventually(lambda: serves("split"), START_S)
