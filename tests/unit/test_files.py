"""Module gaudi_files, run as Ansible runs it: by its arguments alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from helpers.plugins import load


def run(capsys: pytest.CaptureFixture[str], check: bool = False, **arguments: Any) -> dict[str, Any]:
    """Run the module, and return what it reports."""
    with patch_module_args({**arguments, "_ansible_check_mode": check}), pytest.raises(SystemExit):
        load("library/gaudi_files.py").main()
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


def file(path: Path, **keys: Any) -> dict[str, Any]:
    return {"path": str(path), "content": "a\n", "mode": "0640", **keys}


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"content": "a", "mode": "0640"}, "missing required arguments: path found in files"),
        ({"path": "/x", "mode": "0640"}, "missing required arguments: content found in files"),
        ({"path": "/x", "content": "a"}, "/x: mode None: must be quoted octal digits such as '0640'"),
        ({"path": "/x", "content": "a", "mode": "0640", "owner": "bob"}, "Unsupported parameters"),
        ({"path": "/x", "content": "a", "mode": "0640", "hide": "often"}, "unable to convert to bool"),
        ({"path": "x", "content": "a", "mode": "0640"}, "x: must be an absolute path"),
        ({"path": "/x", "content": "a", "mode": "rw"}, "/x: mode 'rw': must be quoted octal digits such as '0640'"),
        ({"path": "/x", "content": "a", "mode": 416}, "/x: mode '416': must be quoted octal digits such as '0640'"),
    ],
)
def test_a_wrong_entry_is_reported_in_a_sentence(
    capsys: pytest.CaptureFixture[str], entry: dict[str, Any], sentence: str
) -> None:
    for check in (True, False):
        said = run(capsys, check, files=[entry])
        assert said["failed"] and sentence in said["msg"], said


@pytest.mark.parametrize("check", [True, False])
def test_a_folder_where_a_file_belongs_is_named_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], check: bool
) -> None:
    first, folder, plain = tmp_path / "first", tmp_path / "folder", tmp_path / "plain"
    (folder / "kept").mkdir(parents=True)
    plain.write_text("kept")
    for given, sentence in (
        ({"files": [file(first), file(folder)]}, f"{folder}: is a folder, but must be a file"),
        ({"files": [file(first)], "absent": [str(folder)]}, f"{folder}: is a folder, but must be a file to remove"),
        ({"files": [file(first), file(plain / "x")]}, f"{plain}: is a file, but must be a folder"),
    ):
        said = run(capsys, check, **given)
        assert said["failed"]
        assert said["msg"] == f"{sentence}; move it away and run again. Nothing has been written"
        assert not first.exists() and (folder / "kept").is_dir() and plain.read_text() == "kept"


def test_files_are_written_with_their_modes_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, link, new = tmp_path / "old", tmp_path / "link", tmp_path / "made/new"
    old.write_text("x")
    link.symlink_to(tmp_path)
    given = {"files": [file(new, model="m", hide=True)], "absent": [str(old), str(link), str(tmp_path / "none")]}
    told = {"changed": True, "written": [str(new)], "removed": [str(old), str(link)]}
    for check in (True, False):
        said = run(capsys, check, **given)
        assert {key: said[key] for key in told} == told and said["diff"] == []
        assert new.exists() is not check and old.exists() is check
    assert new.stat().st_mode & 0o777 == 0o640 and not run(capsys, **given)["changed"]


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("program", ["new", "old", "none"])
def test_a_program_checks_a_text_before_any_file_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], check: bool, program: str
) -> None:
    """As dockerd does since Docker 23; the one of Debian 12 lacks the option."""
    answer = {
        "new": """if grep -q '"a"' "$3"; then echo "error in file $3: a: unknown key" >&2; exit 1; fi""",
        "old": """echo 'Status: unknown flag: --validate' >&2; exit 125""",
    }
    dockerd, first, second = tmp_path / "dockerd", tmp_path / "first", tmp_path / "daemon.json"
    if program in answer:
        dockerd.write_text(f"#!/bin/sh\n{answer[program]}\n")
        dockerd.chmod(0o755)
    validate = [str(dockerd), "--validate", "--config-file", "%s"]
    good = file(second, content='{"b": 1}', validate=validate)
    wrong = file(second, content='{"a": 1}', validate=validate)
    said = run(capsys, check, files=[file(first), wrong])
    if program == "new":
        assert said["msg"] == (
            f"{second}: {dockerd} does not take the new text: error in file {second}: a: unknown key; "
            "nothing is written"
        )
        assert not first.exists() and not second.exists()
        assert run(capsys, check, files=[good])["written"] == [str(second)]
    else:
        assert said["written"] == [str(first), str(second)]
    assert second.exists() is not check


@pytest.mark.parametrize("check", [True, False])
def test_variables_that_a_host_stores_stay_beside_those_that_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], check: bool
) -> None:
    path = tmp_path / "m.secret"
    path.write_text("HF_TOKEN=t\nVLLM_API_KEY=old\n")
    entry = file(path, mode="0600", stored=True)
    said = run(capsys, check, hide=True, files=[{**entry, "content": "VLLM_API_KEY=new\n"}])
    assert said["written"] == [str(path)] and not said.get("diff")
    assert path.read_text() == f"HF_TOKEN=t\nVLLM_API_KEY={'old' if check else 'new'}\n"
    path.chmod(0o600)
    assert run(capsys, check, files=[{**entry, "content": path.read_text().partition("\n")[2]}])["written"] == []
