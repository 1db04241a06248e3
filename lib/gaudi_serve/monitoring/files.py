"""The monitoring files of a host by path: of each watched host, and of the host with Prometheus."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from ..core.paths import PLACES
from ..core.templates import file_of, rendered
from ..core.yaml_text import dump
from ..gateway.config import File
from ..host.observe_metrics import CLIENT, COLLECTED, COLLECTOR, DATA, FOLDER, SETTINGS, UNIT_FOLDER, WATCHED
from .fleet import LOOPBACK, Watched
from .settings import Monitoring, read_monitoring

ROLE = "monitoring"
OF_WATCHER = ("prometheus", "alertmanager")
JOBS = ("vllm", "node", "haproxy", "usage", "cards", *OF_WATCHER)
# The pages of a host that have another job, and those with another path.
JOB_OF = {"gateway": "haproxy"}
PATH_OF = {"usage": "/usage"}
# The default of Alertmanager: it shows alerts and sends none.
SHOWN_ALONE = {
    "route": {"receiver": "none", "group_by": ["alertname", "host"]},
    "receivers": [{"name": "none"}],
}
# The alert that always fires goes to no receiver, unless a route of the user names it.
WATCHDOG = "Watchdog"
TO_NOBODY = {"matchers": [f'alertname="{WATCHDOG}"'], "receiver": "gaudi-serve-nobody"}
# A host that is down explains the alerts on its models: send one message, not one for each model.
INHIBITED = [
    {
        "source_matchers": ['alertname="HostDown"'],
        "target_matchers": ['alertname!="HostDown"'],
        "equal": ["host"],
    }
]


def host_files(
    this: Watched, settings: Mapping[str, int], clients: Sequence[str], collector: Mapping[str, Any]
) -> dict[str, File]:
    """Return the monitoring files of a watched host.

    Args:
        this: the host.
        settings: the ports, as fleet_watched returns them.
        clients: certificates of the Prometheus servers on other hosts; without any, only loopback listens.
        collector: the result of collector_settings.
    """
    node = f"{LOOPBACK}:{settings['node_exporter_port']}"
    arguments = [f"--web.listen-address={node}", f"--collector.textfile.directory={COLLECTED}"]
    files = {
        str(COLLECTOR): File(file_of(ROLE, "gaudi-metrics"), "0755"),
        str(SETTINGS): replace(_json(collector), mode="0640"),
        **{
            f"{UNIT_FOLDER}/gaudi-metrics.{kind}": File(file_of(ROLE, f"gaudi-metrics.{kind}"))
            for kind in ("service", "timer")
        },
        **_unit("gaudi-node-exporter", "node exporter", "prometheus-node-exporter", arguments),
    }
    if clients:
        address = f"[{this.address}]" if ":" in this.address else this.address
        values: dict[str, Any] = {"address": address, "port": settings["exporters_port"], "folder": FOLDER}
        text = rendered(ROLE, "exporters.cfg.j2", **values, backends=_pages(this, settings))
        files |= {
            f"{FOLDER}/exporters.cfg": File(text),
            f"{FOLDER}/clients.pem": File("".join(clients)),
            **_unit("gaudi-exporters", "figures for the Prometheus of the fleet", "haproxy"),
        }
    return files


def _pages(host: Watched, settings: Mapping[str, int]) -> list[tuple[str, str, str]]:
    """Return the metrics pages of a host: a name, its address on the host, and its path there."""
    found = [
        ("node", f"{LOOPBACK}:{settings['node_exporter_port']}"),
        *([("gateway", f"{LOOPBACK}:{host.gateway}")] if host.gateway else []),
        *([("usage", f"{LOOPBACK}:{host.gateway}")] if host.usage else []),
        *([("cards", f"{LOOPBACK}:{settings['cards_port']}")] if settings["cards_port"] and host.cards else []),
        *((f"model/{one.model}", _joined(one.address, one.port)) for one in host.models),
    ]
    return [(name, server, PATH_OF.get(name, "/metrics")) for name, server in found]


def _joined(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _unit(name: str, description: str, program: str, arguments: Sequence[str] = (), state: str = "") -> dict[str, File]:
    values: dict[str, Any] = {"description": description, "program": program, "arguments": arguments, "state": state}
    text = rendered(ROLE, "unit.service.j2", unit=name, folder=FOLDER, **values)
    return {f"{UNIT_FOLDER}/{name}.service": File(text)}


def watcher_files(
    name: str, settings: Monitoring, watched: Sequence[Watched], rules: Mapping[str, str], boards: Mapping[str, str]
) -> dict[str, File]:
    """Return the files of the host with Prometheus.

    Args:
        name: the host.
        settings: the settings of its Prometheus.
        watched: the watched hosts.
        rules, boards: texts of rules and dashboards, by file name.
    """
    folder = settings.files_only or str(FOLDER)
    # Prometheus cannot query a host that has no certificate yet.
    known = [one.certificate for one in watched if one.host != name and one.certificate]
    files = {
        f"{folder}/prometheus.yml": File(_prometheus(settings, folder, bool(known))),
        str(WATCHED): replace(_json([asdict(one) for one in watched]), mode="0600"),
        **{f"{folder}/rules/{file}": File(text) for file, text in rules.items()},
        **{f"{folder}/targets/{job}.json": _json(found) for job, found in targets(name, settings, watched).items()},
        **{f"{folder}/dashboards/{file}": File(text) for file, text in boards.items()},
        **({f"{folder}/hosts.pem": File("".join(known))} if known else {}),
        **(_grafana(settings, folder) if settings.grafana else {}),
    }
    places = sorted(path for path in files if not path.startswith(f"{FOLDER}/"))
    files |= {PLACES: _json(places)} if places else {}
    return files if settings.files_only else {**files, **_programs(settings)}


def _json(value: Any) -> File:
    return File(json.dumps(value, indent=1, sort_keys=True) + "\n")


def _jobs(settings: Monitoring) -> list[str]:
    """Return the scrape jobs of Prometheus; without those for itself and Alertmanager if the site runs Prometheus."""
    wanted = {"cards": settings.cards_port, **dict.fromkeys(OF_WATCHER, not settings.files_only)}
    return [job for job in JOBS if wanted.get(job, True)]


def _prometheus(settings: Monitoring, folder: str, remote: bool) -> str:
    jobs = _jobs(settings)
    values: dict[str, Any] = {"settings": settings, "folder": folder, "client": CLIENT, "remote": remote, "jobs": jobs}
    return rendered(ROLE, "prometheus.yml.j2", **values, alertmanager=not settings.files_only)


def alertmanager_text(settings: Monitoring) -> str:
    """Return the configuration of Alertmanager; it may contain passwords."""
    given = {key: one for key, one in settings.alertmanager.items() if one is not None}
    alerts = _with_watchdog({**SHOWN_ALONE, **given})
    return dump({**alerts, "inhibit_rules": [*INHIBITED, *(alerts.get("inhibit_rules") or [])]})


def _with_watchdog(alerts: dict[str, Any]) -> dict[str, Any]:
    """Return Alertmanager's settings with a route that drops the watchdog, unless a route names it."""
    route = alerts["route"]
    if WATCHDOG in json.dumps(route, default=str):
        return alerts
    routes = [TO_NOBODY, *(route.get("routes") or [])]
    receivers = [*alerts["receivers"], {"name": TO_NOBODY["receiver"]}]
    return {**alerts, "route": {**route, "routes": routes}, "receivers": receivers}


