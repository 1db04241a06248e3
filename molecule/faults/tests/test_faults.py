"""What happens when parts of a host fail while models serve: each is found, named, and harms no other model."""

from __future__ import annotations

import copy
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from runs import eventually

KEY = "canary-81c4"
RUN = "molecule/faults/converge.yml"
MODELS = "playbooks/models.yml"
HOSTS = yaml.safe_load((Path(__file__).parents[1] / "inventory/hosts.yml").read_text(encoding="utf-8"))
LIMIT = ("--limit", "mol-fault-a")
FIRST = pytest.mark.on("mol-fault-a")
SECOND = pytest.mark.on("mol-fault-b")


def wish(**changed: Any) -> dict[str, Any]:
    """Return the scenario's models, the first one with other values."""
    models: list[dict[str, Any]] = copy.deepcopy(HOSTS["all"]["vars"]["vllm_models"])
    models[0].update(changed)
    return {"vllm_models": models}


def mends(playbook: Any, unit: Any) -> None:
    """Fail where the next run does not restore the first model."""
    run = playbook(MODELS, *LIMIT)
    assert run.status == 0, run.text
    assert unit("qwq-32b", "ActiveState") == "active"


@pytest.fixture
def journal(host: Any) -> Any:
    """Return a function that returns whether a text is in the journal of the first model."""
    begin = host.check_output("date '+%F %T'")

    def has(text: str) -> bool:
        return text in host.check_output(f"journalctl -u vllm-qwq-32b --since '{begin}' -o cat --no-pager")

    return has


@pytest.fixture
def other_serves_on(started: Any, ask: Any) -> Any:
    """Fail where the second model was touched by what was done to the first."""
    before = started("qwen2.5-7b")
    yield
    assert started("qwen2.5-7b") == before
    assert ask(30002, "qwen2.5-7b", KEY)["choices"]


@FIRST
def test_two_runs_at_once(host: Any, playbook: Any, other_serves_on: Any) -> None:
    def held() -> bool:
        record = host.file("/run/gaudi-serve/run.json")
        return record.exists and json.loads(record.content_string or "{}").get("held", False)

    first = playbook.argv(MODELS, *LIMIT, **wish(max_num_seqs=4))
    with playbook.stopped(first, held) as halted:
        secrets = {"vllm_secrets": {"qwq-32b": {"VLLM_API_KEY": "another"}}}
        refused = playbook(MODELS, *LIMIT, **wish(max_num_seqs=6), **secrets)
        assert refused.status != 0
        restart = playbook("playbooks/restart.yml", *LIMIT, model="qwen2.5-7b")
        assert restart.status != 0
        assert f"process {halted.pid}) has locked this host since" in restart.flat, restart.text
        assert not host.file("/etc/gaudi-serve/qwq-32b.secret").exists
        assert host.file("/etc/gaudi-serve/qwen2.5-7b.secret").exists
        text = refused.flat
        assert f"(models.yml, process {halted.pid}) has locked this host since" in text
        assert "(vllm_service)" in text
        assert "-e fleet_lock_break=true" in text
    assert halted.run.status == 0, halted.run.text
    assert not held()
    assert playbook(MODELS, *LIMIT, **wish(max_num_seqs=4)).changed_nothing
    # One that was killed holds nobody up.
    playbook(MODELS, *LIMIT, until=held, **wish(max_num_seqs=6))
    assert held()
    assert playbook(MODELS, *LIMIT).status == 0


@FIRST
def test_server_that_hangs_with_its_port_open(
    host: Any, playbook: Any, ask: Any, journal: Any, unit: Any, other_serves_on: Any
) -> None:
    hanging = wish(env={"STANDIN_FAULT": "hang_after_ready"}, hang_timeout_s=15, smoke=["any"])
    run = playbook(MODELS, *LIMIT, "-e", "vllm_service_smoke_timeout=5", **hanging)
    assert run.status != 0
    assert "model qwq-32b failed its smoke test" in run.flat
    assert host.socket("tcp://127.0.0.1:30001").is_listening
    assert eventually(lambda: "has not answered /health for" in unit("qwq-32b", "StatusText"), 30)
    assert eventually(lambda: journal("the server runs, but has not answered /health for"), 60)
    assert eventually(lambda: journal("waiting 5 s before the next try"), 30)
    assert playbook(MODELS, *LIMIT).status == 0
    assert ask(30001, "qwq-32b")["choices"]


