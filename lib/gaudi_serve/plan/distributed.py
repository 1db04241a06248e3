"""A model over several hosts: the options of each part, the problems, and the settings that its parts share."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_interface
from typing import Any

from ..core.errors import Problem, shown
from ..core.paths import CONFIG, RAY_MEMBER
from ..core.words import counted, some_names
from ..engines import COPIES_SINCE, ENGINES, Engine, engine_of, executors, spreads_copies
from ..model.adapters import ADAPTERS, RANK, adapters_of
from ..model.between import NICS
from ..model.distributed import EXECUTOR, HOSTS, MP, PORT, PORTS, Members
from ..model.host import Host, LiveModel, Network, Weights
from ..model.shared import SHARED
from ..model.spec import Spec, size_key
from ..platforms import Platform, platform_of
from .meeting import Reach, addresses_of, apart
from .model import Placement, PlannedModel

# Options that select a server's part of the model. The plan sets them.
COUNTED = (
    *("nnodes", "node_rank", "master_addr", "master_port", "data_parallel_size_local", "data_parallel_address"),
    *("data_parallel_rpc_port", "data_parallel_start_rank", "data_parallel_rank", "data_parallel_backend"),
    *("data_parallel_external_lb", "data_parallel_multi_port_external_lb"),
)
# Keys that can differ between the hosts of a model.
OF_PART = (HOSTS, "node_rank", "data_parallel_start_rank", "headless", "host", "env", "recipe_cache_path", "mounts")
ADDRESS, RAY = "vllm_cluster_address", "ray"
# Variables that would give Ray another secret than that of the hosts, or none.
RAY_SECRETS = {"RAY_AUTH_TOKEN", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"}
VLLM_PORT = "VLLM_PORT"
# The model restarts if its supervisors do not reach each other for so many seconds.
MEMBER_TIMEOUT_S = 20
# The most seconds between the clocks of a model's hosts. The measurement itself takes a second or two.
CLOCKS_APART_S = 10


@dataclass(frozen=True)
class Part:
    """One host of a model in a plan: its facts and its planned part.

    release: of its software. image: the id of the model's image there; None if it is missing or the run fetches it.
    known: the host has an entry of the model, valid or not. problem: why the part cannot be planned; empty if unknown.
    """

    machine: Host
    model: PlannedModel | None
    release: str = ""
    image: str | None = None
    known: bool = False
    problem: str = ""


def spread(spec: Spec, addresses: Mapping[str, str]) -> Spec:
    """Return a part of a model with the vLLM options that select the part.

    Args:
        spec: The complete model with ``hosts``.
        addresses: By host of the model, its address in their common network. Hosts without facts are missing.
    """
    members = spec.members
    if members is None:
        return spec
    ports, head = spec.cluster_ports, addresses.get(members.head, "")
    if spec.copied_over_hosts:
        found: dict[str, Any] = {
            "data_parallel_size_local": spec.copies,
            "data_parallel_address": head,
            "data_parallel_rpc_port": ports.copies,
        }
        found |= {"data_parallel_start_rank": members.rank * spec.copies} if members.rank else {}
    elif by_ray(spec):
        return spec.but(**{EXECUTOR: RAY})
    else:
        found = {
            "nnodes": len(members.names),
            "node_rank": members.rank,
            "master_addr": head,
            "master_port": ports.rendezvous,
        }
    return spec.but(**found, **({} if spec.answers else {"headless": True}))


def executor_of(spec: Spec) -> str:
    """Return the executor that spreads a model over its hosts."""
    said = spec.get(EXECUTOR)
    return str(said) if said else next(iter(engine_of(spec).executors), MP)


def by_ray(spec: Spec) -> bool:
    """Return whether a model over several hosts is a Ray cluster."""
    return spec.members is not None and not spec.copied_over_hosts and executor_of(spec) == RAY


def distributed_problems(spec: Spec, host: Host, release: str, hosts: Mapping[str, Reach]) -> list[Problem]:
    """Return the problems with a model's distribution over its hosts, for one of these hosts."""
    members = spec.members
    if members is None:
        return []
    addresses = addresses_of(spec.name, members.names, hosts)
    engine, platform = engine_of(spec), platform_of(host.accelerator)
    problems = _unread(members.names, addresses) + _of_address(members.here, host, addresses)
    if not problems and (text := apart(spec.name, members.names, hosts)):
        problems.append((ADDRESS, addresses[members.here], text))
    problems += _of_engine(spec, engine, executors(spec, platform, release)) + _of_copies(spec, platform, release)
    problems += _of_sizes(spec, len(members.names))
    problems += [(key, spec[key], "is set by the plan; leave it out") for key in COUNTED if spec.get(key) is not None]
    own = sorted({*variables_between(spec, addresses), *RAY_SECRETS} & {*(spec.get("env") or {})})
    problems += [(f"env: {name}", spec["env"][name], "is set by the plan on each host; leave it out") for name in own]
    problems += _of_environment(spec.get("env") or {}, host, platform.socket_variables)
    for key in ("module_ids", SHARED):
        if spec.get(key):
            problems.append((key, spec[key], "is not for a model over several hosts: the plan chooses on each host"))
    return problems + _of_ports(spec, host)


