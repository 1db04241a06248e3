"""The journal of a model, as it is shown."""

from __future__ import annotations

from gaudi_serve.show.log import log_view

GOOD = ["INFO 11-25 api_server.py: ready", "gaudi-serve: the server answers", "INFO: 0 errors so far"]


def test_a_journal_without_errors_stays_as_it_is() -> None:
    assert log_view(GOOD) == GOOD


def test_errors_come_first_and_stay_in_their_place() -> None:
    wrong = [
        "ERROR 11-25 core.py:1108 EngineCore failed to start.",
        "Traceback (most recent call last):",
        "ValueError: No available memory for the cache blocks.",
        "gaudi-serve: the server ended with status 1",
        "RuntimeError: synStatus=8 [Device not found] Device acquire failed.",
    ]
    lines = [GOOD[0], *wrong, GOOD[1]]
    assert log_view(lines) == ["lines with errors (5):", *wrong, "all 7 lines:", *lines]


def test_of_many_errors_the_last_are_shown() -> None:
    lines = [f"ERROR number {number}" for number in range(30)]
    shown = log_view(lines)
    assert shown[:2] == ["lines with errors (the last 20 of 30):", "ERROR number 10"]
    assert shown[21:] == ["all 30 lines:", *lines]
