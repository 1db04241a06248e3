"""One unit a model: what it does when it is left alone, killed, changed, removed, or requested wrongly."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from runs import beyond_loopback, eventually, reboot

KEY = "canary-5f2a"
VARIABLES = yaml.safe_load(
    (Path(__file__).parents[1] / "inventory/host_vars/mol-service.yml").read_text(encoding="utf-8")
)
MODELS: list[dict[str, Any]] = VARIABLES["vllm_models"]


def models(**changed: Any) -> list[dict[str, Any]]:
    """Return the scenario's models, the first one with other values."""
    result = copy.deepcopy(MODELS)
    result[0].update(changed)
    return result


def test_both_models_answer(ask: Any, unit: Any) -> None:
    for model, port, key in (("qwq-32b", 30001, ""), ("qwen2.5-7b", 30002, KEY)):
        assert unit(model, "ActiveState") == "active"
        choice = ask(port, model, key)["choices"][0]
        assert "Paris" in choice["message"]["content"]
        assert choice["finish_reason"] == "stop"


def test_container_has_exactly_the_cards_of_its_modules(host: Any) -> None:
    launch = yaml.safe_load(host.file("/etc/gaudi-serve/qwq-32b.json").content_string)
    listed = host.check_output("hl-smi -Q index,module_id -f csv,noheader")
    by_module = dict(reversed(line.split(", ")) for line in listed.splitlines())
    expected = sorted(f"accel{by_module[str(module)]}" for module in launch["module_ids"])
    nodes = host.check_output("docker exec vllm-qwq-32b sh -c 'ls /dev/accel'").split()
    assert sorted(node for node in nodes if node.startswith("accel") and "control" not in node) == expected
    assert len(expected) == 2


TRY = """
import os, pathlib
for node in sorted(pathlib.Path("/dev/tried").iterdir()):
    try:
        os.close(os.open(node, os.O_RDWR))
        print(node.name, 0)
    except OSError as problem:
        print(node.name, problem.errno)
"""


def test_a_container_cannot_open_another_models_card(host: Any) -> None:
    mine = yaml.safe_load(host.file("/etc/gaudi-serve/qwq-32b.json").content_string)["module_ids"]
    listed = host.check_output("hl-smi -Q index,module_id -f csv,noheader").splitlines()
    indices = {int(line.split(", ")[0]) for line in listed if int(line.split(", ")[1]) in mine}
    # What root in a container could do for itself if it had the right to: nodes of all cards.
    host.check_output(
        "cd /proc/$(docker inspect --format '{{.State.Pid}}' vllm-qwq-32b)/root/dev && mkdir tried && "
        "for node in /dev/accel/* /dev/infiniband/uverbs*; do "
        "mknod -m 666 tried/${node##*/} c $(stat --format '0x%t 0x%T' $node); done"
    )
    said = dict(line.split() for line in host.check_output(f"docker exec vllm-qwq-32b python3 -c '{TRY}'").splitlines())
    host.check_output("docker exec vllm-qwq-32b rm -r /dev/tried")
    assert len(said) == 24
    for name, errno in said.items():
        # No driver is behind a made-up card (ENXIO, 6); the cgroup forbids those of others before that (EPERM, 1).
        assert errno == ("6" if int(name[-1]) in indices else "1"), name


def test_models_share_no_card_and_listen_on_loopback(host: Any) -> None:
    taken = [
        module
        for name in ("qwq-32b", "qwen2.5-7b")
        for module in yaml.safe_load(host.file(f"/etc/gaudi-serve/{name}.json").content_string)["module_ids"]
    ]
    assert len(taken) == len(set(taken)) == 3
    assert host.socket("tcp://127.0.0.1:30001").is_listening
    assert "0.0.0.0:30001" not in host.check_output("ss -Hltn")
    # The vendor's launch of the fork has its workers meet on the host's interface, which the plan has.
    assert len(beyond_loopback(host, "qwq-32b")) == 3


