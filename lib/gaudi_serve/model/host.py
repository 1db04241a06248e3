"""A host as planning sees it: typed and frozen, made from what module gaudi_facts returns in ``gaudi_host``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .between import NEITHER, Between


@dataclass(frozen=True)
class Card:
    """One device of a host.

    module_id: its place on the board, by which the vendor's software counts. index: its number in the kernel, by which
    a container gets it. numa_node: -1 where it lies on none. cpus: ranges of its node's cores, first the physical ones,
    then their siblings. held_by: the program that uses it. problem: why it cannot be used, whoever holds it; such a
    card counts as in use. device_id: by which its driver knows it for good, where that is not its module_id.

    name, memory_mib, capability: its own, where a platform says them of each device; capability is what software is
    built for, such as 8.9 or gfx942. links: by the module_id of another card, the kind of the link to it as the tool of
    its vendor names it. no_peer: the module_ids of the cards whose memory it cannot read. alone: it works with no other
    card, as a part of a divided one.

    pcie_gb_s: GB/s in one direction that its slowest link of PCI Express can have; 0 where that is not known.

    serial: its serial number; empty where it is not known. sick: why no new model should run on it; empty where nothing
    is. excluded: its inventory lets no model run on it.
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

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Card:
        """Read one of ``modules``."""
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
        )

    @property
    def title(self) -> str:
        """Return how messages call a card that somebody may have to exchange."""
        return f"card {self.module_id}" + (f" (serial number {self.serial})" if self.serial else "")

    @property
    def avoided(self) -> str:
        """Return in a word why no new model is placed on it; empty where one may be."""
        return "excluded" if self.excluded else "sick" if self.sick else ""

    @property
    def end_first(self) -> str:
        """Return the sentence for a card that a stranger's program must leave first."""
        return f"card {self.module_id} is used by {self.held_by or 'another program'}; end it first"


def _name(card: Mapping[str, Any]) -> str:
    """Return how messages call a card of no known module_id."""
    if card.get("bus_id"):
        return f"card {card['bus_id']}"
    return f"card of index {card['index']}" if card.get("index") is not None else "a card"


@dataclass(frozen=True)
class Processor:
    """The processors of a host.

    architecture: as the kernel names it, such as x86_64. name: their model. features: the instructions of theirs that
    decide what vLLM can do, as the kernel names them. numa_nodes, threads_per_core: 0 where they are not known.
    """

    architecture: str
    name: str = ""
    features: frozenset[str] = frozenset()
    numa_nodes: int = 0
    threads_per_core: int = 0

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Processor | None:
        """Read a ``cpu``; None where facts do not say what they are."""
        if not facts.get("architecture"):
            return None
        return cls(
            str(facts["architecture"]),
            str(facts.get("name") or ""),
            frozenset(map(str, facts.get("features") or ())),
            int(facts.get("numa_nodes") or 0),
            int(facts.get("threads_per_core") or 0),
        )


@dataclass(frozen=True)
class LiveModel:
    """One model of this toolkit that is on a host.

    module_ids: its cards. port: where it listens. active: its unit runs; holds: its container has its cards and its
    port. digest: of the launch that it was started with. launch, env: what its files have, empty where they are
    missing; missing: kinds of its files that are. stale: files that have changed since its start. secret_changed:
    so has its secret. supervisor: SHA-256 of the supervisor that runs, None where it is not known. token: SHA-256
    of the secret that its hosts share.
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
    secret_changed: bool = False
    supervisor: str | None = None
    token: str | None = None

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> LiveModel:
        """Read one of ``services``."""
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
            secret_changed=bool(facts.get("secret_changed")),
            supervisor=facts.get("supervisor"),
            token=facts.get("token_sha256"),
        )

    @property
    def runs(self) -> bool:
        """Return whether its container has cards and a port, or its unit runs."""
        return self.active or self.holds

    @property
    def command(self) -> tuple[str, ...]:
        """Return program and arguments of its launch file."""
        return tuple(str(part) for part in self.launch.get("command") or ())

    @property
    def launch_profile(self) -> str | None:
        """Return the engine that made its launch file; None where an older version of the toolkit has written it."""
        return self.launch.get("launch_profile")


def live_models(host: Mapping[str, Any] | None) -> dict[str, LiveModel]:
    """Return the models of this toolkit that are on a host, by its fact ``gaudi_host``.

    Devices that their driver knows by ids may have other numbers since a boot: the ids of a model's launch say which.
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
    """An address of a host, with its interface, the length of its network's prefix, and the MTU in bytes."""

    interface: str
    address: str
    prefix: int
    mtu: int


