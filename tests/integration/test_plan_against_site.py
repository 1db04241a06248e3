"""Plan and run judge alike: hosts that are a file each, with what keeps a run from them."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import forked
import pytest
import yaml
from gaudi_serve.gateway.fleet import server_key
from gaudi_serve.plan.fleet import vllm_fleet_summary
from helpers.simulated.fleet import ROOT, change, fleet, serving_state, state_of

ALONE = "left alone: the inventory gives it no models, no gateway and no other task"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what a host has on which site.yml has run."""
    return serving_state(tmp_path_factory.mktemp("served"))


def play(folder: Path, environment: dict[str, str], playbook: str, *words: str, **given: Any) -> tuple[int, str]:
    """Run a playbook on the hosts of a folder; return its status and its output."""
    argv = ["ansible-playbook", "-i", str(folder / "hosts.json"), playbook, *words, "-e", json.dumps(given)]
    return forked.playbook(argv, ROOT, environment, 300)


def inventory(folder: Path, **hosts: dict[str, Any]) -> None:
    """Give hosts variables of their own."""
    path = folder / "hosts.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    for name, variables in hosts.items():
        found["all"]["hosts"][name].update(variables)
    path.write_text(json.dumps(found), encoding="utf-8")


def files_of(folder: Path, name: str) -> Any:
    """Return what would show that a host was changed."""
    state = state_of(folder, name)
    return {key: state.get(key) for key in ("files", "units", "images", "sysctl", "governor", "entries")}


def test_a_mistake_in_monitoring_is_reported_once_and_not_for_each_host_that_is_watched(
    tmp_path: Path, served: dict[str, Any]
) -> None:
    environment = fleet(tmp_path, 3, served)
    inventory(tmp_path, h01={"fleet_monitoring": {"port": 0}})
    for playbook in ("playbooks/plan.yml", "site.yml", "playbooks/status.yml"):
        status, text = play(tmp_path, environment, playbook)
        assert status != 0, text
        text = text.partition("CUSTOM STATS")[0]
        assert text.count("fleet_monitoring.port: 0 is not an integer from 1 to 65535") == 1, text
        assert re.search("h01: (plan: )?fleet_monitoring.port: 0", text) and "fleet_watched" not in text, text


def test_hosts_without_a_task_are_left_alone_and_reported_to_be(tmp_path: Path, served: dict[str, Any]) -> None:
    environment = fleet(tmp_path, 3, served)
    # One has nothing about models, and one that it has none; as file servers they have nothing of the toolkit's.
    for name, models in (("h02", None), ("h03", [])):
        inventory(tmp_path, **{name: {"vllm_models": models}})
        (tmp_path / f"{name}.json").write_text("{}")
    for playbook in ("playbooks/plan.yml", "site.yml", "playbooks/rollout.yml", "playbooks/status.yml"):
        status, text = play(tmp_path, environment, playbook)
        assert status == 0, text
        # In one line where a table has one for several hosts.
        told = [line.partition(f": {ALONE}")[0].split(", ") for line in text.splitlines() if f": {ALONE}" in line]
        assert [sum(name in names for names in told) for name in ("h01", "h02", "h03")] == [0, 1, 1], text
    for name in ("h02", "h03"):
        assert state_of(tmp_path, name)["files"] == {}
        assert state_of(tmp_path, name)["governor"] == "powersave"


def test_a_host_that_still_serves_is_cleaned_or_refused_and_one_with_another_task_is_prepared(
    tmp_path: Path, served: dict[str, Any]
) -> None:
    environment = fleet(tmp_path, 3, served)
    inventory(
        tmp_path,
        h01={"vllm_models": [], "link_validation_nodes": []},
        h02={"vllm_models": None},
        h03={"vllm_models": None, "vllm_image_from_host": "h03"},
    )
    change(tmp_path, "h03", units={}, sysctl={"kernel.numa_balancing": "1", "vm.nr_hugepages": "0"})
    for playbook in ("playbooks/plan.yml", "site.yml"):
        status, text = play(tmp_path, environment, playbook)
        assert status == (2 if "plan" in playbook else 3), text
        assert "h02: vllm_models is not set, but this host serves m" in text
        assert "- m: stop and remove" in text
        assert "host: kernel.numa_balancing" in text
        assert ALONE not in text


