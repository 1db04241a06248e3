"""dcgmi diag, NVIDIA's acceptance test: its levels, and a reader of its JSON in the forms of DCGM 3 and 4."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .acceptance import FAILED, LONG, NO_RESULT, PASSED, Acceptance, AcceptanceTest, Card, Report
from .cards import first_json

PROGRAM = "/usr/bin/dcgmi"
# Level 1 is a check of the software alone; level 3 tests the memory, PCIe, power and processors of each card.
TESTS = {
    "diag-1": AcceptanceTest("diag-1", "software, libraries and permissions", ("-r", "1"), 1),
    "diag-3": AcceptanceTest("diag-3", "memory, PCIe, power and load", ("-r", "3"), 30),
}
PASS, FAIL, SKIPPED = "pass", "fail", ("skip", "skipped", "not run", "notrun")


def _tests(suite: str, _device: str) -> tuple[AcceptanceTest, ...]:
    return (TESTS["diag-3"],) if suite == LONG else (TESTS["diag-1"],)


def _command(test: AcceptanceTest, _device: str, cards: Sequence[Card] | None) -> list[str]:
    chosen = [] if cards is None else ["-i", ",".join(str(card["module_id"]) for card in cards)]
    return [PROGRAM, "diag", *test.arguments, "-j", *chosen]


def read_report(status: int, output: str, cards: Sequence[Card]) -> Report:
    """Return the result of a report: a pass needs exit status 0, a pass of each card, and only passes and skips.

    Args:
        status: exit status of dcgmi.
        output: its output.
        cards: the tested cards; DCGM numbers them as nvidia-smi does.
    """
    found = first_json(output)
    results = list(_results(found))
    if not results:
        last = (output.strip().splitlines() or ["nothing"])[-1][:120]
        return Report(NO_RESULT, f"no results in its report; exit status {status}: {last}")
    places = {int(card["module_id"]): place for place, card in enumerate(cards)}
    failed = sorted({places[one] for _, ids, word, _ in results if word == FAIL for one in ids if one in places})
    if bad := [f"{name}: {text}" if text else name for name, _, word, text in results if word == FAIL]:
        return Report(FAILED, "; ".join(dict.fromkeys(bad)), tuple(failed))
    other = [f"{name} shows {word}" for name, _, word, _ in results if word not in (PASS, *SKIPPED)]
    passed = {one for _, ids, word, _ in results if word == PASS for one in ids}
    if other or status:
        return Report(NO_RESULT, "; ".join([*dict.fromkeys(other), f"exit status {status}"]))
    # In some versions, tests of the software are not assigned to cards.
    if passed and set(places) - passed:
        return Report(NO_RESULT, f"its report does not name cards {sorted(set(places) - passed)}")
    return Report(PASSED) if any(word == PASS for _, _, word, _ in results) else Report(NO_RESULT, "nothing was tested")


def _results(found: Any) -> Iterator[tuple[str, list[int], str, str]]:
    """Yield test, cards, word and text of each result below a JSON value."""
    if isinstance(found, list):
        for one in found:
            yield from _results(one)
    if not isinstance(found, Mapping):
        return
    if isinstance(found.get("name"), str) and isinstance(found.get("results"), list):
        for one in found["results"]:
            if isinstance(one, Mapping) and isinstance(one.get("status"), str):
                yield found["name"], _ids(one), one["status"].strip().lower(), _text(one)
        return
    for value in found.values():
        yield from _results(value)


def _ids(result: Mapping[str, Any]) -> list[int]:
    if result.get("entity_group") not in (None, "GPU"):
        return []
    given = next((result[key] for key in ("gpu_ids", "gpu_id", "entity_id") if result.get(key) is not None), "")
    return [int(one) for one in re.findall(r"\d{1,3}", str(given))]


def _text(result: Mapping[str, Any]) -> str:
    texts = result.get("warnings") or result.get("info") or ""
    return texts if isinstance(texts, str) else " ".join(json.dumps(texts).split())[:200]


ACCEPTANCE = Acceptance(
    tool="dcgmi diag",
    program=lambda device: PROGRAM,
    packages=("datacenter-gpu-manager",),
    tests=_tests,
    command=_command,
    read=read_report,
)
