"""Acceptance tests of a platform's cards: what its vendor's tool runs, and how its report is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PASSED, FAILED, NO_RESULT = "passed", "failed", "no result"
# Before a host serves, and for a new machine.
QUICK, LONG = "quick", "long"
SUITES = (QUICK, LONG)
Card = Mapping[str, Any]


@dataclass(frozen=True)
class AcceptanceTest:
    """One run of the vendor's tool.

    name: how messages call it. about: what it tests. arguments: of the tool. minutes: about how long it takes, an
    estimate. unlocked: it needs the driver loaded with the parameter that lets a command run without a limit.
    """

    name: str
    about: str
    arguments: tuple[str, ...]
    minutes: int
    unlocked: bool = False

    @property
    def limit_s(self) -> int:
        """Return the seconds after which it is ended: three times the estimate, and ten minutes."""
        return self.minutes * 180 + 600


@dataclass(frozen=True)
class KnownFailure:
    """A test that healthy cards are known to fail.

    test: its name. device: how the names of the cards begin. source: who says so. releases: how the releases of the
    driver begin; empty for all.
    """

    test: str
    device: str
    source: str
    releases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """What a report says: a verdict, why it is no pass, and the places of the cards that failed, where it says them."""

    verdict: str
    why: str = ""
    failed: tuple[int, ...] = ()


@dataclass(frozen=True)
class Unlocked:
    """How the driver is loaded for the tests that need it without a limit of time for commands.

    modules: kernel modules in the order of loading, of which those count that are loaded. parameter: of the last one.
    ports: the program beside the tool that brings the ports between the cards down and up, and shows them.
    """

    modules: tuple[str, ...]
    parameter: str
    ports: str


def _nothing_set() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class Acceptance:
    """The acceptance tests of a platform.

    tool: how messages call it. program: its path, by the name of the cards; empty where it has none for them. packages:
    those that bring it. tests: of a suite, by the name of the cards. command: program and arguments of a test, by the
    name of the cards and the cards; None for all of the host. read: what a report says, by exit status and output, of
    the cards in their order. env: variables of the tool. folders: those that must be there for it. known: tests that
    healthy cards fail.
    """

    tool: str
    program: Callable[[str], str]
    packages: tuple[str, ...]
    tests: Callable[[str, str], tuple[AcceptanceTest, ...]]
    command: Callable[[AcceptanceTest, str, Sequence[Card] | None], list[str]]
    read: Callable[[int, str, Sequence[Card]], Report]
    env: Mapping[str, str] = field(default_factory=_nothing_set)
    folders: tuple[str, ...] = ()
    known: tuple[KnownFailure, ...] = ()
    unlocked: Unlocked | None = None

    def known_failure(self, test: str, device: str, release: str) -> KnownFailure | None:
        """Return what is known of a test that healthy cards of a name fail with a release of the driver."""
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