def test_changed_permissions_are_reported_and_corrected_and_no_model_restarts(
    tmp_path: Path, served: dict[str, Any]
) -> None:
    environment = fleet(tmp_path, 1, served)
    lines = {
        "host_tuning": ["/etc/sysctl.d/zz-gaudi-serve.conf: owner nobody instead of root"],
        "vllm_service": [
            "/etc/gaudi-serve: mode 0777 instead of 0750",
            "/etc/gaudi-serve/m.env: mode 0666 instead of 0640",
        ],
    }
    change(tmp_path, "h01", permissions=lines)
    before = files_of(tmp_path, "h01")
    for playbook, words in (("playbooks/status.yml", []), ("playbooks/plan.yml", []), ("site.yml", ["--check"])):
        _, text = play(tmp_path, environment, playbook, *words)
        assert [line for some in lines.values() for line in some if line not in text] == [], text
        assert state_of(tmp_path, "h01")["permissions"] == lines
    status, text = play(tmp_path, environment, "site.yml")
    assert (status, state_of(tmp_path, "h01")["permissions"]) == (0, {}), text
    assert files_of(tmp_path, "h01") == before
    status, text = play(tmp_path, environment, "playbooks/status.yml")
    assert status == 0, text


@pytest.mark.parametrize("folder", [True, False])
def test_a_run_changes_a_host_whose_monitoring_was_removed_and_leaves_no_folder(
    tmp_path: Path, served: dict[str, Any], folder: bool
) -> None:
    environment = fleet(tmp_path, 1, served)
    # Without the folder, nothing is pending in the stage of monitoring while it runs.
    change(tmp_path, "h01", monitoring=True, metrics={"folder": folder}, governor="powersave")
    status, text = play(tmp_path, environment, "site.yml")
    assert status == 0, text
    assert ("monitoring: remove /etc/gaudi-monitoring" in text) == folder, text
    assert (state_of(tmp_path, "h01")["governor"], state_of(tmp_path, "h01")["metrics"]) == (
        "performance",
        {"folder": False},
    )


def test_a_gateway_that_the_inventory_lacks_is_reported_and_one_that_it_removes_is_removed(
    tmp_path: Path, served: dict[str, Any]
) -> None:
    environment = fleet(tmp_path, 2, served)
    for name in ("h01", "h02"):
        live = {"unit_sha256": "x", "folders": ["/etc/gaudi-serve/gateway"], "servers": []}
        change(tmp_path, name, gateway=True, haproxy=live, units={} if name == "h02" else served["units"])
    # One still serves, and the other has nothing left.
    inventory(tmp_path, h02={"vllm_models": None})
    status, text = play(tmp_path, environment, "playbooks/status.yml")
    told = "gateway: it runs here, but the inventory has no fleet_gateway for this host; set fleet_gateway: {state: abs"
    assert status == 2 and all(f"{name}: {told}" in text for name in ("h01", "h02")), text
    inventory(tmp_path, **{name: {"fleet_gateway": {"state": "absent"}} for name in ("h01", "h02")})
    for playbook in ("playbooks/plan.yml", "site.yml"):
        status, text = play(tmp_path, environment, playbook)
        assert status == 0 and text.count("remove the gateway: its clients no longer reach any model") > 0, text
    for name in ("h01", "h02"):
        state = state_of(tmp_path, name)
        assert (state["gateway"], state["haproxy"]) == (False, {}), text
    status, text = play(tmp_path, environment, "playbooks/status.yml")
    assert status == 0, text


