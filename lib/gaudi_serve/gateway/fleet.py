"""The servers of a gateway, from the plans of a fleet's hosts: their addresses and keys.

Pure functions of an inventory's variables. A server for a gateway on another host listens on its host's address in
their network and requires a key. A server on loopback does neither.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from ipaddress import ip_address
from typing import Any

from ..core.errors import InputError, is_whole, one_line
from ..host.secret import BESIDE, given_secrets
from ..host.smoke import EVERYWHERE
from ..model.adapters import names_in
from ..model.distributed import answers
from ..model.host import LiveModel, live_models
from .objects import ABSENT, PLAIN, Backend, Server

Known = Mapping[str, Any]
LEAST_SECRET = 32  # characters
# Begins the name of a model in place of its key, which only its host knows.
STORED = "@stored:"
# Concurrent requests of a server whose model does not set max_num_seqs: vLLM's default.
TAKES = 256
# The input kinds of most models.
TALKS = ("text",)
# Smoke probes of models that generate text.
TALKING = {"text", "any", "image", "audio", "video", "tools"}


@dataclass(frozen=True)
class Entry:
    """One server of a fleet.

    host, unit: where it runs; model: its name for clients; address, port: where a gateway reaches it; takes: concurrent
    requests; adapters: names of its LoRA adapters; kinds: input kinds of a conversation, ``text`` and ``image``.
    """

    host: str
    unit: str
    model: str
    address: str
    port: int
    takes: int
    adapters: tuple[str, ...] = ()
    kinds: tuple[str, ...] = TALKS

    @property
    def name(self) -> str:
        """Return the server's name in HAProxy."""
        return PLAIN.sub("_", f"{self.host}.{self.unit}")

    def as_dict(self) -> dict[str, Any]:
        """Return the entry as a mapping. Default ``kinds`` are left out, so that existing files stay unchanged."""
        return {key: value for key, value in asdict(self).items() if key != "kinds" or value != TALKS}


def fleet_gateways(hostvars: Mapping[str, Known], hosts: Iterable[str]) -> list[str]:
    """Return the gateway hosts of an inventory: those with a mapping ``fleet_gateway`` that removes none."""
    return [name for name in hosts if is_gateway(hostvars[name])]


def is_gateway(variables: Known) -> bool:
    """Return whether a host is a gateway; also True for an unreadable value, which the gateway's checks refuse."""
    try:
        settings = variables.get("fleet_gateway")
        return isinstance(settings, Mapping) and not removes_gateway(settings)
    # Ansible and Jinja raise many kinds of errors here.
    except Exception:
        return True


def removes_gateway(settings: Any) -> bool:
    """Return whether ``fleet_gateway`` of a host removes its gateway."""
    return isinstance(settings, Mapping) and settings.get("state") == ABSENT


def is_remote(gateways: Iterable[str], host_name: str) -> bool:
    """Return whether a gateway on another host reaches the servers of a host."""
    return any(name != host_name for name in gateways)


def behind_gateway(defaults: Any, gateways: Sequence[str], host_name: str, address: str) -> Any:
    """Return the default model keys of a host; with the host's address, if a gateway is on another host.

    A ``host`` that the user has set stays.

    Args:
        defaults: ``vllm_model_defaults``.
        gateways: gateway hosts of the inventory.
        host_name: the host.
        address: the host's address for gateways.
    """
    if not isinstance(defaults, Mapping) or not is_remote(gateways, host_name) or not address:
        return defaults
    return {"host": address, **defaults}


def server_key(secret: str, model: str) -> str:
    """Return the key, in hexadecimal, that the servers of a model require from gateways."""
    return hmac.new(secret.encode(), f"server of {model}".encode(), hashlib.sha256).hexdigest()


