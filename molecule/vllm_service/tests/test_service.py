"""One unit a model: what it does when it is left alone, killed, changed, removed, or wished for wrongly."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from runs import eventually

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


def test_models_share_no_card_and_listen_on_loopback(host: Any) -> None:
    taken = [
        module
        for name in ("qwq-32b", "qwen2.5-7b")
        for module in yaml.safe_load(host.file(f"/etc/gaudi-serve/{name}.json").content_string)["module_ids"]
    ]
    assert len(taken) == len(set(taken)) == 3
    assert host.socket("tcp://127.0.0.1:30001").is_listening
    assert "0.0.0.0:30001" not in host.check_output("ss -Hltn")


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


def test_servers_survive_a_restart_of_the_engine(host: Any, unit: Any, started: Any) -> None:
    before = {model: started(model) for model in ("qwq-32b", "qwen2.5-7b")}
    host.check_output("systemctl restart docker")
    for model, when in before.items():
        assert started(model) == when
        assert unit(model, "ActiveState") == "active"


def test_killed_server_comes_back(host: Any, unit: Any, started: Any, ask: Any) -> None:
    before = started("qwq-32b")
    host.check_output("docker kill vllm-qwq-32b")
    assert eventually(lambda: unit("qwq-32b", "SubState") != "running", 20)
    assert eventually(lambda: unit("qwq-32b", "SubState") == "running", 90)
    assert started("qwq-32b") != before
    assert ask(30001, "qwq-32b")["choices"]


def test_rerun_changes_nothing_but_asks_a_restarted_model(playbook: Any) -> None:
    # The kill above left a server that nobody has asked a question yet.
    first, second = playbook("playbooks/models.yml"), playbook("playbooks/models.yml")
    assert first.changed_nothing, first.text
    assert "Ask every model that has started" in first.text
    assert second.changed_nothing, second.text
    assert "Ask every model that has started" not in second.text


def test_changed_model_is_restarted_alone(playbook: Any, started: Any) -> None:
    before = {model: started(model) for model in ("qwq-32b", "qwen2.5-7b")}
    run = playbook("playbooks/models.yml", vllm_models=models(max_num_seqs=4))
    assert run.status == 0, run.text
    assert started("qwq-32b") != before["qwq-32b"]
    assert started("qwen2.5-7b") == before["qwen2.5-7b"]


def test_restart_and_logs_of_one_model(playbook: Any, started: Any) -> None:
    before = {model: started(model) for model in ("qwq-32b", "qwen2.5-7b")}
    run = playbook("playbooks/restart.yml", model="qwq-32b")
    assert run.status == 0, run.text
    assert started("qwq-32b") != before["qwq-32b"]
    assert started("qwen2.5-7b") == before["qwen2.5-7b"]
    assert "the server answers" in playbook("playbooks/logs.yml", model="qwq-32b").flat
    for name in ("playbooks/restart.yml", "playbooks/logs.yml"):
        unknown = playbook(name, model="nonsense;id")
        assert unknown.status != 0
        assert "model 'nonsense;id': no host has it; " in unknown.flat, unknown.text
        assert "its models are qwen2.5-7b, qwq-32b" in unknown.flat, unknown.text
        missing = playbook(name)
        assert missing.status != 0
        assert "-e model=NAME is missing" in missing.flat, missing.text
        wrong = playbook(name, model="qwq-32b", lines="all", restart_timeout="0")
        assert wrong.status != 0
        assert 'lines must be a whole number from 1 to 9999999; it is "all"' in wrong.flat, wrong.text
        assert "restart_timeout must be a whole number from 1 to 9999999; it is" in wrong.flat, wrong.text
        assert "Restart the unit" not in wrong.flat


WRONG = [
    ({"max_num_seq": 8}, "max_num_seq 8: is neither a key of this toolkit nor an option of vLLM"),
    ({"name": "qwen2.5-7b"}, "name 'qwen2.5-7b': belongs to model qwen2.5-7b already"),
    ({"port": 30002}, "port 30002: belongs to model qwq-32b already"),
    ({"module_ids": [0, 9]}, "module_ids [9]: not on this host, which has [0, 1, 2, 3, 4, 5, 6, 7]"),
    ({"tensor_parallel_size": 8}, "tensor_parallel_size 8: this host has 8 cards, 7 of them free (held: "),
    ({"weights": "/data/nowhere"}, "weights '/data/nowhere': holds no readable config.json on this host"),
    ({"tensor_parallel_size": 16}, "tensor_parallel_size 16: does not divide the 40 attention heads"),
    ({"port": 31999}, "port 31999: is taken on this host by python3"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=lambda value: str(value)[:30])
def test_wrong_wish_is_refused_before_anything_changes(
    host: Any, playbook: Any, started: Any, wrong: Any, message: str
) -> None:
    before = started("qwq-32b"), host.file("/etc/gaudi-serve/qwq-32b.json").sha256sum
    stranger = "systemd-run --quiet --unit=stranger python3 -m http.server 31999 --bind 127.0.0.1"
    host.run(f"systemctl is-active stranger || {stranger}")
    assert eventually(lambda: host.socket("tcp://127.0.0.1:31999").is_listening, 10)
    run = playbook("playbooks/models.yml", vllm_models=models(**wrong))
    assert run.status != 0
    assert message in run.flat, run.text
    assert "Nothing has been changed" in run.text
    assert "changed=0" in run.text
    assert (started("qwq-32b"), host.file("/etc/gaudi-serve/qwq-32b.json").sha256sum) == before


def test_card_in_two_models_is_refused(playbook: Any) -> None:
    both = models(module_ids=[4, 5])
    both[1]["module_ids"] = [5]
    run = playbook("playbooks/preflight.yml", vllm_models=both)
    assert run.status != 0
    assert "model qwen2.5-7b: module_ids [5]: card 5 belongs to model qwq-32b already" in run.flat


def test_missing_card_wrong_driver_unsupported_kind_are_refused(playbook: Any) -> None:
    for extra, message in (
        ({"gaudi_cards": 9}, "gaudi_cards is 9, but hl-smi shows 8"),
        ({"gaudi_release": "1.22.0"}, "and image release 1.22.0 differ; both must be of one release"),
        ({"gaudi_accelerator": "cpu"}, "gaudi_accelerator is cpu, but this is a gaudi host"),
    ):
        run = playbook("playbooks/preflight.yml", **extra)
        assert run.status != 0
        assert message in run.flat, run.text


@pytest.mark.long
def test_progress_is_told_while_a_model_warms_up(playbook: Any) -> None:
    slow = models(env={"STANDIN_STEP_S": "0.3"}, recipe_cache_path=None)
    run = playbook("playbooks/models.yml", vllm_models=slow, vllm_service_report_every=2)
    assert run.status == 0, run.text
    assert "mol-service: qwq-32b: warming up: " in run.text
    assert playbook("playbooks/models.yml").status == 0


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
    assert playbook("playbooks/models.yml").status == 0


def test_withdrawn_secret_is_gone_for_good(host: Any, playbook: Any, ask: Any) -> None:
    run = playbook("playbooks/models.yml", vllm_secrets={})
    assert run.status == 0, run.text
    assert not host.file("/etc/gaudi-serve/qwen2.5-7b.secret").exists
    assert ask(30002, "qwen2.5-7b")["choices"]
    assert playbook("playbooks/models.yml", vllm_secrets={}).changed_nothing
    assert playbook("playbooks/models.yml").status == 0
    assert "choices" not in ask(30002, "qwen2.5-7b")


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
    assert "model qwq-32b does not serve: it failed 2 times" in text
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
    assert "model qwq-32b failed its smoke test: the chat completion brought no text" in text
    assert playbook("playbooks/models.yml").status == 0


def test_stopped_and_removed_models(host: Any, playbook: Any, unit: Any, started: Any) -> None:
    before = started("qwen2.5-7b")
    run = playbook("playbooks/models.yml", vllm_models=models(state="stopped"))
    assert run.status == 0, run.text
    assert unit("qwq-32b", "ActiveState") == "inactive"
    assert not host.service("vllm-qwq-32b").is_enabled
    run = playbook("playbooks/models.yml", vllm_models=MODELS[1:])
    assert run.status == 0, run.text
    for path in ("/etc/systemd/system/vllm-qwq-32b.service", "/etc/gaudi-serve/qwq-32b.env"):
        assert not host.file(path).exists
    assert "vllm-qwq-32b" not in host.check_output("docker ps --all --format '{{.Names}}'")
    assert started("qwen2.5-7b") == before
