"""The state of a host in a rollout: one value, which changes by events that a table allows.

What goes well is pending, locked, approved, draining, changing, verified, accepted, serving. Until a host is accepted
its baseline is saved on it, and a failure rolls it back to that; afterwards a failure lets it try to return once more.

A host whose connection is lost keeps its state until all others are done; then event ``lose`` says so. Nothing here is
written down on a host: a rollout that was cut off is resumed by what ``gaudi_facts`` reads, the record of module
``vllm_snapshot`` and the drained servers of gateways.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from ..core.errors import InputError
from ..stages.reset import BROKE, reset_failure
from .figures import slower_models, verified_text

Known = Mapping[str, Any]
# The variable in which playbooks/rollout.yml registers the state of a host.
REGISTERED = "rollout_host"
# The problem of a host whose connection was lost before anything else failed.
LOST = "its connection was lost"


class State(Enum):
    """Where a host is in a rollout."""

    UNCHANGED = "unchanged"  # nothing is pending on it, and no lock is needed
    GATEWAY = "gateway"  # nothing but its gateway may be pending, which changes after the waves; it is locked
    PENDING = "pending"  # is in a wave
    LOCKED = "locked"  # it and all others are locked for this rollout; waits for the approval after the canary
    DEFERRED = "deferred"  # not approved: the next rollout changes it
    APPROVED = "approved"  # changes when its wave begins
    DRAINING = "draining"  # gets no new requests, is measured, and its baseline is saved
    CHANGING = "changing"  # carries out what is pending, then is probed and measured
    VERIFIED = "verified"  # fast enough; its baseline is still saved
    ACCEPTED = "accepted"  # its baseline is dropped; returns to service
    SERVING = "serving"  # serves with the change
    ROLLING_BACK = "rolling_back"  # restores its baseline
    RETURNING = "returning"  # accepted, but did not return to service at once; tries again, with the change
    ROLLED_BACK = "rolled_back"  # serves what served before
    RETURNED = "returned"  # serves with the change; the rollout stops at it nevertheless
    LEFT_DRAINED = "left_drained"  # could not return to service; the next rollout begins with it


class Event(Enum):
    """What happens to a host in a rollout."""

    LOCK = "lock"
    APPROVE = "approve"
    DECLINE = "decline"
    BEGIN = "begin"
    CHANGE = "change"
    VERIFY = "verify"
    ACCEPT = "accept"
    SERVE = "serve"
    FAIL = "fail"
    LOSE = "lose"
    RESTORE = "restore"
    GIVE_UP = "give_up"


S, E = State, Event
TRANSITIONS: Mapping[State, Mapping[Event, State]] = {
    S.UNCHANGED: {E.LOCK: S.GATEWAY, E.APPROVE: S.UNCHANGED, E.DECLINE: S.UNCHANGED},
    S.GATEWAY: {E.APPROVE: S.GATEWAY, E.DECLINE: S.GATEWAY},
    S.PENDING: {E.LOCK: S.LOCKED},
    S.LOCKED: {E.APPROVE: S.APPROVED, E.DECLINE: S.DEFERRED},
    S.DEFERRED: {},
    S.APPROVED: {E.BEGIN: S.DRAINING},
    S.DRAINING: {E.CHANGE: S.CHANGING, E.FAIL: S.ROLLING_BACK, E.LOSE: S.ROLLING_BACK},
    S.CHANGING: {E.VERIFY: S.VERIFIED, E.FAIL: S.ROLLING_BACK, E.LOSE: S.ROLLING_BACK},
    S.VERIFIED: {E.ACCEPT: S.ACCEPTED, E.FAIL: S.ROLLING_BACK, E.LOSE: S.ROLLING_BACK},
    S.ACCEPTED: {E.SERVE: S.SERVING, E.FAIL: S.RETURNING, E.LOSE: S.RETURNING},
    # The canary, when it is decided about the others.
    S.SERVING: {E.APPROVE: S.SERVING, E.DECLINE: S.SERVING},
    S.ROLLING_BACK: {E.RESTORE: S.ROLLED_BACK, E.GIVE_UP: S.LEFT_DRAINED, E.LOSE: S.ROLLING_BACK},
    S.RETURNING: {E.RESTORE: S.RETURNED, E.GIVE_UP: S.LEFT_DRAINED, E.LOSE: S.RETURNING},
    S.ROLLED_BACK: {},
    S.RETURNED: {},
    S.LEFT_DRAINED: {},
}
# A host that is lost in one of these stays drained until somebody does something about it.
UNDER_WAY = {S.DRAINING, S.CHANGING, S.VERIFIED, S.ACCEPTED, S.ROLLING_BACK, S.RETURNING}
# Nobody knows yet that what their plans say serves.
UNACCEPTED = {S.PENDING, S.LOCKED, S.DEFERRED, S.APPROVED, S.DRAINING, S.CHANGING, S.VERIFIED}


@dataclass(frozen=True)
class Failure:
    """Why the rollout stops at a host.

    during: the state that it failed in. problem: the task that failed, and why. locked: which other run has locked the
    host meanwhile; empty if none has. lost: its connection was lost, then or later. stays: why it stays drained.
    """

    during: State
    problem: str
    locked: str = ""
    lost: bool = False
    stays: str = ""


@dataclass(frozen=True)
class RolloutState:
    """A host in a rollout.

    host: its name. wave: from 1, that of the canary; 0 if nothing is pending. failure: why the rollout stops at it.
    figures: how fast it is ``before`` and ``after`` its change, by model, as ``slower_models`` takes them.
    """

    host: str
    state: State = State.UNCHANGED
    wave: int = 0
    failure: Failure | None = None
    figures: Known | None = None

    @classmethod
    def planned(cls, host: str, waves: Sequence[Sequence[str]]) -> RolloutState:
        """Return the first state of a host of the run, by the hosts of each wave."""
        wave = next((number for number, names in enumerate(waves, 1) if host in names), 0)
        return cls(host, State.PENDING if wave else State.UNCHANGED, wave)

    @classmethod
    def of(cls, host: str, registered: Known) -> RolloutState:
        """Return what ``as_dict`` gave."""
        failure = registered["failure"]
        return cls(
            host=host,
            state=State(registered["state"]),
            wave=registered["wave"],
            failure=Failure(**{**failure, "during": State(failure["during"])}) if failure else None,
            figures=registered["figures"],
        )

    def after(self, event: Event, **changes: Any) -> RolloutState:
        """Return the state after an event, with other fields changed too.

        Raises:
            InputError: for an event that the table does not allow in this state.
        """
        allowed = TRANSITIONS[self.state]
        if event not in allowed:
            names = ", ".join(one.value for one in allowed) or "none"
            raise InputError(
                f"{self.host}: event {event.value} of a rollout is not allowed in state {self.state.value}; "
                f"allowed: {names}"
            )
        return replace(self, state=allowed[event], **changes)

    def locked(self) -> RolloutState:
        """Return the state of a host that is locked, as all others are; the canary needs no approval."""
        locked = self.after(Event.LOCK)
        return locked.after(Event.APPROVE) if self.wave == 1 else locked

    def verified(self, before: Known, after: Known, tolerance: float) -> RolloutState:
        """Return the state of a host that is fast enough.

        Args:
            before, after, tolerance: as ``slower_models`` takes them.

        Raises:
            InputError: where it is slower than before, beyond what is allowed.
        """
        found = self.after(Event.VERIFY, figures={"before": before, "after": after})
        if slower := slower_models(before, after, tolerance):
            raise InputError("; ".join(slower))
        return found

    def failed(self, task: str, result: Known) -> RolloutState:
        """Return the state of a host on which a task has failed."""
        # Of a stage that found the host locked by another run: who that is.
        failure = Failure(self.state, f"{task}: {reset_failure(result)}", str(result.get("locked") or ""))
        return self.after(Event.FAIL, failure=failure)

    def lost(self) -> RolloutState:
        """Return the state of a host whose connection was lost."""
        return self.after(Event.LOSE, failure=replace(self.failure or Failure(self.state, LOST), lost=True))

    def given_up(self, task: str, result: Known, unreachable_s: int) -> RolloutState:
        """Return the state of a host that stays drained.

        Args:
            task, result: what has failed.
            unreachable_s: seconds in which it could not be reached; 0 if it could.
        """
        stays = (
            f"it could not be reached for {unreachable_s} s" if unreachable_s else f"{task}: {reset_failure(result)}"
        )
        failure = self.failure or Failure(self.state, LOST)
        return self.after(Event.GIVE_UP, failure=replace(failure, stays=stays))

    @property
    def accepted(self) -> bool:
        """Return whether it is known that the host serves what its plan says."""
        return (self.failure.during if self.failure else self.state) not in UNACCEPTED

    @property
    def under_way(self) -> bool:
        """Return whether the host is drained, and neither serves with the change nor was given up."""
        return self.state in UNDER_WAY

    @property
    def reason(self) -> str:
        """Return in one line why the host is rolled back; empty if it is not."""
        return self.failure.locked or self.failure.problem.splitlines()[0] if self.failure else ""

    @property
    def report(self) -> dict[str, Any]:
        """Return what became of a host: ``outcome``, and ``text`` for a person.

        Of one that was verified there is ``before`` and ``after``; of one at which the rollout stops there is ``why``.
        It is empty while nothing is known.
        """
        if self.failure:
            return _end(self, self.failure)
        if not self.figures:
            return {}
        text = verified_text(self.host, self.figures["before"], self.figures["after"])
        return {"outcome": "verified", **self.figures, "text": text}

    def as_dict(self) -> dict[str, Any]:
        """Return it as tasks read it by name, and as ``of`` takes it.

        ``ended``: the rollout stops at this host, which is no longer under way. ``lost``: its connection was lost, as
        event ``lose`` has said. No key is one that ``failed`` reads of a result, since this may be the one that failed.
        """
        failure = self.failure
        return {
            "state": self.state.value,
            "wave": self.wave,
            "failure": {**asdict(failure), "during": failure.during.value} if failure else None,
            "figures": self.figures,
            "has_lock": self.state not in (State.UNCHANGED, State.PENDING),
            "approved": self.state is State.APPROVED,
            "under_way": self.under_way,
            "accepted": self.accepted,
            "restored": self.state in (State.ROLLED_BACK, State.RETURNED),
            "ended": failure is not None and not self.under_way,
            "lost": failure is not None and failure.lost,
            "reason": self.reason,
            "report": self.report,
        }


def next_state(now: RolloutState, event: Event, given: Known) -> RolloutState:
    """Return the state of a host after an event.

    Args:
        now: its state before.
        event: what has happened.
        given: what is known of it: of ``verify`` ``before``, ``after`` and ``tolerance``; of ``fail`` and ``give_up``
            ``task`` and ``result``, of the latter also ``unreachable_s``.

    Raises:
        InputError: for an event that is not allowed now, and for a host that is slower than before.
    """
    if event is Event.LOCK:
        return now.locked()
    if event is Event.VERIFY:
        return now.verified(given["before"], given["after"], given["tolerance"])
    if event is Event.FAIL:
        return now.failed(given["task"], given["result"])
    if event is Event.LOSE:
        return now.lost()
    if event is Event.GIVE_UP:
        return now.given_up(given["task"], given["result"], given["unreachable_s"])
    return now.after(event)


def rollout_stopped(hostvars: Mapping[str, Known], hosts: Iterable[str], lost: bool = False) -> list[str]:
    """Return the hosts at which a rollout stops, asked while it changes none of them.

    So a host that is still under way has lost its connection; without ``lost`` also those that have failed count.

    Args:
        hostvars: variables by host, with what playbooks/rollout.yml registers; a check of the syntax knows none.
        hosts: those that may have been changed.
        lost: only hosts whose connection was lost.
    """
    keys = ("under_way", "lost") if lost else ("under_way", "ended")
    found = {name: hostvars[name].get(REGISTERED) or {} for name in hosts if name in hostvars}
    return [name for name, registered in found.items() if any(registered.get(key) for key in keys)]


def rollout_reports(hostvars: Mapping[str, Known], hosts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return what became of hosts of a rollout so far, as ``RolloutState.report`` has it; not of those without one."""
    found = {name: (hostvars[name].get(REGISTERED) or {}).get("report") for name in hosts if name in hostvars}
    return {name: report for name, report in found.items() if report}


