"""Stage monitoring: the metrics of a host, the monitoring host's programs, and the reset."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any

from ..core.errors import InputError, one_line
from ..core.templates import ROLES
from ..gateway.config import File
from ..gateway.inputs import read_gateway
from ..host.observe_metrics import CLIENT, DATA, FOLDER, HOST, PACKAGES, READ, STATE, UNIT_FOLDER
from ..monitoring.collector import collector_settings
from ..monitoring.files import ROLE, host_files, watcher_files
from ..monitoring.fleet import Watched, certificate_problem
from ..monitoring.rules import rules_text
from ..monitoring.settings import NAME, Monitoring, read_monitoring
from .base import Given, Pending, Stage
from .reset import new_packages, record_of

Known = Mapping[str, Any]
# The program of each unit, and the files that it reads at its start, in addition to the unit itself.
PROGRAMS = {
    "gaudi-metrics.timer": ("", (f"{UNIT_FOLDER}/gaudi-metrics.service",)),
    "gaudi-node-exporter.service": ("prometheus-node-exporter", ()),
    "gaudi-exporters.service": ("haproxy", (f"{FOLDER}/exporters.cfg", f"{FOLDER}/clients.pem", str(HOST))),
    "gaudi-prometheus.service": ("prometheus", ()),
    "gaudi-alertmanager.service": ("prometheus-alertmanager", ()),
}
# Thresholds that apply only to models with objectives.
OF_OBJECTIVES = ("fast_burn", "slow_burn")
PORTS_OF_GATEWAY = {
    **{"port": "the gateway", "metrics_port": "the gateway's own page", "chat.port": "the gateway's page for chats"}
}
KINDS = {str(HOST): "host", str(CLIENT): "client"}
GROUPS = {str(HOST): "root", str(CLIENT): "prometheus"}


UNCHANGED: Known = {
    **{key: [] for key in ("install", "certificates", "write", "absent", "gone", "empty", "stop", "start", "restart")},
    **{key: [] for key in ("read", "files")},
    **{"reload": False, "due": False, "listens": {}, "summary": []},
}


@dataclass(frozen=True)
class Wanted:
    """The desired state of a host: files, units with their ports, packages, and certificates with their names."""

    files: Mapping[str, File]
    units: Mapping[str, int]
    certificates: Mapping[str, str]

    @property
    def packages(self) -> list[str]:
        """Return the packages to install."""
        programs = {PROGRAMS[name][0] for name in self.units}
        return [name for name in PACKAGES if name in programs or (name == "openssl" and self.certificates)]


def wanted(host: str, fleet: Known, settings: Any, collector: Known, known: Sequence[str] = ()) -> Wanted:
    """Return the desired state of a host.

    Args:
        host: its name.
        fleet: the result of fleet_watched.
        settings: ``fleet_monitoring`` of the host; None if it does not monitor others.
        collector: the result of collector_settings.
        known: certificates of the clients that may query this host now.

    Raises:
        InputError: if its settings are invalid.
    """
    this, ports = Watched.of(fleet["this"]), fleet["settings"]
    mine = read_monitoring(settings) if isinstance(settings, Mapping) else None
    watched = [Watched.of(one) for one in fleet["watched"]]
    away = [one for one in fleet["monitors"] if one["host"] != host]
    clients = [str(one["certificate"]) for one in away if one["certificate"]]
    # Keep the certificates of clients that this run has not read.
    clients += [text for text in known if text not in clients and any(one["certificate"] is None for one in away)]
    files: dict[str, File] = {}
    units: dict[str, int] = {}
    certificates: dict[str, str] = {}
    if fleet["monitors"]:
        files |= host_files(this, ports, clients, collector)
        units |= {"gaudi-metrics.timer": 0, "gaudi-node-exporter.service": ports["node_exporter_port"]}
        units |= {"gaudi-exporters.service": ports["exporters_port"]} if clients else {}
        certificates |= {str(HOST): this.address} if away else {}
    if mine and mine.state == "present":
        files |= watcher_files(host, mine, watched, _rules(watched, mine), _boards())
        programs = {"gaudi-prometheus.service": mine.port, "gaudi-alertmanager.service": mine.alertmanager_port}
        units |= {} if mine.files_only else programs
        certificates |= {str(CLIENT): "prometheus"} if any(one.host != host for one in watched) else {}
    return Wanted(files, units, certificates)


def _rules(watched: Iterable[Watched], settings: Monitoring) -> dict[str, str]:
    """Return the alert rules; if several hosts serve a model, the first one with objectives counts."""
    models = [one for host in watched for one in host.models]
    objectives = {one.model: one.slo for one in reversed(models) if one.slo}
    return rules_text(objectives, settings, {one.model: one.served for one in reversed(models)})


def _boards() -> dict[str, str]:
    """Return the dashboards by their file names."""
    folder = ROLES / ROLE / "files/dashboards"
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.json"))}


def monitoring_problems(settings: Any, hosts: Iterable[str] | None, host_name: str) -> list[str]:
    """Return the errors in ``fleet_monitoring`` of a host; empty if it is not set.

    Args:
        settings: the value in the inventory.
        hosts: names of all hosts; None if unknown.
        host_name: name of the host in messages.
    """
    if settings is None:
        return []
    try:
        read_monitoring(settings, None if hosts is None else list(hosts))
    except InputError as problem:
        return [f"{host_name}: {one_line(str(problem))}"]
    return []


def monitoring_changes(live: Known, want: Wanted, certificates: Known) -> dict[str, Any]:
    """Return the pending changes.

    Args:
        live: ``gaudi_metrics`` of the host.
        want: the desired state.
        certificates: why certificates must be replaced, by their paths.

    Returns:
        ``install``, ``certificates`` ([{path, name, group, why}]), ``write`` ([{path, text, mode, group, secret}]),
        ``absent``, ``gone`` (folders), ``stop``, ``start``, ``restart``, ``read`` (programs that read their files
        again), ``reload`` (systemd reads its units again), ``due``; ``empty``: folders that may be empty afterwards.
    """
    here = live["files"]
    write = _written(here, want)
    absent = [path for path in here if path not in want.files and path not in want.certificates]
    # Remove the metrics of a collector that no longer runs.
    absent += [path for path in live["collected"] if path.endswith(".prom") and "gaudi-metrics.timer" not in want.units]
    paths = {str(file["path"]) for file in write} | set(certificates)
    units = live["units"]
    restart = [name for name in want.units if units[name]["active"] and _restarts(name, units[name], here, paths)]
    start = [name for name in want.units if not (units[name]["active"] and units[name]["enabled"])]
    found = {
        "install": [name for name in want.packages if name not in live["installed"]],
        "certificates": [
            {"path": path, "name": want.certificates[path], "group": GROUPS[path], "why": why}
            for path, why in certificates.items()
            if path in want.certificates
        ],
        "write": write,
        "absent": absent,
        "gone": _gone(live, want),
        "stop": [name for name, unit in units.items() if unit["there"] and name not in want.units],
        "start": start,
        "restart": [name for name in restart if name not in start],
        "read": _to_read(live, want, {*paths, *absent}),
        "reload": any("/systemd/" in path for path in (*paths, *absent))
        or any(unit["need_reload"] for unit in units.values()),
    }
    return {**found, "due": any(found.values()), "empty": _emptied(absent) if found["gone"] else []}


def _emptied(absent: Iterable[str]) -> list[str]:
    """Return the folders of the toolkit that may be empty without some files, the deepest first."""
    above = {one for path in absent for one in PurePosixPath(path).parents if "gaudi-serve" in one.parts}
    return [str(one) for one in sorted(above, key=lambda one: len(one.parts), reverse=True)]


def _gone(live: Known, want: Wanted) -> list[str]:
    """Return the folders to remove with all that is in them: those of a host on which nothing of monitoring is left."""
    if want.files or want.certificates:
        return []
    return [*([str(FOLDER)] if live["folder"] else []), *(path for path in live["collected"] if path == str(STATE))]


def _written(here: Known, want: Wanted) -> list[dict[str, Any]]:
    """Return the files that differ; secret files without their text, since job output is visible to other users."""
    files = {path: one for path, one in want.files.items() if _differs(here.get(path), one)}
    return [{"path": path, **asdict(one), **({"text": ""} if one.secret else {})} for path, one in files.items()]


def _differs(live: Known | None, file: File) -> bool:
    digest = hashlib.sha256(file.text.encode()).hexdigest()
    return live is None or live["sha256"] != digest


def _restarts(name: str, unit: Known, here: Known, written: Iterable[str]) -> bool:
    """Return whether a running unit was started before a file that it reads at its start changed, or will change."""
    read = (f"{UNIT_FOLDER}/{name}", *PROGRAMS[name][1])
    since = unit["since"] or 0.0
    return bool(set(read) & set(written)) or any(here[path]["changed"] > since for path in read if path in here)


def _to_read(live: Known, want: Wanted, changed: Iterable[str]) -> list[str]:
    """Return the programs that must read their files again."""
    return [name for name in READ if f"gaudi-{name}.service" in want.units and _unread(name, live, set(changed))]


def _unread(name: str, live: Known, written: Iterable[str]) -> bool:
    """Return whether a running program uses older files than those on the host, or those about to be written."""
    patterns = [f"{FOLDER}/{pattern}" for pattern in READ[name]]
    said = live["read"][name]
    if not said:
        return False
    files = [path for path in live["files"] if any(PurePosixPath(path).match(one) for one in patterns)]
    newer = any(live["files"][path]["changed"] > said["at"] for path in files)
    return newer or not said["ok"] or any(PurePosixPath(path).match(one) for path in written for one in patterns)


def monitoring_summary(changes: Known) -> list[str]:
    """Return the pending changes, one sentence a kind."""
    lines = [f"install {name}" for name in changes["install"]]
    lines += [f"make {one['path']}: {one['why']}" for one in changes["certificates"]]
    for verb, paths in (
        ("write", [one["path"] for one in changes["write"]]),
        ("remove", [*changes["absent"], *changes["gone"]]),
    ):
        lines += [f"{verb} {path}" for path in paths[:5]]
        lines += [f"{verb} {len(paths) - 5} more files"] if len(paths) > 5 else []
    lines += [f"{verb} {name}" for verb in ("stop", "start", "restart") for name in changes[verb]]
    return lines + [f"let {name} read its files again" for name in changes["read"]]


def monitoring_refusal(live: Known, want: Wanted, fleet: Known, ports: Mapping[int, str], host: str) -> list[str]:
    """Return why a host cannot reach the desired state: another program or a model uses a port.

    Args:
        live: ``gaudi_metrics`` of the host.
        want: the desired state.
        fleet: the result of fleet_watched.
        ports: of planned models and of a gateway of the host, with the names of their users.
        host: name of the host in messages.
    """
    keys = {
        "gaudi-node-exporter.service": "node_exporter_port",
        "gaudi-exporters.service": "exporters_port",
        "gaudi-prometheus.service": "port",
        "gaudi-alertmanager.service": "alertmanager_port",
    }
    reasons = []
    for name, key in keys.items():
        port = want.units.get(name)
        if not port:
            continue
        by = ports.get(port) or _other_program(live, name, port)
        if by:
            reasons.append(f"{host}: {NAME}.{key}: {port}: {by} listens there; choose another port")
    if "gaudi-exporters.service" in want.units and not Watched.of(fleet["this"]).address:
        reasons.append(
            f"{host}: fleet_address: is required: the address at which {fleet['monitors'][0]['host']} reaches this host"
        )
    return reasons


def objective_refusal(settings: Any, fleet: Known, host: str) -> list[str]:
    """Return why a host cannot alert on objectives: their thresholds are set, but no model has objectives.

    Args:
        settings: valid ``fleet_monitoring`` of the host; None if it does not monitor others.
        fleet: the result of fleet_watched.
        host: name of the host in messages.
    """
    said = (settings.get("thresholds") or {}) if isinstance(settings, Mapping) else {}
    if any(model.slo for one in fleet["watched"] for model in Watched.of(one).models):
        return []
    return [
        f"{host}: {NAME}.thresholds.{key}: {said[key]}: this alert needs an objective, and no watched model "
        "has one; set slo for a model, or leave the threshold out"
        for key in OF_OBJECTIVES
        if key in said
    ]


def _other_program(live: Known, unit: str, port: int) -> str:
    """Return the program that listens on a port in place of the unit; empty if there is none."""
    program = str(live["ports"].get(str(port)) or "")
    if not program:
        return ""
    own = live["units"][unit]
    # HAProxy's workers have other process IDs than its master.
    ours = own["active"] and (
        f"(pid {own['pid']})" in program or (PROGRAMS[unit][0] == "haproxy" == program.split(maxsplit=1)[0])
    )
    return "" if ours else program


def monitoring_notes(live: Known, fleet: Known, host: str, changes: Known) -> list[str]:
    """Return notes on a monitored host: which other hosts do not get its changes in this run."""
    unknown = [one["host"] for one in fleet["monitors"] if one["host"] != host and one["certificate"] is None]
    notes = [f"{', '.join(unknown)} was not read in this run; it scrapes this host as before"] if unknown else []
    replaced = [KINDS[str(one["path"])] for one in changes["certificates"]]
    for kind, known in live["certificates"].items():
        others = ", ".join(fleet["unread"].get(kind) or ())
        if others and known and kind in replaced:
            notes.append(f"{others} refuses the new certificate of this host until playbooks/monitoring.yml has both")
        elif others and known and certificate_problem(known, "".join(known["names"][:1]), ()):
            notes.append(f"the certificate of this host is old; playbooks/monitoring.yml with {others} too renews it")
    return [f"monitoring: {text}" for text in notes]


def monitoring_reset(live: Known, left: Known, data: bool) -> dict[str, Any]:
    """Return how monitoring is removed.

    Args:
        live: ``gaudi_metrics`` of the host.
        left: ``gaudi_left`` of the host.
        data: remove the stored data of Prometheus and Alertmanager.
    """
    units = [name for name, unit in live["units"].items() if unit["there"]]
    files = [path for path in live["files"] if not path.startswith(f"{FOLDER}/")]
    folders = [str(FOLDER)] if live["folder"] else []
    kept = [str(path) for path in DATA if str(path) in live["data"]]
    # If a package was installed before the toolkit, its masked units are the user's.
    before = record_of(left, ROLE).get("installed")
    masked = [path for path in live["masked"] if before is not None and PurePosixPath(path).stem not in before]
    here = bool(units or files or folders or live["collected"] or masked)
    return {
        "units": units,
        "paths": [*files, *folders, *live["collected"], *masked, *(kept if data else [])],
        "due": here or bool(data and kept),
        "did": [
            *(["monitoring: units, configuration, certificates"] if here else []),
            *(f"{path}: what was measured" for path in kept if data),
        ],
        "left": [] if data else [f"{path}: what was measured (reset_metrics)" for path in kept],
        "packages": new_packages(left, ROLE, PACKAGES),
    }


def _asked(given: Given) -> tuple[Wanted, Known]:
    known = given.known
    fleet = known["monitoring_fleet"]
    plan = known.get("preflight_plan") or {"models": []}
    collector = collector_settings(plan, known.get("gaudi_host") or {})
    clients = known["gaudi_metrics"]["clients"]
    return wanted(given.host, fleet, known["monitoring_settings"], collector, clients), fleet


def certificates_due(live: Known, want: Wanted, unread: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return why a certificate must be replaced, by its path.

    Args:
        live: ``gaudi_metrics`` of the host.
        want: the desired state.
        unread: hosts that need a certificate and that this run has not read, by kind.
    """
    return {
        path: text
        for path, name in want.certificates.items()
        if (text := certificate_problem(live["certificates"].get(KINDS[path]) or {}, name, unread[KINDS[path]]))
    }


