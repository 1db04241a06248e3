"""The secret that the hosts of a model share: made once, no matter which asks first."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.plugins import load, run_module


def test_it_is_made_once_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "folder/big.token"
    made = run_module("gaudi_token", path=str(path), _ansible_check_mode=False)
    assert made["changed"] and len(made["token"]) == 64
    assert path.read_text(encoding="ascii") == f"{made['token']}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    again = run_module("gaudi_token", path=str(path), _ansible_check_mode=False)
    assert again["token"] == made["token"] and not again["changed"]
    assert [one.name for one in path.parent.iterdir()] == ["big.token"]


def test_a_check_makes_none(tmp_path: Path) -> None:
    checked = run_module("gaudi_token", path=str(tmp_path / "big.token"))
    assert checked["changed"] and checked["token"] == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("left", [None, ""])
def test_all_who_make_it_at_the_same_time_get_the_same(tmp_path: Path, left: str | None) -> None:
    module = load("library/gaudi_token.py")
    path = tmp_path / "big.token"
    if left is not None:
        path.write_text(left, encoding="ascii")

    def made(_: int) -> str:
        module.make(path)
        return str(module.text_of(path))

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(made, range(64)))) == 1