def test_secrets_stay_beside_the_key_for_a_gateway_until_the_inventory_withdraws_them(tmp_path: Path) -> None:
    environment = fleet(tmp_path, 2)
    gateway = {"vllm_models": None, "fleet_gateway": {"clients": {"c": {"key": "k" * 32}}}}
    inventory(tmp_path, h02=gateway)
    given = {"fleet_gateway_secret": "0123456789abcdef" * 2, "vllm_secrets": {"m": {"HF_TOKEN": "hf_4711"}}}
    status, text = play(tmp_path, environment, "site.yml", "--limit", "h01", **given)
    assert status == 0, text
    # Without them, as in a job of AWX whose credential is missing.
    for playbook, words in (("playbooks/plan.yml", []), ("site.yml", ["--check", "--limit", "h01"])):
        more = {"fleet_gateway_secret": given["fleet_gateway_secret"]}
        status, text = play(tmp_path, environment, playbook, *words, **more)
        flat = " ".join(text.split())
        assert "m: restart" not in flat and "! m is down" not in flat, text
        assert "h01: vllm_secrets: has no entry for m, which keeps its stored HF_TOKEN; set vllm_secrets:" in flat, text
        status, text = play(tmp_path, environment, playbook, *words, **more, vllm_secrets={"m": {}})
        flat = " ".join(text.split())
        assert "~ m: restart (secret changed)" in flat and "! m is down" in flat, text
        assert "h01: vllm_secrets: lacks HF_TOKEN of m, so a run withdraws what the host stores" in flat, text
    # Another secret of the gateway changes the key alone.
    status, text = play(tmp_path, environment, "site.yml", "--limit", "h01", fleet_gateway_secret="f" * 40)
    assert status == 0 and "~ m: restart (secret changed)" in " ".join(text.split()), text
    stored = state_of(tmp_path, "h01")["files"]["/etc/gaudi-serve/m.secret"]
    assert stored.splitlines() == ["HF_TOKEN=hf_4711", f"VLLM_API_KEY={server_key('f' * 40, 'm')}"]


def test_a_secret_that_a_gateway_lacks_or_that_is_another_one_at_each_reading_is_refused(
    tmp_path: Path, served: dict[str, Any]
) -> None:
    environment = fleet(tmp_path, 2, served)
    gateway = {"vllm_models": None, "fleet_gateway": {"clients": {"c": {"key": "k" * 32}}}}
    for secret, has in (
        ("0123456789abcdef" * 2, "none"),
        ("{{ lookup('password', '/dev/null', length=48) }}", "another"),
    ):
        own = {"fleet_gateway_secret": secret}
        inventory(tmp_path, h01=own, h02={**gateway, **(own if has == "another" else {})})
        (tmp_path / "h02.json").write_text("{}")
        for playbook in ("playbooks/plan.yml", "site.yml"):
            status, text = play(tmp_path, environment, playbook)
            assert status in (2, 3), text
            assert f"h01: fleet_gateway_secret: (hidden): h02 has {has}" in " ".join(text.split()), text


FULL = "/var/lib/gaudi-serve: 0 KiB are free there, and 1024 KiB are required"
LEVEL = (
    "log_level = 'verbose' lets no container start; take the line out, or set it to debug, info, warn or error. "
    "The file is unchanged; fix it and run again."
)
LEGACY = "mode = 'legacy' gives no container the uverbs of its cards; take the line out, or set it to oci."
MASKED = (
    "docker.service and docker.socket are masked, so that the engine cannot start; "
    "run systemctl unmask docker.service docker.socket"
)


def test_the_plan_refuses_what_a_run_refuses(tmp_path: Path, served: dict[str, Any]) -> None:
    environment = fleet(tmp_path, 5, served, fleet_gateway_secret="0123456789abcdef0123456789abcdef")
    # Something is to be written.
    change(tmp_path, "h01", free=0, units={})
    change(tmp_path, "h02", masked=["docker.service", "docker.socket"])
    gateway = {"certificate": "/etc/none.pem", "clients": {"c": {"key": "k" * 32}}}
    inventory(tmp_path, h03={"vllm_models": None, "fleet_gateway": gateway})
    inventory(tmp_path, h04={"vllm_image_from_host": "h09"})
    change(tmp_path, "h05", habana="[habana-container-runtime]\nlog_level = 'verbose'\nmode = 'legacy'\n")
    before = files_of(tmp_path, "h05")
    for playbook, words, expected in (("playbooks/plan.yml", [], 2), ("site.yml", ["--check"], 3), ("site.yml", [], 3)):
        status, text = play(tmp_path, environment, playbook, *words)
        assert status == expected, text
        flat = " ".join(text.split())
        assert f"h01: {FULL}" in flat
        assert f"h02: {MASKED}" in flat
        assert "h03: fleet_gateway.certificate: '/etc/none.pem': is not a file on this host" in flat
        assert "h04: vllm_image_from_host 'h09'" in flat
        for reason in LEVEL, LEGACY:
            assert f"h05: /etc/habana-container-runtime/config.toml: habana-container-runtime.{reason}" in flat
    assert files_of(tmp_path, "h05") == before


