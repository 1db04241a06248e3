"""What running tasks report, from the forks that run them."""

from __future__ import annotations

import os

import pytest
from gaudi_serve.show.progress import Reports, report


@pytest.fixture(autouse=True)
def no_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without a pipe, whatever tests before have opened in this process."""
    monkeypatch.setattr(Reports, "of_run", None)


@pytest.fixture
def reports(no_pipe: None) -> Reports:
    """Return the pipe of a run."""
    return Reports.opened()


def test_nobody_shows_reports_before_a_pipe_is_open() -> None:
    assert Reports.of_run is None
    assert not report("a: qwq: warm-up")


def test_reports_of_forks_come_whole_and_once(reports: Reports) -> None:
    texts = ["a: qwq: warm-up\na: bge: wärmt auf", "b: qwq: loading"]
    for text in texts:
        if not (child := os.fork()):
            os._exit(0 if report(text) else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert reports.received() == texts
    assert reports.received() == []


def test_a_run_has_one_pipe(reports: Reports) -> None:
    assert Reports.opened() is reports


def test_a_full_pipe_stops_no_task(reports: Reports) -> None:
    for _ in range(5000):
        assert report("x" * 100)
    assert 0 < len(reports.received()) < 5000
    assert report("again")
    assert reports.received() == ["again"]
