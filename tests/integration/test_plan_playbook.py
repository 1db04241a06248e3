"""Playbooks at a desk: no host is reached, and everything wrong is reported at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from gaudi_serve.stages.registry import STAGES
from helpers.plans import gaudi_host, model
from helpers.playbooks import ROOT, read, run


def plan(folder: Path, models: Any, *arguments: str, **more: Any) -> tuple[int, str]:
    """Run the playbook on two hosts that do not exist; return its status and what it printed."""
    (folder / "facts").mkdir(exist_ok=True)
    host = gaudi_host(driver_version="1.21.3-57")
    for name in ("g1", "g2"):
        (folder / f"facts/{name}.json").write_text(json.dumps({"gaudi_host": host}))
    hosts = {name: {"ansible_host": "192.0.2.1"} for name in ("g1", "g2")}
    # As a site does that has one host like another.
    hosts["g2"]["vllm_models"] = "{{ hostvars['g1'].vllm_models }}"
    inventory = {"all": {"hosts": hosts, "vars": {"vllm_models": models, "accelerator_release": "1.21.3", **more}}}
    (folder / "hosts.yml").write_text(yaml.safe_dump(inventory))
    return run(folder, *arguments)


def test_a_good_plan_is_shown_and_written(tmp_path: Path) -> None:
    secrets = {"qwq": {"VLLM_API_KEY": "s3cret"}}
    path = tmp_path / "plan.json"
    status, text = plan(tmp_path, [model()], "--check", "-e", f"plan_file={path}", vllm_secrets=secrets)
    assert status == 0, text
    assert "2 hosts, 2 models, 2 hosts would change, 0 errors" in text
    written = json.loads(path.read_text())
    assert written["hosts"]["g2"]["models"][0]["module_ids"] == [0, 1]
    assert path.stat().st_mode & 0o777 == 0o640
    assert "s3cret" not in text + path.read_text()
    assert "CUSTOM STATS" in text and "gaudi_plan:" in text.partition("CUSTOM STATS")[2]
    status, text = run(tmp_path, "-e", "plan_file=/proc/none/plan.json")
    assert status == 2
    assert "plan_file: /proc/none/plan.json: its folder must exist, and be writable" in " ".join(text.split())


def test_every_mistake_of_every_host_ends_the_run_with_its_sentence(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    wrong = [model(port=0), model(name="b", port=2, dtype="int8")]
    status, text = plan(tmp_path, wrong, "-e", f"plan_file={path}")
    assert status == 2
    errors = json.loads(path.read_text())["errors"]
    assert [(error["host"], error["key"]) for error in errors] == [
        *(("g1", "port"), ("g1", "dtype"), ("g2", "port"), ("g2", "dtype"))
    ]
    for error in errors:
        # What is the same on several hosts is reported once, and nothing a second time at the end; what is left as data
        # has the plan's text, too.
        shown = " ".join(text.partition("CUSTOM STATS")[0].split())
        assert shown.count("g1, g2: " + error["message"].partition(": ")[2]) == 1
    assert "Traceback" not in text


def test_the_purchase_of_the_documentation(tmp_path: Path) -> None:
    page = (ROOT / "docs/guides/planning.md").read_text(encoding="utf-8")
    (tmp_path / "facts").mkdir()
    (tmp_path / "facts/new01.json").write_text(page.partition("```json\n")[2].partition("```")[0])
    (tmp_path / "hosts.yml").write_text(page.partition("```yaml\n")[2].partition("```")[0])
    status, text = run(tmp_path)
    assert status == 2
    assert "8 cards HL-288 on 2 NUMA nodes" in text
    assert "1 host, 1 model, 1 host would change, 1 error" in text
    assert "no group of four has so many free, and only host NICs connect the groups" in " ".join(text.split())
    status, text = run(
        tmp_path, "-e", '{"gaudi_host_nics": true, "accelerator_cards": 8}', "-e", '{"vllm_catalog_dirs": "x"}'
    )
    assert "vllm_catalog_dirs" in text
    assert "Traceback" not in text


LOCAL = """
all:
  hosts:
    a:
      vllm_catalog_dirs: [FOLDER/tab, FOLDER/nowhere]
    b:
      vllm_catalog_dirs: [FOLDER/own]
      vllm_models: [{name: m, model: mine, state: stopped, port: 1}] # nobody's
    c:
      vllm_models: [{name: m, model: qwen3-8b, port: "{{ base_port }}", seed: "{{ no_seed | default(omit) }}"}]
    d:
      vllm_catalog_dirs: "{{ no_dirs }}"
      vllm_images: ["{{ cut"]
      vllm_secrets: {tiny: {VLLM_API_KEY: "{{ no_key }}"}}
    e:
      vllm_model_defaults:
        image: !vault |
          $ANSIBLE_VAULT;1.1;AES256
          36306233376437363930333066316531363436326133613038383535393137663161363130643661
          6637353238613535343866363263366565653066393536640a396232326135346638396332373637
  vars:
    ansible_connection: local
    ansible_become: false
    ansible_python_interpreter: "{{ ansible_playbook_python }}"
    vllm_model_defaults: {image: "vllm:1"}
    vllm_models: []
