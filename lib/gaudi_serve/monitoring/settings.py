"""Validates ``fleet_monitoring`` before anything is changed; each mistake gives one message."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.checks import Rule, matching, one_of, whole
from ..core.errors import InputError, known, near, refusal
from ..core.options import FOLDER
from .thresholds import Thresholds

NAME = "fleet_monitoring"
STATES = ("present", "absent")
# The keys of Alertmanager's configuration; Alertmanager itself checks their values on the host.
ALERTMANAGER = ("global", "route", "receivers", "inhibit_rules", "templates", "time_intervals", "mute_time_intervals")


@dataclass(frozen=True)
class Monitoring:
    """The monitoring settings of one host.

    port, alertmanager_port: ports of Prometheus and Alertmanager, both on loopback.
    retention_days, retention_gib: the limits of Prometheus' storage. interval_s: time between two scrapes.
    exporters_port: port on which other hosts respond to it; node_exporter_port: node exporter's, on their loopback.
    cards_port: port of a vendor's card exporter on the hosts; 0 for none, which leaves only the toolkit's metrics.
    hosts: the watched hosts; empty for all hosts of the inventory that serve or are gateways.
    alertmanager: its configuration, without the toolkit's additions; empty for one that only shows alerts.
    runbooks: address of the page on alerts, to which every alert links. thresholds: of alerts.
    grafana: folder of a Grafana's provisioning files on this host; empty for none.
    files_only: folder of rules and targets for the site's own Prometheus; empty if the toolkit installs Prometheus.
    state: present; or absent, which removes monitoring from all hosts.
    """

    port: int = 9090
    alertmanager_port: int = 9093
    retention_days: int = 30
    retention_gib: int = 20
    interval_s: int = 15
    exporters_port: int = 9445
    node_exporter_port: int = 9100
    cards_port: int = 0
    hosts: tuple[str, ...] = ()
    alertmanager: Mapping[str, Any] = field(default_factory=dict)
    runbooks: str = ""
    thresholds: Mapping[str, Any] = field(default_factory=dict)
    grafana: str = ""
    files_only: str = ""
    state: str = "present"


def _whole(low: int, high: int, what: str = "") -> Rule:
    return Rule(whole(low, high), f"is not an integer {f'of {what} ' if what else ''}from {low} to {high}")


_PATH = Rule(FOLDER.good, "is not the absolute path of a file or folder on that host")
PORT = _whole(1, 65535)
RULES: dict[str, Rule] = {
    **dict.fromkeys(("port", "alertmanager_port", "exporters_port", "node_exporter_port"), PORT),
    "cards_port": _whole(0, 65535),
    "retention_days": _whole(1, 3650, "days"),
    "retention_gib": _whole(1, 100_000, "GiB"),
    # Rates over five minutes need several samples.
    "interval_s": _whole(5, 60, "seconds"),
    "grafana": _PATH,
    # The toolkit owns this folder and removes all other files in it.
    "files_only": Rule(
        lambda value: FOLDER.good(value) and str(value).rstrip("/").endswith("/gaudi-serve"),
        "is not a folder of the toolkit's own: the absolute path must end in /gaudi-serve",
    ),
    "state": Rule(one_of(*STATES), "is neither present nor absent"),
    "runbooks": Rule(
        matching(r"(https?:/)?/[!-~]+"), "is not an address of a page, such as https://wiki.example/alerts"
    ),
}
PATHS = ("grafana", "files_only")
MAPPINGS = ("alertmanager", "thresholds")
KEYS = (*RULES, *MAPPINGS, "hosts")


def read_monitoring(given: Any, inventory: Collection[str] | None = None) -> Monitoring:
    """Return the settings of a mapping.

    Args:
        given: ``fleet_monitoring`` of a host, with the keys of docs/guides/monitoring.md.
        inventory: names of all hosts, to check ``hosts``; None if they are unknown.

    Raises:
        InputError: for an unknown key or invalid value. The message contains no values of ``alertmanager``, which may
            be passwords.
    """
    if not isinstance(given, Mapping):
        # The value may contain a password, so it is hidden.
        raise InputError(f"{NAME}: (hidden): must be a mapping; an empty one, {{}}, takes all defaults")
    known(NAME, given, KEYS)
    said = {key: value for key, value in given.items() if value is not None}
    for key, rule in RULES.items():
        if key in said and not rule.good(said[key]):
            raise refusal("", f"{NAME}.{key}", said[key], rule.allowed)
    for key in MAPPINGS:
        if key in said and not isinstance(said[key], Mapping):
            raise InputError(f"{NAME}.{key}: (hidden): is not a mapping")
    if said.get("alertmanager"):
        known(f"{NAME}.alertmanager", said["alertmanager"], ALERTMANAGER)
        _refuse_receivers(said["alertmanager"])
    found = Monitoring(
        # Remove a final slash, so that each path has only one spelling.
        **{key: said[key].rstrip("/") if key in PATHS else said[key] for key in (*RULES, *MAPPINGS) if key in said},
        hosts=_hosts(said.get("hosts"), inventory),
    )
    _refuse_ports(found)
    Thresholds.read(found.thresholds)
    return found


def _hosts(given: Any, inventory: Collection[str] | None) -> tuple[str, ...]:
    if given is None:
        return ()
    if not isinstance(given, list) or not given or not all(isinstance(one, str) for one in given):
        raise refusal("", f"{NAME}.hosts", given, "is not a list of hosts; leave it out for all")
    for name in given if inventory is not None else ():
        if name not in (inventory or ()):
            hint = near(name, inventory or (), 1)
            raise refusal("", f"{NAME}.hosts", name, f"is not a host of the inventory{hint}")
    return tuple(given)


def _refuse_receivers(given: Mapping[Any, Any]) -> None:
    """Refuse settings that Alertmanager would refuse on its host, as far as possible without showing a value."""
    key = f"{NAME}.alertmanager"
    for name in ("receivers", "inhibit_rules", "templates", "time_intervals", "mute_time_intervals"):
        if given.get(name) is not None and not isinstance(given[name], list):
            raise InputError(f"{key}.{name}: (hidden): is not a list")
    receivers = given.get("receivers")
    named = [one.get("name") for one in receivers or [] if isinstance(one, Mapping)]
    names = [one for one in named if isinstance(one, str)]
    if receivers is not None and len(names) < len(receivers):
        raise InputError(f"{key}.receivers: (hidden): each must be a mapping with name")
    route = given.get("route")
    if (route is None) != (receivers is None):
        raise InputError(f"{key}: has {'no route' if route is None else 'no receivers'}; it needs route and receivers")
    if route is not None and not isinstance(route, Mapping):
        raise InputError(f"{key}.route: (hidden): is not a mapping")
    if route is not None and route.get("receiver") not in names:
        raise refusal("", f"{key}.route.receiver", route.get("receiver"), f"is none of {', '.join(names) or 'them'}")


def _refuse_ports(found: Monitoring) -> None:
    taken: dict[int, str] = {}
    keys = ["exporters_port", "node_exporter_port"]
    keys += [] if found.files_only else ["port", "alertmanager_port"]
    for key in [*keys, "cards_port"]:
        port = getattr(found, key)
        if port and port in taken:
            raise refusal("", f"{NAME}.{key}", port, f"is {taken[port]} too; choose another")
        taken[port] = key
