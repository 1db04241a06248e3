"""dcgmi diag, NVIDIA's acceptance test: its levels, and a reader of its JSON in the forms of DCGM 2, 3 and 4."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .acceptance import FAILED, LONG, NO_RESULT, NOT_TESTED, PASSED, Acceptance, AcceptanceTest, Card, Report
from .cards import first_json

PROGRAM = "/usr/bin/dcgmi"
# Level 1 is a check of the software alone; level 3 tests the memory, PCIe, power and processors of each card.
TESTS = {
    "diag-1": AcceptanceTest("diag-1", "software, libraries and permissions", ("-r", "1"), 1),
    "diag-3": AcceptanceTest("diag-3", "memory, PCIe, power and load", ("-r", "3"), 30),
}
# What level 3 tests. For each of these, one test must have passed on each card; names as in DCGM 2 to 4, with blanks.
ASPECTS = {
    "memory": ("memory", "gpu memory", "memtest"),
    "PCIe": ("pcie", "nvbandwidth"),
    "power": ("targeted power", "pulse test"),
    "load": ("diagnostic", "sm stress", "targeted stress"),
}
PASS, FAIL, SKIPPED = "pass", "fail", ("skip", "skipped", "not run", "notrun")
# Error numbers of dcgm_errors.h (DCGM 4.6), and texts for releases that print no numbers. No card is at fault:
# persistence mode is off; memory of the card or of the host could not be allocated; the host prevented the test (access
# to a file, library, driver, environment, power limit, permissions); it was aborted, disabled, skipped, or is to be
# repeated.
SETTING = frozenset({29}), re.compile(r"persistence mode", re.IGNORECASE)
NO_MEMORY = frozenset({56, 73}), re.compile(r"(could ?n.t|can ?not|unable to|failed to) allocate", re.IGNORECASE)
DID_NOT_RUN = NO_MEMORY[0] | {18, 22, 23, 28, 47, 48, 72, 96, 117, 130}, NO_MEMORY[1]
# Checks of the host in DCGM 2 and 3, which print no numbers.
OF_HOST = ("denylist", "nvml library", "cuda main library", "permissions and os blocks", "environment variables")


def _tests(suite: str, _device: str) -> tuple[AcceptanceTest, ...]:
    return (TESTS["diag-3"],) if suite == LONG else (TESTS["diag-1"],)


def _command(test: AcceptanceTest, _device: str, cards: Sequence[Card] | None) -> list[str]:
    chosen = [] if cards is None else ["-i", ",".join(str(card["module_id"]) for card in cards)]
    return [PROGRAM, "diag", *test.arguments, "-j", *chosen]


@dataclass(frozen=True)
class Result:
    """One result of a test. cards: DCGM's numbers; None if the report names none. word: its status, in lowercase.

    findings: error number (None if not printed) and text of each warning.
    """

    name: str
    cards: tuple[int, ...] | None
    word: str
    findings: tuple[tuple[int | None, str], ...]
    info: str

    @property
    def aspect(self) -> str:
        """Return what the test tests of the hardware; empty for others."""
        name = self.name.lower().replace("_", " ")
        return next((aspect for aspect, names in ASPECTS.items() if name in names), "")

    @property
    def setting(self) -> bool:
        """Return whether it only reports a setting of the host with which cards work."""
        if self.word == PASS:
            return False
        if not self.findings:
            return SETTING[1].search(self.name) is not None
        return all(_matches(one, SETTING) for one in self.findings)

    @property
    def ran(self) -> bool:
        """Return whether the test ran; some releases show a pass although no memory could be allocated."""
        kind = NO_MEMORY if self.word == PASS else DID_NOT_RUN
        if self.word in SKIPPED or (self.word == FAIL and self.name.lower() in OF_HOST):
            return False
        return not any(_matches(one, kind) for one in (*self.findings, (None, self.info)))

    @property
    def bad(self) -> bool:
        """Return whether a card has failed: one finding that does not excuse it is enough."""
        excused = [_matches(one, SETTING) or _matches(one, DID_NOT_RUN) for one in self.findings]
        of_host = self.setting or self.name.lower() in OF_HOST
        return self.word == FAIL and not of_host and not (excused and all(excused))

    @property
    def text(self) -> str:
        """Return it for the user."""
        texts = "; ".join(text for _, text in self.findings if text) or self.info
        return f"{self.name}: {texts[:200] or self.word}"


def _matches(finding: tuple[int | None, str], kind: tuple[frozenset[int], re.Pattern[str]]) -> bool:
    number, text = finding
    return number in kind[0] if number is not None else kind[1].search(text) is not None


def read_report(status: int, output: str, cards: Sequence[Card], test: AcceptanceTest | None = None) -> Report:
    """Return the result of a report.

    A pass needs only passes and skips, a pass of each card, and exit status 0. If the report names a test of the
    hardware, and always for level 3, memory, PCIe, power and load need a pass of each card.

    Args:
        status: exit status of dcgmi.
        output: its output.
        cards: the tested cards; DCGM numbers them as nvidia-smi does.
        test: the test; None if unknown.
    """
    found = first_json(output)
    results, error = list(_results(found)), _runtime_error(found)
    places = {int(card["module_id"]): place for place, card in enumerate(cards)}
    needed = set(ASPECTS) if test is TESTS["diag-3"] else {one.aspect for one in results} - {""}
    lacking = {card: needed - _passed(results, card) for card in places}
    untested = [card for card in sorted(places) if lacking[card] or not _software(results, card, bool(needed))]
    if bad := [one for one in results if one.bad]:
        failed = {card for one in bad for card in one.cards or () if card in places}
        others = tuple(places[card] for card in untested if failed and card not in failed)
        why = "; ".join(dict.fromkeys(one.text for one in bad))
        return Report(FAILED, why, tuple(sorted(places[card] for card in failed)), others)
    if error:
        return Report(NOT_TESTED, f"dcgmi could not test: {error}")
    if problem := _unclear(results, set(places)):
        last = "" if results else f": {(output.strip().splitlines() or ['nothing'])[-1][:120]}"
        return Report(NO_RESULT, f"{problem}; exit status {status}{last}")
    settings = ["persistence mode is off, a setting of the host"] if any(one.setting for one in results) else []
    if untested:
        what = [aspect for aspect in ASPECTS if any(aspect in lacking[card] for card in untested)] or ["the software"]
        reasons = dict.fromkeys(one.text for one in results if not one.ran and one.aspect in ("", *what))
        text = f"no test of {', '.join(what)} ran on cards {untested}"
        why = "; ".join([text, *settings, *reasons])
        return Report(NOT_TESTED, why, untested=tuple(places[card] for card in untested))
    if status and not settings:
        return Report(NO_RESULT, f"exit status {status}")
    return Report(PASSED, "; ".join(settings))


def _unclear(results: Sequence[Result], cards: set[int]) -> str:
    """Return why results without a failure are no verdict; empty if they are."""
    if not results:
        return "no results in its report"
    if other := [one for one in results if one.ran and not one.setting and one.word != PASS]:
        return "; ".join(dict.fromkeys(f"{one.name} shows {one.word}" for one in other))
    # Some releases do not assign checks of the software to cards.
    absent = cards - {card for one in results for card in one.cards or ()}
    every = all(one.cards is not None for one in results)
    return f"its report does not name cards {sorted(absent)}" if every and absent else ""


def _passed(results: Sequence[Result], card: int) -> set[str]:
    """Return the aspects of the hardware that have passed on a card."""
    return {one.aspect for one in results if one.word == PASS and one.ran and card in (one.cards or ())}


def _software(results: Sequence[Result], card: int, hardware: bool) -> bool:
    """Return whether no check of the software is missing for a card, and, without tests of the hardware, one ran."""
    # Some releases do not assign checks to cards.
    checks = [one for one in results if not one.aspect and (one.cards is None or card in one.cards)]
    prevented = any(not one.ran and one.word not in SKIPPED for one in checks)
    return not prevented and (hardware or any(one.ran for one in checks))


def _runtime_error(found: Any) -> str:
    """Return the error because of which a run ended; empty if there is none."""
    if not isinstance(found, Mapping):
        return ""
    levels = [found, *(value for value in found.values() if isinstance(value, Mapping))]
    texts = (one.get("runtime_error") for one in levels)
    return next((" ".join(str(text).split())[:200] for text in texts if text), "")


def _results(found: Any) -> Iterator[Result]:
    """Yield each result below a JSON value."""
    if isinstance(found, list):
        for one in found:
            yield from _results(one)
    if not isinstance(found, Mapping):
        return
    name = found.get("name")
    if not isinstance(name, str):
        for value in found.values():
            yield from _results(value)
        return
    listed = found.get("results")
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, Mapping) and isinstance(one.get("status"), str):
            findings = tuple(_findings(one.get("warnings")))
            word, info = one["status"].strip().lower(), " ".join(_texts(one.get("info")))
            yield Result(name, _cards(one, findings), word, findings, info)


def _cards(result: Mapping[str, Any], findings: Sequence[tuple[int | None, str]]) -> tuple[int, ...] | None:
    if result.get("entity_group") not in (None, "GPU"):
        return ()
    given = next((result[key] for key in ("gpu_ids", "gpu_id", "entity_id") if result.get(key) is not None), None)
    if given is None:
        return None
    # A check of the software in DCGM 3.3 has the findings of all cards, and the number of the last one alone.
    more = " ".join(text for _, text in findings) if len(findings) > 1 and "entity_group" not in result else ""
    return tuple(
        sorted({int(one) for one in re.findall(r"\d{1,3}", str(given)) + re.findall(r"GPU (\d{1,3})\b", more)})
    )


def _findings(warnings: Any) -> Iterator[tuple[int | None, str]]:
    """Yield number and text of each warning: a text, or mappings with ``error_id`` in newer releases."""
    for one in warnings if isinstance(warnings, list) else [warnings] if warnings else []:
        number = one.get("error_id") if isinstance(one, Mapping) else None
        # DCGM 3.3 names the text of a check of the software like the list.
        text = " ".join(_texts(one.get("warning") or one.get("warnings") if isinstance(one, Mapping) else one))
        yield (number if isinstance(number, int) else None), text


def _texts(value: Any) -> list[str]:
    found = value if isinstance(value, list) else [value]
    return [" ".join((one if isinstance(one, str) else json.dumps(one)).split()) for one in found if one]


ACCEPTANCE = Acceptance(
    tool="dcgmi diag",
    program=lambda device: PROGRAM,
    packages=("datacenter-gpu-manager",),
    tests=_tests,
    command=_command,
    read=read_report,
)
