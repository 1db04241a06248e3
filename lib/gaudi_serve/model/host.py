"""A host as planning sees it: typed and frozen, made from ``gaudi_host``, which module gaudi_facts returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .between import NEITHER, Between


@dataclass(frozen=True)
class Card:
    """One device of a host.

    module_id: its place on the board, by which the vendor's software counts. index: its number in the kernel, which
    containers use. numa_node: -1 if it has none. cpus: ranges of its node's cores, the physical ones first, then
    their siblings. held_by: the program that uses it. problem: why it cannot be used; such a card counts as in use.
    device_id: the permanent id that its driver uses, if that is not its module_id.
    name, memory_mib, capability: of the device, if its platform reports them per device; capability is the target of
    compiled software, such as 8.9 or gfx942. others_mib: memory of it that programs use which do not compute on it;
    None if unknown. links: the kind of the link to each other card, by its module_id, in the
    words of the vendor's tool. no_peer: the module_ids of the cards whose memory it cannot read. alone: it is a slice
    of a card and cannot work with other cards.
    pcie_gb_s: the highest rate of its slowest PCI Express link, in GB/s and one direction; 0 if unknown.
    serial: its serial number; empty if unknown. sick: why no new model should run on it; empty if it is healthy.
    excluded: the inventory allows no model on it.
    """

    module_id: int
    index: int | None = None
    numa_node: int = -1
    cpus: tuple[str, ...] = ()
    in_use: bool = False
    held_by: str | None = None
    problem: str | None = None
    device_id: str | None = None
    name: str | None = None
    memory_mib: int = 0
    capability: str = ""
    links: Mapping[int, str] = field(default_factory=dict)
    no_peer: tuple[int, ...] = ()
    alone: bool = False
    serial: str = ""
    sick: str = ""
    excluded: bool = False
    pcie_gb_s: float = 0.0
    others_mib: int | None = None

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Card:
        """Return the card for one entry of ``modules``."""
        node, index = facts.get("numa_node"), facts.get("index")
        return cls(
            int(facts["module_id"]),
            None if index is None else int(index),
            -1 if node is None else int(node),
            tuple(map(str, facts.get("cpus") or ())),
            bool(facts.get("in_use") or facts.get("problem")),
            facts.get("held_by"),
            facts.get("problem"),
            None if facts.get("device_id") is None else str(facts["device_id"]),
            facts.get("name"),
            int(facts.get("memory_mib") or 0),
            str(facts.get("capability") or ""),
            {int(number): str(kind) for number, kind in (facts.get("links") or {}).items()},
            tuple(int(number) for number in facts.get("no_peer") or ()),
            bool(facts.get("alone")),
            str(facts.get("serial") or ""),
            str(facts.get("sick") or ""),
            bool(facts.get("excluded")),
            float(facts.get("pcie_gb_s") or 0),
            facts.get("memory_others_mib"),
        )

    @property
    def title(self) -> str:
        """Return the name of the card in messages, with the serial number for a replacement."""
        return f"card {self.module_id}" + (f" (serial number {self.serial})" if self.serial else "")

    @property
    def avoided(self) -> str:
        """Return why no new model is placed on the card (``excluded``, ``sick``), or an empty text."""
        return "excluded" if self.excluded else "sick" if self.sick else ""

    @property
    def end_first(self) -> str:
        """Return the message that another program uses the card and must end."""
        return f"card {self.module_id} is used by {self.held_by or 'another program'}; end it first"


def _name(card: Mapping[str, Any]) -> str:
    """Return the name in messages of a card without a known module_id."""
    if card.get("bus_id"):
        return f"card {card['bus_id']}"
    return f"card of index {card['index']}" if card.get("index") is not None else "a card"


@dataclass(frozen=True)
class MemoryNode:
    """The memory of one NUMA node, in MiB.

    total: with its hugepages, which no server gets. available: what programs left when the facts were read; None if
    unknown. taken: GiB by model, of the models that were planned before.
    """

    number: int
    total: int
    hugepages: int = 0
    available: int | None = None
    taken: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> MemoryNode:
        """Return the node for an entry of ``cpu.nodes`` of the facts."""
        available = facts.get("available_mib")
        return cls(
            int(facts["node"]),
            int(facts["memory_mib"]),
            int(facts.get("hugepages_mib") or 0),
            None if available is None else int(available),
        )


@dataclass(frozen=True)
class Processor:
    """The processors of a host.

    architecture: in the kernel's words, such as x86_64. name: the model. features: the instruction sets that decide
    what vLLM can do, in the kernel's words. numa_nodes, threads_per_core: 0 if unknown. nodes: its NUMA nodes with
    memory; empty if unknown.
    """

    architecture: str
    name: str = ""
    features: frozenset[str] = frozenset()
    numa_nodes: int = 0
    threads_per_core: int = 0
    nodes: tuple[MemoryNode, ...] = ()

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Processor | None:
        """Return the processors for a ``cpu`` of the facts; None if it has no architecture."""
        if not facts.get("architecture"):
            return None
        return cls(
            str(facts["architecture"]),
            str(facts.get("name") or ""),
            frozenset(map(str, facts.get("features") or ())),
            int(facts.get("numa_nodes") or 0),
            int(facts.get("threads_per_core") or 0),
            tuple(map(MemoryNode.of, facts.get("nodes") or ())),
        )


@dataclass(frozen=True)
class LiveModel:
    """A model of this toolkit that is on a host.

    module_ids: its cards. port: on which it listens. active: its unit runs; holds: its container uses its cards and
    port. digest: of the launch with which it was started. launch, env: the content of its files, empty if they are
    missing; missing: the kinds of missing files. stale: files that changed after its start. limits: what was set in its
    running container by hand. secret_changed: its secret changed after its start. env_sha256: of the environment with
    which it was started, None if unknown. supervisor: SHA-256 of the running supervisor, None if unknown. token:
    SHA-256 of the secret that its hosts share.
    """

    module_ids: tuple[int, ...] = ()
    port: int | None = None
    active: bool = False
    holds: bool = False
    digest: str | None = None
    launch: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    secret_changed: bool = False
    env_sha256: str | None = None
    supervisor: str | None = None
    token: str | None = None

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> LiveModel:
        """Return the model for one entry of ``services``."""
        return cls(
            module_ids=tuple(int(number) for number in facts.get("module_ids") or ()),
            port=facts.get("port"),
            active=bool(facts.get("active")),
            holds=bool(facts.get("holds")),
            digest=facts.get("digest"),
            launch=facts.get("launch") or {},
            env=facts.get("env") or {},
            missing=tuple(facts.get("lost") or ()),
            stale=tuple(facts.get("stale") or ()),
            limits=tuple(facts.get("limits") or ()),
            secret_changed=bool(facts.get("secret_changed")),
            env_sha256=facts.get("env_sha256"),
            supervisor=facts.get("supervisor"),
            token=facts.get("token_sha256"),
        )

    @property
    def runs(self) -> bool:
        """Return whether its container has cards and a port, or its unit runs."""
        return self.active or self.holds

    @property
    def command(self) -> tuple[str, ...]:
        """Return the program and arguments in its launch file."""
        return tuple(str(part) for part in self.launch.get("command") or ())

    @property
    def host(self) -> str | None:
        """Return the address on which its command lets the server listen; None if the command has none."""
        command = self.command
        return command[command.index("--host") + 1] if "--host" in command[:-1] else None

    @property
    def launch_profile(self) -> str | None:
        """Return the engine in its launch file; None if an older version of the toolkit wrote it."""
        return self.launch.get("launch_profile")


def live_models(host: Mapping[str, Any] | None) -> dict[str, LiveModel]:
    """Return the models of this toolkit that are on a host, from its fact ``gaudi_host``.

    Devices with permanent ids can have other numbers after a boot. The ids in the launch file give today's numbers.
    """
    known = host or {}
    numbers = {
        str(one["device_id"]): int(one["module_id"]) for one in known.get("modules") or () if one.get("device_id")
    }
    found = {}
    for name, facts in (known.get("services") or {}).items():
        live = LiveModel.of(facts)
        ids = (live.launch.get("device_access") or {}).get("ids") or ()
        today = [numbers[one] for one in ids if one in numbers]
        found[str(name)] = replace(live, module_ids=tuple(today)) if ids and numbers else live
    return found


@dataclass(frozen=True)
class Network:
    """An address of a host: interface, address, prefix length of its network, and MTU in bytes."""

    interface: str
    address: str
    prefix: int
    mtu: int


@dataclass(frozen=True)
class Clock:
    """The clock of a host: seconds ahead of the controller's, and whether the kernel reports NTP synchronisation.

    None if unknown.
    """

    offset_s: float | None = None
    synchronized: bool | None = None


@dataclass(frozen=True)
class Weights:
    """A folder of weights on a host.

    config: its config.json. bytes: of its safetensors files, or of an adapter's adapter_model.bin. content: digest of
    its record. damaged: files that cannot be complete, with the reasons. adapter: its adapter_config.json, or None.
    vocabulary: whether the folder with the model's vocabulary is complete; None if unknown, or it needs none.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    bytes: int = 0
    content: str | None = None
    damaged: tuple[str, ...] = ()
    adapter: Mapping[str, Any] | None = None
    vocabulary: bool | None = None

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Weights:
        """Return the folder of an entry of ``gaudi_host.weights``."""
        damaged = tuple(map(str, facts.get("damaged") or ()))
        config, size = facts.get("config") or {}, int(facts.get("bytes") or 0)
        return cls(config, size, facts.get("content"), damaged, facts.get("adapter"), facts.get("vocabulary"))


