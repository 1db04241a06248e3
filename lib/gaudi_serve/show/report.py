"""The table at the end of a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..core.table import model_cell, table
from ..gateway.fleet import removes_gateway
from ..gateway.objects import Chat, Gateway
from ..host.smoke import EVERYWHERE
from ..model.distributed import answers, hosts_of, left_models
from ..model.host import LiveModel
from ..monitoring.settings import NAME, Monitoring
from ..stages.registry import LEFT_ALONE, OBJECTS
from .notes import open_notes, shared_lines


def endpoint_table(
    hostvars: Mapping[str, Mapping[str, Any]], hosts: Sequence[str], lost: Sequence[str] = (), check: bool = False
) -> list[str]:
    """Return the lines of the final table: host, model, cards, state, URL, time to the first token.

    Args:
        hostvars: Ansible's variables by host; uses ``preflight_plan``, ``gaudi_services`` and the notes of the roles.
        hosts: the hosts that the table shows.
        lost: hosts that failed or became unreachable during the run.
        check: whether this is check mode; the table then shows the state before a real run.
    """
    rows = [["HOST", "MODEL", "CARDS", "STATE", "URL", "FIRST TOKEN"]]
    notes: dict[str, list[str]] = {}
    for host in hosts:
        known = hostvars[host]
        units = known["gaudi_services"]["units"] if "gaudi_services" in known else {}
        plan = known.get("preflight_plan") or {"models": []}
        models = [*plan["models"], *left_models(plan, units)]
        gateway = gateway_of(host, known)
        rows += [[host, "(gateway)", "-", gateway["state"], gateway["url"], "-"]] if gateway else []
        rows += [[host, "(chat)", "-", gateway["state"], gateway["chat"], "-"]] if gateway and gateway["chat"] else []
        monitor = monitor_of(known)
        rows += [[host, "(prometheus)", "-", monitor["state"], monitor["url"], "-"]] if monitor else []
        address = str(known["gaudi_host"]["ip"]) if "gaudi_host" in known else "127.0.0.1"
        rows += [
            [", ".join(hosts_of(one) or [host]), model_cell(one), *_cells(one, units.get(one["name"], {}), address)]
            for one in models
            if answers(one) or hosts_of(one)[0] not in hosts
        ]
        notes[host] = open_notes(_notes(known), known.get("fleet_acknowledged"))
    dropped = "dropped out of this run, since it failed or could not be reached; the reason is above"
    before = ["check mode: nothing was changed; this is what is live now, before a real run"] if check else []
    return [*table(rows), *shared_lines(notes), *[f"{host}: {dropped}" for host in lost], *before]


def _notes(known: Mapping[str, Any]) -> list[str]:
    notes = []
    for key in (f"{one.role}_notes" for one in OBJECTS if "report" in one.noted):
        notes += list(known[key]) if key in known else []
    if known.get("preflight_left_alone"):
        notes.append(LEFT_ALONE)
    if known.get("host_tuning_reboot_required"):
        notes.append("reboot required: the running kernel lacks arguments that grub.cfg has")
    return notes


def endpoint(model: Mapping[str, Any], unit: Mapping[str, Any], address: str) -> str:
    """Return the URL of a model, of its live server if it has one; a worker has no URL.

    Args:
        model: the planned model.
        unit: its live unit.
        address: of its host, for a server that listens on all addresses.
    """
    if not answers(model):
        return f"at {hosts_of(model)[0]}"
    live = LiveModel.of(unit)
    where, port = live.host or model["host"], live.port or model["port"]
    where = address if where in EVERYWHERE else where
    return f"http://[{where}]:{port}/v1" if ":" in where else f"http://{where}:{port}/v1"


def gateway_of(host: str, known: Mapping[str, Any], silent: Collection[str] = ()) -> dict[str, Any] | None:
    """Return the state of a host's gateway; None if the host is no gateway.

    Args:
        host: the host's name.
        known: its variables and facts.
        silent: servers (HOST.MODEL) that generate nothing. HAProxy, which asks only for /health, takes them for up.

    Returns:
        ``state``; ``url``; ``chat``: URL of the chat page, or empty; ``servers`` and ``up``: counts.
    """
    settings, live = known.get("fleet_gateway"), known.get("gaudi_haproxy")
    if not live or not isinstance(settings, Mapping) or removes_gateway(settings):
        return None
    scheme, chat = "https" if settings.get("certificate") else "http", settings.get("chat")
    url = f"{scheme}://{_place(host, settings, Gateway.address, Gateway.port)}"
    return {
        "state": "active" if live["unit"]["active"] else "not there",
        "url": f"{url}/v1",
        "chat": f"{scheme}://{_place(host, chat, Chat.address, Chat.port)}/" if isinstance(chat, Mapping) else "",
        "servers": len(live["states"]),
        "up": sum(one["up"] and one["name"] not in silent for one in live["states"]),
    }


def _place(host: str, settings: Mapping[str, Any], address: str, port: int) -> str:
    """Return the host and port of a URL from the listen settings; ``address`` and ``port`` are the defaults."""
    where = str(settings.get("address") or address)
    where = host if where in EVERYWHERE else f"[{where}]" if ":" in where else where
    return f"{where}:{settings.get('port') or port}"


def monitor_of(known: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return ``{state, url}`` of a host's Prometheus; None if the toolkit did not install it there."""
    settings, live = known.get(NAME), known.get("gaudi_metrics")
    if not live or not isinstance(settings, Mapping) or settings.get("files_only") or settings.get("state") == "absent":
        return None
    runs = all(live["units"][f"gaudi-{name}.service"]["active"] for name in ("prometheus", "alertmanager"))
    url = f"http://127.0.0.1:{settings.get('port') or Monitoring.port}"
    return {"state": "active" if runs else "not there", "url": url}


def _cells(model: Mapping[str, Any], unit: Mapping[str, Any], address: str) -> list[str]:
    first = (unit.get("smoke") or {}).get("first_token_s")
    return [
        ",".join(map(str, model["module_ids"])) or "cpu",
        unit.get("state", "not there"),
        endpoint(model, unit, address),
        f"{first * 1000:.0f} ms" if first is not None else "-",
    ]