def test_the_plan_reports_what_a_run_does_to_the_gateway(tmp_path: Path, served: dict[str, Any]) -> None:
    environment = fleet(tmp_path, 2, served, fleet_gateway_secret="0123456789abcdef0123456789abcdef")
    inventory(tmp_path, h02={"vllm_models": None, "fleet_gateway": {"clients": {"c": {"key": "k" * 32}}}})
    (tmp_path / "h02.json").write_text("{}")
    for playbook, arguments in (("playbooks/plan.yml", {}), ("playbooks/preflight.yml", {"fleet_all_at_once": True})):
        status, text = play(tmp_path, environment, playbook, "--check", **arguments)
        assert status == 0, text
        assert "gateway: install haproxy" in text
        assert "gateway: serve h01.m (m)" in text


def test_a_stopped_engine_is_no_missing_image_and_takes_nothing_down(tmp_path: Path, served: dict[str, Any]) -> None:
    environment = fleet(tmp_path, 1, served)
    change(tmp_path, "h01", engine="stopped")
    inventory(tmp_path, h01={"vllm_images": [{"name": "vllm:1"}, {"name": "vllm:2"}]})
    for playbook in ("playbooks/plan.yml", "playbooks/preflight.yml"):
        status, text = play(tmp_path, environment, playbook)
        assert status == 0, text
        assert "runtime: the engine does not answer: Cannot connect to the Docker daemon" in text
        assert "images: not known, the Docker engine does not answer" in text
        assert "provide vllm" not in text
        assert "is down from stage" not in text
    # Nor is an image that only the engine has refused as missing.
    inventory(tmp_path, h01={"vllm_images": []})
    for playbook in ("playbooks/plan.yml", "playbooks/preflight.yml"):
        status, text = play(tmp_path, environment, playbook)
        assert status == 0, text
        assert "images:" not in text


def test_status_shows_a_broken_daemon_json_in_one_sentence_beside_the_rest_of_the_host(
    tmp_path: Path, served: dict[str, Any]
) -> None:
    environment = fleet(tmp_path, 1, served)
    change(tmp_path, "h01", daemon='{"live-restore": tru')
    status, text = play(tmp_path, environment, "playbooks/status.yml")
    sentence = (
        "/etc/docker/daemon.json: line 1, column 18: Expecting value. The file is unchanged; fix it and run again."
    )
    assert status == 2
    assert [line for line in text.splitlines() if "daemon.json" in line] == [
        f"h01: plan: {sentence}",
        f"h01: runtime: {sentence}",
    ]
    # Its model is there with all that is known of it.
    assert "h01   m      0      active  yes      http://127.0.0.1:30001/v1" in text
    assert "filter" not in text and "Traceback" not in text


