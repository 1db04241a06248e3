"""Acceptance tests on a host: how they run, the saved results of each card, and the comparison with the last run.

Results are saved by the serial number and the firmware of a card, so that a replaced card or new firmware has none.
``unlocked`` is a mark next to them: while it exists, the driver is loaded in the mode that only tests need.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..core.run import read_text, run, write_json
from ..core.table import table
from ..core.words import counted
from ..platforms.acceptance import (
    FAILED,
    NO_RESULT,
    NOT_TESTED,
    PASSED,
    Acceptance,
    AcceptanceTest,
    Report,
    Unlocked,
)

FOLDER = Path("/var/lib/gaudi-serve/qualification")
RESULTS, MARK, LOGS = "results.json", "driver-unlocked", "logs"
KNOWN, INTERRUPTED = "known failure", "interrupted"
WORST_FIRST = (FAILED, NO_RESULT, NOT_TESTED, KNOWN, PASSED)
KEPT_RUNS = 20  # runs whose logs are kept
PORTS_S = 120  # limit in which the ports come up after the driver was loaded
Card = Mapping[str, Any]
Result = dict[str, Any]


def observe(acceptance: Acceptance | None, folder: Path = FOLDER, root: str = "/") -> dict[str, Any]:
    """Return ``gaudi_qualification``.

    ``cards`` and ``last``: the results; ``unlocked``: an interrupted run has left the driver loaded for tests;
    ``programs``: the installed tools of the vendor, by the names of cards that may be here.
    """
    names = ("HL-225", "HL-325", "")
    paths = {acceptance.program(name) for name in names} - {""} if acceptance else set()
    kept = results(folder)
    return {
        **{"cards": kept["cards"], "last": kept["last"], "unlocked": (folder / MARK).exists()},
        "programs": sorted(path for path in paths if os.access(Path(root, path.lstrip("/")), os.X_OK)),
    }


def results(folder: Path = FOLDER) -> dict[str, Any]:
    """Return the saved results; a file that cannot be read counts as empty."""
    try:
        found = json.loads(read_text(folder / RESULTS) or "{}")
    except ValueError:
        found = {}
    known = found if isinstance(found, dict) else {}
    return {key: known[key] if isinstance(known.get(key), dict) else {} for key in ("cards", "last")}


def serial_of(card: Card) -> str:
    """Return the key of a card's results: its serial number or, if it cannot be read, its bus address."""
    return str(card.get("serial") or f"at-{card.get('bus_id') or card['module_id']}")


def firmware_of(card: Card) -> str:
    """Return the version of a card's firmware, for which its results are valid."""
    return str(card.get("firmware") or "unknown")


def not_passed(kept: Mapping[str, Any], cards: Sequence[Card], suite: str, tests: Sequence[str]) -> list[Card]:
    """Return the cards that have not passed all tests of a suite with their firmware.

    Args:
        kept: ``cards`` of the saved results.
        cards: of the host.
        suite: its name.
        tests: the names of its tests.
    """

    def passed(card: Card) -> bool:
        found = _of_card(kept, card).get(firmware_of(card), {}).get(suite, {}).get("tests") or {}
        return all(found.get(name) in (PASSED, KNOWN) for name in tests)

    return [card for card in cards if not passed(card)]


def _of_card(kept: Mapping[str, Any], card: Card) -> Mapping[str, Any]:
    found = kept.get(serial_of(card))
    return found if isinstance(found, Mapping) else {}


def qualify(acceptance: Acceptance, given: Mapping[str, Any], folder: Path = FOLDER, root: str = "/") -> dict[str, Any]:
    """Run tests one after the other, save the result of each, and return all of them.

    Args:
        acceptance: of the cards' platform.
        given: ``suite``, ``tests`` (names in their order), ``device`` (name of the cards), ``release`` (of the driver),
            ``cards`` (those to test: module_id, bus_id, serial, firmware), ``all`` (whether they are all of the host).
        folder: where results and logs are stored.
        root: folder above the driver's modules.

    Returns:
        ``tests``: one result each; ``verdict`` of the suite; ``lines``: both as text.

    Raises:
        InputError: if the driver cannot be loaded as a test needs it, or as before.
    """
    known = {test.name: test for test in acceptance.tests(given["suite"], given["device"])}
    tests = sorted((known[name] for name in given["tests"]), key=lambda test: test.unlocked)
    before, begun = results(folder), datetime.now(timezone.utc)
    logs = folder / LOGS / f"{begun:%Y%m%dT%H%M%SZ}-{given['suite']}"
    logs.mkdir(parents=True, exist_ok=True)
    _prune(folder)
    done: list[Result] = []
    notes = bring_ports_up(acceptance, given["device"])
    try:
        for test in tests:
            if test.unlocked and acceptance.unlocked:
                notes += unlock(acceptance, given["device"], folder, root)
            done.append(_tested(acceptance, test, given, before["cards"], logs))
            write_json(folder / RESULTS, kept(before, given, done, begun, len(tests)))
    finally:
        if (folder / MARK).exists():
            notes += lock_again(acceptance, given["device"], folder, root)
    verdict = suite_verdict(done)
    lines = report_lines(acceptance.tool, given, done, verdict)
    return {"tests": done, "verdict": verdict, "lines": [*lines[:-1], *dict.fromkeys(notes), lines[-1]]}