@dataclass(frozen=True)
class Host:
    """The facts of a host that planning uses.

    accelerator: the name of its platform. device_name: such as HL-225. driver_version: None if it is not set, as in
    facts written by hand. ip, interface: those of its default route. addresses: all its own addresses; None if unknown.
    networks: those that other hosts may reach, with their interfaces. names: the addresses to which names resolve
    there. files: whether the files and folders of its models exist, as far as read. ports: programs by the port on
    which they listen. weights: by folder; None for a folder without a readable config.json. weights_unread: the file
    and its problem for such a folder. problem: why its devices do not answer. nics: it has network cards for traffic
    between devices. unusable: (description, problem) of unusable devices without a known module_id. device_family: the
    family that unknown devices count as. cdi: its container engine accepts CDI device names. awaits_driver: its devices
    answer only after this run has installed their driver. platforms: those of all its devices; empty if the facts do
    not contain it. notes: warnings about its devices. cpu: its processors, if it serves with them; None if unknown.
    verbs: RDMA devices of its network cards. between: the network between hosts as the inventory describes it. clock:
    its own. ephemeral_ports: the ranges of ports that the kernel gives to any connection.
    """

    accelerator: str | None = None
    device_name: str | None = None
    driver_version: str | None = None
    ip: Any = None
    interface: Any = None
    cards: tuple[Card, ...] = ()
    services: Mapping[str, LiveModel] = field(default_factory=dict)
    weights: Mapping[str, Weights | None] = field(default_factory=dict)
    ports: Mapping[int, str] = field(default_factory=dict)
    addresses: Sequence[str] | None = None
    networks: tuple[Network, ...] = ()
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    files: Mapping[str, bool] = field(default_factory=dict)
    weights_unread: Mapping[str, str] = field(default_factory=dict)
    problem: Sequence[str] = ()
    nics: bool = False
    unusable: Sequence[tuple[str, str]] = ()
    device_family: str | None = None
    cdi: bool = False
    awaits_driver: bool = False
    platforms: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    cpu: Processor | None = None
    verbs: tuple[str, ...] = ()
    between: Between = NEITHER
    clock: Clock = Clock()
    ephemeral_ports: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, facts: Mapping[str, Any], between: Between | None = None) -> Host:
        """Return the host for a ``gaudi_host``. inventory/facts.py has already checked it."""
        driver = str(facts["driver_version"] or "unknown") if "driver_version" in facts else None
        weights = (facts.get("weights") or {}).items()
        return cls(
            facts.get("accelerator"),
            facts.get("device_name"),
            driver,
            facts.get("ip"),
            facts.get("interface"),
            tuple(Card.of(module) for module in facts.get("modules") or ()),
            live_models(facts),
            {path: one and Weights.of(one) for path, one in weights},
            {int(port): program for port, program in (facts.get("ports") or {}).items()},
            facts.get("addresses"),
            tuple(
                Network(str(one["interface"]), str(one["address"]), int(one["prefix"]), int(one["mtu"]))
                for one in facts.get("networks") or ()
            ),
            facts.get("names") or {},
            facts.get("files") or {},
            facts.get("weights_unread") or {},
            facts.get("problem") or (),
            bool(facts.get("host_nics")),
            tuple((_name(card), str(card["problem"])) for card in facts.get("unusable_cards") or ()),
            facts.get("device_family"),
            bool(facts.get("cdi")),
            bool(facts.get("awaits_driver")),
            tuple(facts.get("platforms") or ()),
            tuple(facts.get("notes") or ()),
            Processor.of(facts.get("cpu") or {}),
            tuple(map(str, facts.get("verbs") or ())),
            between or NEITHER,
            Clock((facts.get("clock") or {}).get("offset_s"), (facts.get("clock") or {}).get("synchronized")),
            tuple((int(first), int(last)) for first, last in facts.get("ephemeral_ports") or ()),
        )

    @property
    def held(self) -> dict[int, str]:
        """Return ``{module_id: model}`` of the cards that this toolkit's running containers use."""
        return {number: name for name, one in self.services.items() if one.runs for number in one.module_ids}

    @property
    def bad_cards(self) -> list[str]:
        """Return a sentence for each card that cannot be used."""
        return [f"{name}: {problem}" for _, name, problem in self._bad]

    @property
    def unused_cards(self) -> list[str]:
        """Return a sentence for each card that no model gets: another program uses it, or it is unusable."""
        held = [
            f"card {card.module_id} is not used: it is used by {card.held_by or 'another program'}"
            for card in self.cards
            if card.in_use and not card.problem and card.module_id not in self.held
        ]
        held += [
            f"{card.title} is excluded (accelerator_cards_excluded)"
            + (f"; model {self.held[card.module_id]} runs on it" if card.module_id in self.held else "")
            for card in self.cards
            if card.excluded and not card.problem
        ]
        return held + [
            f"{name}: {problem}; model {self.held[number]} runs on it"
            if number in self.held
            else f"{name} is not used: {problem}"
            for number, name, problem in self._bad
        ]

    @property
    def _bad(self) -> list[tuple[int | None, str, str]]:
        """Return the unusable cards: module_id if known, name for messages, problem."""
        known = [(card.module_id, f"card {card.module_id}", card.problem) for card in self.cards if card.problem]
        return [*known, *((None, name, problem) for name, problem in self.unusable)]

    def without_own_use(self) -> Host:
        """Return the host for the vendor's scripts: cards of this toolkit's own models count as free."""
        cards = tuple(replace(card, in_use=card.in_use and card.module_id not in self.held) for card in self.cards)
        return replace(self, cards=cards)
