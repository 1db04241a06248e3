"""The container of a placed model: the exact launch of its engine, and the additions of the toolkit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

from ..catalog.keys import OWN_KEYS, findings
from ..core.errors import label, mapping, refusal, shown, whole
from ..core.paths import CONFIG
from ..engines import ENGINES, Launch, engine_of, profile_of
from ..engines.base import option_arguments
from ..memory.vllm import utilization
from ..model.adapters import ADAPTERS, MODULES, RANK, SLOTS, adapters_of, with_adapters
from ..model.distributed import EXECUTOR
from ..model.draft import draft_warnings
from ..model.host import Card, Host, LiveModel
from ..model.paths import spec_paths
from ..model.spec import Spec
from ..model.vllm_options import DEFAULTS, OPTION_NAMES
from ..platforms import PLATFORMS, DeviceAccess, Platform, platform_of
from ..platforms.hl_smi import LARGEST_NUMBER, is_cpu_range
from ..platforms.releases import vllm_of
from .between import crosses_nics, with_nics
from .distributed import mounts_between, variables_between
from .model import Container, Placement
from .version import stated_version

# The container settings of the manual (sections 1.2.1 and 3.1.1). All other capabilities are dropped. Only this one is
# added: with it, root in the container can read weights and write caches that belong to another user.
FOREIGN_FILES = "DAC_OVERRIDE"
PRIVILEGED_PORTS = 1024
LEAST_HANG_S = 300
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
ALWAYS_SET = {"OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
# Interfaces on which the processes of one server connect (gloo and vLLM's own channels). Without these variables they
# listen on the host's outward address without a key. Measured with vLLM 0.32: with both, all 13 sockets use loopback.
INTERFACE = "GLOO_SOCKET_IFNAME"
# With these options, processes of other hosts must reach those sockets.
OVER_HOSTS = ("nnodes", "node_rank", "master_addr", "data_parallel_address", "kv_transfer_config", "ec_transfer_config")
ON_LOOPBACK = {INTERFACE: "lo", "VLLM_HOST_IP": "127.0.0.1"}


def vllm_launch(spec: Mapping[str, Any], host: Mapping[str, Any]) -> dict[str, Any]:
    """Return the launch of a model's server.

    Args:
        spec: A model as a user declares it (``weights``, ``tensor_parallel_size``, ...).
        host: Host facts: ``device_name``, ``ip``, ``interface``, ``modules``, ``accelerator``.

    Returns:
        ``env`` (strings), ``args`` (after the server's module, or after ``vllm serve``),
        ``numactl`` (arguments or None), ``warnings`` (sentences).

    Raises:
        InputError: A key or value is not allowed by docs/guides/models.md, the host does not have the facts that the
            profile reads, the profile does not exist, cards are not free, or there are no or too many buckets. The
            message names the model, the key and what is allowed.
    """
    known = _checked(spec, host)
    engine = ENGINES[profile_of(known, host.get("accelerator"))]
    if engine.no_adapters and adapters_of(known):
        raise refusal(label(known), ADAPTERS, adapters_of(known)[0].name, engine.no_adapters)
    if engine.reads_cards:
        _check_cards(known, host.get("modules"))
    # An engine that passes all options to vLLM gets only those that its user wrote.
    base = engine.defaults_of(known) if engine.own_options else {"tensor_parallel_size": 1}
    named = {"name": label(known), "served_model_name": label(known)} if engine.share else {}
    complete = Spec({**base, **named, **known, "launch_profile": engine.name})
    facts = Host.of(host if engine.reads_cards else {**host, "modules": []})
    complete = with_adapters(complete, facts, stated_version(complete))
    found = launched(complete, facts)
    # The exact launches have no options for adapters. A container gets them after its launch.
    keys = ("enable_lora", MODULES, RANK, SLOTS) if engine.own_options and adapters_of(known) else ()
    args = [*found.args, *chain.from_iterable(option_arguments(key, complete[key]) for key in keys)]
    return {"env": found.environment, "args": args, "numactl": found.numactl, "warnings": found.warnings}


def launched(spec: Spec, host: Host) -> Launch:
    """Return the launch of a complete model with checked keys.

    Raises:
        InputError: The host does not have a fact that the engine reads, or the engine refuses the model.
    """
    engine = engine_of(spec)
    for key in engine.reads:
        value = getattr(host, key)
        if not isinstance(value, str) or not value:
            raise refusal(label(spec), f"host.{key}", value, "must be a text, as module gaudi_facts returns it")
    return engine.launch(spec, host)


def _checked(given: Any, host: Any) -> dict[str, Any]:
    requested = mapping("vllm_launch", "model", given, "a mapping, such as {weights: /data/QwQ-32B}")
    spec = {key: value for key, value in requested.items() if value is not None}
    platform = mapping(label(spec), "host", host, "a mapping of host facts").get("accelerator")
    if platform not in (None, *PLATFORMS):
        raise refusal(label(spec), "host.accelerator", platform, f"is not one of {', '.join(PLATFORMS)}")
    profile = profile_of(spec, platform)
    if profile not in ENGINES:
        raise refusal(label(spec), "launch_profile", profile, f"is not one of {', '.join(ENGINES)}")
    # The scripts also accept the name of a hub's repository. A host serves folders.
    named = isinstance(spec.get("weights"), str) and HUB_NAME.fullmatch(spec["weights"])
    known = {**spec, "weights": f"/{spec['weights']}"} if named else spec
    for key, value, allowed in findings({"name": "model", **known}):
        error = refusal(label(spec), key, value, f"is refused: {allowed}" if value is not None else allowed)
        error.finding = (key, value, allowed)
        raise error
    return spec


def _check_cards(spec: Mapping[str, Any], modules: Any) -> None:
    if not isinstance(modules, list):
        raise refusal(label(spec), "host.modules", modules, "must be a list of cards")
    seen = set()
    for place, module in enumerate(modules):
        key = f"host.modules[{place}]"
        card = mapping(label(spec), key, module, "a mapping of module_id, numa_node and cpus")
        number = whole(label(spec), f"{key}.module_id", card.get("module_id"), 0, LARGEST_NUMBER)
        if number in seen:
            raise refusal(label(spec), f"{key}.module_id", number, "came before")
        seen.add(number)
        node = card.get("numa_node")
        if node is not None or spec.get("module_ids"):
            whole(label(spec), f"{key}.numa_node", 0 if node == -1 else node, 0, LARGEST_NUMBER)
        cpus = card.get("cpus") or []
        if not isinstance(cpus, list) or not all(map(is_cpu_range, cpus)):
            raise refusal(label(spec), f"{key}.cpus", cpus, "are not ranges of cores, such as [0-39]")


def container_of(
    spec: Spec, host: Host, placement: Placement, release: str, addresses: Mapping[str, str] | None = None
) -> Container:
    """Return everything that the container of a model on these cards needs.

    ``spec`` includes the version of vLLM. ``addresses`` are by host of the model.

    Raises:
        InputError: The engine refuses the request.
    """
    cache = _cache_path(spec, host, release)
    platform, engine = platform_of(host.accelerator), engine_of(spec)
    placed = spec.but(module_ids=list(placement.module_ids) or spec.get("module_ids"), recipe_cache_path=cache)
    launch = engine.amended(launched(placed, host.without_own_use()), placed, host)
    numactl = _numactl(launch, host, placement)
    access = platform.access(_of_placement(host, placement))
    over_nics = crosses_nics(spec, host, len(placement.module_ids))
    between = variables_between(spec, addresses or {})
    between |= platform.over_nics(host.between, host.verbs) if over_nics else {}
    env = _whole_environment(spec, launch, access, placement, platform, cache, between)
    container = Container(
        env=env,
        args=launch.args,
        numactl=numactl,
        access=_given(access, host, placement),
        cap_add=_capabilities(spec, platform),
        read_only=spec.get("read_only", True),
        ulimits=list(spec.get("ulimits", (*engine.ulimits, *platform.ulimits))),
        mounts=[*_mounts(spec, cache, launch), *mounts_between(spec)],
        buckets=launch.buckets.changed_by(env) if launch.buckets else None,
        bucket_file=launch.bucket_file,
        tokens=launch.tokens,
        notes=(*launch.warnings, *_core_warnings(launch, numactl, placement), *_listener_warnings(spec, env)),
    )
    container = with_nics(container, host) if over_nics else container
    live = host.services.get(spec.name, LiveModel())
    args = _arguments(container, spec, placed, placement, live)
    twice = _passed_twice(launch.args, args[len(launch.args) :], engine.name) if engine.own_options else []
    return replace(container, args=args, notes=(*container.notes, *twice))


def _whole_environment(
    spec: Spec,
    launch: Launch,
    access: DeviceAccess | None,
    placement: Placement,
    platform: Platform,
    cache: str | None,
    between: Mapping[str, str],
) -> dict[str, str]:
    """Return all variables of a server: from its launch, from its platform, and last from its user."""
    env = _environment(launch, access)
    if not engine_of(spec).own_options and len(placement.module_ids) > 1:
        env.update(platform.env_between)
    if spec.stages > 1:
        env.update(platform.env_stages)
    if platform.cache_variable and cache:
        env[platform.cache_variable] = cache
    if spec.members:
        # The supervisor finds the interface of the cluster address at each start, also for the vendor's scripts, which
        # would choose that of the default route.
        env = {name: value for name, value in env.items() if name not in platform.socket_variables}
    # Ray compares the address with that of its own node. The vendor's scripts choose an interface themselves.
    elif "ray" not in (*launch.args, spec.get(EXECUTOR)) and not any(spec.get(key) for key in OVER_HOSTS):
        env = {**ON_LOOPBACK, **env}
    env |= between
    return env | {name: str(value) for name, value in spec.get("env", {}).items()}


def _environment(launch: Launch, access: DeviceAccess | None) -> dict[str, str]:
    """Return a launch's environment without the variables that select devices. Only the supervisor sets those.

    A runtime reads only one of two variables. deepseek_r1's exact launch sets one of them to ALL, which the runtime
    does not accept.
    """
    given = {*access.variables, *access.forbidden} if access else set()
    return {key: value for key, value in {**ALWAYS_SET, **launch.environment}.items() if key not in given}


def _of_placement(host: Host, placement: Placement) -> Host:
    """Return a host with only the cards of a placement, because other divided cards do not affect these."""
    mine = tuple(card for card in host.cards if card.module_id in placement.module_ids)
    return replace(host, cards=mine) if mine else host


def _given(access: DeviceAccess | None, host: Host, placement: Placement) -> DeviceAccess | None:
    """Return the access of a container to the devices of a placement, or None without devices."""
    if access is None or not placement.module_ids:
        return None
    known = {card.module_id: card.device_id for card in host.cards}
    ids = [known.get(number) for number in placement.module_ids]
    options = (*access.options, *_near(host, placement))
    return replace(access, options=options, ids=tuple(str(one) for one in ids) if all(ids) else ())


def _near(host: Host, placement: Placement) -> list[str]:
    """Return the options that bind a server to the processors and the memory near its devices.

    Empty if the devices are on several NUMA nodes or on none, or if the engine binds itself.
    """
    cards = [card for card in host.cards if card.module_id in placement.module_ids]
    nodes = {card.numa_node for card in cards}
    others = {card.numa_node for card in host.cards} - nodes
    if not platform_of(host.accelerator).binds or len(nodes) != 1 or min(nodes) < 0 or not others:
        return []
    return ["--cpuset-cpus", ",".join(cards[0].cpus), "--cpuset-mems", str(min(nodes))] if cards[0].cpus else []


def _passed_twice(own: Sequence[str], added: Sequence[str], profile: str) -> list[str]:
    """Return a sentence for each option of a profile's launch that the model sets to another value."""
    before = _by_option(own)
    return [
        f"{name} is passed twice: the launch of profile {profile} has {shown(before[name])}, the model {shown(text)}; "
        f"vLLM takes the last, {shown(text)}"
        for name, text in _by_option(added).items()
        if name in before and before[name] != text
    ]


def _by_option(args: Sequence[str]) -> dict[str, str]:
    """Return arguments by option, with names as vLLM compares them. A flag has the value true or false."""
    found: dict[str, str] = {}
    name = ""
    for part in args:
        if part.startswith("--"):
            flag, _, value = part.partition("=")
            flag = flag.replace("_", "-")
            name = f"--{flag.removeprefix('--no-').removeprefix('--')}"
            found[name] = value or ("false" if flag.startswith("--no-") else "true")
        elif name:
            found[name] = part if found[name] == "true" else f"{found[name]} {part}"
    return found


def _capabilities(spec: Spec, platform: Platform) -> list[str]:
    named = {FOREIGN_FILES, *engine_of(spec).capabilities, *platform.capabilities, *spec.get("cap_add", [])}
    return sorted(named | ({"NET_BIND_SERVICE"} if spec.port < PRIVILEGED_PORTS else set()))


def _arguments(container: Container, spec: Spec, placed: Spec, placement: Placement, live: LiveModel) -> list[str]:
    """Return the exact launch, plus the served name and the user's further options of vLLM.

    The options are sorted by name, because AWX sorts the keys of every variable, which loses the inventory's order. A
    server that an earlier version of the toolkit launched can run with the same options in another order. That order
    stays, so that the server is not restarted. It also stays if it only has or lacks options with the value that the
    server uses without them. Nothing else comes from the running server: the engine's own arguments and the served
    name are those of the plan. If the live command is unknown, the digest shows whether the inventory's order was used.

    Args:
        container: The rest of the container, with the engine's own arguments in ``args``.
        spec: The requested model.
        placed: The same model as its launch received it.
        placement: Its cards.
        live: The model that runs now.
    """
    engine = engine_of(spec)
    if not engine.own_options:
        head, tail = container.args[:1], []
        requested = {key: value for key, value in placed.items() if key in OPTION_NAMES}
    else:
        # A server of several models has a served name for each of them.
        named = [] if engine.share else ["--served-model-name", spec["served_model_name"]]
        head, tail = list(container.args), named
        used = OWN_KEYS | engine.consumed
        requested = {key: value for key, value in spec.items() if key not in used}
    options = [part for key, value in requested.items() if (part := option_arguments(key, value))]
    options = [part for part in options if not (spec.members and _is_there(part, head))]
    before = len(engine.command) + (1 + len(container.numactl) if container.numactl else 0) + len(head)
    present = list(live.command[before : len(live.command) - len(tail)])
    in_force = {**_defaults(spec), **_by_option(head)}
    always = {option[0] for key in engine.defaults if (option := option_arguments(key, requested.get(key)))}
    least = [part for part in options if part[0] in always or not _by_option(part).items() <= in_force.items()]
    orders = [list(chain(*some)) for some in (sorted(options), options, sorted(least), least)]
    for order in [*orders, *([present] if _same_options(present, options, in_force) else [])]:
        args = [*head, *order, *tail]
        if replace(container, args=args).of_digest(spec, placement) == live.digest:
            return args
    return [*head, *orders[0], *tail]


def _is_there(option: Sequence[str], args: Sequence[str]) -> bool:
    """Return whether arguments already contain an option. Some launches set Ray for more cards than a host has."""
    return _by_option(option).items() <= _by_option(args).items()


def _defaults(spec: Spec) -> dict[str, str]:
    """Return vLLM's defaults as _by_option returns arguments, as far as they are known for the model's version."""
    known = {f"--{name}": value for name, value in DEFAULTS.items()}
    version = spec.get("vllm_version") or vllm_of(str(spec.get("image") or ""))
    return {**known, "--gpu-memory-utilization": f"{utilization(version):g}"} if version else known


def _same_options(present: Sequence[str], options: Sequence[list[str]], in_force: Mapping[str, str]) -> bool:
    """Return whether arguments are these options in any order. Options that are in force anyway do not count."""
    starts = [place for place, word in enumerate(present) if word.startswith("--")]
    if present and starts[:1] != [0]:
        return False
    live = [list(present[start:end]) for start, end in pairwise([*starts, len(present)])]
    different = [one for one in (*live, *options) if (one in live) != (one in options)]
    return all(_by_option(one).items() <= in_force.items() for one in different)


def _cache_path(spec: Spec, host: Host, release: str) -> str | None:
    path: str | None = spec.get("recipe_cache_path")
    if not path or spec.get("recipe_cache_exact"):
        return path
    # Recipes do not fit another release, precision or device, and two models must not share them.
    device = re.sub(r"[^\w.-]+", "-", host.device_name or "cpu")
    leaf = f"{release}-{spec.get('dtype', 'auto')}-{device}"
    parent = path.rstrip("/")
    return f"{parent}/{leaf}" if parent.endswith("/" + spec.name) else f"{parent}/{spec.name}/{leaf}"


def _mounts(spec: Spec, cache: str | None, launch: Launch) -> list[dict[str, Any]]:
    engine = engine_of(spec)
    mounts = [{"source": one.weights, "target": engine.seen_at(one), "read_only": True} for one in spec.served]
    mounts += [{"source": one.folder, "target": one.folder, "read_only": True} for one in adapters_of(spec)]
    if cache:
        mounts.append({"source": cache, "target": cache, "read_only": False})
    if launch.bucket_path:
        mounts.append({"source": f"{CONFIG}/{spec.name}.buckets", "target": launch.bucket_path, "read_only": True})
    return mounts + [{"read_only": True, **mount} for mount in spec.get("mounts", [])]


def _numactl(launch: Launch, host: Host, placement: Placement) -> list[str] | None:
    """Return the vendor's core binding, with disjoint cores if its rule would give two cards the same cores."""
    numactl = launch.numactl
    cores = disjoint_cores(host)
    if numactl and all(number in cores for number in placement.module_ids):
        numactl = ["-C", ",".join(cores[number] for number in placement.module_ids), *numactl[2:]]
    # With more cards than cores on a node, the range would be such as 4-3, which numactl refuses.
    bounds = [part.partition("-") for part in numactl[1].split(",")] if numactl else []
    return numactl if all(int(first) <= int(last) for first, _, last in bounds) else None


def disjoint_cores(host: Host) -> dict[int, str]:
    """Return ``{module_id: core range}`` for nodes on which the vendor's rule gives two cards the same cores.

    The vendor's script gives a card the slice ``module_id mod n`` of its node's cores, for n cards on the node. If a
    node's module_ids are not consecutive, two cards get the same slice. Such nodes are divided by the order of the
    cards instead. Nodes on which the rule works are left out.
    """
    nodes: dict[int, list[Card]] = {}
    for card in host.cards:
        if card.cpus:
            nodes.setdefault(card.numa_node, []).append(card)
    cores = {}
    for cards in nodes.values():
        numbers = sorted(card.module_id for card in cards)
        if len({number % len(numbers) for number in numbers}) == len(numbers):
            continue
        for card in cards:
            first, _, last = card.cpus[0].partition("-")
            share = (int(last or first) - int(first) + 1) // len(numbers)
            start = int(first) + share * numbers.index(card.module_id)
            cores[card.module_id] = f"{start}-{start + share - 1}"
    return cores


def _core_warnings(launch: Launch, numactl: list[str] | None, placement: Placement) -> list[str]:
    if launch.numactl and not numactl:
        return ["this host has more cards than cores on a NUMA node: no core binding"]
    if launch.numactl and numactl != launch.numactl and numactl:
        return [
            f"cards {list(placement.module_ids)} get cores {numactl[1]}: the vendor's rule ({launch.numactl[1]}) would "
            "give cards of one NUMA node the same cores, because their module_ids are not consecutive"
        ]
    return []


def _listener_warnings(spec: Spec, env: Mapping[str, str]) -> list[str]:
    """Return a warning if a server's workers listen beyond loopback, through its exact launch or its user."""
    if spec.members or all(env.get(name) == value for name, value in ON_LOOPBACK.items()):
        return []
    interface = env.get(INTERFACE)
    where = "on the host's outward address" if interface in (None, "", "lo") else f"on interface {interface}"
    return [f"its workers also listen {where}, without a key; docs/explanation/security.md has the firewall rule"]


def launch_warnings(spec: Spec, platform: Platform) -> list[str]:
    """Return warnings about keys that are allowed, but have no effect or a risk."""
    read = ("recipe_cache_path",) if platform.cache_variable else ()
    ignored = sorted(key for key in engine_of(spec).ignored if spec.get(key) is not None and key not in read)
    found = [f"profile {spec.launch_profile} ignores {', '.join(ignored)}"] if ignored else []
    sockets = [mount["source"] for mount in spec.get("mounts", []) if mount["source"].endswith("/docker.sock")]
    found += [f"mounts {path}: anyone who breaks into the server is then root on the host" for path in sockets]
    provided = [engine_of(spec).seen_at(one) for one in spec.served] + [one["target"] for one in spec.get("mounts", [])]
    provided += [one.folder for one in adapters_of(spec)]
    found += [
        f"{key}: {path} must be in the image: no mount provides it, and vLLM ends without it"
        for key, path in spec_paths(spec)
        if not any(f"{path}/".startswith(f"{folder.rstrip('/')}/") for folder in provided)
    ]
    found += draft_warnings(spec)
    names = sorted({"LD_PRELOAD", "LD_LIBRARY_PATH", "PATH"} & set(spec.get("env", {})))
    found += [f"env sets {name}, in place of the image's own" for name in names]
    hang = spec.get("hang_timeout_s")
    if hang and hang < LEAST_HANG_S:
        found.append(
            f"hang_timeout_s {hang} is below {LEAST_HANG_S}: a graph that compiles while serving can take longer, and "
            "then the server is restarted"
        )
    if spec.port < PRIVILEGED_PORTS:
        found.append(f"port {spec.port} is below {PRIVILEGED_PORTS}: the server gets NET_BIND_SERVICE for it")
    return found
