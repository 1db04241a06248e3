"""Why a host cannot be read: a Python that is too old, or a user whom sudo does not make root."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

import pytest
from gaudi_serve import OLDEST_PYTHON
from gaudi_serve.plan.unread import python_refusal, root_refusal

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("Premature end of stream\n>>> Standard Error\nsudo: a password is required\n", "a password is required"),
        ("Missing sudo password", "Missing sudo password"),
        ("Incorrect sudo password", "Incorrect sudo password"),
        ("al is not in the sudoers file.  This incident will be reported.", "al is not in the sudoers file"),
        (
            "sudo: a terminal is required to read the password; either use the -S option",
            "a terminal is required to read the password; either use the -S option",
        ),
        ("Timeout (12s) waiting for privilege escalation prompt: ", "waiting for privilege escalation prompt"),
    ],
)
def test_a_sudo_that_makes_nobody_root_is_one_sentence(said: str, why: str) -> None:
    assert root_refusal(said, "g") == (
        f"g: sudo does not make this user root ({why}): give the password with --ask-become-pass or "
        "ansible_become_password, or let the user use sudo without one"
    )


def test_other_failures_are_left_as_they_are() -> None:
    assert root_refusal("No space left on device", "g") == ""
    for said in ("Python 3.10.4", "Python 3.13.0rc1\n", "sh: python3: not found", ""):
        assert python_refusal(said, "g") == ""


@pytest.mark.parametrize("version", ["2.7.18", "3.8.10", "3.9.2+"])
def test_a_python_that_is_too_old_is_one_sentence(version: str) -> None:
    assert python_refusal(f"Python {version}\n", "g") == (
        f"g: its Python is {version}, and the toolkit needs 3.10 or newer there; install one, and set "
        "ansible_python_interpreter to it"
    )


def test_what_travels_is_read_by_the_oldest_python_and_refused_by_older_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("lib", "library"):
        for path in (ROOT / folder).rglob("*.py"):
            ast.parse(path.read_text(encoding="utf-8"), feature_version=OLDEST_PYTHON)
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    with pytest.raises(ImportError, match=r"Python \S+ is too old for the toolkit"):
        runpy.run_path(str(ROOT / "lib/gaudi_serve/__init__.py"))