def server_secrets(
    secrets: Any, names: Mapping[str, str], gateways: Sequence[str], host_name: str, secret: Any = ""
) -> Any:
    """Return the secrets of a host's models, with a key for each model if a gateway on another host reaches it.

    A key that the user has set stays. A model without an entry keeps what its host stores beside the key, as it does
    without a gateway. Invalid values are returned unchanged; other checks refuse them.

    Args:
        secrets: ``vllm_secrets`` of the host.
        names: ``{model: its name for clients}``.
        gateways: gateway hosts of the inventory.
        host_name: the host.
        secret: ``fleet_gateway_secret``.
    """
    secrets = given_secrets(secrets)
    if not isinstance(secrets, Mapping) or not is_remote(gateways, host_name) or secret_problem(secret):
        return secrets
    found = dict(secrets)
    for name, served in names.items():
        own = found.get(name)
        if own is None or isinstance(own, Mapping):
            kept = {BESIDE: True} if own is None else own
            found[name] = {"VLLM_API_KEY": server_key(str(secret), served), **kept}
    return found


def secret_problem(secret: Any) -> str:
    """Return what is wrong with ``fleet_gateway_secret``; empty if it is valid."""
    if isinstance(secret, str) and len(secret) >= LEAST_SECRET and secret.isprintable():
        return ""
    given = "is required" if secret in (None, "") else "(hidden)"
    return (
        f"fleet_gateway_secret: {given}: it must be a quoted text of at least {LEAST_SECRET} characters, from a vault; "
        "servers' keys are derived from it. Or let Ansible make and store one: \"{{ lookup('ansible.builtin.password', "
        "inventory_dir ~ '/.gateway_secret', length=48) }}\""
    )


def fleet_entries(
    hostvars: Mapping[str, Known], hosts: Iterable[str], gateway: str, live: Sequence[Known] = ()
) -> list[dict[str, Any]]:
    """Return the servers that a gateway serves, as mappings of ``Entry``.

    Hosts that this run has planned come from their plans. For other hosts, and for models that the plan leaves
    unchanged, the current servers stay; so a run on some hosts does not remove the servers of the others. A run that
    does not change models, such as playbooks/gateway.yml, takes a server from the plan only if it runs as planned.

    Args:
        hostvars: variables by host; uses ``preflight_plan``, ``preflight_refusal``, ``preflight_stages``,
            ``rollout_host``, ``gaudi_host`` and ``fleet_address``.
        hosts: all hosts of the inventory.
        gateway: the gateway's host.
        live: the servers that the gateway serves now, as this function returned them.
    """
    found: list[Entry] = []
    for name in hosts:
        known = hostvars[name]
        # The plan of a refused host lacks the models with errors.
        planned = "preflight_plan" in known and not known["preflight_plan"]["errors"]
        # A host whose change a rollout has not accepted serves nothing new yet.
        accepted = known.get("rollout_host", {}).get("accepted", True)
        if planned and not known.get("preflight_refusal") and accepted:
            address, own = fleet_address(known), name == gateway
            planned_here = {str(model["name"]): model for model in known["preflight_plan"]["models"]}
            changed = (
                set() if "vllm_service" in known.get("preflight_stages", ["vllm_service"]) else _not_as_planned(known)
            )
            unchanged = [model for unit, model in planned_here.items() if unit not in changed]
            found += [one for model in unchanged for one in _entries(name, model, address, own)]
            stay = {*changed, *(known["preflight_plan"].get("left") or [])}
            found += [entry_of(one) for one in live if one["host"] == name and one["unit"] in stay]
        else:
            found += [entry_of(one) for one in live if one["host"] == name]
    return [one.as_dict() for one in sorted(found, key=lambda one: (one.model, one.host, one.unit))]


def _not_as_planned(known: Known) -> set[str]:
    """Return the models of a host whose servers do not run as planned or listen elsewhere."""
    services = live_models(known.get("gaudi_host"))
    planned = {str(model["name"]): model for model in known["preflight_plan"]["models"]}
    return {name for name in {*planned, *services} if not _listens(services.get(name), planned.get(name))}


def _listens(live: LiveModel | None, model: Known | None) -> bool:
    """Return whether a model listens where its plan sets it, according to its container's command."""
    if not model or model["state"] == "stopped":
        return not (live and live.active)
    return live is not None and live.port == model["port"] and live.host in (None, str(model["host"]))