def _prune(folder: Path) -> None:
    runs = sorted(path for path in (folder / LOGS).iterdir() if path.is_dir())
    for path in runs[:-KEPT_RUNS]:
        shutil.rmtree(path, ignore_errors=True)


def _tested(
    acceptance: Acceptance, test: AcceptanceTest, given: Mapping[str, Any], before: Mapping[str, Any], logs: Path
) -> Result:
    """Run one test and return its result."""
    cards, log = list(given["cards"]), logs / f"{test.name}.log"
    for path in acceptance.folders:
        Path(path).mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    status, output = _run(acceptance, test, given, log)
    seconds = round(time.monotonic() - started)
    if status is None:
        report = Report(NO_RESULT, f"it did not end within {counted(test.limit_s, 'second')}, and was stopped")
    else:
        report = acceptance.read(status, output, cards, test)
    known = acceptance.known_failure(test.name, given["device"], given["release"])
    verdict = KNOWN if known and report.verdict == FAILED else report.verdict
    of_cards = {serial_of(card): report.of_card(place) for place, card in enumerate(cards)}
    return {
        **{"name": test.name, "verdict": verdict, "why": report.why, "seconds": seconds, "log": str(log)},
        "failed": [serial_of(cards[place]) for place in report.failed],
        "untested": [serial_of(cards[place]) for place in report.untested],
        "cards": {serial: verdict if one == FAILED else one for serial, one in of_cards.items()},
        "source": known.source if known and verdict == KNOWN else "",
        "before": _before(before, cards, given["suite"], test.name),
    }