@dataclass(frozen=True)
class Clock:
    """The clock of a host: seconds that it was ahead of the controller's; whether its kernel says that NTP sets it.

    None where it is not known.
    """

    offset_s: float | None = None
    synchronized: bool | None = None


@dataclass(frozen=True)
class Weights:
    """A folder of weights on a host: its config.json, and the bytes of its safetensors files."""

    config: Mapping[str, Any] = field(default_factory=dict)
    bytes: int = 0


@dataclass(frozen=True)
class Host:
    """What planning reads of a host.

    accelerator: the name of its platform. device_name: such as HL-225. driver_version: None where nobody has said
    it, as in facts that were written by hand. ip, interface: those of its default route. addresses: all of its own;
    None where they are not known. networks: those that other hosts may reach, with their interfaces. names: what
    names resolve to there. ports: programs by the port that they listen on. weights: by folder; None for one
    without a readable config.json. weights_unread: of such a one, its file and what is wrong with it. problem: why
    its devices do not answer. nics: it has network cards for traffic between devices. unusable: devices of no known
    module_id that cannot be used, by what is known of them: why. device_family: as what devices are served whose
    name is not known. cdi: its container engine takes CDI names of devices. awaits_driver: its devices answer only
    when this run has installed their driver. platforms: all of which the host has devices; empty in facts that do
    not say it. notes: sentences on its devices that are worth a warning. cpu: its processors, where it is served by
    them; None where facts do not say it. verbs: RDMA devices of its network cards. between: what the inventory says
    of the network that devices of several hosts use. clock: its own.
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

    @classmethod
    def of(cls, facts: Mapping[str, Any], between: Between | None = None) -> Host:
        """Read a ``gaudi_host``; what is wrong in it was said by inventory/facts.py before."""
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
            {path: one and Weights(one.get("config") or {}, int(one.get("bytes") or 0)) for path, one in weights},
            {int(port): program for port, program in (facts.get("ports") or {}).items()},
            facts.get("addresses"),
            tuple(
                Network(str(one["interface"]), str(one["address"]), int(one["prefix"]), int(one["mtu"]))
                for one in facts.get("networks") or ()
            ),
            facts.get("names") or {},
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
        )

    @property
    def held(self) -> dict[int, str]:
        """Return ``{module_id: model}`` of the cards that this toolkit's own running containers hold."""
        return {number: name for name, one in self.services.items() if one.runs for number in one.module_ids}

    @property
    def bad_cards(self) -> list[str]:
        """Return a sentence for each card that cannot be used."""
        return [f"{name}: {problem}" for _, name, problem in self._bad]

    @property
    def unused_cards(self) -> list[str]:
        """Return a sentence for each card that no model gets though it is here: others hold it, or it is bad."""
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
        """Return the bad cards: module_id where it is known, name for messages, problem."""
        known = [(card.module_id, f"card {card.module_id}", card.problem) for card in self.cards if card.problem]
        return [*known, *((None, name, problem) for name, problem in self.unusable)]

    def without_own_use(self) -> Host:
        """Return the host as the vendor's scripts should see it: cards of this toolkit's own models are free."""
        cards = tuple(replace(card, in_use=card.in_use and card.module_id not in self.held) for card in self.cards)
        return replace(self, cards=cards)
