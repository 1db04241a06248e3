"""Checks and defaults of facts and variables that users may have written by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from operator import getitem
from pathlib import Path
from typing import Any, NamedTuple

from ansible.errors import AnsibleError

from ..core.checks import Rule, filled, filled_each, is_flag, is_line, list_of, matching, one_of, whole
from ..core.errors import Problem, is_number, one_line, shown
from ..core.options import OPTIONS, rule_of
from ..model.config_json import sound
from ..platforms import PLATFORMS, USUAL, platform_of, served_names
from ..show.notes import STANDING
from .rendered import UNRENDERED

Known = Mapping[str, Any]

FACTS = ("gaudi_system", "gaudi_host", "gaudi_services")
MOST_CARDS = 16


def _mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(is_line, value))


def _access(value: Any) -> bool:
    return _mapping(value) and list_of(is_line)(value.get("ids", []))


def _list(value: Any) -> bool:
    return isinstance(value, list)


def _cores(value: Any) -> bool:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9]{1,5}(-[0-9]{1,5})?", value):
        return False
    first, _, last = value.partition("-")
    return int(first) <= int(last or first)


def _ports(value: Any) -> bool:
    number = re.compile(r"[0-9]{1,5}")
    return _mapping(value) and all(number.fullmatch(port) and is_line(program) for port, program in value.items())


def _device(value: Any) -> bool:
    # The platform decides whether a device of that name is served. An inventory may name the family of a new device.
    return isinstance(value, str) and any(one.is_device_name(value) for one in PLATFORMS.values())


def _number(value: Any) -> bool:
    return re.fullmatch(r"\d{1,2}", str(value)) is not None


def _port_range(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(map(whole(0, 65535), value))


def _clock(value: Any) -> bool:
    if not _mapping(value):
        return False
    offset, synchronized = value.get("offset_s"), value.get("synchronized")
    return (offset is None or is_number(offset, -(10**10), 10**10)) and (synchronized is None or is_flag(synchronized))


def _processor(value: Any) -> bool:
    if not _mapping(value):
        return False
    numbers = all(whole(0, 10**6)(value.get(key, 0)) for key in ("numa_nodes", "threads_per_core"))
    nodes = list_of(_memory_node)(value.get("nodes", []))
    return nodes and numbers and list_of(is_line)(value.get("features", [])) and is_line(value.get("architecture", ""))


def _memory_node(value: Any) -> bool:
    if not _mapping(value) or not whole(0, 4096)(value.get("node")):
        return False
    sizes = (value.get("memory_mib"), value.get("hugepages_mib", 0), value.get("available_mib", 0))
    return all(map(whole(0, 10**9), sizes))


def _platform(value: Any) -> bool:
    return isinstance(value, str) and value in PLATFORMS


CARDS = list_of(whole(0, 63))
CARDS_ALLOWED = "must be a list of integers from 0 to 63"
# Families for cards with an unknown name. They are part of the vendor's own software.
FAMILIES = PLATFORMS[USUAL].prefixes
DEVICES = ", ".join(f"{prefix}*" for one in PLATFORMS.values() for prefix in one.prefixes)
HOST = {
    "accelerator": Rule(_platform, f"must be {served_names()}"),
    "device_name": Rule(_device, f"must be one of {DEVICES}", None),
    "driver_version": Rule(is_line, "must be a text such as 1.21.3-57", None),
    "modules": Rule(_list, "must be a list of cards, such as {module_id: 0, numa_node: 0, cpus: [0-39]}", None),
    "unusable_cards": Rule(_list, "must be a list of cards, such as {bus_id: '0000:19:00.0', problem: why}", []),
    "problem": Rule(list_of(is_line), "must be a list of texts", None),
    "ip": Rule(matching(r"[\w.:%-]+"), "must be an address such as 10.0.0.1", "127.0.0.1"),
    "interface": Rule(matching(r"[\w.:@-]+"), "must be the name of an interface, such as eth0", "lo"),
    "addresses": Rule(list_of(matching(r"[\w.:%-]+")), "must be a list of the host's addresses", None),
    "networks": Rule(_list, "must be a list of {interface, address, prefix, mtu}", []),
    "names": Rule(
        lambda value: _mapping(value) and all(map(list_of(is_line), value.values())),
        "must be a mapping of names to lists of addresses",
        {},
    ),
    "files": Rule(
        lambda value: _mapping(value) and all(map(is_flag, value.values())),
        "must be a mapping of paths to true (exists) or false",
        {},
    ),
    "cdi": Rule(is_flag, "must be true or false, without quotes", False),
    "engine_cdi": Rule(is_flag, "must be true or false, without quotes", None),
    "platforms": Rule(list_of(is_line), "must be a list of texts", []),
    "notes": Rule(list_of(is_line), "must be a list of texts", []),
    "cpu": Rule(_processor, "must be a mapping of architecture, features, numa_nodes, threads_per_core and nodes", {}),
    "verbs": Rule(list_of(is_line), "must be a list of RDMA devices, such as mlx5_0", []),
    "clock": Rule(_clock, "must be a mapping of offset_s (seconds) and synchronized (true or false)", {}),
    "ephemeral_ports": Rule(list_of(_port_range), "must be a list of ranges of ports, such as [[32768, 60999]]", []),
    "host_nics": Rule(is_flag, "must be true or false, without quotes", False),
    "services": Rule(_mapping, "must be a mapping of models that are served", {}),
    "ports": Rule(_ports, "must be a mapping of port numbers to programs", {}),
    "weights": Rule(_mapping, "must be a mapping of folders to {config, bytes}", {}),
    "weights_unread": Rule(_mapping, "must be a mapping of folders to why their config.json cannot be read", {}),
}
MODULE = {
    "module_id": Rule(whole(0, 63), "must be an integer from 0 to 63"),
    "numa_node": Rule(whole(-1, 63), "must be an integer from -1 to 63"),
    "index": Rule(whole(0, 255), "must be an integer from 0 to 255", None),
    "cpus": Rule(list_of(_cores), "must be a list of ranges of cores, such as 0-39", []),
    "in_use": Rule(is_flag, "must be true or false, without quotes", False),
    "held_by": Rule(is_line, "must be a text of one line", None),
    "problem": Rule(is_line, "must be a text of one line", None),
    "name": Rule(is_line, "must be a text of one line", None),
    "memory_mib": Rule(whole(0, 10**8), "must be an integer of MiB", 0),
    "memory_others_mib": Rule(whole(0, 10**8), "must be an integer of MiB", None),
    "capability": Rule(matching(r"(\d{1,2}\.\d|gfx[0-9a-f]+)?"), "must be a text such as '8.9' or gfx942", ""),
    "links": Rule(
        lambda value: _mapping(value) and all(map(is_line, value.values())) and all(map(_number, value)),
        "must be a mapping of module_ids to kinds of links, such as {'1': NV12}",
        {},
    ),
    "no_peer": Rule(list_of(whole(0, 63)), "must be a list of module_ids", []),
    "alone": Rule(is_flag, "must be true or false, without quotes", False),
    "serial": Rule(is_line, "must be a text of one line", None),
    "pcie_gb_s": Rule(lambda value: is_number(value, 0, 10_000), "must be a number of GB/s from 0 to 10000", 0.0),
}
NETWORK = {
    "interface": Rule(matching(r"[\w.:@-]+"), "must be the name of an interface, such as eth0"),
    "address": Rule(matching(r"[\w.:%-]+"), "must be an address such as 10.0.0.1"),
    "prefix": Rule(whole(0, 128), "must be an integer from 0 to 128"),
    "mtu": Rule(whole(0, 65536), "must be an integer of bytes"),
}
UNUSABLE = {
    "problem": Rule(is_line, "must be a text of one line"),
    "bus_id": Rule(is_line, "must be a text of one line", None),
    "index": Rule(whole(0, 255), "must be an integer from 0 to 255", None),
}
SERVICE = {
    "module_ids": Rule(CARDS, CARDS_ALLOWED, []),
    "port": Rule(whole(1, 65535), "must be an integer from 1 to 65535", None),
    "digest": Rule(is_line, "must be a text of one line", None),
    "active": Rule(is_flag, "must be true or false, without quotes", False),
    "holds": Rule(is_flag, "must be true or false, without quotes", False),
    "secret_changed": Rule(is_flag, "must be true or false, without quotes", False),
    "env_sha256": Rule(is_line, "must be a text of one line", None),
    "stale": Rule(list_of(is_line), "must be a list of folders", []),
    "limits": Rule(list_of(is_line), "must be a list of limits, such as NanoCpus", []),
    "launch": Rule(_mapping, "must be a mapping of image, command, mounts and the like", {}),
    "env": Rule(_mapping, "must be a mapping of variables", {}),
    "lost": Rule(_list, "must be a list of unit, environment, launch", []),
    "supervisor": Rule(is_line, "must be a text of one line", None),
    "token_sha256": Rule(is_line, "must be a text of one line", None),
}
LAUNCH = {
    "module_ids": Rule(CARDS, CARDS_ALLOWED, []),
    "command": Rule(_list, "must be a list of texts", []),
    "mounts": Rule(_list, "must be a list of {source, target, read_only}", []),
    "device_access": Rule(_access, "must be a mapping whose ids are a list of texts", {}),
}
MOUNT = {
    "source": Rule(is_line, "must be a path"),
    "target": Rule(is_line, "must be a path"),
    "read_only": Rule(is_flag, "must be true or false, without quotes"),
}
WEIGHTS = {
    "config": Rule(
        lambda value: isinstance(value, Mapping) and sound(value),
        "must be a model's config.json, with numbers below 10^15",
        {},
    ),
    "bytes": Rule(whole(0, 10**14), "must be an integer of bytes, from 0 to 10^14"),
    "adapter": Rule(
        lambda value: isinstance(value, Mapping) and sound(value),
        "must be a LoRA adapter's adapter_config.json, with numbers below 10^15",
        None,
    ),
    "vocabulary": Rule(is_flag, "must be true or false, without quotes", None),
}
UNDEFINED = re.compile(r"'\w+' is undefined")
# Further facts of gaudi_facts that planning does not read.
HOST_BESIDE = ("memory_mib", "pci_cards")
MODULE_BESIDE = (
    *("ecc_uncorrectable", "bad_pages", "sick", "warned", "firmware"),
    "bus_id",
    "memory_used_mib",
    "device_id",
)
WEIGHTS_BESIDE = ("recorded", "content", "damaged")
SYSTEM = {
    "id": Rule(is_line, "must be a text such as ubuntu"),
    "version_id": Rule(is_line, "must be a quoted text such as '22.04'"),
    "pretty_name": Rule(is_line, "must be a text such as Ubuntu 22.04.5 LTS", None),
}
IMAGES = {
    "images": Rule(
        lambda value: _mapping(value) or list_of(is_line)(value),
        "must be the names of the images on the host, as a list",
    )
}
SERIALS = Rule(list_of(matching(r"[\w.-]{1,64}")), "must be a list of quoted serial numbers, such as ['AM50016138']")
# Keys of a model that no other model of its host can have.
OF_ONE = {"name", "model", "hosts"}
VARIABLES = {
    "vllm_models": Rule(_list, "must be a list of models", None),
    "vllm_distributed_models": Rule(
        _list, "must be a list of models, each with its hosts (docs/guides/multi-host.md)", []
    ),
    "vllm_images": Rule(_list, "must be a list of images", []),
    "vllm_model_defaults": rule_of(
        OPTIONS["preflight_model_defaults"],
        Rule(
            lambda value: _mapping(value) and not OF_ONE & set(value),
            f"must be a mapping of keys that every model takes, without {', '.join(sorted(OF_ONE))}",
        ),
    ),
    "vllm_catalog_dirs": rule_of(
        OPTIONS["preflight_catalog_dirs"], Rule(list_of(is_line), "must be a list of folders")
    ),
    # Its entries are checked one by one, like those of files. A role's default reads the files.
    "preflight_catalog": rule_of(
        OPTIONS["preflight_catalog"], Rule(lambda _: True, "must be a mapping of catalog entries by their names")
    )._replace(default={}),
    "accelerator": Rule(lambda value: value == "auto" or _platform(value), f"must be auto, {served_names()}", "auto"),
    "accelerator_cards": rule_of(
        OPTIONS["preflight_cards"],
        Rule(
            whole(0, MOST_CARDS),
            f"must be the number of cards that the host must have, an integer up to {MOST_CARDS}; 0 for any",
        ),
    ),
    "accelerator_release": rule_of(
        OPTIONS["preflight_release"],
        Rule(matching(r"\d+(\.\d+){2,3}"), "must be a quoted release such as '1.24.1'"),
    ),
    "gaudi_device_family": rule_of(
        OPTIONS["preflight_device_family"],
        Rule(one_of("", *FAMILIES), f"must be one of {', '.join(FAMILIES)}, for a device that is not known"),
    ),
    "fleet_move_allowed": rule_of(OPTIONS["preflight_move_allowed"]),
    "accelerator_cards_excluded": rule_of(OPTIONS["preflight_cards_excluded"], SERIALS),
    "accelerator_cards_accepted": rule_of(OPTIONS["preflight_cards_accepted"], SERIALS),
    "fleet_acknowledged": Rule(list_of(one_of(*STANDING)), f"must be a list of {', '.join(STANDING)}", []),
    "gaudi_host_nics": rule_of(OPTIONS["preflight_host_nics"]),
}
# Variables of which only the form is checked.
OTHERS = (
    *("vllm_secrets", "vllm_cluster_address", "gaudi_runtime", "fleet_gateway", "fleet_gateway_secret"),
    *("fleet_monitoring", "plan_try"),
)
# No message shows the values of these variables, because they may contain a password or a token.
HIDDEN = frozenset(
    (
        *("fleet_gateway", "fleet_gateway_secret", "vllm_secrets", "fleet_monitoring", "benchmark_api_key"),
        *(key for key, one in OPTIONS.items() if one.get("no_log")),
    )
)
# Replacements for wrong values that cause no further errors. A plan cannot be made if another variable is wrong.
INSTEAD = {
    **{"accelerator_cards": 0, "accelerator": "auto", "gaudi_host_nics": True, "fleet_move_allowed": False},
    **{
        "vllm_catalog_dirs": [],
        "vllm_images": None,
        "vllm_distributed_models": [],
        "gaudi_device_family": "",
        "fleet_acknowledged": [],
        "accelerator_cards_excluded": [],
        "accelerator_cards_accepted": [],
    },
}


def checked_host(host_facts: Any) -> tuple[dict[str, Any], list[Problem]]:
    """Return a ``gaudi_host`` with the defaults for keys that a hand-written one may leave out, and its problems.

    Returns:
        The host, with every key that planning reads, and ``driver_version`` only if it was set; and its problems. Of
        a mistake in several cards or services, only the first is listed. A host with a problem cannot be planned.
    """
    host, problems = filled(host_facts, HOST, "gaudi_host", HOST_BESIDE)
    if problems:
        return host, problems
    if "driver_version" not in host_facts:
        del host["driver_version"]
    if host["modules"] is None:
        host["modules"] = []
        if platform_of(host["accelerator"]).devices and not host["problem"]:
            problems.append(("gaudi_host.modules", None, HOST["modules"].allowed))
    if host["modules"] and not host["device_name"] and platform_of(host["accelerator"]).devices:
        problems.append(("gaudi_host.device_name", None, HOST["device_name"].allowed))
    host["unusable_cards"], wrong = filled_each(host["unusable_cards"], UNUSABLE, "gaudi_host.unusable_cards", ())
    host["networks"], more = filled_each(host["networks"], NETWORK, "gaudi_host.networks", ())
    problems += wrong + more + _fill_modules(host) + _fill_services(host) + _fill_weights(host)
    first: dict[tuple[str, str], Problem] = {}
    for problem in problems:
        first.setdefault((re.sub(r"\[\d+\]", "", problem[0]), problem[2]), problem)
    return host, list(first.values())


def _fill_modules(host: dict[str, Any]) -> list[Problem]:
    where = "gaudi_host.modules"
    if len(host["modules"]) > MOST_CARDS:
        return [(where, host["modules"], f"must be {MOST_CARDS} cards at most")]
    host["modules"], problems = filled_each(host["modules"], MODULE, where, MODULE_BESIDE)
    if problems:
        return problems
    numbers = [module["module_id"] for module in host["modules"]]
    for place, (number, module) in enumerate(zip(numbers, host["modules"], strict=True)):
        module["index"] = number if module["index"] is None else module["index"]
        if number in numbers[:place]:
            problems.append((f"{where}[{place}].module_id", number, "already belongs to another card"))
    return problems + _core_problems(host["modules"], where)


def _core_problems(modules: list[dict[str, Any]], where: str) -> list[Problem]:
    """Return the problem if cores contradict each other. Cards of one NUMA node have the same cores, and only they."""
    first: dict[int, int] = {}
    ranges: list[tuple[int, int, int]] = []
    for place, module in enumerate(modules):
        # Without a node or without cores there is no binding.
        if module["numa_node"] < 0 or not module["cpus"]:
            continue
        node, other = module["numa_node"], first.setdefault(module["numa_node"], place)
        if module["cpus"] != modules[other]["cpus"]:
            allowed = f"differs from {shown(modules[other]['cpus'])} of [{other}], a card of the same NUMA node {node}"
            return [(f"{where}[{place}].cpus", module["cpus"], allowed)]
        if place == other:
            bounds = [part.partition("-") for part in module["cpus"]]
            ranges += [(int(low), int(high or low), place) for low, _, high in bounds]
    # In sorted order, ranges of two cards overlap if one begins before the furthest range so far has ended.
    furthest = (-1, -1, -1)
    for one in sorted(ranges):
        if one[0] <= furthest[1] and one[2] != furthest[2]:
            earlier, later = sorted((one[2], furthest[2]))
            allowed = f"overlaps with {shown(modules[earlier]['cpus'])} of [{earlier}], a card of another NUMA node"
            return [(f"{where}[{later}].cpus", modules[later]["cpus"], allowed)]
        furthest = max(furthest, one, key=lambda item: item[1])
    return []


def _fill_services(host: dict[str, Any]) -> list[Problem]:
    problems: list[Problem] = []
    services = {}
    for name, given in host["services"].items():
        where = f"gaudi_host.services.{name}"
        services[name], found = filled(given, SERVICE, where, ())
        if not found:
            services[name]["launch"], found = filled(services[name]["launch"], LAUNCH, f"{where}.launch")
            mounts = [] if found else services[name]["launch"]["mounts"]
            found += filled_each(mounts, MOUNT, f"{where}.launch.mounts")[1]
        problems += found
    host["services"] = services
    return problems


def _fill_weights(host: dict[str, Any]) -> list[Problem]:
    problems: list[Problem] = []
    weights: dict[str, Any] = {}
    for path, given in host["weights"].items():
        where = f"gaudi_host.weights.{path}"
        # None is a folder without a readable config.json.
        weights[path], found = (None, []) if given is None else filled(given, WEIGHTS, where, WEIGHTS_BESIDE)
        problems += found
    host["weights"] = weights
    return problems


def checked_facts(facts: Known) -> tuple[dict[str, Any], list[Problem]]:
    """Return the facts that planning needs, with defaults, and the problems with them."""
    host, problems = checked_host(facts.get("gaudi_host"))
    checked: dict[str, Any] = {"gaudi_host": host}
    for name, rules in (("gaudi_system", SYSTEM), ("gaudi_services", IMAGES)):
        if facts.get(name) is not None:
            checked[name], found = filled(facts[name], rules, name)
            problems += found
    system = checked.get("gaudi_system")
    if system and not problems:
        system["pretty_name"] = system["pretty_name"] or f"{system['id']} {system['version_id']}"
    return checked, problems


class Unread(NamedTuple):
    """A part of a variable without a value, and the reason. For ``vllm_models`` it has the model's name and key."""

    model: str | None
    key: str
    text: str


