"""The state of a host in a rollout, and the events that change it.

The normal order is pending, locked, approved, draining, changing, verified, accepted, serving. Until a host is accepted
its snapshot stays on it, and a failure rolls it back to that snapshot. After that, a failure makes it try once more to
return to service. A host whose connection is lost keeps its state until all others are done; then event ``lose``
follows. Nothing here is stored on a host. An interrupted rollout is resumed from what ``gaudi_facts`` reads, the record
of module ``vllm_snapshot`` and the drained servers of gateways.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from ..core.errors import BROKE, InputError
from ..stages.reset import reset_failure
from .figures import slower_models, verified_text

Known = Mapping[str, Any]
# The variable in which playbooks/rollout.yml registers the state of a host.
REGISTERED = "rollout_host"
# The problem of a host whose connection broke before another failure.
LOST = "its connection was lost"


class State(Enum):
    """The state of a host in a rollout."""

    UNCHANGED = "unchanged"  # No change is pending, and no lock is needed.
    GATEWAY = "gateway"  # At most its gateway changes, after the waves. The host is locked.
    PENDING = "pending"  # It is in a wave.
    LOCKED = "locked"  # All hosts are locked for this rollout. It waits for the approval after the canary.
    DEFERRED = "deferred"  # It is not approved. The next rollout changes it.
    APPROVED = "approved"  # It changes when its wave begins.
    DRAINING = "draining"  # It gets no new requests, is measured, and its snapshot is saved.
    CHANGING = "changing"  # It makes the pending changes, then is probed and measured.
    VERIFIED = "verified"  # It is fast enough. Its snapshot still exists.
    ACCEPTED = "accepted"  # Its snapshot is deleted. It returns to service.
    SERVING = "serving"  # It serves with the change.
    ROLLING_BACK = "rolling_back"  # It restores its snapshot.
    RETURNING = "returning"  # It is accepted, but did not return to service at once. It tries again, with the change.
    ROLLED_BACK = "rolled_back"  # It serves the same models as before.
    RETURNED = "returned"  # It serves with the change, but the rollout stops at it.
    LEFT_DRAINED = "left_drained"  # It could not return to service. The next rollout begins with it.


class Event(Enum):
    """The events of a host in a rollout."""

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
    # The canary receives these events when the other hosts are approved or declined.
    S.SERVING: {E.APPROVE: S.SERVING, E.DECLINE: S.SERVING},
    S.ROLLING_BACK: {E.RESTORE: S.ROLLED_BACK, E.GIVE_UP: S.LEFT_DRAINED, E.LOSE: S.ROLLING_BACK},
    S.RETURNING: {E.RESTORE: S.RETURNED, E.GIVE_UP: S.LEFT_DRAINED, E.LOSE: S.RETURNING},
    S.ROLLED_BACK: {},
    S.RETURNED: {},
    S.LEFT_DRAINED: {},
}
# A host that is lost in one of these states stays drained until the next rollout.
UNDER_WAY = {S.DRAINING, S.CHANGING, S.VERIFIED, S.ACCEPTED, S.ROLLING_BACK, S.RETURNING}
# In these states it is not verified that the host serves what its plan describes.
UNACCEPTED = {S.PENDING, S.LOCKED, S.DEFERRED, S.APPROVED, S.DRAINING, S.CHANGING, S.VERIFIED}


@dataclass(frozen=True)
class Failure:
    """Why the rollout stops at a host.

    during: the state in which it failed. problem: the failed task and its error. locked: the other run that has locked
    the host; empty if none has. lost: its connection was lost, then or later. stays: why it stays drained.
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
    figures: its speed ``before`` and ``after`` its change, by model, as ``slower_models`` takes them.
    """

    host: str
    state: State = State.UNCHANGED
    wave: int = 0
    failure: Failure | None = None
    figures: Known | None = None

    @classmethod
    def planned(cls, host: str, waves: Sequence[Sequence[str]]) -> RolloutState:
        """Return the first state of a host of the run, from the hosts of each wave."""
        wave = next((number for number, names in enumerate(waves, 1) if host in names), 0)
        return cls(host, State.PENDING if wave else State.UNCHANGED, wave)

    @classmethod
    def of(cls, host: str, registered: Known) -> RolloutState:
        """Return the state that ``as_dict`` returned as a dict."""
        failure = registered["failure"]
        return cls(
            host=host,
            state=State(registered["state"]),
            wave=registered["wave"],
            failure=Failure(**{**failure, "during": State(failure["during"])}) if failure else None,
            figures=registered["figures"],
        )

    def after(self, event: Event, **changes: Any) -> RolloutState:
        """Return the state after an event, with changed fields.

        Raises:
            InputError: The table does not allow the event in this state.
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
        """Return the state of a locked host. The canary needs no approval."""
        locked = self.after(Event.LOCK)
        return locked.after(Event.APPROVE) if self.wave == 1 else locked

    def verified(self, before: Known, after: Known, least_speed: float) -> RolloutState:
        """Return the state of a host that is fast enough.

        Args:
            before: See ``slower_models``.
            after: See ``slower_models``.
            least_speed: See ``slower_models``.

        Raises:
            InputError: The host is slower than the required part of its earlier speed.
        """
        found = self.after(Event.VERIFY, figures={"before": before, "after": after})
        if slower := slower_models(before, after, least_speed):
            raise InputError("; ".join(slower))
        return found

    def failed(self, task: str, result: Known) -> RolloutState:
        """Return the state of a host after a failed task."""
        # If another run has locked the host, the result names that run.
        failure = Failure(self.state, f"{task}: {reset_failure(result)}", str(result.get("locked") or ""))
        return self.after(Event.FAIL, failure=failure)

    def lost(self) -> RolloutState:
        """Return the state of a host whose connection was lost."""
        return self.after(Event.LOSE, failure=replace(self.failure or Failure(self.state, LOST), lost=True))

    def given_up(self, task: str, result: Known, unreachable_s: int) -> RolloutState:
        """Return the state of a host that stays drained.

        Args:
            task: The failed task.
            result: Its result.
            unreachable_s: Seconds for which the host was unreachable; 0 if it was not.
        """
        stays = (
            f"it could not be reached for {unreachable_s} s" if unreachable_s else f"{task}: {reset_failure(result)}"
        )
        failure = self.failure or Failure(self.state, LOST)
        return self.after(Event.GIVE_UP, failure=replace(failure, stays=stays))

    @property
    def accepted(self) -> bool:
        """Return whether the host is known to serve what its plan describes."""
        return (self.failure.during if self.failure else self.state) not in UNACCEPTED

    @property
    def under_way(self) -> bool:
        """Return whether the host is drained, and neither serves with the change nor was given up."""
        return self.state in UNDER_WAY

    @property
    def reason(self) -> str:
        """Return in one line why the host is rolled back, or an empty text."""
        return self.failure.locked or self.failure.problem.splitlines()[0] if self.failure else ""

    @property
    def report(self) -> dict[str, Any]:
        """Return the result for a host: ``outcome``, and ``text`` for a person.

        A verified host also has ``before`` and ``after``; a host at which the rollout stops has ``why``. Empty until
        the result is known.
        """
        if self.failure:
            return _end(self, self.failure)
        if not self.figures:
            return {}
        text = verified_text(self.host, self.figures["before"], self.figures["after"])
        return {"outcome": "verified", **self.figures, "text": text}

    def as_dict(self) -> dict[str, Any]:
        """Return the dict that tasks read and ``of`` takes.

        ``ended``: the rollout stops at this host, and the host is done. ``lost``: its connection was lost, from event
        ``lose``. ``failed`` may receive this dict as a result, so it has none of the keys that ``failed`` reads.
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
        now: The state before the event.
        event: The event.
        given: Its data: ``before``, ``after`` and ``least_speed`` of ``verify``; ``task`` and ``result`` of ``fail``
            and ``give_up``; also ``unreachable_s`` of ``give_up``.

    Raises:
        InputError: The event is not allowed now, or the host is slower than before.
    """
    if event is Event.LOCK:
        return now.locked()
    if event is Event.VERIFY:
        return now.verified(given["before"], given["after"], given["least_speed"])
    if event is Event.FAIL:
        return now.failed(given["task"], given["result"])
    if event is Event.LOSE:
        return now.lost()
    if event is Event.GIVE_UP:
        return now.given_up(given["task"], given["result"], given["unreachable_s"])
    return now.after(event)


