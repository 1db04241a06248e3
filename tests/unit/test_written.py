"""Numbers with a leading zero are found in the files of an inventory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.inventory.variables import octal_problems

HOSTS = """all:
  vars: {usual: 0300}
  children:
    g:
      hosts:
        a:
          vllm_models: [{name: m, port: 030010}, {name: n, port: 30010}]
"""
FOUND = "a: vllm_models: model m: port 030010: YAML reads this as octal, 12296; write it without the leading zero"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Return an inventory with files of each kind."""
    for name in ("group_vars/all", "host_vars"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "hosts.yml").write_text(HOSTS)
    (tmp_path / "group_vars/all/main.yml").write_text("accelerator_cards: 010\nvllm_service_smoke_timeout: 64\n")
    (tmp_path / "group_vars/all/vault.yml").write_text("$ANSIBLE_VAULT;1.1;AES256\n3161\n")
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
        # The same number, written as it is.
        ({"vllm_service_smoke_timeout": 64}, []),
        ({"my_own": 12296, "vllm_secrets": {"m": {"A": 12296}}}, []),
        ({"fleet_gateway": {"clients": {"al": {"key": 12296}}}}, []),
        ({"vllm_models": [{"name": "m", 1: True}]}, []),
    ],
)
def test_octal_numbers_are_named_as_they_are_written(folder: str, values: dict[str, Any], found: list[str]) -> None:
    problems = octal_problems(values, "a", folder)
    assert len(problems) == len(found)
    assert all(problem.startswith(sentence) for problem, sentence in zip(problems, found, strict=True))


def test_without_a_folder_nothing_is_octal() -> None:
    assert octal_problems({"accelerator_cards": 8}, "a", None) == []