def test_second_use_of_a_busy_card_is_refused(host: Any) -> None:
    image = yaml.safe_load(host.file("/etc/gaudi-serve/qwq-32b.json").content_string)["image"]
    visible = host.check_output("docker inspect --format '{{json .Config.Env}}' vllm-qwq-32b")
    devices = next(item for item in yaml.safe_load(visible) if item.startswith("HABANA_VISIBLE_DEVICES="))
    result = host.run(
        "timeout 60 docker run --rm --runtime=habana --net=host --ipc=host "
        f"-e {devices} -v /data:/data:ro {image} vllm serve /data/hf_models/QwQ-32B --port 31000"
    )
    assert result.rc != 0
    assert "Device acquire failed" in result.stdout + result.stderr


def test_secret_is_nowhere_but_in_its_file(host: Any) -> None:
    secret = host.file("/etc/gaudi-serve/qwen2.5-7b.secret")
    assert (secret.mode, secret.user) == (0o600, "root")
    assert KEY in secret.content_string
    assert host.file("/etc/gaudi-serve/qwen2.5-7b.env").mode == 0o640
    assert host.run(f"grep -rl {KEY} /etc/systemd /var/lib/gaudi-serve /etc/gaudi-serve/*.json").stdout == ""
    assert KEY not in host.check_output("journalctl --no-pager -o cat")
    assert KEY not in host.check_output("ps -ewwo args").replace("grep", "")


def test_key_is_asked_for(ask: Any) -> None:
    assert "choices" not in ask(30002, "qwen2.5-7b")


def test_killed_supervisor_adopts_its_container(host: Any, unit: Any, started: Any) -> None:
    before, pid = started("qwq-32b"), unit("qwq-32b", "MainPID")
    host.check_output(f"kill -9 {pid}")
    assert eventually(lambda: unit("qwq-32b", "MainPID") not in (pid, "0") and unit("qwq-32b", "SubState") == "running")
    assert started("qwq-32b") == before


def test_a_new_supervisor_takes_over_what_serves(host: Any, playbook: Any, unit: Any, started: Any) -> None:
    before = {model: (started(model), unit(model, "MainPID")) for model in ("qwq-32b", "qwen2.5-7b")}
    # As of an older release, which wrote nothing down.
    host.check_output("rm /var/lib/gaudi-serve/qwq-32b/supervisor.json")
    status = playbook("playbooks/status.yml")
    assert status.status != 0
    assert "model qwq-32b: its supervisor is of another version" in status.flat
    run = playbook("playbooks/models.yml")
    assert run.status == 0, run.text
    assert "replace the supervisor of qwq-32b: its server keeps running" in run.flat
    assert started("qwq-32b") == before["qwq-32b"][0]
    assert unit("qwq-32b", "MainPID") != before["qwq-32b"][1]
    assert (started("qwen2.5-7b"), unit("qwen2.5-7b", "MainPID")) == before["qwen2.5-7b"]
    assert playbook("playbooks/models.yml").changed_nothing


