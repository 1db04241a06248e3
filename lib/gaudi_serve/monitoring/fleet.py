"""The watched hosts and models of a fleet, from the plans of its hosts, and their addresses.

Pure functions of an inventory's variables. Prometheus queries its own host on loopback. The other hosts open one port,
on which both sides authenticate with certificates (docs/guides/monitoring.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..core.errors import InputError
from ..gateway.fleet import fleet_address, is_gateway
from ..gateway.inputs import read_gateway
from ..host import certificate
from ..host.smoke import EVERYWHERE
from ..model.distributed import answers
from .settings import NAME, Monitoring, read_monitoring

Known = Mapping[str, Any]
LOOPBACK = "127.0.0.1"
# Settings that every watched host needs.
SHARED = ("exporters_port", "node_exporter_port", "cards_port")


@dataclass(frozen=True)
class Endpoint:
    """One model's server: its address on its host, and its objectives.

    model: its name on the host. served: its name for clients. slo: its objectives in the inventory.
    """

    model: str
    served: str
    address: str
    port: int
    slo: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Watched:
    """One watched host.

    address: its address for Prometheus. certificate: the certificate that identifies it; empty if it has none, or if no
    other host queries it. gateway: loopback port of its gateway's metrics, or 0. usage: whether its gateway counts
    tokens by client. cards: whether it has cards.
    """

    host: str
    address: str
    certificate: str = ""
    gateway: int = 0
    usage: bool = False
    cards: bool = False
    models: tuple[Endpoint, ...] = ()

    @classmethod
    def of(cls, given: Known) -> Watched:
        """Return the watched host of a mapping.

        Raises:
            InputError: for an invalid mapping, for example from a file that a user has edited.
        """
        try:
            return cls(**{**given, "models": tuple(Endpoint(**one) for one in given.get("models", ()))})
        except TypeError as problem:
            raise InputError(f"a watched host: {problem}") from problem


@dataclass(frozen=True)
class Watcher:
    """A host with Prometheus, and its client certificate; None if this run has not read the host."""

    host: str
    certificate: str | None


def fleet_monitors(hostvars: Mapping[str, Known], hosts: Iterable[str]) -> list[str]:
    """Return the hosts of an inventory that run Prometheus: those with a mapping ``fleet_monitoring``."""
    return [name for name in hosts if is_monitor(hostvars[name])]


def is_monitor(variables: Known) -> bool:
    """Return whether a host runs Prometheus; also True for an unreadable value, which the host's checks refuse."""
    try:
        return isinstance(variables.get(NAME), Mapping)
    # Ansible and Jinja raise many kinds of errors here.
    except Exception:
        return True


def fleet_watched(hostvars: Mapping[str, Known], hosts: Sequence[str], host_name: str) -> dict[str, Any]:
    """Return what a host must know of the others for monitoring.

    Hosts that this run has planned come from their plans. For the other hosts, Prometheus keeps its current targets, so
    a run on some hosts does not stop watching the others.

    Args:
        hostvars: variables by host; uses ``fleet_monitoring``, ``preflight_plan``, ``preflight_refusal``,
            ``gaudi_host``, ``gaudi_metrics``, ``fleet_gateway`` and ``fleet_address``.
        hosts: all hosts of the inventory.
        host_name: the host.

    Returns:
        ``monitors``: the hosts that watch this one, ``{host, certificate}``. ``settings``: their common settings,
        ``{exporters_port, node_exporter_port, cards_port}``. ``watched``: the hosts that this one watches, as mappings
        of ``Watched``; empty if it watches none. ``this``: the host itself, as such a mapping. ``renewing``: hosts
        whose certificate this host knows and this run replaces. ``unread``: hosts that must know this host's
        certificate and were not read, by kind (``host``, ``client``). ``unclear``: why the hosts that watch this one
        are unknown; it then stays unchanged. ``refusal``: conflicts of its settings with those of another Prometheus.

    Raises:
        InputError: if the settings of this host are invalid.
    """
    monitors, wrong = _monitors(hostvars, hosts, host_name)
    present = {name: one for name, one in monitors.items() if one.state == "present"}
    mine = {name: one for name, one in present.items() if not one.hosts or host_name in one.hosts}
    settings, differ = _shared(mine)
    watched = _watched(hostvars, hosts, present[host_name], host_name) if host_name in present else []
    return {
        "monitors": [asdict(Watcher(name, _certificate(hostvars[name], "client"))) for name in mine],
        "settings": settings,
        "unclear": [*(f"fleet_monitoring of {name} is refused" for name in wrong), *differ],
        "refusal": _refused(present, hosts, host_name),
        "watched": [asdict(one) for one in watched],
        "this": asdict(_of(host_name, hostvars[host_name])),
        "renewing": _renewing(hostvars, hosts, present, host_name, [*mine], [one.host for one in watched]),
        "unread": {kind: _unread(hostvars, hosts, present, host_name, kind) for kind in ("host", "client")},
    }