def _end(now: RolloutState, failure: Failure) -> dict[str, str]:
    """Return what became of a host at which the rollout stops: ``outcome``, ``why``, and ``text`` of both."""
    later = "the other hosts of later waves are as they were"
    # The verdict first; then the lines of the server's journal, which may be many.
    first, _, rest = failure.problem.partition("\n")
    text = _verdict(now.host, failure, first)
    if now.state is State.RETURNED:
        outcome, became = "verified", f"It had passed its checks and serves with the change; {later}"
        text = f"the rollout stops at {now.host}: {first}"
    elif now.state is State.ROLLED_BACK:
        outcome, became = "rolled_back", f"It serves again what served before; {later}"
    else:
        outcome = "left_drained"
        became = f"It could not be rolled back, and stays drained: {failure.stays or LOST}; run this again"
    text = f"{text}. {became}" + (f"\n{rest}" if rest else "")
    return {"outcome": outcome, "why": failure.problem, "text": text}


def _verdict(host: str, failure: Failure, first: str) -> str:
    """Return why a rollout stops at a host; one that was locked, lost or not changed has not failed a check."""
    changed = failure.during is not State.DRAINING
    if failure.locked:
        return f"{host} could not be changed, and the rollout stops: {failure.locked}"
    if first == LOST or first.endswith(BROKE):
        when = "while" if changed else "before"
        return f"{host} could not be reached {when} it was changed, and the rollout stops: {LOST}"
    if not changed:
        return f"{host} was not changed yet, and the rollout stops: {first}"
    return f"{host} failed its checks, and the rollout stops: {first}"