@pytest.mark.parametrize(
    "loss",
    [
        "truncate -s 0 /etc/gaudi-serve/qwq-32b.json && kill -9 $(systemctl show -P MainPID vllm-qwq-32b)",
        pytest.param(
            "truncate -s 0 /etc/systemd/system/vllm-qwq-32b.service && systemctl daemon-reload", marks=pytest.mark.long
        ),
        # Only the container is left.
        "mkdir -p /run/systemd/system/vllm-qwq-32b.service.d; "
        "printf '[Service]\\nRestart=no\\n' > /run/systemd/system/vllm-qwq-32b.service.d/no.conf; "
        "systemctl daemon-reload; "
        "kill -9 $(systemctl show -P MainPID vllm-qwq-32b); rm -r /run/systemd/system/vllm-qwq-32b.service.d "
        "/etc/systemd/system/vllm-qwq-32b.service /etc/gaudi-serve/qwq-32b.*; systemctl daemon-reload",
    ],
)
def test_lost_files_of_a_serving_model_are_written_again(
    host: Any, playbook: Any, unit: Any, started: Any, loss: str
) -> None:
    before = started("qwq-32b")
    host.check_output(loss)
    if "Restart=no" in loss:
        refused = playbook("playbooks/restart.yml", model="qwq-32b")
        assert refused.status != 0
        assert "missing or empty, so a restart would end its server and start none" in refused.flat
        status = playbook("playbooks/status.yml")
        assert "model qwq-32b: has no unit; the next run writes it, and its container keeps running" in status.flat
    run = playbook("playbooks/models.yml")
    assert run.status == 0, run.text
    assert started("qwq-32b") == before
    assert (unit("qwq-32b", "ActiveState"), unit("qwq-32b", "UnitFileState")) == ("active", "enabled")
    assert playbook("playbooks/models.yml").changed_nothing


def test_servers_survive_a_restart_of_the_engine(host: Any, unit: Any, started: Any) -> None:
    before = {model: started(model) for model in ("qwq-32b", "qwen2.5-7b")}
    host.check_output("systemctl restart docker")
    for model, when in before.items():
        assert started(model) == when
        assert unit(model, "ActiveState") == "active"


def test_a_reboot_of_the_host_restores_engine_and_models(host: Any, unit: Any, started: Any, ask: Any) -> None:
    before = started("qwq-32b")
    reboot(host)
    for model, port, key in (("qwq-32b", 30001, ""), ("qwen2.5-7b", 30002, KEY)):
        assert eventually(lambda: unit(model, "SubState") == "running", 90)  # noqa: B023 - asked at once
        assert "Paris" in ask(port, model, key)["choices"][0]["message"]["content"]
    assert started("qwq-32b") != before


def test_killed_server_comes_back_and_the_next_run_asks_it(
    host: Any, playbook: Any, unit: Any, started: Any, ask: Any
) -> None:
    before = started("qwq-32b")
    host.check_output("docker kill vllm-qwq-32b")
    assert eventually(lambda: unit("qwq-32b", "SubState") != "running", 20)
    assert eventually(lambda: unit("qwq-32b", "SubState") == "running", 90)
    assert started("qwq-32b") != before
    assert ask(30001, "qwq-32b")["choices"]
    first, second = playbook("playbooks/models.yml"), playbook("playbooks/models.yml")
    assert first.changed_nothing, first.text
    assert "Send test requests to every started model" in first.text
    assert second.changed_nothing, second.text
    assert "Send test requests to every started model" not in second.text


def test_changed_model_is_restarted_alone_and_listens_as_planned(host: Any, playbook: Any, started: Any) -> None:
    before = {model: started(model) for model in ("qwq-32b", "qwen2.5-7b")}
    # Keys of the engine's own launch alone: its options stay as they are.
    changed = {"port": 30011, "host": "127.0.0.2", "max_model_len": 4096, "served_model_name": "another"}
    wish = {"vllm_models": models(**changed)}
    assert "port: 30001 -> 30011" in playbook("playbooks/status.yml", **wish).flat
    run = playbook("playbooks/models.yml", **wish)
    assert run.status == 0, run.text
    assert started("qwq-32b") != before["qwq-32b"]
    assert started("qwen2.5-7b") == before["qwen2.5-7b"]
    assert host.socket("tcp://127.0.0.2:30011").is_listening
    assert not host.socket("tcp://127.0.0.1:30001").is_listening
    command = yaml.safe_load(host.check_output("docker inspect --format '{{json .Config.Cmd}}' vllm-qwq-32b"))
    for key, value in changed.items():
        assert command[command.index(f"--{key.replace('_', '-')}") + 1] == str(value)
    assert "model qwq-32b" not in playbook("playbooks/status.yml", **wish).flat