@FIRST
def test_an_engine_that_is_frozen_behind_a_good_health_page_is_started_again(
    host: Any, playbook: Any, ask: Any, journal: Any, started: Any, other_serves_on: Any
) -> None:
    before = started("qwq-32b")
    host.check_output("docker exec vllm-qwq-32b touch /tmp/frozen")
    # Its list of models answers as before.
    status = playbook("playbooks/status.yml", *LIMIT)
    assert status.status != 0 and "it does no work" in status.flat, status.text
    host.check_output("docker exec vllm-qwq-32b rm /tmp/frozen")
    assert playbook(MODELS, *LIMIT, **wish(hang_timeout_s=8)).status == 0
    assert started("qwq-32b") == before
    host.check_output("docker exec vllm-qwq-32b touch /tmp/frozen")
    host.check_output(
        'curl -sS --max-time 60 -d \'{"prompt": "a"}\' http://127.0.0.1:30001/v1/completions >/dev/null 2>&1 &'
    )
    assert host.check_output("curl -sS -o /dev/null -w '%{http_code}' http://127.0.0.1:30001/health") == "200"
    assert eventually(lambda: journal("the server answers /health and does no work"), 40)
    assert eventually(lambda: bool(ask(30001, "qwq-32b").get("choices")), 60)
    assert started("qwq-32b") != before


@FIRST
def test_server_that_runs_out_of_memory(host: Any, playbook: Any, ask: Any, journal: Any, other_serves_on: Any) -> None:
    assert playbook(MODELS, *LIMIT, **wish(env={"STANDIN_FAULT": "out_of_memory"})).status == 0
    host.check_output("docker update --memory 200m --memory-swap 200m vllm-qwq-32b")
    assert "choices" not in ask(30001, "qwq-32b", prompt="Remember everything.")
    assert eventually(lambda: journal("the server ended with status 137, out of memory"))
    assert playbook(MODELS, *LIMIT).status == 0
    assert ask(30001, "qwq-32b")["choices"]


@FIRST
def test_server_that_dies_under_load(host: Any, ask: Any, started: Any, other_serves_on: Any) -> None:
    before = started("qwq-32b")
    load = "seq 200 | xargs -P 8 -I @ curl -s -o /dev/null -w '%{http_code}\\n' --max-time 20 http://127.0.0.1:PORT/v1/models"
    header = f" -H 'Authorization: Bearer {KEY}'"
    other = f"({load.replace('PORT', '30002')}{header} >/tmp/load) & "
    host.check_output(f"{other}sleep 0.3; docker kill vllm-qwq-32b; wait")
    assert host.check_output("sort /tmp/load | uniq -c").split() == ["200", "200"]
    assert eventually(lambda: "choices" in ask(30001, "qwq-32b"))
    assert started("qwq-32b") != before


@FIRST
def test_warm_up_that_takes_longer_than_its_limit(playbook: Any, unit: Any, other_serves_on: Any) -> None:
    slow = wish(env={"STANDIN_STEP_S": "3"}, recipe_cache_path=None, start_timeout_s=12)
    run = playbook(MODELS, *LIMIT, "-e", "vllm_service_max_restarts=1", **slow)
    assert run.status != 0
    text = run.flat
    assert "mol-fault-a: model qwq-32b does not serve: " in text
    assert "start operation timed out" in text or "does not answer after" in text
    assert re.search(r"Warmup.*\[\d+/\d+\]", text), "how far it was"
    mends(playbook, unit)