def alertmanager_config(settings: Any) -> str:
    """Return the configuration of Alertmanager from ``fleet_monitoring``, for the task that writes it.

    Raises:
        InputError: if the settings are invalid.
    """
    return alertmanager_text(read_monitoring(settings))


def _programs(settings: Monitoring) -> dict[str, File]:
    """Return the units of Prometheus and Alertmanager, and the configuration of Alertmanager."""
    prometheus = [
        f"--config.file={FOLDER}/prometheus.yml",
        f"--storage.tsdb.path={DATA[0]}",
        f"--storage.tsdb.retention.time={settings.retention_days}d",
        f"--storage.tsdb.retention.size={settings.retention_gib}GB",
        f"--web.listen-address={LOOPBACK}:{settings.port}",
    ]
    alertmanager = [
        f"--config.file={FOLDER}/alertmanager.yml",
        f"--storage.path={DATA[1]}",
        f"--web.listen-address={LOOPBACK}:{settings.alertmanager_port}",
        # Alertmanager's default is all addresses.
        "--cluster.listen-address=",
    ]
    return {
        f"{FOLDER}/alertmanager.yml": File(alertmanager_text(settings), "0640", secret=True, group="prometheus"),
        **_unit("gaudi-prometheus", "Prometheus", "prometheus", prometheus, "gaudi-prometheus"),
        **_unit("gaudi-alertmanager", "Alertmanager", "prometheus-alertmanager", alertmanager, "gaudi-alertmanager"),
    }


def targets(name: str, settings: Monitoring, watched: Sequence[Watched]) -> dict[str, list[dict[str, Any]]]:
    """Return the targets of Prometheus by job, in the format of file_sd; its own host is queried on loopback.

    Each target has its job as a label for the rules, because the site's own Prometheus may name its jobs differently.

    Args:
        name: the host with Prometheus.
        settings: its settings.
        watched: the watched hosts.
    """
    found: dict[str, list[dict[str, Any]]] = {job: [] for job in _jobs(settings)}
    if not settings.files_only:
        for job, port in (("prometheus", settings.port), ("alertmanager", settings.alertmanager_port)):
            found[job].append({"targets": [f"{LOOPBACK}:{port}"], "labels": {"job": job, "host": name}})
    ports = asdict(settings)
    for host in watched:
        for page, server, path in _pages(host, ports):
            model = page.removeprefix("model/") if page.startswith("model/") else ""
            job = "vllm" if model else JOB_OF.get(page, page)
            labels = {"job": job, "host": host.host, **({"model": model} if model else {})}
            if host.host == name:
                here = {} if path == "/metrics" else {"__metrics_path__": path}
                found[job].append({"targets": [server], "labels": {**labels, **here}})
                continue
            away = {"__scheme__": "https", "__metrics_path__": f"/{page}/metrics"}
            found[job].append(
                {"targets": [_joined(host.address, settings.exporters_port)], "labels": {**labels, **away}}
            )
    return found


def _grafana(settings: Monitoring, folder: str) -> dict[str, File]:
    """Return the provisioning files for a Grafana on the host: its data source and its dashboards."""
    source = {
        **{"name": "gaudi-serve", "uid": "gaudi-serve", "type": "prometheus", "access": "proxy", "editable": False},
        "url": f"http://{LOOPBACK}:{settings.port}",
    }
    provider = {
        **{"name": "gaudi-serve", "folder": "gaudi-serve", "type": "file", "disableDeletion": True},
        "options": {"path": f"{folder}/dashboards"},
    }
    return {
        f"{settings.grafana}/datasources/gaudi-serve.yaml": File(dump({"apiVersion": 1, "datasources": [source]})),
        f"{settings.grafana}/dashboards/gaudi-serve.yaml": File(dump({"apiVersion": 1, "providers": [provider]})),
    }
