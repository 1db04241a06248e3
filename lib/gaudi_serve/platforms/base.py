"""The definition of a platform: one kind of machine that serves models, with all data about it.

A platform is one file next to this one and one line in the registry (``platforms/__init__.py``).
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


OF_VLLM = "vllm"  # the memory model of vLLM, by which it divides cards itself
OF_NODES = "nodes"  # the same for processors: workers of vLLM divide the memory of NUMA nodes


@dataclass(frozen=True)
class Settings:
    """The settings file of a runtime.

    path: path of the file. configured: the desired text, from the present one (None: no file) and the host's name for
    messages; raises InputError if it cannot be edited. edit: the end of a line that this changes. lacks: the message
    for a file that must be changed. problems: why no container would start with it, from the same. notes: information
    for users. given: the runtime's programs whose path it sets.
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

    name: its name in daemon.json, facts and variables of roles. path: its program. package: the package that installs
    it. parts: the packages that this one needs in exactly its version. programs: programs of these packages; if all of
    them are missing, every start fails. settings: None if its settings are never changed. cdi_since: the first version
    of the package that keeps the CDI file of its devices up to date.
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
        """Return the entry of ``needs`` by which a platform requests it."""
        return f"{self.name}_runtime"

    def keeps_cdi_file(self, version: str) -> bool:
        """Return whether its package in a version keeps the CDI file up to date; true if it has no such file."""
        found = re.search(r"(\d+)\.(\d+)", version)
        return self.cdi_since is None or (found is not None and (int(found[1]), int(found[2])) >= self.cdi_since)

    @property
    def entry(self) -> dict[str, Any]:
        """Return its entry in daemon.json."""
        return {"path": self.path, "runtimeArgs": []}


@dataclass(frozen=True)
class Platform:
    """One kind of machine.

    name: its name in ``accelerator`` of the facts. title: its hosts' name in messages. devices: the name in messages of
    the devices that models get; empty if models get none. engine: the default engine of a model if its release does not
    determine it; it need not know the platform. release: the row of a release of its software; None for an unknown one.
    options: the options of vLLM that its serving image accepts, by release; software: that image's name in messages.
    image: the official image of a model without one, by its host, its release, and the image that serves it now; None
    if there is none.

    refused: why such a machine is not supported, and the vendor's solution; empty if it is supported.

    here: whether a machine, by its root, is one. pci: its devices on the PCI bus, by bus_id their PCI device ids, which
    exist without a driver too. observe: the facts of its devices in ``gaudi_host``: ``device_name``; ``modules``, each
    with module_id, index, numa_node, cpus, in_use, held_by, and device_id if its driver identifies it by something else
    than the module_id; ``pci_cards``, how many are on the bus, in addition to those that a tool shows; ``problem`` if
    they do not answer; ``notes``, warnings as sentences. device_holders finds programs that have a device's node open.
    about: what a plan shows of a host. reasons: why a run must not begin on one, each with its key.

    env: what a server always needs there; env_between: what it needs with several devices; env_stages: what it
    needs with pipeline_parallel_size. ulimits, capabilities: what its container needs in addition to those of its
    engine. access: how a container gets exactly some devices of a host; None if there are none. driver: that of its
    devices; None if no driver is installed. runtime: the additional runtime that the container engine needs for
    them; then ``<name>_runtime`` is one of the needs. cdi: it gives devices by CDI if the engine accepts their
    names. card_variables: variables that choose devices; only the plan may set them. needs: requirements of its
    hosts that others do not have, as filter accelerator_needs returns them.

    prefixes: first parts of the known device names; names: a regular expression of all names, including unknown ones.
    group: how many devices of a host are linked among themselves only; None for all. near: kinds of links, by the first
    parts of their names, in levels: the first level of which a host has a link determines which devices belong
    together. generation: the name in memory/ of its devices; None if their memory is not calculated. no_memory: the
    sentence that memory is not checked there; empty if it is.

    memory: the memory model that checks whether a model fits: ``hpu``, ``vllm`` or ``nodes``; empty for none.
    capability_problems: features of a model that these devices cannot handle, each with what works; capability_notes:
    features that are slower or different. health: the health problem of a working device, by its facts; None for none.
    lacks: options of vLLM that no server there accepts, each with the reason and an alternative.

    cache_variable: the environment variable with the folder for compiled graphs; set from recipe_cache_path.

    tuned: its hosts get the kernel arguments of the manual by default. hugepages: the pages of 2 MiB that its hosts get
    by default; None for none.

    problems: launches that are impossible there, by the spec. notes: features that depend on its release's images.
    image_problems: whether its image is of another release. warmup_s, warmup_cached_s: estimated seconds of the first
    and a later start, without reading the weights; None if the engine calculates them. binds: a server is bound to the
    processors and the memory of its devices' NUMA node; otherwise its engine does that, or nothing.
    hang_least_s: seconds without work after which an engine may count as frozen, if that is at least ten times its
    longest step; None if one step may take minutes. even_heads: every
    device must have a key-value head of its own. iommu: devices are driven through it.

    acceptance: the vendor's acceptance tests; None if none are known.

    metrics: how the collector on its hosts reads its devices; None if there is nothing to read.

    socket_variables: those with the interface to the other hosts of a model. ray_resource: its devices' name in Ray.
    scales_out: whether devices of several hosts are linked by ports of their own. over_nics: the variables by which the
    devices' library sends over network cards with RDMA, from the inventory's network settings and the RDMA devices of
    the host; empty if it cannot.
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
    env_stages: Mapping[str, str] = field(default_factory=dict)
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
    hang_least_s: int | None = None
    warmup_cached_s: int | None = None
    tuned: bool = False
    hugepages: int | None = None
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
        """Return whether one of its devices may have a name."""
        return bool(self.names and re.fullmatch(self.names, name))
