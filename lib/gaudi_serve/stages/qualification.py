"""Whether the acceptance tests of a host's cards must run, and which of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.checks import is_true
from ..core.table import table
from ..core.words import counted
from ..host.qualification import day, not_passed
from ..model.host import Host
from ..platforms import platform_of
from ..platforms.acceptance import Acceptance, AcceptanceTest
from .base import Given, Pending, Stage
from .reset import qualification_reset

Known = Mapping[str, Any]
REPAIR = "load the driver again as it was before the interrupted run of acceptance tests"
UNLOCKED = (
    "the driver is still loaded for acceptance tests (timeout_locked=0), as an interrupted run left it; stop "
    "the host's models, and playbooks/qualify.yml loads it as it was"
)
ALL_EXCLUDED = "no acceptance test: all cards of this host are excluded (accelerator_cards_excluded)"


def _pending(given: Given) -> Pending:
    known = given.known
    if "gaudi_qualification" not in known or "gaudi_host" not in known:
        return Pending(changes={"now": False, "refusal": [], "tests": []})
    host, state = known["gaudi_host"], known["gaudi_qualification"]
    asked = is_true(known["qualification_asked"])
    suite = str(known["qualification_suite"] if asked else known["qualification_required"] or "")
    acceptance = platform_of(host["accelerator"]).acceptance
    cards = _cards(host, known.get("accelerator_cards_excluded") or ())
    tests = acceptance.tests(suite, str(host.get("device_name") or "")) if acceptance and suite else ()
    open_cards = not_passed(state["cards"], cards, suite, [test.name for test in tests]) if suite else []
    due = bool(suite) and (asked or bool(open_cards) or not _all(host))
    refusal = _refusal(given.host, host, state, suite, _installed(known)) if due or state["unlocked"] else []
    refusal += [f"{given.host}: {ALL_EXCLUDED}"] if due and _all(host) and not cards and not refusal else []
    # Tests that were not requested wait until the cards answer and are free.
    silent = acceptance is None or bool(host.get("problem")) or not host["modules"]
    waits = not asked and (silent or bool(_held(given.host, host)))
    now = (due or state["unlocked"]) and not (waits or refusal)
    late = open_cards if waits and due and acceptance else []
    tests = tests if due else ()
    return Pending(
        changes={"now": now, "refusal": refusal, "suite": suite, **_run(host, cards, tests)},
        due=_lines(suite, tests, cards, state) if now else [],
        refusal=[] if waits else refusal,
        drift=[UNLOCKED] if state["unlocked"] else [],
        notes=[
            *([UNLOCKED] if state["unlocked"] and not now else []),
            *_last(acceptance, state["last"], host),
            *_waiting(suite, late),
        ],
    )


def _run(host: Known, cards: Sequence[Known], tests: Sequence[AcceptanceTest]) -> dict[str, Any]:
    """Return the values that the role passes to its module and shows before."""
    return {
        **{"tests": [test.name for test in tests], "cards": list(cards), "table": _table(tests) if tests else []},
        **{"accelerator": host["accelerator"], "device": str(host.get("device_name") or "")},
        **{"release": str(host.get("driver_version") or ""), "every": len(cards) == len(_all(host))},
        "limit_s": sum(test.limit_s for test in tests) + 1800,
    }


def _all(host: Known) -> list[Known]:
    """Return all cards of a host, also unusable ones: a test that does not see one has not passed."""
    return [*host["modules"], *(host.get("unusable_cards") or ())]


def _cards(host: Known, excluded: Sequence[str]) -> list[dict[str, Any]]:
    """Return the cards to test: all but the excluded ones."""
    keys = ("module_id", "index", "bus_id", "serial", "firmware")
    found = [{key: card.get(key) for key in keys} for card in _all(host)]
    return [card for card in found if (card["serial"] or "") not in excluded]


def _refusal(host_name: str, host: Known, state: Known, suite: str, installed: Sequence[str]) -> list[str]:
    """Return why no test may run: no test, cards that do not answer, or cards in use."""
    platform = platform_of(host["accelerator"])
    acceptance, problem = platform.acceptance, host.get("problem")
    if acceptance is None:
        return [f"{host_name}: no acceptance test for this platform: {platform.title}"]
    if problem or not host["modules"]:
        # Installing the driver in this run can make them answer.
        return [f"{host_name}: no acceptance test: its cards do not answer: {' '.join(problem or [])}"]
    if any(card.get("alone") for card in host["modules"]):
        return [f"{host_name}: no acceptance test: {acceptance.tool} does not test cards that are divided into parts"]
    program, packages = acceptance.program(str(host.get("device_name") or "")), acceptance.packages
    if not program:
        return [f"{host_name}: no acceptance test for {host.get('device_name')}: {acceptance.tool} does not know it"]
    lacks = suite and program not in state["programs"] and not {*packages} & {*installed}
    missing = f"{program} is missing; driver_optional_packages: [{', '.join(packages)}] installs it"
    return [*([f"{host_name}: {missing}"] if lacks else []), *_held(host_name, host)]


def _held(host_name: str, host: Known) -> list[str]:
    """Return a sentence for each model and each program that uses cards, since tests need free cards."""
    known = Host.of(host)
    cards: dict[str, list[int]] = {}
    for number, name in sorted(known.held.items()):
        cards.setdefault(name, []).append(number)
    text = "acceptance tests never run on cards that serve; stop it first: playbooks/stop.yml -e model="
    held = [f"{host_name}: model {name} has cards {numbers}: {text}{name}" for name, numbers in cards.items()]
    strange = [card for card in known.cards if card.in_use and not card.problem and card.module_id not in known.held]
    return held + [f"{host_name}: {card.end_first}" for card in strange]


def _installed(known: Known) -> list[str]:
    """Return the packages that stage driver installs in the same run."""
    here = "driver" in (known.get("preflight_for") or ["driver"])
    return list(known.get("driver_optional_packages") or []) if here else []


def _table(tests: Sequence[AcceptanceTest]) -> list[str]:
    """Return the tests that would run, with their minutes."""
    rows = [["TEST", "MINUTES", "WHAT"], *([test.name, f"about {test.minutes}", test.about] for test in tests)]
    return table(rows)


def _lines(suite: str, tests: Sequence[AcceptanceTest], cards: Sequence[Known], state: Known) -> list[str]:
    lines = [REPAIR] if state["unlocked"] else []
    if tests:
        minutes = sum(test.minutes for test in tests)
        lines.append(
            f"run acceptance suite {suite} on {counted(len(cards), 'card')}, about {counted(minutes, 'minute')}: "
            f"{', '.join(f'{test.name} {test.minutes} min' for test in tests)}"
        )
    return lines


def _last(acceptance: Acceptance | None, last: Known, host: Known) -> list[str]:
    """Return the results of the last tests; empty if there are none."""
    if acceptance is None or not last:
        return []
    text = f"{acceptance.tool}: suite {last['suite']} {last['verdict']} on {day(last['time'])}"
    numbers = {card.get("serial"): card["module_id"] for card in host["modules"]}
    bad = [
        f"card {numbers.get(serial, 'that is no longer here')} (serial number {serial}) failed {', '.join(tests)}"
        for serial, tests in (last.get("failed") or {}).items()
    ]
    hint = "; accelerator_cards_excluded keeps models from it" if bad else ""
    return [f"{text} ({counted(last['cards'], 'card')})" + "".join(f"; {one}" for one in bad) + hint]


def _waiting(suite: str, cards: Sequence[Known]) -> list[str]:
    if not cards:
        return []
    return [f"acceptance suite {suite} has not passed on {counted(len(cards), 'card')}: playbooks/qualify.yml"]


def _reset(given: Given) -> dict[str, Any]:
    return qualification_reset(given.known["gaudi_left"])


STAGE = Stage(
    role="qualification",
    tag="qualify",
    reads=("system", "host", "services", "driver", "qualification"),
    noted=("report", "status"),
    pending=_pending,
    reset=_reset,
)
