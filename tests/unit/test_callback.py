"""What a run loads once, for all tasks of all hosts."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.playbook.play import Play
from ansible.vars.manager import VariableManager

ROOT = Path(__file__).parents[2]


@pytest.fixture
def callback() -> Any:
    """Return the callback."""
    spec = importlib.util.spec_from_file_location("callback_gaudi_serve", ROOT / "callback_plugins/gaudi_serve.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CallbackModule()


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