def test_what_docker_refuses_leaves_the_old_server_serving(host: Any, playbook: Any, started: Any, ask: Any) -> None:
    before = started("qwq-32b")
    missing = playbook("playbooks/models.yml", vllm_models=models(mounts=[{"source": "/srv/gone", "target": "/t"}]))
    assert missing.status != 0
    assert "model qwq-32b: mounts '/srv/gone': does not exist on this host" in missing.flat
    # Only Docker knows that a folder cannot be mounted on a file of the image.
    host.check_output("mkdir -p /srv/here")
    for mounts, more, why in (
        ([{"source": "/srv/here", "target": "/etc/passwd"}], {}, "not a directory"),
        ([], {"chat_template": "/t/gone.jinja"}, "the container lacks /t/gone.jinja"),
    ):
        run = playbook("playbooks/models.yml", vllm_models=models(mounts=mounts, **more))
        assert run.status != 0
        assert "model qwq-32b: " in run.flat and why in run.flat, run.text
        assert "Its server keeps running as before" in run.flat
        assert started("qwq-32b") == before
    assert ask(30001, "qwq-32b")["choices"]
    assert "vllm-qwq-32b.trial" not in host.check_output("docker ps --all --format '{{.Names}}'")
    # Nothing was written either.
    assert playbook("playbooks/models.yml").changed_nothing


@pytest.mark.long
def test_what_is_done_to_a_container_by_hand_is_seen_and_repaired(
    host: Any, playbook: Any, unit: Any, started: Any, ask: Any
) -> None:
    before = started("qwq-32b")
    host.check_output("docker rename vllm-qwq-32b mine")
    assert eventually(lambda: host.run("docker inspect vllm-qwq-32b").rc == 0, 20)
    assert (started("qwq-32b"), unit("qwq-32b", "ActiveState")) == (before, "active")
    host.check_output("docker pause vllm-qwq-32b")
    assert "model qwq-32b: its container is paused" in playbook("playbooks/status.yml").flat
    run = playbook("playbooks/models.yml")
    assert run.status == 0, run.text
    assert "resume the paused container of qwq-32b" in run.flat
    assert started("qwq-32b") == before
    assert ask(30001, "qwq-32b")["choices"]
    host.check_output("docker update --cpus 0.5 --restart always vllm-qwq-32b")
    limits = "runs with limits that were set with docker update: NanoCpus, RestartPolicy always"
    assert limits in playbook("playbooks/status.yml").flat
    run = playbook("playbooks/models.yml")
    assert run.status == 0, run.text
    assert "! qwq-32b is down from stage models on for about" in run.flat
    assert started("qwq-32b") != before
    assert playbook("playbooks/models.yml").changed_nothing


@pytest.mark.long
def test_restart_and_logs_of_one_model(host: Any, playbook: Any, started: Any) -> None:
    before = {model: started(model) for model in ("qwq-32b", "qwen2.5-7b")}
    run = playbook("playbooks/restart.yml", model="qwq-32b")
    assert run.status == 0, run.text
    assert started("qwq-32b") != before["qwq-32b"]
    assert started("qwen2.5-7b") == before["qwen2.5-7b"]
    assert "the server answers" in playbook("playbooks/logs.yml", model="qwq-32b", since="5 minutes ago").flat
    assert "the server answers" not in playbook("playbooks/logs.yml", model="qwq-32b", since="tomorrow").flat

    def newest_is_shown() -> bool:
        # The server may log more before the playbook reads.
        newest = host.run("journalctl --unit vllm-qwq-32b --output cat --lines 1").stdout.split()
        shown = playbook("playbooks/logs.yml", model="qwq-32b", lines=1, since="1 hour ago").flat
        return bool(newest) and " ".join(newest) in shown

    assert eventually(newest_is_shown)