def fleet_address(known: Known) -> str:
    """Return the address of a host for gateways: ``fleet_address``, or the address of its default route."""
    return str(known.get("fleet_address") or (known.get("gaudi_host") or {}).get("ip") or "")


def entry_of(given: Known) -> Entry:
    """Return the entry of a mapping.

    Raises:
        InputError: for an invalid mapping, for example from a file that a user has edited.
    """
    try:
        lists = {"adapters": tuple(given.get("adapters", ())), "kinds": tuple(given.get("kinds", TALKS))}
        return Entry(**{**given, **lists})
    except TypeError as problem:
        raise InputError(f"a server of the gateway: {problem}") from problem


def _entries(host: str, model: Known, address: str, own: bool) -> list[Entry]:
    """Return an entry for each model of a server; empty if the gateway does not serve it."""
    if model["state"] == "stopped" or not answers(model):
        return []
    where = str(model["host"])
    if where in EVERYWHERE:
        where = "127.0.0.1" if own else address
    elif _is_loopback(where) and not own:
        return []
    takes = model["max_num_seqs"] if is_whole(model["max_num_seqs"], 1, 10**6) else TAKES
    adapters = names_in(model.get("args") or [])
    place = (where, int(model["port"]), takes, adapters)
    served = model.get("served") or [model]
    return [Entry(host, str(model["name"]), str(one["served_model_name"]), *place, _kinds(one)) for one in served]


def _kinds(served: Known) -> tuple[str, ...]:
    """Return the input kinds of a model in a conversation; empty for a model that does not generate text."""
    probes = set(served.get("smoke") or TALKS)
    if not probes & TALKING:
        return ()
    return (*TALKS, "image") if served.get("sees") or "image" in probes else TALKS


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def unreached(models: Iterable[Known], gateways: Sequence[str], host_name: str) -> list[str]:
    """Return messages on planned models that gateways on other hosts cannot reach, because they listen on loopback."""
    others = [name for name in gateways if name != host_name]
    return [
        f"{host_name}: model {model['name']}: host {model['host']}: {', '.join(others)} cannot reach this "
        "address; leave host out: the server then listens where gateways reach it, at the address of the default "
        "route, or at fleet_address, which a host without that route needs"
        for model in models
        if others and model["state"] != "stopped" and _is_loopback(str(model["host"]))
    ]


def gateway_left(services: Known | None, gateways: Sequence[str], host_name: str) -> list[str]:
    """Return a message if a gateway runs on a host that the inventory no longer makes a gateway.

    Args:
        services: ``gaudi_services`` of the host; None if they were not read.
        gateways: gateway hosts of the inventory.
        host_name: the host.
    """
    if host_name in gateways or not (services or {}).get("gateway"):
        return []
    return [
        f"{host_name}: gateway: it runs here, but the inventory has no fleet_gateway for this host; "
        "set fleet_gateway: {state: absent} for it, and playbooks/gateway.yml removes it"
    ]


def fleet_keys(
    hostvars: Mapping[str, Known], entries: Sequence[Known], gateways: Sequence[str], secret: Any = ""
) -> dict[str, str]:
    """Return ``{model: key}`` with the key that the servers of each model require; models without a key are left out.

    A server that only the gateway of its own host reaches keeps its stored key while the inventory has no entry for its
    model. ``@stored:UNIT`` stands for that key; module haproxy_config replaces it on the host.

    Args:
        hostvars: variables by host; uses ``vllm_secrets`` and ``gaudi_services``.
        entries: the result of fleet_entries.
        gateways: gateway hosts of the inventory.
        secret: ``fleet_gateway_secret``.

    Raises:
        InputError: if the servers of a model require different keys. HAProxy adds the key to a request before it
            chooses the server. The message contains no key.
    """
    found: dict[str, dict[str, str]] = {}
    servers = list(map(entry_of, entries))
    units = Counter((one.host, one.unit) for one in servers)
    for server in servers:
        # A server of several models has one key: that of its first model, which names its unit.
        keyed = replace(server, model=server.unit) if units[server.host, server.unit] > 1 else server
        found.setdefault(server.model, {})[server.name] = _key(keyed, hostvars, gateways, secret)
    for model, keys in found.items():
        _one_key(model, keys, servers)
    # A key of the inventory comes before one that only a host knows.
    listed = {
        model: sorted(filter(None, keys.values()), key=lambda key: key.startswith(STORED))
        for model, keys in found.items()
    }
    return {model: keys[0] for model, keys in listed.items() if keys}