"""


def test_what_is_wrong_with_one_host_leaves_the_others_planned(tmp_path: Path) -> None:
    for folder in ("tab", "own"):
        (tmp_path / folder).mkdir()
    (tmp_path / "tab/x.yml").write_text("weights: /x\n\tseed: 1\n")
    (tmp_path / "own/mine.yml").write_text(f"weights: {tmp_path}/weights\ndtype: auto\n")
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights/config.json").write_text("{}")
    (tmp_path / "weights/model.safetensors").write_text("x")
    (tmp_path / "hosts.yml").write_text(LOCAL.replace("FOLDER", str(tmp_path)))
    path = tmp_path / "plan.json"
    status, text = read(tmp_path, "-e", f"plan_file={path}")
    assert status == 2
    fleet = json.loads(path.read_text())
    assert {name: len(host["models"]) for name, host in fleet["hosts"].items()} == {"a": 0, "b": 1, "d": 0}, text
    # The hosts are this machine, of whatever system, with or without a boot loader.
    errors = [error for error in fleet["errors"] if error["key"] not in ("system", *STAGES)]
    assert [error["message"].replace(str(tmp_path), "FOLDER") for error in errors] == [
        r"a: FOLDER/tab/x.yml: line 2, column 1: not YAML: found character '\t' that cannot start any token",
        "a: vllm_catalog_dirs: FOLDER/nowhere: no such folder",
        "c: model m: port: 'base_port' is undefined; set it for this host, or write the value itself",
        "c: model m: seed: omit leaves out arguments of tasks alone; default(none) leaves out a key",
        "d: vllm_images[0]: Syntax error in template: unexpected end of template, expected 'end of print statement'.",
        "d: vllm_catalog_dirs: 'no_dirs' is undefined; set it for this host, or write the value itself",
        "d: vllm_secrets.tiny.VLLM_API_KEY: 'no_key' is undefined; set it for this host, or write the value itself",
        "e: vllm_model_defaults.image: a vault that cannot be opened: its password is missing or wrong; give it with "
        "--ask-vault-pass or --vault-password-file",
    ]
    assert "Finalization of task args" not in text


@pytest.mark.parametrize(
    ("inventory", "sentence"),
    [
        ("all:\n\thosts: {a: }\n", "Completely failed to parse inventory source"),
        ("all: {hosts: {a: }\n", "Completely failed to parse inventory source"),
        ("", "The inventory has no hosts, so there is nothing to plan"),
        ("all:\n  hosts:\n", "The inventory has no hosts, so there is nothing to plan"),
    ],
)
def test_an_inventory_that_is_none_is_a_failure(tmp_path: Path, inventory: str, sentence: str) -> None:
    (tmp_path / "hosts.yml").write_text(inventory)
    status, text = read(tmp_path)
    assert status != 0
    assert sentence in text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("typo.yml", "all:\n  hosts: {b: }\n    vars: {}\n"),
        ("list.yml", "all: {hosts: [b, c]}\n"),
        # As a program that asks another one for its hosts, which does not answer.
        ("site.py", "#!/bin/sh\necho 'HTTP 503' >&2; exit 1\n"),
    ],
)
def test_hosts_that_cannot_be_read_are_a_failure_and_no_hosts_that_were_removed(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / "hosts.yml").mkdir()
    own = {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": sys.executable}
    (tmp_path / "hosts.yml/good.yml").write_text(yaml.safe_dump({"all": {"hosts": {"a": own}}}))
    (tmp_path / "hosts.yml/README").write_text("Hosts of the site\n")
    (tmp_path / "hosts.yml" / name).write_text(text)
    (tmp_path / "hosts.yml" / name).chmod(0o755)
    status, shown = read(tmp_path)
    assert status in (1, 5), shown
    assert f"hosts.yml/{name}" in shown and "would change" not in shown
    (tmp_path / "hosts.yml" / name).unlink()
    status, shown = read(tmp_path)
    assert status == 0, shown


def refused(folder: Path, **b: Any) -> tuple[int, str]:
    """Run playbooks/models.yml on this machine as two hosts, a with a mistake.

    It is run from another folder, without the project's settings, and with the callbacks' path taken by someone else.
    """
    hosts = {"a": {"accelerator_cards": "many"}, "b": b}
    variables = {"ansible_connection": "local", "ansible_become": False, "vllm_models": []}
    variables["ansible_python_interpreter"] = sys.executable
    (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": variables}}))
    argv = ["ansible-playbook", "-i", str(folder / "hosts.yml"), str(ROOT / "playbooks/models.yml"), "--check"]
    kept = {name: value for name, value in os.environ.items() if name != "ANSIBLE_CONFIG"}
    environment = {**kept, "ANSIBLE_CALLBACK_PLUGINS": str(folder), "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_a_stage_alone_stops_on_another_hosts_mistake_and_reports_a_refusal_by_its_status(tmp_path: Path) -> None:
    status, text = refused(tmp_path)
    assert "a: accelerator_cards 'many': must be" in text
    assert "Nothing has been changed on any host, because the plan of a has errors" in text
    assert "arg spec 'main' - Provides the serving images" not in text
    assert status == 3


def local(folder: Path, **variables: Any) -> None:
    """Write an inventory of one host, which is this machine."""
    own = {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": "/nowhere/python"}
    (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {"g": {**own, **variables}}}}))


@pytest.mark.parametrize("playbook", ["models", "host", "status"])
def test_stages_refuse_before_they_touch_a_host(tmp_path: Path, playbook: str) -> None:
    (tmp_path / "catalog").mkdir()
    (tmp_path / "catalog/list.yml").write_text("- a")
    (tmp_path / "catalog/tab.yml").write_text("weights: /x\n\tseed: 1")
    local(tmp_path, accelerator_release=1.21, model_weights_parallel="x", vllm_catalog_dirs=[f"{tmp_path}/catalog"])
    more = ["-e", json.dumps({"vllm_models": [{"name": "m", "weights": "/w", "image": "{{ nope }}/x"}]})]
    status, text = read(tmp_path, "--check", *more, playbook=playbook)
    # A run that was refused has a status of its own; a look that finds something wrong has failed.
    assert status == (2 if playbook == "status" else 3)
    for sentence in (
        "g: model m: image: 'nope' is undefined; set it for this host, or write the value itself",
        "g: accelerator_release 1.21: must be a quoted release such as '1.24.1'",
        "g: model_weights_parallel 'x': must be an integer of files from 1 to 256",
        f'g: {tmp_path}/catalog/list.yml: is ["a"]; a catalog entry must be a mapping with the keys of a model',
        f"g: {tmp_path}/catalog/tab.yml: line 2, column 1: not YAML: found character",
    ):
        assert sentence.replace("'", "") in " ".join(text.split()).replace("'", ""), text
    assert "filter plugin" not in text and "preflight_catalog" not in text
    assert "Finalization of task args" not in text
    # A look shows what is live although the inventory has mistakes; only a run must not touch the host.
    assert ("/nowhere/python" in text) == (playbook == "status")
    if playbook == "status":
        assert "gaudi_status:" in text.partition("CUSTOM STATS")[2]
        assert read(tmp_path, "-e", "status_fails=false", playbook=playbook)[0] == 0


def test_numbers_that_yaml_reads_as_octal_are_refused_as_they_are_written(tmp_path: Path) -> None:
    own = "{ansible_connection: local, ansible_become: false, ansible_python_interpreter: /nowhere/python}"
    models = "vllm_models:\n        - {name: a, weights: /w, image: 'i:1', port: 030010}\n"
    more = "        - {name: b, weights: /w, image: 'i:1', port: 30010}\n      vllm_service_smoke_timeout: 0200\n"
    # A number is followed through variables of other names.
    more += "      usual_timeout: 0300\n      host_tuning_reboot_timeout: '{{ usual_timeout }}'\n"
    # Of a key, not even this is reported.
    more += "      fleet_gateway: {port: 0443, clients: {al: {key: 01234567012345670123}}}\n"
    text = f"all:\n  vars: {own}\n  hosts:\n    g:\n      {models}{more}"
    (tmp_path / "hosts.yml").write_text(text)
    (tmp_path / "g.json").write_text(json.dumps({"gaudi_host": {"accelerator": "cpu"}}))
    for playbook, *facts in (("models",), ("plan", "-e", f"plan_facts_dir={tmp_path}")):
        status, shown = read(tmp_path, "--check", *facts, playbook=playbook)
        assert status == (2 if playbook == "plan" else 3)
        flat = " ".join(shown.split())
        for wrong in (
            "vllm_models: model a: port 030010: YAML reads this as octal, 12296",
            "vllm_service_smoke_timeout 0200: YAML reads this",
            "host_tuning_reboot_timeout 0300: YAML reads this as octal, 192",
            "fleet_gateway: port 0443: YAML reads this as octal, 291",
        ):
            assert f"g: {wrong}" in flat
        assert "write it without the leading zero" in flat
        assert "0123456" not in flat and str(0o1234567012345670123) not in flat


@pytest.mark.parametrize("playbook", ["plan", "status", "restart", "logs", "reset"])
def test_tags_are_refused_where_a_playbook_has_none_of_them(tmp_path: Path, playbook: str) -> None:
    (tmp_path / "hosts.yml").write_text("all: {hosts: {g: {ansible_connection: local, ansible_become: false}}}\n")
    status, text = read(tmp_path, "--tags", "models,x", playbook=playbook)
    # With them, all of its tasks would be left out, and it would end well.
    assert status in (2, 3)
    assert "--tags models,x: this playbook has no stages to choose from; leave it out" in " ".join(text.split())