@FIRST
def test_image_that_is_gone(host: Any, playbook: Any, journal: Any, unit: Any, other_serves_on: Any) -> None:
    image = host.check_output("docker inspect --format '{{.Config.Image}}' vllm-qwq-32b")
    host.check_output(f"docker tag {image} kept:1 && docker image rm {image}")
    host.check_output("docker kill vllm-qwq-32b")
    assert eventually(lambda: journal(f"image {image} is not on this host"))
    mends(playbook, unit)
    host.check_output("docker image rm --force kept:1")


@FIRST
def test_weights_that_are_gone(host: Any, playbook: Any, journal: Any, unit: Any, other_serves_on: Any) -> None:
    folder = "/data/hf_models/QwQ-32B"
    host.check_output(f"mv {folder} {folder}.away && docker kill vllm-qwq-32b")
    try:
        assert eventually(lambda: journal(folder) and journal("does not exist"))
    finally:
        host.check_output(f"mv {folder}.away {folder}")
    mends(playbook, unit)


@FIRST
def test_weights_that_cannot_be_read(host: Any, playbook: Any, unit: Any, other_serves_on: Any) -> None:
    path = "/data/hf_models/QwQ-32B/config.json"
    host.check_output(f"cp -p {path} /root/config.json && echo '{{half' >{path}")
    try:
        run = playbook(MODELS, *LIMIT, **wish(max_num_seqs=6))
        assert run.status != 0
        assert "QwQ-32B" in run.text
        assert "config" in run.text
    finally:
        host.check_output(f"cp -p /root/config.json {path}")
    mends(playbook, unit)


@FIRST
def test_port_that_a_foreign_program_has_taken(host: Any, playbook: Any, unit: Any, other_serves_on: Any) -> None:
    assert playbook(MODELS, *LIMIT, **wish(state="stopped")).status == 0
    host.check_output("systemd-run --quiet --unit foreign python3 -m http.server --bind 127.0.0.1 30001")
    assert eventually(lambda: host.socket("tcp://127.0.0.1:30001").is_listening)
    try:
        run = playbook(MODELS, *LIMIT)
        assert run.status != 0
        text = run.flat
        assert "mol-fault-a: model qwq-32b: port 30001" in text, text
    finally:
        host.check_output("systemctl stop foreign")
    mends(playbook, unit)


@FIRST
def test_card_that_vanishes(host: Any, playbook: Any, unit: Any, other_serves_on: Any) -> None:
    state = json.loads(host.file("/etc/gaudi-sim/state.json").content_string)
    module = json.loads(host.file("/etc/gaudi-serve/qwq-32b.json").content_string)["module_ids"][0]
    gone = copy.deepcopy(state)
    next(card for card in gone["cards"] if card["module_id"] == module)["missing"] = True
    # And another one, of which hl-smi has nothing that can be read: the others are seen all the same.
    next(card for card in reversed(gone["cards"]) if not card.get("missing"))["row"] = "N/A, N/A"
    write(host, gone)
    host.check_output("docker kill vllm-qwq-32b")
    assert eventually(lambda: f"waiting for cards [{module}]" in unit("qwq-32b", "StatusText"))
    refused = playbook(MODELS, *LIMIT)
    assert refused.status != 0
    assert "accelerator_cards is 8, but hl-smi shows 6" in refused.flat
    assert "hl-smi's row of it cannot be used" in refused.flat
    write(host, state)
    assert eventually(lambda: unit("qwq-32b", "ActiveState") == "active")
    assert playbook(MODELS, *LIMIT).status == 0


def write(host: Any, state: dict[str, Any]) -> None:
    """Change the simulated cards, and show the change where a driver would."""
    script = f"import pathlib; pathlib.Path('/etc/gaudi-sim/state.json').write_text({json.dumps(state)!r})"
    host.check_output("python3 -c %s", script)
    host.check_output(f"/usr/local/sbin/testhost-init driver {state['driver_version']}")