def rendered(variables: Known, facts: bool, more: Iterable[str] = ()) -> tuple[dict[str, Any], dict[str, list[Unread]]]:
    """Return the variables of a host that planning reads, with all templates rendered.

    Args:
        variables: ``hostvars`` of the host.
        facts: Also read its facts.
        more: Names of further variables.

    Returns:
        The values by name; and, by name, every place without a value: an undefined variable, a template with a
        mistake, or a vault that cannot be opened.
    """
    return rendered_of(variables, (*VARIABLES, *OTHERS, *(FACTS if facts else ()), *more))


def rendered_of(variables: Known, names: Iterable[str]) -> tuple[dict[str, Any], dict[str, list[Unread]]]:
    """Return the same for these variables only."""
    values: dict[str, Any] = {}
    unread: dict[str, list[Unread]] = {}
    for name in names:
        bad: list[tuple[Place, Exception]] = []
        try:
            if name in variables:
                values[name] = _plain(partial(getitem, variables, name), (), bad)
        # The nesting is deeper than any user intends.
        except RecursionError as problem:
            bad = [((), problem)]
        if bad:
            value = values.pop(name, None)
            unread[name] = [_unread(name, value, *one) for one in bad]
    return values, unread


Place = tuple[Any, ...]  # keys and numbers that lead to a part of a variable