def test_status_and_page_show_what_is_live_although_the_inventory_has_a_mistake(
    tmp_path: Path, served: dict[str, Any]
) -> None:
    environment = fleet(tmp_path, 4, served)
    one = {"name": "m", "weights": "/data/model", "image": "vllm:1", "launch_profile": "vllm"}
    inventory(
        tmp_path,
        # Mistakes that leave nothing to plan, in the entry of the model, and in another entry that replaces it.
        h01={"vllm_models": {"m": {}}},
        h02={"vllm_secrets": {"m": {"VLLM_API_KEY": "{{ vault_key }}"}}},
        h03={"vllm_models": [{**one, "port": "30001:8000"}]},
        h04={"vllm_models": [{**one, "name": "M/1"}]},
    )
    status, text = play(tmp_path, environment, "playbooks/status.yml")
    flat = [" ".join(line.split()) for line in text.splitlines()]
    assert status == 2 and "4 hosts: 0 as planned, 4 drifted, 0 could not be read" in flat, text
    for name in ("h01", "h02", "h03", "h04"):
        assert f"{name} m 0 active - http://127.0.0.1:30001/v1" in flat, text
    assert "h01: plan: vllm_models" in text
    assert "h02: plan: vllm_secrets.m.VLLM_API_KEY: 'vault_key' is undefined" in text
    play(tmp_path, environment, "playbooks/page.yml", page=str(tmp_path / "page.html"))
    page = json.loads((tmp_path / "page.json").read_text())
    # A mistake is a refusal alone, which no run repairs, and no run changes a card.
    drift = [one["text"] for one in page["attention"] if one["kind"] == "drift"]
    assert drift == ["models: model m: exists, but is not planned"], page["attention"]
    assert "until the run" not in json.dumps(page["hosts"])


# An interpreter that is too old for Ansible itself, one that is too old for the toolkit alone, and a sudo that asks.
PYTHONS = {
    "2.7.18": "SyntaxError: invalid syntax",
    "3.9.2": "ImportError: cannot import name 'TypeGuard' from 'typing'",
}
OLD = '#!/bin/sh\nif [ "$1" = --version ]; then echo Python {}; exit; fi\necho "{}" >&2; exit 1\n'
SUDO = "#!/bin/sh\necho 'sudo: a password is required' >&2; exit 1\n"
TOO_OLD = (
    "its Python is {}, and the toolkit needs 3.10 or newer there; install one, and set ansible_python_interpreter to it"
)
NO_ROOT = (
    "sudo does not make this user root (a password is required): give the password with --ask-become-pass or "
    "ansible_become_password, or let the user use sudo without one"
)


def program(folder: Path, name: str, text: str) -> str:
    """Write a program, and return its path."""
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return str(folder / name)


def test_an_old_python_and_a_sudo_that_asks_are_one_sentence_of_plan_run_and_status(tmp_path: Path) -> None:
    old = {
        name: {"ansible_python_interpreter": program(tmp_path, name, OLD.format(name, said)), "ansible_become": False}
        for name, said in PYTHONS.items()
    }
    asks = {"ansible_become_exe": program(tmp_path, "sudo", SUDO), "ansible_become_user": "nobody"}
    asks["ansible_python_interpreter"] = sys.executable
    one = {"name": "m", "weights": "/data/model", "image": "vllm:1"}
    hosts = {"p2": old["2.7.18"], "p3": old["3.9.2"], "s": asks, "alone": {**old["2.7.18"], "vllm_models": None}}
    common = {"ansible_connection": "local", "vllm_models": [one]}
    (tmp_path / "hosts.json").write_text(yaml.safe_dump({"all": {"vars": common, "hosts": hosts}}))
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    for playbook in ("playbooks/plan.yml", "site.yml", "playbooks/status.yml"):
        status, text = play(tmp_path, environment, playbook)
        assert status == 2
        flat = " ".join(text.split())
        for sentence in (f"p2: {TOO_OLD.format('2.7.18')}", f"p3: {TOO_OLD.format('3.9.2')}", f"s: {NO_ROOT}"):
            assert flat.count(sentence) == 1, text
        assert f"alone: {ALONE}" in flat
        assert "Traceback" not in text


DUMP = """\
- name: Judge
  ansible.builtin.import_playbook: {root}/playbooks/preflight.yml
  vars:
    link_validation_asked: false

- name: Write down what was judged
  hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - name: Write it
      ansible.builtin.copy:
        content: "{{{{ dict(groups['all'] | zip(groups['all'] | map('extract', hostvars) | map('dict2items')
          | map('selectattr', 'key', 'match', 'preflight_(lines|warnings|refusal)')
          | map('items2dict'))) | to_json }}}}"
        dest: "{folder}/judged.json"
        mode: "0600"
"""


