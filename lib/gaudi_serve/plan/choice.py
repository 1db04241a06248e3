"""The choice of hosts for models over several hosts whose entry has a number of hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..core.words import counted, some_names
from ..model.distributed import GROUP, HOSTS, host_models, hosts_of
from ..model.host import Host
from ..platforms import platform_of
from .assembly import Peer, planned_alone

Known = Mapping[str, Any]
NO_CARDS = "shows no cards: install its driver first (playbooks/driver.yml)"


@dataclass(frozen=True)
class Choice:
    """The hosts of a model, the head first, or the reasons why there are none.

    unread: hosts that must be read first, because they may serve it. reasons: by host, why it does not qualify.
    """

    names: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Candidates:
    """The hosts from which the plan chooses, in the order of the inventory.

    names: all of them. live: by host, ``gaudi_host`` of those that this run has read. peer: returns the requested
    state and the facts of a host, without the models whose hosts are being chosen; None if they are invalid.
    over_nics: returns whether the inventory lets a host's cards use RDMA network cards to other hosts. before: hosts
    that were chosen earlier in this run. parts: the entries chosen before this one, with their hosts.
    """

    names: Sequence[str]
    live: Mapping[str, Known]
    peer: Callable[[str], Peer | None]
    over_nics: Callable[[str], bool] = lambda _: False
    before: Sequence[str] = ()
    parts: Sequence[Known] = ()


def choose_hosts(entry: Known, candidates: Candidates) -> Choice:
    """Return the hosts of an entry of ``vllm_distributed_models`` with a number of hosts.

    Hosts that already serve the model keep it. Their launch files name all of them, also hosts that this run has not
    read. Then come hosts chosen earlier in this run, hosts with a fast network between the cards, and the order of
    the inventory. Each host must be able to have a part now, and all must have the same kind of cards.

    Args:
        entry: The entry, with ``name`` and ``hosts``, a number.
        candidates: The hosts from which to choose.
    """
    count = int(entry[HOSTS])
    kept = [name for name in _serving(str(entry.get("name")), candidates) if name in candidates.names][:count]
    if len(kept) == count:
        return Choice(tuple(kept))
    peers = {name: one for name in candidates.names if name in candidates.live and (one := candidates.peer(name))}
    if unread := tuple(name for name in candidates.names if name not in peers):
        return Choice(unread=unread)
    reasons: dict[str, str] = {}
    for kind, names in _kinds(peers, candidates).items():
        if kept and not {*kept} & {*names}:
            reasons |= dict.fromkeys(names, f"has {kind}, but {kept[0]}, which serves it, has another kind")
            continue
        chosen, why = _of_kind(entry, kept, names, candidates, peers)
        if len(chosen) == count:
            return Choice(tuple(chosen))
        few = f"qualifies, but only {counted(len(chosen), 'host')} with {kind} can have a part"
        reasons |= why | dict.fromkeys(chosen, few)
    return Choice(reasons=reasons)


def _serving(model: str, candidates: Candidates) -> list[str]:
    """Return the hosts that serve a model, the head first, as most of their launch files name them."""
    services = (one.get("services") or {} for one in (candidates.live.get(name, {}) for name in candidates.names))
    groups = [tuple(hosts_of((one.get(model) or {}).get("launch"))) for one in services]
    known = Counter(one for one in groups if one).most_common(1)
    return list(known[0][0]) if known else []


def _kinds(peers: Mapping[str, Peer], candidates: Candidates) -> dict[str, list[str]]:
    """Return the hosts for each kind of cards and release, preferred hosts first."""

    def order(name: str) -> tuple[bool, bool]:
        host = Host.of(peers[name].facts["gaudi_host"])
        fast = platform_of(host.accelerator).scales_out(host) or candidates.over_nics(name)
        return name not in candidates.before, not fast

    found: dict[str, list[str]] = {}
    for name in sorted(peers, key=order):
        host, wanted = peers[name].facts["gaudi_host"], peers[name].wanted
        cards = host.get("device_name") or host["accelerator"]
        found.setdefault(f"{cards}{f' of release {wanted.release}' if wanted.release else ''}", []).append(name)
    return found


def _of_kind(
    entry: Known, kept: Sequence[str], names: Sequence[str], candidates: Candidates, peers: Mapping[str, Peer]
) -> tuple[list[str], dict[str, str]]:
    """Return the first hosts of one kind that can have a part, and the reasons of those that cannot."""
    chosen, reasons = list(kept), dict[str, str]()
    for name in names:
        if len(chosen) < int(entry[HOSTS]) and name not in chosen:
            partners = [*kept, *(one for one in names if one not in (*kept, name))]
            if reason := _unable(entry, name, partners, candidates, peers):
                reasons[name] = reason
            else:
                chosen.append(name)
    return chosen, reasons


def _unable(
    entry: Known, name: str, partners: Sequence[str], candidates: Candidates, peers: Mapping[str, Peer]
) -> str | None:
    """Return why a host cannot have a part of a model; None if it can."""
    peer, count = peers[name], int(entry[HOSTS])
    host = peer.facts["gaudi_host"]
    if platform_of(host["accelerator"]).devices and not host["modules"]:
        return NO_CARDS
    if len(partners) + 1 < count:
        beside = f"has only {counted(len(partners), 'other host')} of its kind"
        return beside if partners else "is the only host of its kind"
    together = [name, *partners[: count - 1]]
    part = {**{key: value for key, value in entry.items() if key != GROUP}, HOSTS: together}
    models = host_models(peer.wanted.models or [], [*candidates.parts, part], name)
    hosts = {one: peers[one].reach for one in together}
    plan = planned_alone(name, replace(peer, wanted=replace(peer.wanted, models=models)), hosts)
    model = str(entry.get("name"))
    wrong = [one.message for one in plan.findings if one.model == model]
    if wrong:
        return wrong[0].removeprefix(f"{name}: ").removeprefix(f"model {model}: ")
    return None if any(one.spec.name == model for one in plan.models) else "has no part of it in its plan"


def refusal_text(entry: Known, choice: Choice) -> str:
    """Return the message that no hosts can be chosen, with the reason of each host."""
    reasons = {**choice.reasons, **dict.fromkeys(choice.unread, "its facts were not read")}
    each = "; ".join(f"{some_names(names)}: {reason}" for reason, names in _by_reason(reasons).items())
    return f"hosts {entry[HOSTS]}: group {entry[GROUP]} has too few hosts that can serve a part of it: {each}"


def _by_reason(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        found.setdefault(reason, []).append(name)
    return found