def _unread(names: Sequence[str], addresses: Mapping[str, str]) -> list[Problem]:
    missing = [name for name in names if name not in addresses]
    if not missing:
        return []
    allowed = (
        f"has {', '.join(missing)}, of which this run has read no facts: add it to --limit ({','.join(names)}), or fix "
        "the connection to it; all hosts of a model are planned together"
    )
    return [(HOSTS, list(names), allowed)]


def _of_address(name: str, host: Host, addresses: Mapping[str, str]) -> list[Problem]:
    """Return the problem with the address at which the other hosts reach this one."""
    mine = addresses.get(name, "")
    others = sorted(other for other, address in addresses.items() if address == mine and other != name)
    own = [one.address for one in host.networks]
    choice = f"set {ADDRESS} for this host to one of {', '.join(own)}" if own else f"set {ADDRESS} for this host"
    if not mine:
        return []
    try:
        address = ip_address(mine)
    except ValueError:
        return [(ADDRESS, mine, f"must be an address, not a name; {choice}")]
    # Two hosts on one cable have link-local addresses of IPv4; those of IPv6 are not unique without an interface.
    if address.is_loopback or address.is_unspecified or (address.is_link_local and address.version > 4):
        return [(ADDRESS, mine, f"cannot be reached from other hosts; {choice}")]
    if own and mine not in own:
        return [(ADDRESS, mine, f"is not an address of this host; {choice}")]
    return [(ADDRESS, mine, f"is the address of {others[0]} too; {choice}")] if others else []


def _of_environment(env: Mapping[str, Any], host: Host, variables: Sequence[str]) -> list[Problem]:
    """Return the problems with a user's variables that keep the processes of several hosts apart."""
    problems: list[Problem] = []
    if VLLM_PORT in env:
        allowed = "lets processes of several hosts take the same port; leave it out"
        problems.append((f"env: {VLLM_PORT}", env[VLLM_PORT], allowed))
    own = sorted({one.interface for one in host.networks})
    for name in variables:
        text = str(env.get(name) or "")
        # NCCL and HCCL also take the beginning of a name, and a leading ^ for all others; gloo takes names alone.
        exact = name.startswith("GLOO") or text.startswith("=")
        others = text.startswith("^") and not name.startswith("GLOO")
        parts = [] if others or not own else [one for one in text.removeprefix("=").split(",") if one]
        wrong = [part for part in parts if not any(one == part or (not exact and one.startswith(part)) for one in own)]
        if wrong:
            allowed = f"must be an interface of this host with an address ({', '.join(own)}), or leave it out"
            problems.append((f"env: {name}", text, allowed))
    return problems


def _of_engine(spec: Spec, engine: Engine, offered: tuple[str, ...]) -> list[Problem]:
    said = spec.get(EXECUTOR)
    if not offered:
        able = ", ".join(name for name, one in ENGINES.items() if one.executors)
        allowed = f"is not for profile {engine.name}, which serves a model on one host; use {able} for several hosts"
        return [(HOSTS, list(spec.members.names) if spec.members else None, allowed)]
    if engine.over_hosts and not spec.get("distributed_experimental"):
        allowed = f"must be true for a model over several hosts in profile {engine.name}: {engine.over_hosts}"
        return [("distributed_experimental", bool(spec.get("distributed_experimental")), allowed)]
    if spec.stages > 1 and not engine.stages:
        allowed = f"must be 1: profile {engine.name} has no stages; use tensor_parallel_size over the hosts"
        return [("pipeline_parallel_size", spec["pipeline_parallel_size"], allowed)]
    if said and said not in offered and not spec.copied_over_hosts:
        allowed = f"must be {' or '.join(offered)} for a model over several hosts in profile {engine.name}"
        return [(EXECUTOR, said, allowed)]
    return []