def _run(acceptance: Acceptance, test: AcceptanceTest, given: Mapping[str, Any], log: Path) -> tuple[int | None, str]:
    """Return exit status and output of a test, which also go to its log; the status is None after a timeout."""
    command = acceptance.command(test, given["device"], None if given["all"] else given["cards"])
    # The kernel kills the tool with the run that started it; otherwise it would continue to use the cards.
    argv = ["setpriv", "--pdeathsig", "KILL", *command]
    with log.open("wb") as handle:
        os.fchmod(handle.fileno(), 0o640)
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=subprocess.STDOUT,
            env={**os.environ, **acceptance.env},
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(test.limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            # This also ends processes that the tool has left, which would continue to use the cards.
            _end(process)
    return status, read_text(log) or ""


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _before(kept: Mapping[str, Any], cards: Sequence[Card], suite: str, test: str) -> str:
    """Return the last result of the same test on these cards: a verdict, its day, and the firmware if it differs."""
    found = []
    for card in cards:
        by_firmware = _of_card(kept, card)
        runs = [
            (one[suite].get("time") or 0, one[suite]["tests"][test], firmware != firmware_of(card))
            for firmware, one in by_firmware.items()
            if test in (one.get(suite) or {}).get("tests", {})
        ]
        found += [max(runs)] if runs else []
    if not found:
        return "-"
    last = max(found)
    worst = _worst(verdict for _, verdict, _ in found)
    other = ", other firmware" if any(other for _, _, other in found) else ""
    return f"{worst} {day(last[0])}{other}"


def _worst(verdicts: Iterable[str]) -> str:
    """Return the worst verdict; one that only a newer version of the toolkit knows counts as the worst."""
    return min(verdicts, key=lambda one: WORST_FIRST.index(one) if one in WORST_FIRST else -1)


def day(seconds: float) -> str:
    """Return the day of a time, in UTC."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d}"


def kept(
    before: Mapping[str, Any], given: Mapping[str, Any], done: Sequence[Result], begun: datetime, planned: int
) -> dict[str, Any]:
    """Return the results to save after some tests of a suite: those of each card, and those of the run.

    Args:
        before: the results before the run.
        given: the argument of qualify.
        done: the results of the tests so far.
        begun: start of the run.
        planned: number of its tests.
    """
    cards = json.loads(json.dumps(before["cards"]))
    for card in given["cards"]:
        name, firmware = serial_of(card), firmware_of(card)
        old = cards.setdefault(name, {}).setdefault(firmware, {}).get(given["suite"]) or {}
        tests = {**(old.get("tests") or {}), **{test["name"]: test["cards"][name] for test in done}}
        cards[name][firmware][given["suite"]] = {
            **{"time": begun.timestamp(), "release": given["release"], "tests": tests},
            "module_id": card["module_id"],
        }
    verdict = suite_verdict(done) if len(done) == planned else INTERRUPTED
    last = {"suite": given["suite"], "time": begun.timestamp(), "verdict": verdict}
    last["tests"] = {test["name"]: test["verdict"] for test in done}
    last["failed"] = {
        serial: [test["name"] for test in done if test["cards"].get(serial) == FAILED]
        for serial in map(serial_of, given["cards"])
        if any(test["cards"].get(serial) == FAILED for test in done)
    }
    return {"cards": cards, "last": {**last, "cards": len(given["cards"])}}


def suite_verdict(done: Sequence[Result]) -> str:
    """Return the verdict of a suite: known failures of healthy cards do not fail it; it cannot pass without results."""
    worst = _worst(test["verdict"] for test in done) if done else NO_RESULT
    return PASSED if worst == KNOWN else worst


def report_lines(tool: str, given: Mapping[str, Any], done: Sequence[Result], verdict: str) -> list[str]:
    """Return a run as text: a table, a sentence for each test that has not passed, and the verdict."""
    rows = [["TEST", "VERDICT", "CARDS", "MINUTES", "BEFORE"]]
    numbers = {serial_of(card): card["module_id"] for card in given["cards"]}
    lines = []
    for test in done:
        named = ", ".join(f"{numbers[serial]} ({serial})" for serial in test["failed"] or test["untested"])
        rows.append([test["name"], test["verdict"], named or "all", f"{test['seconds'] / 60:.1f}", test["before"]])
        if test["verdict"] != PASSED or test["why"]:
            known = f"; healthy cards fail it: {test['source']}" if test["source"] else ""
            lines.append(f"{test['name']}: {test['verdict']}: {test['why']}{known}; log {test['log']}")
    count = counted(len(given["cards"]), "card")
    return [*table(rows), *lines, f"{tool}, suite {given['suite']}: {verdict} ({count})"]


def unlock(acceptance: Acceptance, device: str, folder: Path, root: str = "/") -> list[str]:
    """Load the driver as some tests need it; a mark in the folder records this until it is loaded as before.

    Returns:
        A sentence if ports stay down.
    """
    wanted = acceptance.unlocked
    if wanted is None or (folder / MARK).exists():
        return []
    loaded = [name for name in wanted.modules if Path(root, "sys/module", name).is_dir()]
    # Before the first change: the next run repairs an interrupted one.
    write_json(folder / MARK, {"modules": loaded})
    _reload(wanted, loaded, root, wanted.parameter)
    return _ports(acceptance, wanted, device)


def lock_again(acceptance: Acceptance, device: str, folder: Path = FOLDER, root: str = "/") -> list[str]:
    """Load the driver without the parameter, set the ports up, and remove the mark.

    Returns:
        A sentence if ports stay down.
    """
    wanted = acceptance.unlocked
    if wanted is None or not (folder / MARK).exists():
        return []
    try:
        modules = json.loads(read_text(folder / MARK) or "{}").get("modules") or list(wanted.modules)
    except ValueError:
        modules = list(wanted.modules)
    _reload(wanted, [name for name in wanted.modules if name in modules], root)
    notes = _ports(acceptance, wanted, device)
    (folder / MARK).unlink()
    return notes


def _reload(wanted: Unlocked, modules: Sequence[str], root: str, parameter: str = "") -> None:
    """Unload modules in the reverse order of loading, and load them; the last one with a parameter.

    Raises:
        InputError: if one cannot be unloaded or loaded.
    """
    for name in modules[::-1]:
        if Path(root, "sys/module", name).is_dir():
            _must(["modprobe", "-r", name], 120)
    for name in modules:
        _must(["modprobe", name, *([parameter] if parameter and name == wanted.modules[-1] else [])], 300)


def bring_ports_up(acceptance: Acceptance, device: str) -> list[str]:
    """Set the ports between the cards up if some are down; return a sentence if they stay down."""
    wanted = acceptance.unlocked
    program = _ports_program(acceptance, wanted, device) if wanted else ""
    if wanted is None or not os.access(program, os.X_OK) or not _down(program):
        return []
    return _ports(acceptance, wanted, device)


def _ports_program(acceptance: Acceptance, wanted: Unlocked, device: str) -> str:
    return str(Path(acceptance.program(device)).with_name(wanted.ports))


def _down(program: str) -> bool:
    status = run([program, "--status"], 60).out
    return not status.strip() or re.search(r"\bdown\b", status, re.IGNORECASE) is not None


def _ports(acceptance: Acceptance, wanted: Unlocked, device: str) -> list[str]:
    """Set the ports between the cards down and up, and wait until none is down.

    Returns:
        A sentence if some stay down, as ports without a cable may; then the tests of ports fail.

    Raises:
        InputError: if the program is missing or fails.
    """
    program = _ports_program(acceptance, wanted, device)
    for option in ("--down", "--up"):
        _must([program, option], 300)
    end = time.monotonic() + PORTS_S
    while time.monotonic() < end:
        if not _down(program):
            return []
        time.sleep(1)
    return [f"ports are down {PORTS_S} s after they were activated, as {wanted.ports} --status shows"]


def _must(argv: list[str], timeout: float) -> None:
    done = run(argv, timeout)
    if done.status:
        last = (done.err.strip() or done.out.strip() or f"status {done.status}").splitlines()[-1]
        raise InputError(f"{' '.join(argv)}: {last}")