def planned_ports(known: Known) -> dict[int, str]:
    """Return the ports of planned models and of a gateway of a host, with the names of their users."""
    plan = known.get("preflight_plan") or {"models": []}
    found = {int(one["port"]): f"model {one['name']}" for one in plan["models"] if one["state"] != "stopped"}
    try:
        gateway = read_gateway(known.get("fleet_gateway"))
    except InputError:
        # It is missing, or another check refuses it.
        return found
    return found | {port: PORTS_OF_GATEWAY[key] for key, port in gateway.ports.items()}


def _pending(given: Given) -> Pending:
    live = given.known["gaudi_metrics"]
    told = given.known["monitoring_fleet"]
    if told["unclear"] or told["refusal"]:
        # The host with the mistake refuses it; refusing it here too would leave this host without monitoring.
        return Pending(
            changes=UNCHANGED,
            refusal=[f"{given.host}: {text}" for text in told["refusal"]],
            drift=list(told["refusal"]),
            notes=[f"monitoring: {text}; this host stays as it is" for text in told["unclear"]],
        )
    try:
        want, fleet = _asked(given)
    except InputError as problem:
        return Pending(refusal=[f"{given.host}: {one_line(str(problem))}"], drift=[one_line(str(problem))])
    changes = monitoring_changes(live, want, certificates_due(live, want, fleet["unread"]))
    summary = monitoring_summary(changes)
    refusal = monitoring_refusal(live, want, fleet, planned_ports(given.known), given.host)
    refusal += objective_refusal(given.known["monitoring_settings"], fleet, given.host)
    awaited = _awaited(fleet, given.host)
    listens = {
        name: f"127.0.0.1:{want.units[f'gaudi-{name}.service']}"
        for name in READ
        if f"gaudi-{name}.service" in want.units
    }
    return Pending(
        changes={
            **changes,
            **{"listens": listens, "summary": [*summary, *awaited], "due": changes["due"] or bool(awaited)},
            "files": [_plain_file(one) for one in changes["write"] if not one["secret"]],
        },
        due=[*summary, *awaited],
        left=given.left(summary),
        refusal=refusal,
        drift=[*refusal, *summary],
        notes=monitoring_notes(live, fleet, given.host, changes),
    )