def rollout_stopped(hostvars: Mapping[str, Known], hosts: Iterable[str], lost: bool = False) -> list[str]:
    """Return the hosts at which a rollout stops. Call it while the rollout changes none of them.

    A host that is still under way then has lost its connection. Without ``lost``, failed hosts count too.

    Args:
        hostvars: Variables by host, with what playbooks/rollout.yml registers. A syntax check has none.
        hosts: The hosts that may have been changed.
        lost: Return only hosts whose connection was lost.
    """
    keys = ("under_way", "lost") if lost else ("under_way", "ended")
    found = {name: hostvars[name].get(REGISTERED) or {} for name in hosts if name in hostvars}
    return [name for name, registered in found.items() if any(registered.get(key) for key in keys)]


def rollout_reports(hostvars: Mapping[str, Known], hosts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the results for hosts of a rollout so far, as in ``RolloutState.report``."""
    found = {name: (hostvars[name].get(REGISTERED) or {}).get("report") for name in hosts if name in hostvars}
    return {name: report for name, report in found.items() if report}


def _end(now: RolloutState, failure: Failure) -> dict[str, str]:
    """Return the result for a host at which the rollout stops: ``outcome``, ``why``, and ``text`` of both."""
    later = "the other hosts of later waves are unchanged"
    # The verdict is first. The lines of the server's journal follow, which can be many.
    first, _, rest = failure.problem.partition("\n")
    text = _verdict(now.host, failure, first)
    if now.state is State.RETURNED:
        outcome, became = "verified", f"It had passed its checks and serves with the change; {later}"
        text = f"the rollout stops at {now.host}: {first}"
    elif now.state is State.ROLLED_BACK:
        outcome, became = "rolled_back", f"It serves the same models as before; {later}"
    else:
        outcome = "left_drained"
        became = f"It could not be rolled back, and stays drained: {failure.stays or LOST}; run this again"
    text = f"{text}. {became}" + (f"\n{rest}" if rest else "")
    return {"outcome": outcome, "why": failure.problem, "text": text}


def _verdict(host: str, failure: Failure, first: str) -> str:
    """Return why a rollout stops at a host. A locked, lost or unchanged host has not failed a check."""
    changed = failure.during is not State.DRAINING
    if failure.locked:
        return f"{host} could not be changed, and the rollout stops: {failure.locked}"
    if first == LOST or first.endswith(BROKE):
        when = "while" if changed else "before"
        return f"{host} could not be reached {when} it was changed, and the rollout stops: {LOST}"
    if not changed:
        return f"{host} was not changed yet, and the rollout stops: {first}"
    return f"{host} failed its checks, and the rollout stops: {first}"