def _of_copies(spec: Spec, platform: Platform, release: str) -> list[Problem]:
    """Return the problems with keys that are not for copies on several hosts, or only for them."""
    if spec.copied_over_hosts and not spreads_copies(spec, platform, release):
        allowed = (
            f"is not for profile {spec.launch_profile} of this release, or for a vLLM before {COPIES_SINCE}; use "
            "tensor_parallel_size over the hosts"
        )
        return [("data_parallel_size", spec["data_parallel_size"], allowed)]
    if spec.copied_over_hosts and spec.get(EXECUTOR) == RAY:
        return [(EXECUTOR, RAY, "is not for copies on several hosts, which need no Ray; leave it out")]
    if spec.get("data_parallel_hybrid_lb") and not spec.copied_over_hosts:
        allowed = "is for copies on several hosts; set data_parallel_size, or leave it out"
        return [("data_parallel_hybrid_lb", spec["data_parallel_hybrid_lb"], allowed)]
    return []


def _of_sizes(spec: Spec, hosts: int) -> list[Problem]:
    """Return the problem with sizes that do not divide by the number of hosts."""
    if spec.copied_over_hosts:
        copies = int(spec["data_parallel_size"])
        allowed = f"must be a multiple of {hosts}, the number of its hosts"
        return [("data_parallel_size", copies, allowed)] if copies % hosts else []
    if spec.tensors * spec.stages % hosts == 0:
        return []
    stages = f", times pipeline_parallel_size {spec.stages}," if spec.stages > 1 else ""
    allowed = f"must{stages} be a multiple of {hosts}, the number of its hosts"
    return [(*size_key(spec), allowed)]


def _of_ports(spec: Spec, host: Host) -> list[Problem]:
    """Return the problem with a port between the hosts that another program uses."""
    live = host.services.get(spec.name)
    if live and live.runs:
        return []
    ports = spec.cluster_ports
    taken = [port for port in range(ports.first, ports.last + 1) if port in host.ports]
    if not taken:
        return []
    more = f" (and {len(taken) - 1} more are)" if len(taken) > 1 else ""
    allowed = f"needs ports {ports.first} to {ports.last}, and {taken[0]} is taken by {host.ports[taken[0]]}{more}"
    return [(PORT, ports.first, f"{allowed}; end it or choose another {PORT}")]


def same_ports(specs: Sequence[Spec]) -> list[tuple[Spec, Problem]]:
    """Return the models of a host that share ports between hosts with another model."""
    found = []
    for place, spec in enumerate(specs):
        if spec.members is None:
            continue
        ports = spec.cluster_ports
        for other in specs[:place]:
            if other.members and abs(other.cluster_ports.first - ports.first) < PORTS:
                free = max(one.cluster_ports.last for one in specs if one.members) + 1
                allowed = f"shares its {PORTS} ports with model {other.name}; {free} is free"
                found.append((spec, (PORT, ports.first, allowed)))
                break
        within = [one for one in specs if one.answers and ports.first <= one.port <= ports.last]
        if within:
            allowed = f"needs ports {ports.first} to {ports.last}, and {within[0].port} is the port of {within[0].name}"
            found.append((spec, (PORT, ports.first, allowed)))
    return found