def _plain_file(file: Known) -> dict[str, Any]:
    """Return a file for module gaudi_files, with its validation command."""
    path, checks = str(file["path"]), []
    if path.endswith("/prometheus.yml"):
        checks = ["promtool", "check", "config", "--syntax-only", "%s"]
    elif "/rules/" in path:
        checks = ["promtool", "check", "rules", "%s"]
    # These files are long or generated.
    hide = not path.endswith((".yml", ".cfg", ".service", ".timer"))
    return {"path": path, "content": file["text"], "mode": file["mode"], "hide": hide, "validate": checks}


def _awaited(fleet: Known, host: str) -> list[str]:
    """Return the files that a host gets after other hosts have made their certificates."""
    watchers = [one["host"] for one in fleet["monitors"] if one["host"] != host and one["certificate"] == ""]
    hosts = [one["host"] for one in fleet["watched"] if one["host"] != host and not one["certificate"]]
    return [
        *(f"let {name} ask this host, when it has a certificate" for name in watchers),
        *(f"ask {name}, when it has a certificate" for name in hosts),
        *(f"read the new certificate of {name}" for name in fleet["renewing"]),
    ]


def _reset(given: Given) -> dict[str, Any]:
    from ..core.checks import is_true

    data = is_true(given.known["monitoring_reset_data"])
    return monitoring_reset(given.known["gaudi_metrics"], given.known["gaudi_left"], data)


STAGE = Stage(
    role=ROLE,
    tag="monitoring",
    reads=("system",),
    of_fleet=True,
    noted=("status",),
    given={"settings": "fleet_monitoring", "fleet": "the variables of all hosts"},
    taken=("reset_data",),
    pending=_pending,
    reset=_reset,
)
