"""Stage gateway: its files from settings and servers, the pending changes, and the reset."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from ..core.errors import InputError, one_line
from ..core.paths import UNITS
from ..core.templates import file_of
from ..core.text_changes import text_changes
from ..gateway.clients import ClientNames
from ..gateway.config import gateway_files
from ..gateway.fleet import Entry, backends_of, entry_of, removes_gateway, secret_problem
from ..gateway.haproxy import ADDRESS_PATH, PLACE, SERVERS, UNIT_PATH
from ..gateway.inputs import read_gateway
from ..gateway.objects import Gateway
from ..host.permissions import mode_of
from ..model.distributed import answers
from .base import Given, Pending, Stage
from .reset import new_packages

Known = Mapping[str, Any]


def gateway_config(
    settings: Any, servers: Sequence[Known], keys: Mapping[str, str], rank: int = 0, interface: str = ""
) -> dict[str, dict[str, str]]:
    """Return the files of a gateway by their names, for module haproxy_config.

    Args:
        settings: ``fleet_gateway``.
        servers: the result of fleet_entries.
        keys: the result of fleet_keys.
        rank: index of the gateway among all of the inventory, 0 for the first.
        interface: interface of the host's default route, which gets the virtual address unless the settings name
            another.

    Returns:
        ``files`` and ``secrets``, each ``{name: text}``; in the texts a placeholder stands for their folder.

    Raises:
        InputError: as read_gateway does.
    """
    gateway = read_gateway(settings, backends_of(servers, keys))
    where = gateway.virtual_interface or interface
    gateway = dataclasses.replace(gateway, rank=int(rank), virtual_interface=where)
    # The host replaces the placeholder with the folder.
    gateway = dataclasses.replace(gateway, folder=PLACE)
    made = {PurePosixPath(path).name: file for path, file in gateway_files(gateway).items()}
    listed = json.dumps(list(servers), indent=1, sort_keys=True) + "\n"
    return {
        "files": {**{name: file.text for name, file in made.items() if not file.secret}, SERVERS: listed},
        "secrets": {name: file.text for name, file in made.items() if file.secret},
    }


def gateway_problems(
    settings: Any,
    secret: Any,
    gateways: Sequence[str],
    host_name: str,
    serves: bool,
    fleet: ClientNames | None = None,
    theirs: Known | None = None,
) -> list[str]:
    """Return the errors in one host's variables of a fleet with gateways.

    Args:
        settings: ``fleet_gateway`` of the host, or None.
        secret: ``fleet_gateway_secret`` of the host.
        gateways: hosts of the inventory that are gateways.
        host_name: name of the host in messages.
        serves: the host has models.
        fleet: the models of all hosts, to check clients with restricted models; None skips this check.
        theirs: ``fleet_gateway_secret`` of the gateways, as far as it can be read.
    """
    reasons = []
    if isinstance(settings, Mapping):
        try:
            read_gateway(settings, fleet=fleet)
        except InputError as problem:
            reasons.append(str(problem))
    elif settings is not None:
        # The value is not shown: it may be a key.
        reasons.append(
            "fleet_gateway: (hidden): must be a mapping with address, port, clients and so on, or {state: absent} to "
            "remove a gateway; leave it out on hosts that are not gateways"
        )
    others = [name for name in gateways if name != host_name] if serves else []
    reasons += _secret_problems(secret, {name: (theirs or {}).get(name, secret) for name in others})
    return [f"{host_name}: {one_line(text)}" for text in reasons]


def _secret_problems(secret: Any, others: Known) -> list[str]:
    """Return the error in ``fleet_gateway_secret`` of a host with models, compared with that of each other gateway."""
    if others and (wrong := secret_problem(secret)):
        return [f"{wrong}. It is required because {next(iter(others))} is a gateway that reaches this host's servers"]
    different = {name: "another one" if found else "none" for name, found in others.items() if found != secret}
    return [
        f"fleet_gateway_secret: (hidden): {name} has {has}, and all requests to this host would fail; give all hosts "
        "one value that does not change: a lookup of password needs a file in place of /dev/null"
        for name, has in list(different.items())[:1]
    ]


def gateway_refusal(
    settings: Any, servers: Sequence[Known], keys: Mapping[str, str], live: Known, certificate: str, host_name: str
) -> list[str]:
    """Return why a gateway cannot reach its desired state; empty if it can.

    Args:
        settings: as for gateway_config.
        servers: as for gateway_config.
        keys: as for gateway_config.
        live: ``gaudi_haproxy`` of the host.
        certificate: the error that module haproxy_config reports for the certificate's file.
        host_name: name of the host in messages.
    """
    try:
        gateway = read_gateway(settings, backends_of(servers, keys))
    except InputError as problem:
        return [f"{host_name}: {one_line(str(problem))}"]
    reasons = []
    if certificate:
        reasons.append(f"{host_name}: fleet_gateway.certificate: {gateway.certificate!r}: {certificate}")
    others = {
        int(port): program
        for port, program in live["ports"].items()
        if not (live["running"] and program.startswith("haproxy "))
    }
    ours = {one["port"]: one["model"] for one in servers if one["host"] == host_name}
    return reasons + _ports_taken(gateway, others | _of_models(ours), host_name)


def gateway_ports(variables: Known, models: Sequence[Known], host_name: str) -> list[str]:
    """Return the ports of a gateway that models planned for its host use.

    Args:
        variables: of the host; only ``fleet_gateway`` is read, whose errors gateway_problems reports.
        models: planned for the host.
        host_name: name of the host in messages.
    """
    try:
        gateway = read_gateway(variables.get("fleet_gateway"))
    except InputError:
        return []
    serving = [one for one in models if one["state"] != "stopped" and answers(one)]
    ours = {int(one["port"]): str(one["served_model_name"]) for one in serving}
    return _ports_taken(gateway, _of_models(ours), host_name)


def _of_models(ports: Mapping[int, str]) -> dict[int, str]:
    return {port: f"model {model} of this host" for port, model in ports.items()}


def _ports_taken(gateway: Gateway, taken: Mapping[int, str], host_name: str) -> list[str]:
    return [
        f"{host_name}: fleet_gateway.{key}: {port}: {taken[port]} listens there; choose another port"
        for key, port in gateway.ports.items()
        if port in taken
    ]


def gateway_due(
    live: Known, differs: Known, units: Mapping[str, str], servers: Sequence[Known], address: str = ""
) -> list[str]:
    """Return the pending changes to a gateway, a line each.

    Args:
        live: ``gaudi_haproxy`` of the host.
        differs: the files that differ by name, with their settings that change; see file_changes.
        units: texts of the units, ``gateway`` and ``address``.
        servers: desired servers of the gateway.
        address: text of keepalived's configuration; empty without a virtual address.
    """
    lines = [f"install {name}" for name in gateway_packages(shared=bool(address)) if name not in live["installed"]]
    if live["unit_sha256"] != _sha256(units["gateway"]) or live["unit"]["need_reload"]:
        lines.append(f"write {UNIT_PATH.name}")
    lines += _servers_due([entry_of(one) for one in live["servers"]], [entry_of(one) for one in servers])
    said = [name for name in differs if name != SERVERS] if not lines or live["folder"] else []
    lines += [f"write {name}" + (f": {'; '.join(differs[name])}" if differs[name] else "") for name in said]
    if live["folder"] and live["unit"]["active"] and live["running"] != live["folder"]:
        lines.append("reload HAProxy, which runs with older files")
    if not (live["unit"]["active"] and live["unit"]["enabled"]):
        lines.append(f"start {UNIT_PATH.name}")
    lines += [
        f"return {host} to service: an interrupted run drained it for a reboot" for host in live.get("reboots", ())
    ]
    return lines + _address_due(live["address"], units["address"], address)


def file_changes(seen: Known) -> dict[str, list[str]]:
    """Return the files of a gateway that differ, with their settings that change.

    Args:
        seen: what module haproxy_config reports, which shows no secret files.
    """
    shown = {PurePosixPath(one["after_header"]).name: one for one in seen.get("diff") or ()}
    return {
        name: text_changes(shown[name]["before"], shown[name]["after"], left_out=("server ",))
        if name.endswith((".cfg", ".conf")) and name in shown
        else []
        for name in seen["differs"]
    }


def _servers_due(live: Sequence[Entry], planned: Sequence[Entry]) -> list[str]:
    """Return the servers that a run adds, removes and changes; a server of several models counts once for each."""
    now, then = ({(one.name, one.model): one for one in entries} for entries in (live, planned))
    return [
        *(f"serve {name} ({model})" for name, model in then if (name, model) not in now),
        *(f"stop serving {name}" for name, model in now if (name, model) not in then),
        *(f"change {name}" for (name, model), one in then.items() if now.get((name, model), one) != one),
    ]


def _address_due(live: Known, unit: str, text: str) -> list[str]:
    """Return the pending changes to the address that several gateways share."""
    if not text:
        return ["give up the virtual address"] if live["unit_sha256"] else []
    lines = []
    if live["unit_sha256"] != _sha256(unit) or live["unit"]["need_reload"]:
        lines.append(f"write {ADDRESS_PATH.name}")
    if not (live["unit"]["active"] and live["unit"]["enabled"]):
        lines.append(f"start {ADDRESS_PATH.name}")
    elif live["runs_sha256"] != _sha256(text):
        lines.append("reload keepalived, which runs with an older configuration")
    return lines


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def gateway_drift(live: Known, due: Sequence[str]) -> list[str]:
    """Return how a gateway differs from its desired state: pending changes, and servers that are set to drain.

    Args:
        live: ``gaudi_haproxy`` of the host.
        due: the result of gateway_due.
    """
    kept = [one["name"] for one in live["states"] if one["drained"] or one["maintained"]]
    drained = [f"{name} is drained: it gets no requests until it is ready again" for name in kept]
    return [*due, *drained, *refused_keys(live)]


def refused_keys(live: Known) -> list[str]:
    """Return a line for each server that refuses the key of a gateway, so that every request to it fails."""
    return [
        f"{one['name']} refuses the gateway's key (HTTP {one['refused']}): set VLLM_API_KEY of its model in "
        "vllm_secrets, and run playbooks/models.yml, then playbooks/gateway.yml"
        for one in live["states"]
        if one.get("refused")
    ]


def gateway_notes(live: Known) -> list[str]:
    """Return the servers that a gateway finds down, and those with reduced weight."""
    down = [one["name"] for one in live["states"] if not one["up"] and not one.get("refused")]
    less = [
        f"gateway: {one['name']} gets {one['weight']} % of its share" for one in live["states"] if one["weight"] < 100
    ]
    return ([f"gateway: does not reach {', '.join(down)}"] if down else []) + less


def gateway_removal(live: Known) -> dict[str, list[str]]:
    """Return the ``units`` and ``paths`` of a gateway to remove; both are empty on a host without any.

    Args:
        live: ``gaudi_haproxy`` of the host.
    """
    units = {UNIT_PATH: live["unit_sha256"], ADDRESS_PATH: live["address"]["unit_sha256"]}
    there = [path for path, digest in units.items() if digest is not None]
    # The address first: another gateway takes it over while this one still answers.
    return {
        "units": [path.name for path in reversed(there)],
        "paths": [*live["folders"], *map(str, there)],
    }


def gateway_reset(live: Known, left: Known, packages: Sequence[str]) -> dict[str, Any]:
    """Return how a gateway is removed with its packages.

    Args:
        live: ``gaudi_haproxy`` of the host.
        left: ``gaudi_left`` of the host.
        packages: packages that the role installs.
    """
    found = gateway_removal(live)
    return {
        **found,
        "due": bool(found["paths"]),
        "did": (["gateway: unit, configuration, keys"] if found["paths"] else []),
        "left": [],
        "packages": new_packages(left, "gateway", packages),
    }


def _removal(given: Given) -> Pending:
    """Return the pending removal of a gateway, beginning with what its clients lose."""
    live = given.known["gaudi_haproxy"]
    found = gateway_removal(live)
    models = ", ".join(sorted({entry_of(one).model for one in live["servers"]}))
    lost = f"remove the gateway: its clients no longer reach {models or 'any model'} through this host"
    lines = [f"stop {name}" for name in found["units"]] + [f"remove {path}" for path in found["paths"]]
    lines = [lost, *lines] if lines else []
    return Pending(changes={"due": bool(lines), "removal": found}, due=lines, left=given.left(lines), drift=lines)


UNIT_FILES = {"gateway": "gaudi-gateway.service", "address": "gaudi-gateway-address.service"}
PACKAGES = ("haproxy", "keepalived")


def gateway_packages(*, shared: bool) -> tuple[str, ...]:
    """Return the packages of a gateway; a shared address needs keepalived too."""
    return PACKAGES if shared else PACKAGES[:1]


def _config(given: Given) -> dict[str, dict[str, str]]:
    known = given.known
    settings, servers, keys = (known[f"gateway_{name}"] for name in ("settings", "servers", "keys"))
    return gateway_config(settings, servers, keys, known["gateway_rank"], known["gaudi_haproxy"]["interface"])


def _refusal(given: Given, certificate: str) -> list[str]:
    known = given.known
    settings, servers, keys = (known[f"gateway_{name}"] for name in ("settings", "servers", "keys"))
    return gateway_refusal(settings, servers, keys, known["gaudi_haproxy"], certificate, given.host)


def _look(given: Given) -> tuple[str, dict[str, Any]] | None:
    """Return the module that compares the files of the gateway, if its desired state is possible."""
    settings = given.known["gateway_settings"]
    certificate = settings.get("certificate") or ""
    if removes_gateway(settings) or _refusal(given, ""):
        return None
    return "haproxy_config", {**_config(given), "certificate": certificate, "state": "compared"}


def _pending(given: Given) -> Pending:
    if removes_gateway(given.known["gateway_settings"]):
        return _removal(given)
    live = given.known["gaudi_haproxy"]
    refusal = _refusal(given, str(given.seen.get("certificate") or ""))
    if not given.seen:
        return Pending(refusal=refusal, drift=refusal, notes=gateway_notes(live))
    address = _config(given)["files"].get("keepalived.conf", "")
    units = {name: file_of("gateway", file) for name, file in UNIT_FILES.items()}
    due = gateway_due(live, file_changes(given.seen), units, given.known["gateway_servers"], address)
    return Pending(
        changes={
            **{"due": bool(due), "address": bool(address), "reboots": list(live.get("reboots", ())), "removal": {}},
            "install": [name for name in gateway_packages(shared=bool(address)) if name not in live["installed"]],
            "units": [
                {"path": path, "content": text, "mode": mode_of(path)}
                for name, text in units.items()
                if (name == "gateway" or address) and (path := f"{UNITS}/{UNIT_FILES[name]}")
            ],
        },
        due=due,
        left=given.left([*due, *refusal]),
        refusal=refusal,
        drift=[*refusal, *gateway_drift(live, due)],
        notes=gateway_notes(live),
    )


def _reset(given: Given) -> dict[str, Any]:
    return gateway_reset(given.known["gaudi_haproxy"], given.known["gaudi_left"], PACKAGES)


STAGE = Stage(
    role="gateway",
    tag="gateway",
    reads=("system",),
    of_fleet=True,
    noted=("status",),
    given={
        **{"settings": "fleet_gateway", "servers": "the plans of all hosts"},
        **{"keys": "fleet_gateway_secret", "rank": "the order of the gateways"},
    },
    look=_look,
    pending=_pending,
    reset=_reset,
)