def _renewing(
    hostvars: Mapping[str, Known],
    hosts: Sequence[str],
    monitors: Mapping[str, Monitoring],
    host_name: str,
    watchers: Sequence[str],
    watched: Sequence[str],
) -> list[str]:
    """Return other hosts whose certificate this run replaces: those that watch a host, and those that it watches."""
    found = [name for name in watchers if _renews(hostvars, hosts, monitors, name, "client")]
    found += [name for name in watched if _renews(hostvars, hosts, monitors, name, "host")]
    return list(dict.fromkeys(name for name in found if name != host_name))


def _unread(
    hostvars: Mapping[str, Known], hosts: Sequence[str], monitors: Mapping[str, Monitoring], name: str, kind: str
) -> list[str]:
    """Return the hosts that must know a certificate of a host and that this run has not read.

    Args:
        hostvars: variables by host.
        hosts: all hosts of the inventory.
        monitors: the hosts with Prometheus, with their settings.
        name: the host of the certificate.
        kind: ``host``: hosts that watch it must know it; ``client``: hosts that it watches must know it.
    """
    if kind == "host":
        found = [other for other, one in monitors.items() if not one.hosts or name in one.hosts]
    else:
        found = list(monitors[name].hosts or hosts) if name in monitors else []
    return [other for other in found if other != name and "gaudi_metrics" not in hostvars[other]]


def _renews(
    hostvars: Mapping[str, Known], hosts: Sequence[str], monitors: Mapping[str, Monitoring], name: str, kind: str
) -> bool:
    """Return whether this run replaces a certificate that other hosts know; arguments as for _unread."""
    facts = hostvars[name].get("gaudi_metrics") or {}
    found = (facts.get("certificates") or {}).get(kind) or {}
    unread = _unread(hostvars, hosts, monitors, name, kind)
    return bool(found and certificate_problem(found, certificate_name(hostvars[name], kind), unread))


def certificate_name(known: Known, kind: str) -> str:
    """Return the name for which a certificate of a host is issued."""
    address = fleet_address(known) or str((known.get("gaudi_metrics") or {}).get("address") or "")
    return address if kind == "host" else "prometheus"


def certificate_problem(found: Mapping[str, Any], name: str, unread: Sequence[str]) -> str:
    """Return why a run must replace a certificate; its age counts later if hosts that must know it were not read."""
    return certificate.problem(dict(found), name, certificate.LAST_DAYS if unread else certificate.LEFT_DAYS)


def _monitors(
    hostvars: Mapping[str, Known], hosts: Sequence[str], host_name: str
) -> tuple[dict[str, Monitoring], list[str]]:
    """Return the settings of each host with Prometheus, and the hosts with invalid settings, which only they refuse.

    Raises:
        InputError: if the settings of the host itself are invalid.
    """
    found, wrong = {}, []
    for name in fleet_monitors(hostvars, hosts):
        try:
            found[name] = read_monitoring(hostvars[name].get(NAME), hosts)
        # The toolkit, Ansible and Jinja raise many kinds of errors here.
        except Exception:
            if name == host_name:
                raise
            wrong.append(name)
    return found, wrong


