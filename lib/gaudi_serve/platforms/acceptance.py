"""Acceptance tests of a platform's cards: the runs of its vendor's tool, and the reader of its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Not tested: the tool reports that it did not test. No result: its report is incomplete, or missing.
PASSED, FAILED, NO_RESULT, NOT_TESTED = "passed", "failed", "no result", "not tested"
# Before a host serves, and for a new machine.
QUICK, LONG = "quick", "long"
SUITES = (QUICK, LONG)
Card = Mapping[str, Any]


@dataclass(frozen=True)
class AcceptanceTest:
    """One run of the vendor's tool.

    name: its name in messages. about: what it tests. arguments: of the tool. minutes: estimated duration. unlocked: it
    needs the driver loaded with the parameter that removes the time limit of commands.
    """

    name: str
    about: str
    arguments: tuple[str, ...]
    minutes: int
    unlocked: bool = False

    @property
    def limit_s(self) -> int:
        """Return the time limit in seconds: three times the estimate, and ten minutes."""
        return self.minutes * 180 + 600


@dataclass(frozen=True)
class KnownFailure:
    """A test that healthy cards are known to fail.

    test: its name. device: first part of the cards' names. source: the source of this information. releases: first
    parts of the affected driver releases; empty for all.
    """

    test: str
    device: str
    source: str
    releases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """The content of a report.

    why: the reason if it is no pass, or a note. failed, untested: the indices of these cards, if the report lists them.
    """

    verdict: str
    why: str = ""
    failed: tuple[int, ...] = ()
    untested: tuple[int, ...] = ()

    def of_card(self, place: int) -> str:
        """Return the verdict of one card: if a report lists cards, the others have passed."""
        if place in self.untested:
            return NOT_TESTED
        listed = self.failed if self.verdict == FAILED else self.untested
        return PASSED if listed and place not in listed else self.verdict


@dataclass(frozen=True)
class Unlocked:
    """How the driver is loaded for tests that need commands without a time limit.

    modules: kernel modules in the order of loading; those that are not loaded are skipped. parameter: of the last one.
    ports: the program next to the tool that sets the ports between the cards down and up, and shows them.
    """

    modules: tuple[str, ...]
    parameter: str
    ports: str


def _nothing_set() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class Acceptance:
    """The acceptance tests of a platform.

    tool: its name in messages. program: its path, by the name of the cards; empty if it does not support them.
    packages: those that provide it. tests: of a suite, by the name of the cards. command: program and arguments of a
    test, by the name of the cards and the cards; None for all of the host. read: the parser of a report, by exit
    status, output, the cards in their order, and the test. env: variables of the tool. folders: folders that it needs.
    known: tests that healthy cards fail.
    """

    tool: str
    program: Callable[[str], str]
    packages: tuple[str, ...]
    tests: Callable[[str, str], tuple[AcceptanceTest, ...]]
    command: Callable[[AcceptanceTest, str, Sequence[Card] | None], list[str]]
    read: Callable[[int, str, Sequence[Card], AcceptanceTest], Report]
    env: Mapping[str, str] = field(default_factory=_nothing_set)
    folders: tuple[str, ...] = ()
    known: tuple[KnownFailure, ...] = ()
    unlocked: Unlocked | None = None

    def known_failure(self, test: str, device: str, release: str) -> KnownFailure | None:
        """Return the known failure of a test for healthy cards of a name with a release of the driver."""
        return next(
            (
                one
                for one in self.known
                if one.test == test
                and device.startswith(one.device)
                and (not one.releases or release.startswith(one.releases))
            ),
            None,
        )
