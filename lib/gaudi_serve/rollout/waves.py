"""The order in which a rollout changes hosts, so that enough servers of every model stay, and its refusals.

Pure functions of the facts of preflight. A drained host serves none of its models, so each of them counts as away
while the host is in its wave.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..core.checks import is_flag_text, is_true
from ..core.errors import InputError, is_number, near, readable, refusal, shown, whole
from ..core.served import served_names
from ..core.table import table
from ..core.words import counted
from ..gateway.fleet import Entry, entry_of
from ..model.distributed import answers, hosts_of
from ..plan.downtime import Down, downtimes
from ..stages.changes import StageChanges
from ..stages.registry import OF_FLEET, STAGES
from .state import REGISTERED, State

Known = Mapping[str, Any]
SERIAL = "20%"
LEAST_SPEED = 0.8
DRAIN_S = 600
RECONNECT_S = 300
PERCENT = re.compile(r"(\d{1,3})%", re.ASCII)
# The variables of a rollout, and how their names begin.
PREFIX = "rollout_"
SETTINGS = (
    *("rollout_canary", "rollout_serial", "rollout_least_speed", "rollout_drain_timeout", "rollout_approved"),
    *("rollout_downtime_allowed", "rollout_drain_command", "rollout_ready_command", "rollout_reconnect_timeout"),
    "rollout_as_approved",
)
# Variables that the playbook sets itself.
SAID = ("rollout_plan", REGISTERED)


@dataclass(frozen=True)
class Settings:
    """The settings of a rollout.

    canary: the first host; empty for the first of the inventory. serial: hosts per later wave, as a number or a
    percentage. least_speed: required part of a host's earlier speed, from 0 to 1. drain_s: seconds in which the running
    requests of a host must end. reconnect_s: seconds in which a lost host must be reachable again. downtime_allowed:
    models may be without any server. drains: requests can be kept away from a host.
    """

    canary: str = ""
    serial: int | str = SERIAL
    least_speed: float = LEAST_SPEED
    drain_s: int = DRAIN_S
    reconnect_s: int = RECONNECT_S
    downtime_allowed: bool = False
    drains: bool = True

    def most(self, hosts: int) -> int:
        """Return the most hosts of a wave, of ``hosts`` in total."""
        found = PERCENT.fullmatch(str(self.serial))
        return max(1, hosts * int(found[1]) // 100) if found else int(self.serial)


@dataclass(frozen=True)
class Member:
    """A host that a rollout changes.

    due: its pending changes, by stage. down: its models that are taken down, and for how long. served: by unit, the
    names for clients of the models that it serves now.
    """

    name: str
    due: Mapping[str, Sequence[str]]
    down: tuple[Down, ...]
    served: Mapping[str, tuple[str, ...]]

    def away(self, drains: bool) -> frozenset[str]:
        """Return the models that the host does not serve while it is changed."""
        down = {one.model for one in self.down}
        return frozenset(name for unit, names in self.served.items() if drains or unit in down for name in names)


def read_settings(variables: Known, hosts: Sequence[str]) -> Settings:
    """Return the settings of a rollout.

    Args:
        variables: The variables of any host, with ``rollout_*`` and ``preflight_gateways``.
        hosts: The hosts of the run.

    Raises:
        InputError: A value is invalid, or a name that begins with ``rollout_`` is unknown.
    """
    for name in variables:
        if str(name).startswith(PREFIX) and name not in (*SETTINGS, *SAID):
            raise refusal("", readable(name), None, f"is not a variable of a rollout{near(name, SETTINGS, 1)}")
    # A survey sets an empty text for an unanswered question.
    given = {name: None if variables.get(name) == "" else variables.get(name) for name in SETTINGS}
    canary = given["rollout_canary"]
    if canary is not None and canary not in hosts:
        hint = near(canary, hosts, 1) or f"; there are {', '.join(hosts)}"
        raise refusal("", "rollout_canary", canary, f"is not a host of this run{hint}")
    for name in ("rollout_approved", "rollout_downtime_allowed", "rollout_as_approved"):
        if given[name] is not None and not is_flag_text(given[name]):
            raise refusal("", name, given[name], "is not true or false")
    for name in ("rollout_drain_command", "rollout_ready_command"):
        if given[name] is not None and not (isinstance(given[name], str) and str(given[name]).strip()):
            raise refusal("", name, given[name], "is not a command; write program and arguments as one text")
    commands = [given[name] for name in ("rollout_drain_command", "rollout_ready_command")]
    if bool(commands[0]) != bool(commands[1]):
        raise InputError(
            "rollout_drain_command and rollout_ready_command: set both, or hosts would stay out of service"
        )
    return Settings(
        canary=canary or "",
        serial=_serial(given["rollout_serial"]),
        least_speed=_least_speed(given["rollout_least_speed"]),
        drain_s=_seconds("rollout_drain_timeout", given, DRAIN_S),
        reconnect_s=_seconds("rollout_reconnect_timeout", given, RECONNECT_S),
        downtime_allowed=is_true(given["rollout_downtime_allowed"]),
        drains=bool(commands[0] or variables.get("preflight_gateways")),
    )


def _seconds(name: str, given: Known, default: int) -> int:
    return default if given[name] is None else whole("", name, given[name], 1, 86_400)


def _serial(value: Any) -> int | str:
    if value is None:
        return SERIAL
    found = PERCENT.fullmatch(value) if isinstance(value, str) else None
    if found and 1 <= int(found[1]) <= 100:
        return str(value)
    try:
        return whole("", "rollout_serial", value, 1, 10_000)
    except InputError:
        allowed = "is neither a number of hosts nor a percentage, such as 20%"
        raise refusal("", "rollout_serial", value, allowed) from None


def _least_speed(value: Any) -> float:
    if value is None:
        return LEAST_SPEED
    number = float(value) if isinstance(value, str) and re.fullmatch(r"[01]?\.?\d{1,6}", value, re.ASCII) else value
    if not is_number(number, 0, 1):
        allowed = "is not a number from 0 to 1: the required part of a host's earlier speed"
        raise refusal("", "rollout_least_speed", value, allowed)
    return float(number)


def members(hostvars: Mapping[str, Known], hosts: Sequence[str]) -> list[Member]:
    """Return the hosts with pending changes, and those that an earlier rollout has left drained.

    Args:
        hostvars: Variables by host, with the facts of preflight.
        hosts: The hosts of the run.
    """
    pending = {name: StageChanges.of(hostvars[name]).pending for name in hosts}
    due = {
        name: {stage: lines for stage, lines in found.items() if stage not in OF_FLEET}
        for name, found in pending.items()
    }
    kept = {name for name in hosts if (hostvars[name].get("gaudi_services") or {}).get("kept")}
    changed = {*_drained(hostvars, hosts), *kept, *(name for name in hosts if due[name])}
    # Hosts that serve a model together change together.
    tied = {name for part in _units(hostvars, hosts) if changed & {*part} for name in part}
    return [
        Member(name, due[name], tuple(downtimes(hostvars[name])), serving(hostvars[name]))
        for name in hosts
        if name in tied
    ]


def _drained(hostvars: Mapping[str, Known], hosts: Sequence[str]) -> set[str]:
    found = set()
    for name in hosts:
        live = hostvars[name].get("gaudi_haproxy") or {}
        kept = {one["name"] for one in live.get("states", []) if one["drained"]}
        # A server's name is that of its host and its unit, and both may contain dots.
        found |= {one["host"] for one in live.get("servers", []) if f"{one['host']}.{one['unit']}" in kept}
    return found


def serving(known: Known) -> dict[str, tuple[str, ...]]:
    """Return the models that a host serves now: by unit, their names for clients."""
    services = (known.get("gaudi_host") or {}).get("services") or {}
    launches = {name: one.get("launch") or {} for name, one in services.items() if one.get("active")}
    # A part of a model is not a separate server. Its head is in the same wave.
    return {name: served_names(name, one.get("command") or ()) for name, one in launches.items() if answers(one)}


def _counted(hostvars: Mapping[str, Known], hosts: Sequence[str]) -> dict[str, int]:
    """Return the number of hosts that serve each model."""
    found: dict[str, int] = {}
    for name in hosts:
        for model in {one for names in serving(hostvars[name]).values() for one in names}:
            found[model] = found.get(model, 0) + 1
    return found


def least(hostvars: Mapping[str, Known], hosts: Sequence[str]) -> dict[str, int]:
    """Return the number of servers of each model that must stay: ``min_available`` of its entry, or all but one.

    If entries differ, the largest number applies.
    """
    said = _min_available(hostvars, hosts)
    return {model: said.get(model, max(1, count - 1)) for model, count in _counted(hostvars, hosts).items()}


def _min_available(hostvars: Mapping[str, Known], hosts: Sequence[str]) -> dict[str, int]:
    """Return ``min_available`` of the planned models, by their names for clients."""
    said: dict[str, int] = {}
    for name in hosts:
        for planned in (hostvars[name].get("preflight_plan") or {}).get("models", []):
            if planned.get("min_available") is not None:
                for one in planned.get("served") or [planned]:
                    served = str(one["served_model_name"])
                    said[served] = max(said.get(served, 0), int(planned["min_available"]))
    return said


def rollout_plan(hostvars: Mapping[str, Known], hosts: Sequence[str], variables: Known) -> dict[str, Any]:
    """Return the waves of a rollout.

    Args:
        hostvars: Variables by host, with the facts of preflight.
        hosts: The hosts of the run.
        variables: The variables of any host, with ``rollout_*``.

    Returns:
        ``waves``: lists of hosts, the canary alone first; ``lines`` of text; ``steps``, one sentence per host;
        ``refusal``: sentences, empty if it may begin; ``settings``.
    """
    try:
        settings = read_settings(variables, hosts)
    except InputError as problem:
        return {"waves": [], "lines": [], "steps": [], "refusal": [str(problem)], "settings": {}}
    servers = _counted(hostvars, hosts)
    needed, changed = least(hostvars, hosts), members(hostvars, hosts)
    absent = [name for name in variables.get("preflight_gateways") or [] if name not in hosts]
    reasons = _refusal(changed, servers, needed, settings) + [
        f"{name}: is a gateway outside this run, which would send requests to hosts that are down; "
        "add it to --limit, or repair it"
        for name in absent
    ]
    by_name = {one.name: one for one in changed}
    units = [[by_name[name] for name in part] for part in _units(hostvars, list(by_name))]
    waves = [] if reasons else _waves(units, servers, needed, settings)
    return {
        "waves": [[one.name for one in wave] for wave in waves],
        "lines": [*_lines(waves, servers, needed, settings), *_afterwards(hostvars, hosts)],
        "steps": [_sentence(*row) for row in _rows(waves, servers, settings)],
        "refusal": reasons,
        "settings": asdict(settings),
    }


def _refusal(
    changed: Sequence[Member], servers: Mapping[str, int], needed: Mapping[str, int], settings: Settings
) -> list[str]:
    """Return the models of which too few servers would stay, even with one host at a time."""
    reasons = []
    for model in sorted({model for one in changed for model in one.away(settings.drains)}):
        stay = servers[model] - 1
        if stay >= needed[model] or settings.downtime_allowed:
            continue
        hosts = ", ".join(one.name for one in changed if model in one.away(settings.drains))
        if servers[model] == 1:
            text = "has one server on the hosts of this run, and no other serves it while that one is changed"
        else:
            count = f"{counted(servers[model], 'server')} on the hosts of this run"
            text = f"has {count}, of which min_available {needed[model]} must stay"
        reasons.append(f"{hosts}: model {shown(model)}: {text}; add one, or allow it: -e rollout_downtime_allowed=true")
    return reasons


def _waves(
    units: Sequence[Sequence[Member]], servers: Mapping[str, int], needed: Mapping[str, int], settings: Settings
) -> list[list[Member]]:
    """Return the waves: the canary first, then the largest possible ones, in the inventory's order.

    units: hosts that change together, usually one. The canary's unit is the first wave.
    """
    order = sorted(units, key=lambda unit: settings.canary not in [one.name for one in unit])
    waves: list[list[Member]] = [list(order[0])] if order else []
    for unit in order[1:]:
        wave = [*waves[-1], *unit]
        enough = all(
            servers[model] - sum(model in other.away(settings.drains) for other in wave) >= needed[model]
            for one in unit
            for model in one.away(settings.drains)
        )
        allowed = len(waves) > 1 and len(wave) <= settings.most(sum(map(len, units))) and enough
        waves[-1:] = [wave] if allowed else [waves[-1], list(unit)]
    return waves


def _lines(
    waves: Sequence[Sequence[Member]], servers: Mapping[str, int], needed: Mapping[str, int], settings: Settings
) -> list[str]:
    """Return the plan as lines of text, for a person to read before the rollout."""
    if not waves:
        return ["no host has pending changes"]
    rows = [["WAVE", "HOST", "DUE", "AWAY", "STAY"], *_rows(waves, servers, settings)]
    count = sum(map(len, waves))
    tail = [f"{counted(count, 'host')} in {counted(len(waves), 'wave')}"]
    most = settings.most(count)
    if len(waves) > 2 and most > max(map(len, waves[1:])):
        short = min(needed, key=lambda model: servers[model] - needed[model])
        tail.append(
            f"waves are smaller than {settings.serial}, because {counted(needed[short], 'server')} of {short} must stay"
        )
    if settings.canary and settings.canary != waves[0][0].name:
        tail.append(f"rollout_canary {settings.canary}: it has no pending changes, so {waves[0][0].name} comes first")
    if not settings.drains:
        tail.append(
            "no gateway and no rollout_drain_command: requests are lost that a host processes when its models stop"
        )
    return [*table(rows), *tail]


def _afterwards(hostvars: Mapping[str, Known], hosts: Sequence[str]) -> list[str]:
    """Return the pending changes of gateways and monitoring. They follow the waves and stop no model."""
    due = {name: StageChanges.of(hostvars[name], OF_FLEET).pending for name in hosts}
    return [
        f"{stage} {name}, when the waves are done: {'; '.join(due[name][stage])}"
        for stage in OF_FLEET
        for name in hosts
        if due[name].get(stage)
    ]


def _rows(waves: Sequence[Sequence[Member]], servers: Mapping[str, int], settings: Settings) -> list[list[str]]:
    """Return rows of wave, host, pending stages, models that are away, and the remaining servers of each."""
    rows = []
    for number, wave in enumerate(waves, 1):
        for one in wave:
            alone = "return to service" if len(wave) == 1 else "serves a model with the others"
            stages = ", ".join(STAGES[stage] for stage in one.due) or alone
            away = sorted(one.away(settings.drains))
            gone = {model: sum(model in other.away(settings.drains) for other in wave) for model in away}
            stay = ", ".join(f"{model} {servers[model] - gone[model]}/{servers[model]}" for model in away) or "-"
            canary = " canary" if number == 1 else ""
            rows.append([f"{number}{canary}", one.name, stages, _away(one, settings.drains), stay])
    return rows


def _sentence(wave: str, host: str, due: str, away: str, stay: str) -> str:
    number, _, canary = wave.partition(" ")
    return f"Wave {number}{canary and ', the canary'}: {host}, for {due}; away: {away}; servers that stay: {stay}."


def _away(one: Member, drains: bool) -> str:
    """Return the models that are away, with their downtime, or that the host is only drained."""
    minutes = {down.model: down.minutes for down in one.down}
    stopped = [f"{model} {'for good' if time is None else f'{time} min'}" for model, time in minutes.items()]
    return ", ".join(stopped) or ("drained" if drains and one.served else "-")


def unverified_hosts(hostvars: Mapping[str, Known], host: str) -> list[str]:
    """Return the hosts that serve a model together with a verified host and are not verified themselves.

    Args:
        hostvars: Variables by host, with what playbooks/rollout.yml registers.
        host: The verified host. The others have run the same tasks.
    """
    tied = {name for hosts in groups_of(hostvars[host]).values() for name in hosts if name != host}
    states = {name: (hostvars[name].get(REGISTERED) or {}).get("state") for name in tied if name in hostvars}
    return sorted(name for name, state in states.items() if state != State.VERIFIED.value)


def hosts_down_at_once(hostvars: Mapping[str, Known], hosts: Sequence[str]) -> list[str]:
    """Return the hosts whose serving models a run would take down at the same time; empty for only one.

    Args:
        hostvars: Variables by host, with the facts of preflight.
        hosts: The hosts of the run.
    """
    found = hosts_down(hostvars, hosts)
    return found if len(_units(hostvars, found)) > 1 else []


def hosts_down(hostvars: Mapping[str, Known], hosts: Sequence[str]) -> list[str]:
    """Return the hosts whose serving models a run would take down for some time.

    Args:
        hostvars: Variables by host, with the facts of preflight.
        hosts: The hosts of the run.
    """
    return [name for name in hosts if any(one.minutes is not None for one in downtimes(hostvars[name]))]


def groups_of(known: Known) -> dict[str, list[str]]:
    """Return the planned and live models of a host that run on several hosts, each with all its hosts."""
    services = (known.get("gaudi_host") or {}).get("services") or {}
    live = {name: hosts_of(one.get("launch")) for name, one in services.items()}
    planned = {str(one["name"]): hosts_of(one) for one in (known.get("preflight_plan") or {}).get("models", [])}
    return {name: hosts for name, hosts in {**live, **planned}.items() if hosts}


def _units(hostvars: Mapping[str, Known], hosts: Sequence[str]) -> list[list[str]]:
    """Return groups of hosts that change together because a model runs on all of them, in the order of the hosts."""
    parts: list[list[str]] = []
    for name in hosts:
        tied = {other for others in groups_of(hostvars[name]).values() for other in others}
        joined = [part for part in parts if tied & {*part} or name in part]
        merged = [*[one for part in joined for one in part], name]
        parts = [part for part in parts if part not in joined] + [merged]
    order = {name: place for place, name in enumerate(hosts)}
    return sorted((sorted(part, key=order.__getitem__) for part in parts), key=lambda part: order[part[0]])


def restarted_at_once(hostvars: Mapping[str, Known], hosts: Sequence[str], model: str) -> list[str]:
    """Return the hosts on which a restart would take a model down at the same time; empty for only one.

    Args:
        hostvars: Variables by host, with ``gaudi_services``.
        hosts: The hosts of the run.
        model: The name of the model.
    """
    units = {name: (hostvars[name].get("gaudi_services") or {}).get("units") or {} for name in hosts}
    found = [name for name in hosts if (units[name].get(model) or {}).get("active")]
    tied = {tuple(hosts_of(units[name][model].get("launch")) or [name]) for name in found}
    return found if len(tied) > 1 else []


def too_few_servers(
    hostvars: Mapping[str, Known], hosts: Sequence[str], gateways: Sequence[str], model: str = ""
) -> list[str]:
    """Return why a run would leave too few servers of a model behind a gateway, as sentences.

    ``min_available`` of the planned model must stay, or all servers but the one that the run takes down. A server that
    is drained or down already, such as that of another run, does not stay.

    Args:
        hostvars: Variables by host. Gateways have ``gaudi_haproxy``; one without is not judged.
        hosts: The hosts of the run.
        gateways: The gateways of the inventory.
        model: The only unit that the run takes down; without it, hosts have the facts of preflight.
    """
    down = {
        (name, unit)
        for name in hosts
        for unit in ([model] if model else [one.model for one in downtimes(hostvars[name]) if one.minutes is not None])
    }
    needed = _min_available(hostvars, hosts)
    reasons = []
    for gateway in gateways:
        live = (hostvars[gateway].get("gaudi_haproxy") or {}) if gateway in hostvars else {}
        usable = {one["name"] for one in live.get("states", []) if one["up"] and not one["drained"] | one["maintained"]}
        by_model: dict[str, list[Entry]] = {}
        for entry in map(entry_of, live.get("servers", [])):
            by_model.setdefault(entry.model, []).append(entry)
        for served, entries in sorted(by_model.items()):
            taken = sorted(one.host for one in entries if (one.host, one.unit) in down and one.name in usable)
            away = sorted(one.host for one in entries if (one.host, one.unit) not in down and one.name not in usable)
            stay = len(entries) - len(away) - sum((one.host, one.unit) in down for one in entries)
            least = needed.get(served, stay + len(away))
            if taken and stay < least:
                reasons.append(
                    f"{', '.join(taken)}: model {shown(served)}: {stay} of {counted(len(entries), 'server')} behind "
                    f"gateway {gateway} would serve, of which {least} must stay"
                    + (f"; {', '.join(away)} is drained or down" if away else "")
                )
    return reasons