def _shared(monitors: Mapping[str, Monitoring]) -> tuple[dict[str, int], list[str]]:
    """Return the settings that the hosts with Prometheus share, and a message for each setting in which they differ."""
    found: dict[str, int] = {}
    differ = []
    for key in SHARED if monitors else ():
        said = {name: getattr(one, key) for name, one in monitors.items()}
        if len(set(said.values())) > 1:
            each = ", ".join(f"{name} {value}" for name, value in said.items())
            differ.append(f"{NAME}.{key}: {each}: must be the same on all hosts that watch the same hosts")
        found[key] = next(iter(said.values()))
    return found, differ


def _refused(monitors: Mapping[str, Monitoring], hosts: Sequence[str], host_name: str) -> list[str]:
    """Return conflicts of a host with an earlier host that watches the same hosts."""
    found: dict[str, None] = {}
    for watched in hosts:
        both = {name: one for name, one in monitors.items() if not one.hosts or watched in one.hosts}
        if host_name in [*both][1:]:
            found.update(dict.fromkeys(_shared(both)[1]))
    return list(found)


def _watched(
    hostvars: Mapping[str, Known], hosts: Sequence[str], settings: Monitoring, host_name: str
) -> list[Watched]:
    live = (hostvars[host_name].get("gaudi_metrics") or {}).get("watched") or []
    before = {str(one["host"]): Watched.of(one) for one in live}
    names = [name for name in hosts if not settings.hosts or name in settings.hosts]
    found = [
        _with_left(_of(name, hostvars[name]), hostvars[name], before.get(name))
        if _is_planned(hostvars[name])
        else before.get(name)
        for name in names
    ]
    return [one for one in found if one]


def _with_left(watched: Watched, known: Known, before: Watched | None) -> Watched:
    """Return a watched host, including the servers that its plan leaves unchanged."""
    left = (known.get("preflight_plan") or {}).get("left") or []
    stay = [one for one in (before.models if before else ()) if one.model in left]
    return replace(watched, models=(*watched.models, *stay))


def _is_planned(known: Known) -> bool:
    """Return whether this run has planned what a host serves, and the plan applies."""
    if known.get("preflight_refusal") or not known.get("rollout_host", {}).get("accepted", True):
        return False
    if "preflight_plan" in known:
        return not known["preflight_plan"]["errors"]
    # A gateway or a Prometheus host that serves no models itself.
    return "gaudi_metrics" in known and not known.get("vllm_models") and (is_gateway(known) or is_monitor(known))


def _of(name: str, known: Known) -> Watched:
    return Watched(
        name,
        certificate_name(known, "host"),
        _certificate(known, "host") or "",
        *_gateway(known),
        bool((known.get("gaudi_host") or {}).get("modules")),
        tuple(endpoints(known)),
    )


def _certificate(known: Known, kind: str) -> str | None:
    """Return a certificate of a host; empty if it has none yet, None if this run has not read the host."""
    facts = known.get("gaudi_metrics")
    return None if facts is None else str((facts.get("certificates") or {}).get(kind, {}).get("text") or "")


def _gateway(known: Known) -> tuple[int, bool]:
    """Return the port of the metrics of a host's gateway, 0 without one, and whether it counts tokens by client."""
    try:
        settings = known.get("fleet_gateway")
        gateway = read_gateway(settings) if isinstance(settings, Mapping) else None
    # The host's own checks refuse the value.
    except Exception:
        gateway = None
    return (gateway.metrics_port, gateway.usage) if gateway and gateway.present else (0, False)


def endpoints(known: Known) -> list[Endpoint]:
    """Return the servers of a host that Prometheus queries, from its plan."""
    plan = known.get("preflight_plan") or {"models": []}
    return [
        Endpoint(
            str(model["name"]),
            str(model["served_model_name"]),
            EVERYWHERE.get(str(model["host"]), str(model["host"])),
            int(model["port"]),
            dict(model.get("slo") or {}),
        )
        for model in plan["models"]
        if model["state"] != "stopped" and answers(model)
    ]