def _plain(read: Callable[[], Any], place: Place, bad: list[tuple[Place, Exception]]) -> Any:
    """Return a value without templates. Parts that cannot be read are None and are recorded in ``bad``."""
    try:
        value = read()
        if type(value).__name__ == "_OmitType":
            raise AnsibleError("omit leaves out arguments of tasks alone; default(none) leaves out a key")
        # For a part that it cannot render, Ansible returns an object that raises when it is used.
        bool(value)
        if isinstance(value, Mapping):
            return {key: _plain(partial(getitem, value, key), (*place, key), bad) for key in value}
        if isinstance(value, list):
            return [_plain(partial(getitem, value, number), (*place, number), bad) for number in range(len(value))]
        return value
    except UNRENDERED as problem:
        bad.append((place, problem))
        return None


def _unread(name: str, value: Any, place: Place, problem: Exception) -> Unread:
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{one_line(str(part))}" for part in place)
    reason = _reason(name, problem)
    if name != "vllm_models" or len(place) < 2 or not isinstance(place[0], int):
        return Unread(None, name, f"{name}{where}: {reason}")
    model = value[place[0]].get("name")
    key = where.partition(".")[2]
    if not isinstance(model, str):
        return Unread(None, key, f"{name}[{place[0]}].{key}: {reason}")
    return Unread(model, key, f"model {one_line(model)}: {key}: {reason}")


