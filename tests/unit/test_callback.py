"""What a run loads once, for all tasks of all hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.playbook.play import Play
from ansible.utils.display import Display
from ansible.vars.hostvars import HostVars
from ansible.vars.manager import VariableManager
from helpers.plugins import load

ROOT = Path(__file__).parents[2]


@pytest.fixture
def callback() -> Any:
    """Return the callback."""
    return load("callback_plugins/gaudi_serve.py").CallbackModule()


def test_files_of_variables_are_parsed_once_a_run(
    callback: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.yml").write_text("one: '{{ two }}'\ntwo: 2\n")
    (tmp_path / "b.yml").write_text("two: 3\n")
    loader = DataLoader()
    loader.set_basedir(str(tmp_path))
    given = {"name": "p", "hosts": "all", "vars_files": ["a.yml", ["missing.yml", "b.yml"]]}
    play = Play.load(given, loader=loader)
    parsed: list[str] = []
    load = loader.load
    monkeypatch.setattr(loader, "load", lambda data, **more: parsed.append(more["file_name"]) or load(data, **more))

    def variables() -> tuple[Any, Any]:
        found = VariableManager(loader=loader).get_vars(play=play)
        return found["one"], found["two"]

    untouched = variables()
    assert parsed == [f"{tmp_path}/a.yml", f"{tmp_path}/b.yml"]
    callback.keep_variables(play)
    parsed.clear()
    assert [variables() for _ in range(3)] == [untouched] * 3
    # What is chosen among several is left to Ansible.
    assert parsed == [f"{tmp_path}/b.yml"] * 3


def test_a_file_of_variables_that_cannot_be_parsed_is_named(
    callback: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hosts.yml").write_text("all: {hosts: {a: , b: }}")
    (tmp_path / "host_vars").mkdir()
    (tmp_path / "host_vars/b.yml").write_text("key: canary\nother: [\n")
    loader = DataLoader()
    inventory = InventoryManager(loader, [str(tmp_path / "hosts.yml")])
    variables = VariableManager(loader, inventory)
    HostVars(inventory, variables, loader)  # as a run makes it before the first play
    play = Play.load({"name": "p", "hosts": "all"}, loader=loader, variable_manager=variables)
    said: list[str] = []
    monkeypatch.setattr(Display, "warning", lambda _, text: said.append(text))
    callback.tell_unread(play)
    (found,) = said
    assert found.startswith(f"{tmp_path}/host_vars/b.yml:3: YAML parsing failed: ")
    assert "canary" not in found
    # Once a run.
    callback.tell_unread(play)
    assert len(said) == 1