def test_site_and_plan_report_the_same_of_every_host(tmp_path: Path, served: dict[str, Any]) -> None:
    """As planned, changed outside, to be changed, refused by a stage, wrong models, wrong keys, mistakes in secrets."""
    environment = fleet(tmp_path, 8, served)
    one = {"name": "m", "weights": "/data/model", "port": 30001, "tensor_parallel_size": 1, "max_model_len": 4096}
    one |= {"image": "vllm:1", "launch_profile": "vllm"}
    change(tmp_path, "h02", sysctl={"kernel.numa_balancing": "1", "vm.nr_hugepages": "0"})
    change(tmp_path, "h03", units={})
    change(tmp_path, "h04", masked=["docker.service", "docker.socket"])
    inventory(
        tmp_path,
        h03={"vllm_models": [{**one, "port": 30002}]},
        h05={"vllm_models": [{**one, "tensor_parallel_size": 3}, {**one, "name": "n"}]},
        h06={"vllm_models": [{**one, "image": "none:2"}], "accelerator_cards": 4},
        h07={"vllm_models": [{**one, "mounts": [{"source": "/run/docker.sock", "target": "/s"}]}]},
        h08={"vllm_models": [], "vllm_images": [{"name": "vllm:1"}, {"name": "vllm:2"}]},
    )
    (tmp_path / "judge.yml").write_text(DUMP.format(root=ROOT, folder=tmp_path))
    words = {"fleet_stop_on_errors": False, "fleet_all_at_once": True}
    status, text = play(tmp_path, environment, str(tmp_path / "judge.yml"), **words)
    judged = json.loads((tmp_path / "judged.json").read_text(encoding="utf-8"))
    play(tmp_path, environment, "playbooks/plan.yml", plan_file=str(tmp_path / "plan.json"))
    plan = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert status in (2, 3), text
    errors = {name: [one["message"] for one in plan["errors"] if one["host"] == name] for name in judged}
    assert {name for name in errors if errors[name]} == {"h04", "h05", "h06"}
    for name, told in judged.items():
        assert sorted(told["preflight_refusal"]) == sorted(errors[name]), name
        if errors[name]:
            continue  # a run reports conflicts, and nothing else
        due = vllm_fleet_summary({**plan, "hosts": {name: plan["hosts"][name]}})["changes"].get(name, [])
        assert sorted(told["preflight_lines"]) == sorted(due), name
        warned = [text for text in plan["warnings"] if text.startswith(f"{name}: ")]
        assert sorted(told["preflight_warnings"]) == sorted(warned), name
    assert judged["h02"]["preflight_lines"] and judged["h03"]["preflight_lines"] and judged["h08"]["preflight_lines"]
    assert judged["h07"]["preflight_warnings"] and not judged["h01"]["preflight_lines"]


def test_a_host_that_cannot_be_reached_is_a_line_of_the_status(tmp_path: Path) -> None:
    environment = fleet(tmp_path, 1)
    inventory(tmp_path, h01={"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1})
    status, text = play(tmp_path, environment, "playbooks/status.yml")
    assert status == 2, text
    assert "h01: cannot be reached" in text.splitlines()


def test_a_gateway_that_is_lost_while_its_stage_looks_at_it_is_unreachable_and_not_refused(
    tmp_path: Path, served: dict[str, Any]
) -> None:
    environment = fleet(tmp_path, 2, served, fleet_gateway_secret="0123456789abcdef0123456789abcdef")
    inventory(tmp_path, h02={"vllm_models": None, "fleet_gateway": {"clients": {"c": {"key": "k" * 32}}}})
    (tmp_path / "h02.json").write_text("{}")
    change(tmp_path, "h02", away={"at": "haproxy_config compared", "seconds": 60})
    status, text = play(tmp_path, environment, "playbooks/preflight.yml", fleet_all_at_once=True)
    assert status == 4, text
    assert "UNREACHABLE  h02" in text
    assert "in the way" not in text