CLOSED = (
    "a vault that cannot be opened: its password is missing or wrong; give it with --ask-vault-pass or "
    "--vault-password-file"
)


# A plugin that failed; the rest of its error can contain a secret.
PLUGIN = re.compile(r"he \w+ plugin '[\w.]+' failed( to load)?")


def _causes(problem: BaseException | None) -> list[BaseException]:
    """Return an error with those that caused it."""
    causes: list[BaseException] = []
    while problem is not None and problem not in causes:
        causes.append(problem)
        problem = problem.__cause__ or problem.__context__
    return causes


def _reason(name: str, problem: BaseException) -> str:
    cause = problem.__cause__
    causes = _causes(problem)
    # Other collections have errors of other vaults.
    if any("Vault" in type(one).__name__ and type(one).__module__.startswith("ansible.") for one in causes):
        return CLOSED
    if cause is not None and name in HIDDEN:
        # The reason can quote a part of the secret.
        failed = next(filter(None, (PLUGIN.search(str(one)) for one in causes)), None)
        hidden = "its reason is not shown, because it can contain a secret"
        return f"t{failed[0]}; {hidden}" if failed else "a template with a mistake"
    # The cause of Ansible's error has the filter's own message.
    if cause is not None and str(cause).startswith("The filter plugin") and cause.__cause__ is not None:
        cause = cause.__cause__
        return one_line("; ".join(" ".join(line.split()) for line in str(cause).splitlines()))
    text = one_line(" ".join(str(cause or problem).split()))
    return f"{text}; set it for this host, or write the value itself" if UNDEFINED.fullmatch(text) else text