@FIRST
def test_engine_that_is_dead(host: Any, playbook: Any, ask: Any, started: Any, unit: Any) -> None:
    before = started("qwq-32b")
    host.check_output("systemctl stop docker.socket docker.service")
    assert ask(30001, "qwq-32b")["choices"]
    run = playbook(RUN, *LIMIT)
    assert run.status == 0, run.text
    assert host.service("docker").is_running
    assert started("qwq-32b") == before
    assert eventually(lambda: unit("qwq-32b", "ActiveState") == "active")
    assert playbook(RUN, *LIMIT).changed_nothing


@FIRST
def test_engine_that_dies_while_a_model_starts(host: Any, playbook: Any, ask: Any, started: Any, unit: Any) -> None:
    # The server is held up in its start until the engine is gone.
    host.check_output(
        "docker kill vllm-qwq-32b; sleep 1; "
        "until docker ps --format '{{.Names}}' | grep -qx vllm-qwq-32b; do sleep 0.1; done; "
        "pid=$(docker inspect --format '{{.State.Pid}}' vllm-qwq-32b) && kill -STOP $pid; "
        "docker inspect --format '{{.State.StartedAt}}' vllm-qwq-32b >/root/before; "
        "systemctl stop docker.socket docker.service; kill -CONT $pid"
    )
    assert eventually(lambda: "choices" in ask(30001, "qwq-32b"))
    assert host.check_output("systemctl show vllm-qwq-32b --property=ActiveState --value") == "activating"
    # Its own server is no conflict on its port.
    run = playbook(RUN, *LIMIT)
    assert run.status == 0, run.text
    assert unit("qwq-32b", "ActiveState") == "active"
    assert started("qwq-32b") == host.check_output("cat /root/before")
    assert playbook(RUN, *LIMIT).changed_nothing


@FIRST
def test_root_disk_that_is_full(host: Any, playbook: Any, unit: Any, started: Any, other_serves_on: Any) -> None:
    before = started("qwq-32b")
    folder = "/etc/gaudi-serve"
    listed = host.check_output(f"cd {folder} && sha256sum * && ls -A")
    host.check_output(f"cp -a {folder} /root/kept && mount -t tmpfs -o size=64k,mode=0750 tmpfs {folder}")
    try:
        host.check_output(f"cp -a /root/kept/. {folder}/")
        host.run(f"dd if=/dev/zero of={folder}/fills bs=1k count=1000")
        run = playbook(MODELS, *LIMIT, **wish(max_num_seqs=6, env={"LONG": "x" * 9000}))
        # Before anything is changed, not after the restart.
        assert run.status == 3
        assert f"{folder}: 0 KiB are free there, and 1024 KiB are required" in run.flat
        host.check_output(f"rm {folder}/fills")
        assert host.check_output(f"cd {folder} && sha256sum * && ls -A") == listed
    finally:
        host.check_output(f"umount {folder} && rm -r /root/kept")
    run = playbook(MODELS, *LIMIT)
    assert run.status == 0, run.text
    assert started("qwq-32b") == before
    assert unit("qwq-32b", "ActiveState") == "active"


@FIRST
def test_disk_of_the_engine_that_is_full(host: Any, playbook: Any, unit: Any, other_serves_on: Any) -> None:
    image = host.check_output("docker inspect --format '{{.Config.Image}}' vllm-qwq-32b")
    # Where images are unpacked to: the driver's folder cannot be made small while the engine runs.
    host.check_output(f"docker tag {image} kept:1 && docker image rm {image}")
    host.check_output("mkdir -p /var/lib/docker/tmp && mount -t tmpfs -o size=1m tmpfs /var/lib/docker/tmp")
    try:
        run = playbook(MODELS, *LIMIT)
        assert run.status != 0
        assert "no space left on device" in run.flat.lower()
        assert image in run.flat
    finally:
        host.check_output("umount /var/lib/docker/tmp")
    run = playbook(MODELS, *LIMIT)
    assert run.status == 0, run.text
    host.check_output("docker image rm --force kept:1")
    assert unit("qwq-32b", "ActiveState") == "active"