@pytest.mark.long
def test_a_model_is_stopped_and_started_again(playbook: Any, unit: Any, started: Any) -> None:
    before = started("qwen2.5-7b")
    run = playbook("playbooks/stop.yml", model="qwq-32b")
    assert run.status == 0, run.text
    assert "qwq-32b stops: it is down until it is started again" in run.flat
    assert (unit("qwq-32b", "ActiveState"), unit("qwq-32b", "UnitFileState")) == ("inactive", "enabled")
    assert playbook("playbooks/stop.yml", model="qwq-32b").changed_nothing
    assert re.search(
        r"model qwq-32b: stopped by stop.yml at \d{4}-\d\d-\d\d \d\d:\d\d UTC", playbook("playbooks/status.yml").flat
    )
    run = playbook("playbooks/start.yml", model="qwq-32b")
    assert run.status == 0, run.text
    assert unit("qwq-32b", "ActiveState") == "active"
    assert started("qwen2.5-7b") == before
    measured = playbook("playbooks/benchmark.yml", model="qwq-32b")
    assert measured.status == 0 and "mol-service qwq-32b" in measured.flat, measured.text
    assert "qwen2.5-7b" not in measured.flat


# What is wrong with one more model, and the sentence that reports it; tests/unit/test_plan.py has every sentence.
WRONG = [
    ({"max_num_seq": 8}, "max_num_seq 8: is neither a key of this toolkit nor an option of vLLM"),
    ({"name": "qwq-32b"}, "name 'qwq-32b': already belongs to model qwq-32b"),
    ({"port": 30002}, "port 30002: already belongs to model qwen2.5-7b"),
    ({"module_ids": [0, 9]}, "module_ids [9]: not on this host, which has [0, 1, 2, 3, 4, 5, 6, 7]"),
    ({"tensor_parallel_size": 8}, "tensor_parallel_size 8: this host has 8 cards, 1 of them free (held: 0: qwq-32b"),
    ({"weights": "/data/nowhere"}, "weights '/data/nowhere': has no readable config.json on this host"),
    ({"tensor_parallel_size": 16}, "tensor_parallel_size 16: does not divide the 40 attention heads"),
    ({"port": 31999}, "port 31999: is taken on this host by python3"),
]


def test_wrong_requests_are_all_refused_before_anything_changes(host: Any, playbook: Any, started: Any) -> None:
    before = started("qwq-32b"), host.file("/etc/gaudi-serve/qwq-32b.json").sha256sum
    host.check_output("systemd-run --quiet --unit=foreign python3 -m http.server 31999 --bind 127.0.0.1")
    assert eventually(lambda: host.socket("tcp://127.0.0.1:31999").is_listening, 10)
    more = [{**MODELS[0], "name": f"more-{n}", "port": 32000 + n, **wrong} for n, (wrong, _) in enumerate(WRONG)]
    try:
        run = playbook("playbooks/models.yml", vllm_models=[*MODELS, *more])
    finally:
        host.check_output("systemctl stop foreign")
    assert run.status != 0
    for _, message in WRONG:
        assert message in run.flat, run.text
    assert "Nothing has been changed" in run.text
    assert "changed=0" in run.text
    assert (started("qwq-32b"), host.file("/etc/gaudi-serve/qwq-32b.json").sha256sum) == before


@pytest.mark.long
def test_progress_is_reported_while_a_model_warms_up(playbook: Any) -> None:
    slow = models(env={"STANDIN_STEP_S": "0.3"}, recipe_cache_path=None)
    run = playbook("playbooks/models.yml", vllm_models=slow, vllm_service_report_every=2)
    assert run.status == 0, run.text
    assert "mol-service: qwq-32b: warming up: " in run.text


@pytest.mark.long
def test_run_cut_off_in_a_warm_up_is_finished_by_the_next(playbook: Any, unit: Any, started: Any) -> None:
    slow = models(env={"STANDIN_STEP_S": "0.6"}, recipe_cache_path=None)
    playbook("playbooks/models.yml", vllm_models=slow, until=lambda: "warming up" in unit("qwq-32b", "StatusText"))
    before = started("qwq-32b")
    run = playbook("playbooks/models.yml", vllm_models=slow)
    assert run.status == 0, run.text
    assert unit("qwq-32b", "ActiveState") == "active"
    assert started("qwq-32b") == before
    assert playbook("playbooks/models.yml", vllm_models=slow).changed_nothing