def checked_variables(variables: Known, unread: Collection[str] = ()) -> tuple[dict[str, Any], list[Problem], set[str]]:
    """Return the variables of a host that planning reads, their problems, and the names of the wrong ones.

    Args:
        variables: The variables.
        unread: Names of those that could not be read. They count as wrong.
    """
    given = {name: variables.get(name) for name in VARIABLES}
    values, problems = filled(given, VARIABLES, "")
    wrong = {key for key, _, _ in problems} | (set(unread) & set(VARIABLES))
    values.update({key: INSTEAD.get(key) for key in wrong})
    return values, problems, wrong


def saved_facts(folder: Any, name: str) -> tuple[Known, str | None]:
    """Return the facts in ``<name>.json`` of a folder. A file may contain only a ``gaudi_host``.

    Returns:
        The facts as they are in the file, and the message if there are none.
    """
    if not isinstance(folder, str) or not folder.strip():
        return {}, f"plan_facts_dir {shown(folder)}: must be the folder of saved facts; leave it out to read the hosts"
    save = f"save them with playbooks/plan.yml -e plan_save_facts_dir={folder} on a run that reaches the hosts, "
    save += "or write them by hand (docs/guides/planning.md)"
    path = Path(folder) / f"{name}.json"
    if not Path(folder).is_dir():
        return {}, f"plan_facts_dir {folder}: no such folder of saved facts; {save}"
    if not path.exists():
        return {}, f"no saved facts {path}; {save}"
    facts, problem = _read(path)
    if problem:
        return {}, f"{path}: {problem}"
    return facts if isinstance(facts, Mapping) and set(facts) & set(FACTS) else {"gaudi_host": facts}, None


def _read(path: Path) -> tuple[Any, str | None]:
    try:
        # Editors of some systems begin a file with a byte order mark.
        return json.loads(path.read_text(encoding="utf-8-sig")), None
    except OSError as problem:
        return None, str(problem.strerror)
    except json.JSONDecodeError as problem:
        return None, f"line {problem.lineno}, column {problem.colno}: not JSON: {problem.msg}"
    except (ValueError, RecursionError):
        return None, "no facts: the file is not UTF-8, or its numbers or its nesting are too large"