@FIRST
def test_secrets_are_in_no_output_no_journal_no_process_list_and_no_open_file(host: Any, playbook: Any) -> None:
    secret = "/etc/gaudi-serve/qwen2.5-7b.secret"  # noqa: S105 - a path
    host.check_output(f"rm {secret}")
    run = playbook(RUN, *LIMIT, "-vvv", "--diff")
    # What Ansible reports of its own work comes last, and is too long to read.
    told = run.text.partition("ansible-playbook [core")[0]
    assert run.status == 0, told + host.check_output("journalctl -u vllm-qwq-32b -n 60 --no-pager")
    assert "secret" in run.text
    assert KEY not in run.text
    assert host.run(f"journalctl --no-pager | grep -c {KEY}").stdout.strip() == "0"
    # The pattern must not find the search itself.
    pattern = f"{KEY[:-1]}[{KEY[-1]}]"
    assert host.run(f"grep -slE '{pattern}' /proc/[0-9]*/cmdline").stdout == ""
    places = "/etc /var/lib/gaudi-serve /var/log /tmp /root /home /run/systemd /opt"
    found = host.check_output(f"grep -rlsE '{pattern}' {places} || true").split()
    assert found == [secret]
    assert host.file(secret).mode == 0o600
    assert host.file("/etc/gaudi-serve").mode == 0o750
    # Docker itself keeps the environment of a container, in files of root alone.
    kept = host.check_output(f"grep -rlsE '{pattern}' /var/lib/docker/containers").split()
    assert {host.file(path).mode & 0o077 for path in kept} == {0}


@FIRST
def test_servers_have_the_least_that_they_need(host: Any) -> None:
    record = json.loads(host.check_output("docker inspect vllm-qwq-32b"))[0]["HostConfig"]
    assert record["Privileged"] is False
    assert record["ReadonlyRootfs"] is True
    assert record["CapDrop"] == ["ALL"]
    assert [name.removeprefix("CAP_") for name in record["CapAdd"]] == ["DAC_OVERRIDE", "SYS_NICE"]
    assert "no-new-privileges" in record["SecurityOpt"]
    status = host.check_output("docker exec vllm-qwq-32b grep CapEff /proc/1/status").split()[1]
    assert int(status, 16) == (1 << 1) | (1 << 23)
    # The unit around it, as systemd has taken it.
    shown = host.check_output("systemctl show vllm-qwq-32b.service").splitlines()
    for line in ("NoNewPrivileges=yes", "ProtectSystem=strict", "ProtectHome=yes", "PrivateTmp=yes", "UMask=0077"):
        assert line in shown
    bounds = next(line.partition("=")[2].split() for line in shown if line.startswith("CapabilityBoundingSet="))
    assert set(bounds) == {"cap_sys_ptrace", "cap_dac_read_search", "cap_net_bind_service"}
    refused = host.run("docker exec vllm-qwq-32b touch /usr/x")
    assert "Read-only file system" in refused.stderr
    listening = host.check_output("ss -Hltn")
    assert "127.0.0.1:30001" in listening
    assert not any(address in listening for address in ("0.0.0.0:30001", "*:30001", "[::]:30001"))


@SECOND
def test_host_that_dies_in_the_middle_of_a_batch(host: Any, playbook: Any) -> None:
    changed = wish(max_num_seqs=5)
    record = host.file("/run/gaudi-serve/run.json")
    with playbook.stopped(playbook.argv(RUN, **changed), lambda: record.contains('"stage": "vllm_service"')) as halted:
        # From outside, as by a power cut.
        subprocess.run(["docker", "kill", "mol-fault-b"], check=True, capture_output=True)
    subprocess.run(["docker", "start", "mol-fault-b"], check=True, capture_output=True)
    assert halted.run.status != 0
    text = halted.run.flat
    assert "mol-fault-b: dropped out of this run" in text
    assert "mol-fault-a qwq-32b" in text
    assert "mol-fault-b qwq-32b" not in text
    assert eventually(lambda: host.run("docker info").rc == 0)
    mended = playbook(RUN, **changed)
    assert mended.status == 0, mended.text