def _one_key(model: str, keys: Known, servers: Sequence[Entry]) -> None:
    """Refuse different keys for the servers of a model."""
    # A server without a key, behind the gateway of its own host, ignores the key that it gets.
    asked = {name: key for name, key in keys.items() if key and not key.startswith(STORED)}
    if len(set(asked.values())) < 2:
        return
    if together := _together(model, servers):
        raise InputError(
            f"vllm_secrets: {one_line(model)}: a gateway has one key for all servers of a model, and this one "
            f"shares a server on some host: give {together} the same VLLM_API_KEY in vllm_secrets"
        )
    first = next(iter(asked))
    other = next(name for name in asked if asked[name] != asked[first])
    raise InputError(
        f"vllm_secrets: {one_line(model)}: VLLM_API_KEY of {first} and of {other} differ; a gateway has one "
        "for all servers of a model: set the same for all, or none, and the toolkit makes one"
    )


def _together(model: str, servers: Sequence[Entry]) -> str:
    """Return the units that need the same key because some serve several models; empty if each serves one model."""
    names, units = {model}, set[tuple[str, str]]()
    while more := {(one.unit, one.host) for one in servers if one.model in names} - units:
        units |= more
        names |= {one.model for one in servers if (one.unit, one.host) in units}
    return ", ".join(f"{unit} of {host}" for unit, host in sorted(units)) if len(names) > 1 else ""


def _key(entry: Entry, hostvars: Mapping[str, Known], gateways: Sequence[str], secret: Any) -> str:
    given = given_secrets(hostvars[entry.host].get("vllm_secrets")) if entry.host in hostvars else None
    own = given.get(entry.unit) if isinstance(given, Mapping) else None
    if isinstance(own, Mapping) and own.get("VLLM_API_KEY"):
        return str(own["VLLM_API_KEY"])
    if is_remote(gateways, entry.host):
        return server_key(str(secret), entry.model)
    return f"{STORED}{entry.unit}" if own is None and _stores_key(entry, hostvars) else ""


def _stores_key(entry: Entry, hostvars: Mapping[str, Known]) -> bool:
    """Return whether a host stores an API key of a server."""
    services = hostvars[entry.host].get("gaudi_services") if entry.host in hostvars else None
    unit = {**(services or {}).get("without_unit", {}), **(services or {}).get("units", {})}.get(entry.unit, {})
    return "VLLM_API_KEY" in unit.get("secret_names", ())


def backends_of(entries: Sequence[Known], keys: Mapping[str, str]) -> tuple[Backend, ...]:
    """Return the backends of a gateway, sorted by model name."""
    models: dict[str, list[Entry]] = {}
    for one in map(entry_of, entries):
        models.setdefault(one.model, []).append(one)
    return tuple(_backend(model, servers, keys.get(model, "")) for model, servers in sorted(models.items()))


def _backend(model: str, entries: Sequence[Entry], key: str) -> Backend:
    servers = tuple(Server(one.name, one.address, one.port, one.takes) for one in entries)
    found = dict.fromkeys(name for one in entries for name in one.adapters)
    # HAProxy would also send requests for an adapter to servers that do not have it.
    everywhere = tuple(name for name in found if all(name in one.adapters for one in entries))
    partly = tuple(name for name in found if name not in everywhere)
    kinds = tuple(kind for kind in entries[0].kinds if all(kind in one.kinds for one in entries))
    return Backend(model, servers, key, everywhere, partly, kinds=kinds)
