"""What a platform is: one kind of machine that models are served on, with everything that is known about it.

A platform is one file beside this one and one line in the registry (``platforms/__init__.py``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import Problem
from ..model.architecture import Architecture
from ..model.between import Between
from ..model.host import Card, Host
from ..model.spec import Spec
from .acceptance import Acceptance
from .card_metrics import CardMetrics
from .device_access import DeviceAccess
from .driver import Driver
from .links import Links
from .releases import Release


def _no_problems(_: Spec) -> list[Problem]:
    return []


def _no_image_problems(_: Spec, _release: str) -> list[Problem]:
    return []


def _no_notes(_: Spec, _release: str) -> list[str]:
    return []


def _no_reasons(_host: Host, _name: str, _cards: int, _release: str) -> list[tuple[str, str]]:
    return []


def _no_release(_: str) -> Release | None:
    return None


def _no_devices() -> dict[str, Any]:
    return {"device_name": None, "modules": []}


def _no_pci(_: str) -> dict[str, str]:
    return {}


def _all_capable(_spec: Spec, _model: Architecture, _host: Host, _cards: Sequence[Card]) -> list[Problem]:
    return []


def _nothing_slow(_spec: Spec, _model: Architecture, _host: Host, _cards: Sequence[Card]) -> list[str]:
    return []


def _health(module: Mapping[str, Any]) -> str | None:
    return str(module["sick"]) if module.get("sick") else None


def _no_image(_host: Host, _release: str, _live: str) -> str | None:
    return None


def _slow_between(_: Host) -> bool:
    return False


def _no_nics(_between: Between, _verbs: Sequence[str]) -> dict[str, str]:
    return {}


def _no_access(_: Host) -> DeviceAccess | None:
    return None


OF_VLLM = "vllm"  # the model of memory by which vLLM itself divides cards


@dataclass(frozen=True)
class Settings:
    """The file of a runtime's settings.

    path: where it is. configured: the text that it should have, from what it has (None: there is no file) and the
    host's name for messages; raises InputError where it cannot be changed. edit: how a line ends that this changes.
    lacks: what is said of a file that should be changed. problems: why no container would start with it, from the same.
    notes: what a user should know of it. given: the runtime's programs of which it names the path.
    """

    path: str
    configured: Callable[[str | None, str], str]
    edit: str
    lacks: str
    problems: Callable[[str | None, str], list[str]]
    notes: Callable[[str | None], list[str]]
    given: Callable[[str], set[str]]


@dataclass(frozen=True)
class Runtime:
    """A runtime of the container engine, which gives a platform's devices to containers.

    name: by which daemon.json, facts and variables of roles have it. path: its program. package: what installs it.
    parts: the packages that this one needs in its very version. programs: those of these packages without any of which
    every start fails. settings: None where nothing is changed in
    them. cdi_since: the version of the package that first keeps the CDI file of its devices up to date.
    """

    name: str
    path: str
    package: str
    programs: tuple[str, ...] = ()
    settings: Settings | None = None
    cdi_since: tuple[int, int] | None = None
    parts: tuple[str, ...] = ()

    @property
    def program(self) -> str:
        """Return the name of its program."""
        return self.path.rpartition("/")[2]

    @property
    def packages(self) -> tuple[str, ...]:
        """Return the names of all its packages."""
        return (self.package, *self.parts)

    @property
    def need(self) -> str:
        """Return by which of its ``needs`` a platform asks for it."""
        return f"{self.name}_runtime"

    def keeps_cdi_file(self, version: str) -> bool:
        """Tell whether its package keeps the CDI file of its devices up to date in a version; one without any does."""
        found = re.search(r"(\d+)\.(\d+)", version)
        return self.cdi_since is None or (found is not None and (int(found[1]), int(found[2])) >= self.cdi_since)

    @property
    def entry(self) -> dict[str, Any]:
        """Return what daemon.json has of it."""
        return {"path": self.path, "runtimeArgs": []}


@dataclass(frozen=True)
class Platform:
    """One kind of machine.

    name: what ``accelerator`` of the facts calls it. title: how messages call its hosts. devices: how they call what
    models are given of it; empty where there is nothing to give. engine: what starts a model that names none
    where its release does not say it; it need not know the platform. release: the row of a release of its software;
    None for one that nobody knows. options: the options of vLLM that its serving image takes, by release; software: how
    messages call that image. image: the official image of a model that names none, by its host, its release, and the
    image that serves it now; None where there is none.

    refused: why a machine that is one is not served, and the vendor's way; empty where it is served.

    here: whether a machine, by its root, is one. pci: its devices on the PCI bus, by bus_id their PCI device ids, which
    are there without a driver too. observe: what ``gaudi_host`` has of its devices: ``device_name``; ``modules``,
    each with module_id, index, numa_node, cpus, in_use, held_by, and device_id where its driver knows it by
    something else than the module_id; ``pci_cards``, how many are on the bus, beside those that a tool shows;
    ``problem`` where they do not answer; ``notes``, sentences that are worth a warning. device_holders finds who
    has a device's node open. about: what a plan shows of a host. reasons: why a run must not begin on one, each
    with the key that it is about.

    env: what a server always needs there; env_between: what it needs when it has several devices. ulimits,
    capabilities: what its container needs besides those of its engine. access: how a container gets exactly some
    devices of a host; None where there are none. driver: that of its devices; None where there is none to bring.
    runtime: what the container engine needs for that, beside what it has by itself; ``<name>_runtime`` is one of the
    needs then. cdi: it gives devices by CDI where the engine takes their names. card_variables: variables that choose
    devices, which no user may set, since the plan chooses.
    needs: what its hosts need that others do not, as filter accelerator_needs tells roles.

    prefixes: how the names of the devices begin that are known; names: a regular expression of the names of all, also
    of unknown ones. group: how many devices of a host are linked among themselves only; None for all. near: kinds
    of links, by how their names begin, in levels: the first level of which a host has any link says which devices
    belong together. generation: by which name memory/ knows them; None where their memory is not counted with.
    no_memory: the sentence that says that memory is not checked there; empty where it is.

    memory: which model of memory judges whether a model fits: ``hpu`` or ``vllm``; empty for none. capability_problems:
    what of a model these devices cannot do, each with what works; capability_notes: what they do worse or
    otherwise. health: what is sick of a device that serves, by its facts; None for nothing. lacks: options of vLLM
    that no server there takes, each with why and what works.

    cache_variable: the environment variable that names the folder for compiled graphs; set from recipe_cache_path.

    tuned: its hosts get the kernel arguments and the hugepages of the manual, where a user says nothing.

    problems: what of a spec no launch there can be. notes: what of one depends on its release's images. image_problems:
    whether its image is of another release. warmup_s, warmup_cached_s: about how many seconds a start takes beside
    reading the weights, the first and a later one; None where the engine counts them. binds: a server is kept on
    the processors and the memory of its devices' NUMA node; otherwise its engine does that, or nothing. even_heads:
    every device must have a key-value head of its own. iommu: devices are driven through it.

    acceptance: the vendor's acceptance tests; None where there are none that are known.

    metrics: how the collector on its hosts reads its devices; None where there is nothing to read.

    socket_variables: those that name the interface to the other hosts of a model. ray_resource: what Ray calls its
    devices. scales_out: whether devices of several hosts are linked by ports of their own. over_nics: the variables by
    which the library of the devices sends over network cards with RDMA, from what the inventory says and the RDMA
    devices of the host; nothing where it cannot.
    """

    name: str
    title: str
    engine: str
    options: Callable[[str], frozenset[str]]
    software: Callable[[str], str]
    here: Callable[[str], bool]
    about: Callable[[Host], list[str]]
    image: Callable[[Host, str, str], str | None] = _no_image
    devices: str = ""
    access: Callable[[Host], DeviceAccess | None] = _no_access
    card_variables: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    ulimits: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    env_between: Mapping[str, str] = field(default_factory=dict)
    release: Callable[[str], Release | None] = _no_release
    runtime: Runtime | None = None
    driver: Driver | None = None
    cdi: bool = False
    needs: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    names: str = ""
    group: Callable[[Host], int | None] = lambda host: None
    generation: Callable[[Host], str | None] = lambda host: None
    near: tuple[tuple[str, ...], ...] = ()
    links: Links | None = None
    no_memory: str = ""
    memory: str = ""
    capability_problems: Callable[[Spec, Architecture, Host, Sequence[Card]], list[Problem]] = _all_capable
    capability_notes: Callable[[Spec, Architecture, Host, Sequence[Card]], list[str]] = _nothing_slow
    health: Callable[[Mapping[str, Any]], str | None] = _health
    lacks: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""
    pci: Callable[[str], dict[str, str]] = _no_pci
    problems: Callable[[Spec], list[Problem]] = _no_problems
    notes: Callable[[Spec, str], list[str]] = _no_notes
    image_problems: Callable[[Spec, str], list[Problem]] = _no_image_problems
    cache_variable: str = ""
    warmup_s: int | None = None
    warmup_cached_s: int | None = None
    tuned: bool = False
    binds: bool = False
    even_heads: bool = False
    iommu: bool = False
    acceptance: Acceptance | None = None
    metrics: CardMetrics | None = None
    socket_variables: tuple[str, ...] = ("GLOO_SOCKET_IFNAME",)
    ray_resource: str = ""
    scales_out: Callable[[Host], bool] = _slow_between
    over_nics: Callable[[Between, Sequence[str]], dict[str, str]] = _no_nics
    observe: Callable[[], dict[str, Any]] = _no_devices
    reasons: Callable[[Host, str, int, str], list[tuple[str, str]]] = _no_reasons

    def is_device_name(self, name: str) -> bool:
        """Tell whether one of its devices may have a name."""
        return bool(self.names and re.fullmatch(self.names, name))
