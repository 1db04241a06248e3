"""The check of the language reads the messages of commits."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from helpers.inventories import ROOT
from helpers.programs import load_program

RETIRED = "told"
GOOD = "plan: read `teh` config.json once, for users who wait\n\nA run read it for each model."


@pytest.fixture
def prose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return scripts/prose for an empty repository."""
    program = load_program(ROOT / "scripts/prose")
    monkeypatch.setattr(program, "ROOT", tmp_path)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "anna")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "anna@example.net")
    git(tmp_path, "init", "-q")
    return program


def git(folder: Path, *words: str) -> str:
    """Run git and return its output."""
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def commit(folder: Path, message: str) -> str:
    """Make a commit and return its number."""
    git(folder, "commit", "-q", "--allow-empty", "-m", message)
    return git(folder, "rev-parse", "HEAD")


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ("docs: correct teh port", ":1: teh ==> the"),
        (f"docs: correct the port\n\nThe page {RETIRED} another one.", f":3: {RETIRED} ==> reported, shown"),
        (f"docs: {'x' * 95}", f": a subject of 101 characters, at most 100: docs: {'x' * 95}"),
    ],
)
def test_a_message_is_refused(prose: ModuleType, tmp_path: Path, message: str, complaint: str) -> None:
    commit(tmp_path, GOOD)
    number = commit(tmp_path, message)
    assert prose.messages() == [f"commit {number[:7]}{complaint}"]
    assert prose.main([]) == 1


def test_good_messages_are_accepted(prose: ModuleType, tmp_path: Path) -> None:
    for message in (GOOD, f"docs: {'x' * 94}"):
        commit(tmp_path, message)
    assert prose.messages() == [] and prose.main([]) == 0


def test_a_merge_is_refused(prose: ModuleType, tmp_path: Path) -> None:
    first = commit(tmp_path, GOOD)
    commit(tmp_path, "docs: one")
    git(tmp_path, "checkout", "-q", "-b", "other", first)
    commit(tmp_path, "docs: two")
    git(tmp_path, "merge", "-q", "-m", "docs: join two branches", "-")
    (found,) = prose.messages()
    assert found.endswith(": a merge commit; rebase instead, and squash what belongs together")


def test_only_messages_after_the_rule_are_read(
    prose: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = [commit(tmp_path, "teh") for _ in range(3)]
    monkeypatch.setattr(prose, "LAST", 2)
    assert len(prose.messages()) == 2
    monkeypatch.setattr(prose, "RULE_SINCE", bad[-1])
    assert prose.messages() == []
    commit(tmp_path, "teh")
    assert len(prose.messages()) == 1


def test_a_tree_without_history_is_checked_without_messages(
    prose: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(tmp_path, "teh")
    commit(tmp_path, "teh")
    shallow, archive = tmp_path / "shallow", tmp_path / "archive"
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{tmp_path}", str(shallow))
    archive.mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    for folder in (shallow, archive):
        monkeypatch.setattr(prose, "ROOT", folder)
        assert prose.main([]) == 0
        assert "the messages of commits are not checked" in capsys.readouterr().err
    (archive / "README.md").write_text(f"It {RETIRED} more.\n")
    assert prose.main([]) == 1