def variables_between(spec: Spec, addresses: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which the processes of a part find those of the other hosts.

    They do not contain names of interfaces. A name can change with a boot, so the supervisor finds it by the address
    at each start.
    """
    members = spec.members
    if members is None:
        return {}
    # The supervisor limits the time of a start.
    env = {"VLLM_HOST_IP": addresses.get(members.here, ""), "VLLM_ENGINE_READY_TIMEOUT_S": "86400"}
    if spec.copied_over_hosts:
        env["VLLM_DP_MASTER_PORT"] = str(spec.cluster_ports.copies_torch)
    elif by_ray(spec):
        env |= {
            "RAY_ADDRESS": _socket(addresses.get(members.head, ""), spec.cluster_ports.rendezvous),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": token_path(spec.name),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
    return env


def _socket(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def token_path(name: str) -> str:
    """Return the file with the secret that the hosts of a model share."""
    return f"{CONFIG}/{name}.token"


def mounts_between(spec: Spec) -> list[dict[str, Any]]:
    """Return the additional mounts of a container of Ray."""
    if not by_ray(spec):
        return []
    token = token_path(spec.name)
    program = {"source": f"{CONFIG}/{spec.name}.ray", "target": RAY_MEMBER, "read_only": True}
    return [program, {"source": token, "target": token, "read_only": True}]


def notes_between(spec: Spec, host: Host, addresses: Mapping[str, str]) -> list[str]:
    """Return notes about a model over several hosts, for one of these hosts."""
    members = spec.members
    if members is None:
        return []
    ports, platform = spec.cluster_ports, platform_of(host.accelerator)
    notes = [
        f"its hosts communicate on ports {ports.first} to {ports.last} and on ports that the kernel chooses, without "
        "encryption; docs/guides/multi-host.md has the firewall rule"
    ]
    block = f"{ports.first}-{ports.last}"
    notes += [
        f"{PORT} {ports.first}: the kernel gives ports {low} to {high} to any connection, so one of the block can be "
        f"taken at a start; choose a block outside, or set net.ipv4.ip_local_reserved_ports to {block}"
        for low, high in host.ephemeral_ports
        if low <= ports.last and ports.first <= high
    ]
    slow = not platform.scales_out(host) and host.between.kind != NICS
    if slow and not spec.copied_over_hosts and (text := crossing(spec, members.names)):
        notes.append(text)
    if members.rank:
        return notes[1:]
    return notes


def crossing(spec: Spec, names: Sequence[str]) -> str:
    """Return a note about tensors that cross hosts and how to avoid it, or an empty text.

    Ranks are consecutive, so those of a stage are neighbors, and so are those of a host.

    Args:
        spec: A part of a model whose tensors and stages are spread over hosts.
        names: Its hosts, the head first.
    """
    tensors, cards, stages = spec.tensors, spec.cards, spec.stages
    if stages == 1:
        return (
            f"tensor_parallel_size {tensors} crosses hosts: every layer waits for the network between them; "
            "without RDMA, pipeline_parallel_size is faster"
            if tensors > cards
            else ""
        )
    over = {
        stage: names[stage * tensors // cards : ((stage + 1) * tensors - 1) // cards + 1] for stage in range(stages)
    }
    found = [f"{stage + 1} ({', '.join(hosts)})" for stage, hosts in over.items() if len(hosts) > 1]
    if not found:
        return ""
    whole = math.gcd(tensors, cards)
    return (
        f"tensor_parallel_size {tensors} on hosts with {counted(cards, 'card')} each: {some_names(found)} of the "
        f"{stages} stages cross hosts, and each of their layers waits for the network between the hosts; "
        f"tensor_parallel_size {whole} with pipeline_parallel_size {tensors * stages // whole} keeps each on one host"
    )


def joined(
    mine: PlannedModel, parts: Mapping[str, Part], addresses: Mapping[str, str]
) -> tuple[PlannedModel | None, list[Problem]]:
    """Return a part with its references to the other parts, and the problems between them.

    Args:
        mine: The part of the planned host.
        parts: By host, the parts that could be planned, including its own. All hosts make them in the same way, so
            they get the same id of their group.
        addresses: By host of the model.
    """
    spec = mine.spec
    members = spec.members
    if members is None:
        raise ValueError(f"{spec.name} runs on one host")
    kinds = _other_kinds(parts, members.names)
    if kinds or (lacking := _lacking(parts, members.names)):
        return None, kinds or lacking
    ordered = [parts[name] for name in members.names]
    models = [one.model for one in ordered if one.model]
    group = _group(spec, members, parts[members.here].machine, addresses)
    live = [one.machine.services.get(spec.name, LiveModel()).token for one in ordered]
    group["tokens"] = {"head": live[0], "here": live[members.rank]}
    told = [one.container.of_digest(one.spec, one.here) for one in models]
    same = {key: group[key] for key in ("port", "hosts", "timeout_s")}
    text = json.dumps([told, [addresses[name] for name in members.names], same], sort_keys=True)
    group["id"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    named = enumerate(zip(members.names, models, strict=True))
    found = replace(
        mine,
        placements=tuple(Placement(name, one.here.module_ids, rank) for rank, (name, one) in named),
        rank=members.rank,
        group=group,
        warnings=(*mine.warnings, *_networks(parts, addresses, members.names), *_clocks(parts, members.names)),
    )
    return found, _different(spec, parts, members.names)


def _lacking(parts: Mapping[str, Part], names: Sequence[str]) -> list[Problem]:
    """Return the problem with a host on which the model has no part."""
    name = next((one for one in names if one not in parts or parts[one].model is None), None)
    if name is None:
        return []
    part = parts.get(name, Part(Host(), None))
    why = part.problem or f"see the errors of {name}"
    if part.machine.accelerator and platform_of(part.machine.accelerator).devices and not part.machine.cards:
        why = f"{name} shows no cards: install its driver first (playbooks/driver.yml)"
    elif not part.known:
        why = f"{name} does not have this entry; write it in a file for all its hosts, such as group_vars/all.yml"
    return [(HOSTS, list(names), f"has {name}, and its part cannot be planned there; {why}")]


def _group(spec: Spec, members: Members, here: Host, addresses: Mapping[str, str]) -> dict[str, Any]:
    """Return the data about its group that a supervisor needs."""
    ports, platform = spec.cluster_ports, platform_of(here.accelerator)
    group: dict[str, Any] = {
        "rank": members.rank,
        "hosts": list(members.names),
        "addresses": [addresses[name] for name in members.names],
        "port": ports.supervisors,
        "token": token_path(spec.name),
        "interface_variables": list(platform.socket_variables),
        "interface": next((one.interface for one in here.networks if one.address == addresses[members.here]), ""),
        "timeout_s": int(spec.get("member_timeout_s") or MEMBER_TIMEOUT_S),
        "answers": spec.answers,
    }
    if spec.copied_over_hosts:
        group["ports"] = [] if members.rank else [ports.copies, ports.copies_torch]
    elif by_ray(spec):
        group["ports"] = list(ports.ray) if members.rank else [ports.rendezvous, *ports.ray, ports.client]
        group["ray"] = {
            "role": "worker" if members.rank else "head",
            "address": addresses[members.here],
            "head": _socket(addresses[members.head], ports.rendezvous),
            "hosts": len(members.names),
            "resource": platform.ray_resource,
            "devices": spec.cards,
            "ports": list(ports.ray),
            "client": ports.client,
            "workers": list(ports.workers),
        }
    else:
        group["ports"] = [] if members.rank else [ports.rendezvous]
    return group


def _other_kinds(parts: Mapping[str, Part], names: Sequence[str]) -> list[Problem]:
    """Return the problems with hosts of a model that have another kind of devices than the first host."""
    problems: list[Problem] = []
    first, known = names[0], [name for name in names if name in parts]
    for name in known[1:] if known[:1] == [first] else ():
        for what, key in (("accelerator", "kind"), ("device_name", "device")):
            ours, theirs = getattr(parts[first].machine, what), getattr(parts[name].machine, what)
            if ours != theirs:
                allowed = f"has {first} with {ours} and {name} with {theirs}; all must have one {key}"
                problems.append((HOSTS, list(names), allowed))
                break
    return problems


def _different(spec: Spec, parts: Mapping[str, Part], names: Sequence[str]) -> list[Problem]:
    """Return the problems with settings that differ from those of the model's first host."""
    first = names[0]
    problems: list[Problem] = []
    mine = parts[first]
    for name in names[1:]:
        other = parts[name]
        if mine.model and other.model:
            problems += _other_keys(mine.model.spec, other.model.spec, (first, name))
        if mine.release != other.release:
            allowed = f"has {first} of release {mine.release} and {name} of {other.release}; all must be of one release"
            problems.append((HOSTS, list(names), allowed))
        if mine.image and other.image and mine.image != other.image:
            allowed = f"is another image on {name} than on {first}; provide the same on both, as vllm_images does"
            problems.append(("image", spec.get("image"), allowed))
        problems += _other_weights(spec, mine.machine, other.machine, (first, name))
    return problems


def _other_keys(mine: Spec, other: Spec, names: tuple[str, str]) -> list[Problem]:
    """Return the problems with keys of a model that differ between two hosts."""
    # The rank of adapters that only some hosts have fetched is the same after the run.
    part = (*OF_PART, RANK) if mine.get(ADAPTERS) else OF_PART
    ours, theirs = ({key: value for key, value in one.items() if key not in part} for one in (mine, other))
    if mine.members and other.members and mine.members.names != other.members.names:
        ours, theirs = {HOSTS: list(mine.members.names)}, {HOSTS: list(other.members.names)}
    keys = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
    return [
        (
            *(key, ours.get(key)),
            f"differs between the hosts of the model: {names[1]} has {shown(theirs.get(key))}; write the entry once, "
            "in a file for all its hosts, such as group_vars/all.yml",
        )
        for key in keys
    ]


def _other_weights(spec: Spec, mine: Host, other: Host, names: tuple[str, str]) -> list[Problem]:
    folders = [("weights", spec.weights), *((ADAPTERS, one.folder) for one in adapters_of(spec))]
    return [
        (
            *(key, folder),
            f"differs between the hosts of the model: {names[1]} has {what}; copy the folder of {names[0]} there",
        )
        for key, folder in folders
        if (what := _other_folder(mine.weights.get(folder), other.weights.get(folder)))
    ]


def _other_folder(ours: Weights | None, theirs: Weights | None) -> str:
    """Return how a folder differs on another host; empty if it does not, or is not known on both."""
    if not ours or not theirs:
        return ""
    if (ours.config, ours.adapter) != (theirs.config, theirs.adapter):
        return "another config.json" if ours.config != theirs.config else "another adapter_config.json"
    if ours.bytes != theirs.bytes:
        return f"{theirs.bytes} bytes, not {ours.bytes}"
    return "files with other checksums" if ours.content and theirs.content and ours.content != theirs.content else ""


def _networks(parts: Mapping[str, Part], addresses: Mapping[str, str], names: Sequence[str]) -> list[str]:
    """Return notes about networks that can separate a model's hosts from the first host."""
    notes: list[str] = []
    known = {name: _network(parts[name].machine, addresses[name]) for name in names}
    first, mine = names[0], known[names[0]]
    for name in names[1:]:
        other = known[name]
        if mine is None or other is None:
            continue
        nets = [ip_interface(f"{one.address}/{one.prefix}").network for one in (mine, other)]
        if nets[0] != nets[1]:
            notes.append(f"{first} is in {nets[0]} and {name} in {nets[1]}: each must route to the other")
        if mine.mtu != other.mtu:
            notes.append(
                f"the MTU of {first} is {mine.mtu} on {mine.interface}, that of {name} is {other.mtu} on "
                f"{other.interface}: large messages may be lost between them"
            )
    versions = {name: version for name in names if (version := parts[name].machine.driver_version)}
    if len(set(versions.values())) > 1:
        notes.append("the driver differs: " + ", ".join(f"{name} has {one}" for name, one in versions.items()))
    return notes


def _clocks(parts: Mapping[str, Part], names: Sequence[str]) -> list[str]:
    """Return notes about clocks that differ or are not synchronized. Logs and tokens depend on them."""
    clocks = {name: parts[name].machine.clock for name in names}
    offsets = {name: one.offset_s for name, one in clocks.items() if one.offset_s is not None}
    notes: list[str] = []
    if offsets and (apart := max(offsets.values()) - min(offsets.values())) > CLOCKS_APART_S:
        behind, ahead = min(offsets, key=offsets.__getitem__), max(offsets, key=offsets.__getitem__)
        notes.append(
            f"the clock of {ahead} is {apart:.0f} s ahead of that of {behind}, more than {CLOCKS_APART_S} s: set both "
            "by the same NTP servers"
        )
    if alone := [name for name, one in clocks.items() if one.synchronized is False]:
        notes.append(f"the clock of {some_names(alone)} is not synchronized (timedatectl): set it by NTP")
    return notes


def _network(host: Host, address: str) -> Network | None:
    return next((one for one in host.networks if one.address == address), None)
