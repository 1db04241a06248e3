"""From the plans of a fleet's hosts to what is watched: which hosts and models, and where each is asked.

Pure functions of an inventory's variables. On the host of a Prometheus everything is asked on loopback. On all others
one port is open, where each side proves by its certificate who it is (docs/monitoring.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..core.aliases import value_of
from ..core.errors import InputError
from ..gateway.fleet import fleet_address, is_gateway
from ..gateway.inputs import read_gateway
from ..host.smoke import EVERYWHERE
from ..model.distributed import answers
from .settings import NAME, Monitoring, read_monitoring

Known = Mapping[str, Any]
LOOPBACK = "127.0.0.1"
# What hosts that are watched need to know.
SHARED = ("exporters_port", "node_exporter_port", "cards_port")


@dataclass(frozen=True)
class Endpoint:
    """One model's server: where its host reaches it, and what it is to keep to.

    model: its name on the host. served: its name for clients. slo: the objectives of the inventory.
    """

    model: str
    served: str
    address: str
    port: int
    slo: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Watched:
    """One host that is watched.

    address: where it is reached. certificate: by which it proves who it is; empty where it has none yet, and where
    nobody else asks it. gateway: the port of its gateway's figures on loopback; 0 where it is none. cards: it has some.
    """

    host: str
    address: str
    certificate: str = ""
    gateway: int = 0
    cards: bool = False
    models: tuple[Endpoint, ...] = ()

    @classmethod
    def of(cls, given: Known) -> Watched:
        """Return it of its mapping.

        Raises:
            InputError: for one that is none, as of a file that somebody has changed.
        """
        try:
            return cls(**{**given, "models": tuple(Endpoint(**one) for one in given.get("models", ()))})
        except TypeError as problem:
            raise InputError(f"a watched host: {problem}") from problem


@dataclass(frozen=True)
class Watcher:
    """A host with a Prometheus, and the certificate by which it asks; None where this run has not read the host."""

    host: str
    certificate: str | None


def fleet_monitors(hostvars: Mapping[str, Known], hosts: Iterable[str]) -> list[str]:
    """Return the hosts of an inventory that watch it: those with a mapping ``fleet_monitoring``."""
    return [name for name in hosts if is_monitor(hostvars[name])]


def is_monitor(variables: Known) -> bool:
    """Tell whether a host watches others; one whose value cannot be read does, and is refused there."""
    try:
        return isinstance(value_of(variables, NAME), Mapping)
    # Of Ansible's and of Jinja's many errors.
    except Exception:
        return True


def fleet_watched(hostvars: Mapping[str, Known], hosts: Sequence[str], host_name: str) -> dict[str, Any]:
    """Return what a host needs to know of the others, for monitoring.

    Hosts that this run has planned are taken from their plans. Of the others a Prometheus goes on with what it has,
    so that a run on some hosts, or past one that is down, stops watching none of them.

    Args:
        hostvars: variables by host; read are ``fleet_monitoring``, ``preflight_plan``, ``preflight_refusal``,
            ``gaudi_host``, ``gaudi_metrics``, ``fleet_gateway`` and ``fleet_address``.
        hosts: all hosts of the inventory.
        host_name: the host.

    Returns:
        ``monitors``: the hosts that watch this one, ``{host, certificate}``. ``settings``: what they say of all hosts,
        ``{exporters_port, node_exporter_port, cards_port}``. ``watched``: what this host watches, as mappings of
        ``Watched``; none where it does not watch. ``this``: the host itself, as one.

    Raises:
        InputError: where the settings of a Prometheus are wrong, or two differ in what hosts need to know.
    """
    monitors = {
        name: read_monitoring(value_of(hostvars[name], NAME), hosts) for name in fleet_monitors(hostvars, hosts)
    }
    present = {name: one for name, one in monitors.items() if one.state == "present"}
    mine = {name: one for name, one in present.items() if not one.hosts or host_name in one.hosts}
    live = (hostvars[host_name].get("gaudi_metrics") or {}).get("watched") or []
    watched = _watched(hostvars, hosts, present[host_name], live) if host_name in present else []
    return {
        "monitors": [asdict(Watcher(name, _certificate(hostvars[name], "client"))) for name in mine],
        "settings": _shared(mine),
        "watched": [asdict(one) for one in watched],
        "this": asdict(_of(host_name, hostvars[host_name])),
    }


def _shared(monitors: Mapping[str, Monitoring]) -> dict[str, int]:
    """Return what all hosts need to know of those that watch them.

    Raises:
        InputError: where two say something else.
    """
    found: dict[str, int] = {}
    for key in SHARED if monitors else ():
        said = {name: getattr(one, key) for name, one in monitors.items()}
        if len(set(said.values())) > 1:
            each = ", ".join(f"{name} {value}" for name, value in said.items())
            raise InputError(f"{NAME}.{key}: {each}: must be the same on all hosts that watch the same hosts")
        found[key] = next(iter(said.values()))
    return found


def _watched(
    hostvars: Mapping[str, Known], hosts: Sequence[str], settings: Monitoring, live: Sequence[Known]
) -> list[Watched]:
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
    """Return what is watched of a host, with the servers that its plan leaves as they are."""
    left = (known.get("preflight_plan") or {}).get("left") or []
    stay = [one for one in (before.models if before else ()) if one.model in left]
    return replace(watched, models=(*watched.models, *stay))


def _is_planned(known: Known) -> bool:
    """Tell whether this run knows what a host serves, and may go by it."""
    if known.get("preflight_refusal") or not known.get("rollout_host", {}).get("accepted", True):
        return False
    if "preflight_plan" in known:
        return not known["preflight_plan"]["errors"]
    # A gateway, or a Prometheus, that serves nothing itself.
    return "gaudi_metrics" in known and not known.get("vllm_models") and (is_gateway(known) or is_monitor(known))


def _of(name: str, known: Known) -> Watched:
    return Watched(
        name,
        fleet_address(known) or str((known.get("gaudi_metrics") or {}).get("address") or ""),
        _certificate(known, "host") or "",
        _gateway(known),
        bool((known.get("gaudi_host") or {}).get("modules")),
        tuple(endpoints(known)),
    )


def _certificate(known: Known, kind: str) -> str | None:
    """Return a certificate of a host; empty where it has none yet, None where this run has not read the host."""
    facts = known.get("gaudi_metrics")
    return None if facts is None else str((facts.get("certificates") or {}).get(kind, {}).get("text") or "")


def _gateway(known: Known) -> int:
    try:
        settings = value_of(known, "fleet_gateway")
        return read_gateway(settings).metrics_port if isinstance(settings, Mapping) else 0
    # It is refused where it is the host's own.
    except Exception:
        return 0


def endpoints(known: Known) -> list[Endpoint]:
    """Return the servers of a host that are asked, by its plan."""
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
