"""Numbers that YAML reads in another way, and keys that stand twice, are found in the files of an inventory."""

from __future__ import annotations

import configparser
from pathlib import Path
from typing import Any

import pytest
import yaml
from gaudi_serve.inventory import written
from gaudi_serve.inventory.variables import written_problems

HOSTS = """all:
  vars: {usual: 0300}
  children:
    g:
      hosts:
        a:
          vllm_models: [{name: m, port: 030010}, {name: n, port: 30010}]
"""
# Times that other roles read: YAML makes numbers of them, and the toolkit may have the same ones.
OWN = """host_tuning_reboot_timeout: "{{ usual }}"
link_validation_timeout: "{{ usual }}"
backup: {begin: 1:00, end: 10:00, mac: 52:54:00:12:34:56, address: 1:2:3:4:5:6:7:8}
ten: 600
vllm_image_serve_timeout: "{{ ten }}"
common: &common {start_timeout_s: 15:00}
vllm_model_defaults: {<<: [*common], image: x}
"""
FOUND = "a: vllm_models: model m: port 030010: YAML reads this as octal, 12296; write it without the leading zero"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Return an inventory with files of each kind."""
    for name in ("group_vars/all", "host_vars"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "hosts.yml").write_text(HOSTS)
    (tmp_path / "group_vars/all/main.yml").write_text("accelerator_cards: 010\nvllm_service_smoke_timeout: 64\n")
    (tmp_path / "host_vars/z.yml").write_text("vllm_models: [{name: z, port: 80:00, text: '80:00'}]\nusual: 2:30:45\n")
    (tmp_path / "group_vars/all/vault.yml").write_text("$ANSIBLE_VAULT;1.1;AES256\n3161\n")
    (tmp_path / "group_vars/all/own.yml").write_text(OWN)
    (tmp_path / "host_vars/a.yml").write_text("broken: [\n")
    return str(tmp_path)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"vllm_models": [{"name": "m", "port": 12296}]}, [FOUND]),
        ({"vllm_models": [{"name": "n", "port": 30010}]}, []),
        ({"accelerator_cards": 8}, ["a: accelerator_cards 010: YAML reads this as octal, 8"]),
        # It comes from a variable of another name.
        ({"host_tuning_reboot_timeout": 192}, ["a: host_tuning_reboot_timeout 0300: YAML reads this as octal, 192"]),
        (
            {"vllm_models": [{"name": "z", "port": 4800}]},
            [
                "a: vllm_models: model z: port 80:00: YAML reads this in base 60, 4800; write it without colons, or "
                "quote it"
            ],
        ),
        # A role's default, and a template of another number.
        ({"model_weights_progress": 60, "vllm_image_serve_timeout": 600}, []),
        ({"vllm_models": [{"name": "from a catalog", "max_num_seqs": 60}]}, []),
        (
            {"vllm_model_defaults": {"start_timeout_s": 900}},
            ["a: vllm_model_defaults: start_timeout_s 15:00: YAML reads this in base 60, 900"],
        ),
        ({"link_validation_timeout": 9045}, ["a: link_validation_timeout 2:30:45: YAML reads this in base 60, 9045"]),
        # The same number, written as it is.
        ({"vllm_service_smoke_timeout": 64}, []),
        ({"my_own": 12296, "vllm_secrets": {"m": {"A": 12296}}}, []),
        ({"fleet_gateway": {"clients": {"al": {"key": 12296}}}}, []),
        ({"vllm_models": [{"name": "m", 1: True}]}, []),
    ],
)
def test_octal_numbers_are_named_as_they_are_written(folder: str, values: dict[str, Any], found: list[str]) -> None:
    problems = written_problems(values, "a", folder)
    assert len(problems) == len(found)
    assert all(problem.startswith(sentence) for problem, sentence in zip(problems, found, strict=True))


def test_without_a_folder_nothing_is_octal() -> None:
    assert written_problems({"accelerator_cards": 8}, "a", None) == []


def test_a_key_that_stands_twice_is_refused_and_one_that_overrides_a_merged_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "host_vars").mkdir()
    (tmp_path / "hosts.yml").write_text("all:\n  hosts:\n    a:\n    b:\n")
    merged = "usual: &usual {port: 1, image: x}\nvllm_models:\n  - <<: *usual\n    name: m\n    port: 2\n"
    (tmp_path / "host_vars/a.yml").write_text(merged)
    assert written_problems({}, "a", str(tmp_path)) == []
    (tmp_path / "host_vars/b.yml").write_text(f"{merged}    port: 3\nusual: 1\n")
    # The files are read once in a run.
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "host_vars").rename(other / "host_vars")
    assert written_problems({}, "b", str(other)) == [
        f"b: {other}/host_vars/b.yml: line 6: port stands twice, first in line 5; YAML takes the last one",
        f"b: {other}/host_vars/b.yml: line 7: usual stands twice, first in line 1; YAML takes the last one",
    ]


MERGED = """fast: &fast {max_model_len: 4096, seed: 1}
long: &long {max_model_len: 8192, seed: 1}
longer: &longer {<<: *long}
vllm_models:
  - <<: [*fast, *longer]
    name: m
  - {<<: [*fast, *long], name: n, max_model_len: 2048}
"""


@pytest.mark.parametrize("wrong", [True, False])
def test_a_key_of_two_merged_mappings_is_refused_where_pyyaml_takes_the_last_one(
    tmp_path: Path, wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(written, "LAST_WINS", wrong)
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars/all.yml").write_text(MERGED)
    sentence = (
        f"a: {tmp_path}/group_vars/all.yml: line 5: << merges two values of max_model_len; YAML takes the first one, "
        f"and PyYAML {yaml.__version__} of the control node the last one: write the key beside <<, or install "
        "PyYAML 6.0.3"
    )
    assert written_problems({}, "a", str(tmp_path)) == [sentence] * wrong


def test_only_what_ansible_reads_as_variables_is_checked(tmp_path: Path) -> None:
    twice = "a: 1\na: 2\n"
    (tmp_path / "hosts.yml").write_text("all:\n  hosts:\n    a:\n")
    (tmp_path / "group_vars/all/.old").mkdir(parents=True)
    for name in ("README.md", "main.yml.orig", "main.yml~", ".main.yml.swp", ".old/main.yml"):
        (tmp_path / "group_vars/all" / name).write_text(twice)
    for name in (".gitlab-ci.yml", "docker-compose.yml", "galaxy.yml"):
        (tmp_path / name).write_text(twice)
    (tmp_path / "site.yml").write_text("- hosts: all\n  vars: {a: 1, a: 2, port: 80:00}\n")
    # Keys of two types, and a list that contains itself.
    (tmp_path / "group_vars/all/main.yml").write_text('names: {80: a, "80": b}\n')
    (tmp_path / "group_vars/all/odd.yml").write_text("endless: &endless [*endless]\n")
    assert written_problems({"port": 4800}, "a", str(tmp_path)) == []
    (tmp_path / "group_vars/all/main").write_text(twice)
    other = tmp_path.with_name(f"{tmp_path.name}-other")
    tmp_path.rename(other)
    (problem,) = written_problems({}, "a", str(other))
    assert problem.startswith(f"a: {other}/group_vars/all/main: line 2: a stands twice")


def test_ansible_leaves_keys_that_stand_twice_to_the_toolkit() -> None:
    # Its own check also refuses a key that overrides a merged one.
    settings = configparser.ConfigParser()
    settings.read(Path(__file__).parents[2] / "ansible.cfg")
    assert settings["defaults"]["duplicate_dict_key"] == "ignore"