def test_withdrawn_secret_is_gone_for_good(host: Any, playbook: Any, ask: Any) -> None:
    # A run that has nothing about secrets takes none away.
    assert playbook("playbooks/models.yml", vllm_secrets={}).changed_nothing
    assert host.file("/etc/gaudi-serve/qwen2.5-7b.secret").exists
    withdrawn = {"qwen2.5-7b": {}}
    run = playbook("playbooks/models.yml", vllm_secrets=withdrawn)
    assert run.status == 0, run.text
    assert "~ qwen2.5-7b: restart (secret changed)" in run.text
    assert not host.file("/etc/gaudi-serve/qwen2.5-7b.secret").exists
    assert ask(30002, "qwen2.5-7b")["choices"]
    assert playbook("playbooks/models.yml", vllm_secrets=withdrawn).changed_nothing


def test_forgotten_inventory_removes_nothing(playbook: Any, unit: Any) -> None:
    run = playbook("playbooks/models.yml", vllm_models=None)
    assert run.status != 0
    assert "vllm_models is not set, but this host serves qwen2.5-7b, qwq-32b" in run.flat
    assert unit("qwq-32b", "ActiveState") == "active"


def test_server_that_cannot_start_ends_the_run_with_its_journal(playbook: Any, unit: Any) -> None:
    broken = models(env={"STANDIN_FAULT": "crash_in_warmup"})
    run = playbook("playbooks/models.yml", vllm_models=broken)
    assert run.status != 0
    text = run.flat
    cause = "the server ended with status 1: RuntimeError: synStatus=26 [Generic failure] Graph compile failed."
    assert f"model qwq-32b does not serve: it failed 2 times; last: {cause}" in text
    assert "the last lines of journalctl -u vllm-qwq-32b" in text
    assert "gaudi-serve: the server ended with status" in text
    assert unit("qwen2.5-7b", "ActiveState") == "active"
    mended = playbook("playbooks/models.yml")
    assert mended.status == 0, mended.text
    assert unit("qwq-32b", "ActiveState") == "active"


@pytest.mark.long
def test_empty_answer_fails_the_smoke_test(playbook: Any) -> None:
    run = playbook("playbooks/models.yml", vllm_models=models(env={"STANDIN_FAULT": "empty_answer"}))
    assert run.status != 0
    text = run.flat
    assert "model qwq-32b failed its smoke test: the chat completion returned no text" in text


@pytest.mark.long
def test_stopped_and_removed_models(host: Any, playbook: Any, unit: Any, started: Any) -> None:
    before = started("qwen2.5-7b")
    run = playbook("playbooks/models.yml", vllm_models=models(state="stopped"))
    assert run.status == 0, run.text
    assert unit("qwq-32b", "ActiveState") == "inactive"
    assert not host.service("vllm-qwq-32b").is_enabled
    run = playbook("playbooks/restart.yml", vllm_models=models(state="stopped"), model="qwq-32b")
    assert run.status != 0
    assert "mol-service: model qwq-32b: its entry has state: stopped" in run.flat
    assert unit("qwq-32b", "ActiveState") == "inactive"
    run = playbook("playbooks/models.yml", vllm_models=MODELS[1:])
    assert run.status == 0, run.text
    state = "/var/lib/gaudi-serve/qwq-32b"
    for path in ("/etc/systemd/system/vllm-qwq-32b.service", "/etc/gaudi-serve/qwq-32b.env", state):
        assert not host.file(path).exists
    assert "vllm-qwq-32b" not in host.check_output("docker ps --all --format '{{.Names}}'")
    assert started("qwen2.5-7b") == before
