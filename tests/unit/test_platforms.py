"""Every platform from its devices to a container and back: the registered ones, and three that are made up here.

Each goes the way that a user's host goes: it is observed and planned, its launch file starts a container by the
supervisor, a node is missing, other devices arrive, its host is read, compared and reset. Only the container engine is
a stand-in, which gives a container what the options of ``docker create`` ask for.
"""

from __future__ import annotations

import copy
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from gaudi_serve.core.run import Result
from gaudi_serve.engines import ENGINES
from gaudi_serve.host import links, observe_runtime, observe_services
from gaudi_serve.host.observe_host import system
from gaudi_serve.inventory.facts import checked_host
from gaudi_serve.model.host import Host
from gaudi_serve.model.vllm_options import vllm_options
from gaudi_serve.plan.changes import vllm_plan_changes
from gaudi_serve.plan.host import vllm_plan
from gaudi_serve.platforms import PLATFORMS, DeviceAccess, Platform, Runtime, card_variables, platform_here, runtimes
from gaudi_serve.platforms.device_access import Node
from gaudi_serve.platforms.links import Links, Threshold
from gaudi_serve.stages import container_runtime, reset_host, service
from gaudi_serve.stages.links import link_runs
from gaudi_serve.stages.reset import vllm_service_reset
from helpers.container_engine import live as engine_of_host
from helpers.container_engine import wanted as wanted_engine
from helpers.leftovers import left, services
from helpers.plans import gaudi_host
from helpers.programs import load_program
from helpers.services import TEMPLATE, changes, digest, live

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "roles/vllm_service/files/vllm-supervisor"


def observed(name: str, ids: tuple[str | None, ...], **more: Any) -> Callable[[], dict[str, Any]]:
    """Return what observes the made-up devices of a host."""

    def observe() -> dict[str, Any]:
        base = {"numa_node": 0, "cpus": [], "in_use": False}
        cards = [{**base, "module_id": place, "index": place, "device_id": one} for place, one in enumerate(ids)]
        return {"device_name": name, "modules": cards, "pci_cards": len(cards), **more}

    return observe


def made_up(name: str, access: DeviceAccess, device: str, ids: tuple[str | None, ...], **more: Any) -> Platform:
    """Return a platform as its one file would have it."""
    return Platform(
        name=name,
        title=name,
        devices=f"{name} cards",
        engine="vllm",
        options=vllm_options,
        software=lambda release: f"the vLLM of {name}",
        here=lambda root: Path(root, f"dev/{name}").exists(),
        about=lambda host: [f"{len(host.cards)} {name} cards"],
        access=lambda host: access,
        card_variables=(*access.variables, *access.forbidden),
        names=rf"{device}[\w .()-]*",
        prefixes=(device,),
        no_memory=f"memory is not checked: the toolkit has no memory rules for {name} cards",
        observe=observed(f"{device} 80GB HBM3", ids),
        **more,
    )


# A runtime that is registered in the engine, and reads a variable; it drops devices that are not there silently.
ABACUS = made_up(
    "abacus",
    DeviceAccess(
        given_by="the rods runtime",
        runtime="rods",
        variables={"RODS": "{indices}"},
        files="/sys/class/rod/rod*/place",
        device=r"/rod(?P<index>\d+)/place\n(?P<id>\d+)$",
        nodes=(Node("/dev/abacus/rod{index}"), Node("/dev/net/{name}", named_by="/sys/class/rod/rod{index}/net/*")),
        without="without it the rods runtime leaves it out",
        inside="dev/abacus/rod*",
        expected=("rod{index}",),
        error="RODS_ERROR",
        hint="the rods runtime reports its reason in /var/log/rods",
    ),
    "BEAD",
    (None, None),
    runtime=Runtime("rods", "/usr/bin/rods", "rods-runtime", programs=("rods-cli",)),
    needs=("rods_runtime",),
)
# Plain nodes, one of them for all devices, and the groups of these nodes.
SLATE = made_up(
    "slate",
    DeviceAccess(
        options=("--device", "/dev/slate/all"),
        each=("--device", "/dev/slate/pane{index}"),
        groups=("/dev/slate/pane{index}",),
        files="/sys/class/slate/nodes/*/properties",
        device=r"minor (?P<index>\d+)\n[^/]*serial (?P<id>\d+)",
        nodes=(Node("/dev/slate/all"), Node("/dev/slate/pane{index}")),
        inside="dev/slate/pane*",
        expected=("pane{index}",),
        forbidden=("SLATE_MASK",),
    ),
    "SLATE",
    ("900000000000000000017", "900000000000000000018"),
    links=Links("SCL", (Threshold("SLATE 80GB", 50.0, cards=2),), "scl", "slate", {"SCL_DEBUG": "WARN"}),
    capabilities=("SYS_PTRACE",),
    ulimits=("memlock=-1:-1",),
)
# Devices by CDI and their ids; what has arrived, a program in the container shows.
CHALK = made_up(
    "chalk",
    DeviceAccess(
        each=("--device", "vendor.example/chalk={id}"),
        forbidden=("CHALK_VISIBLE_DEVICES",),
        nodes=(Node("/etc/cdi/chalk*.json"),),
        shows=("chalk-smi", "-L"),
        shown=r"UUID: (?P<id>[\w-]+)",
    ),
    "CHALK",
    ("CHALK-aa", "CHALK-bb"),
)
MADE_UP = {one.name: one for one in (ABACUS, SLATE, CHALK)}
NAMES = [*(name for name, one in PLATFORMS.items() if not one.refused), *MADE_UP]
WITH_DEVICES = [name for name in NAMES if {**PLATFORMS, **MADE_UP}[name].devices]
platforms = pytest.mark.parametrize("name", NAMES)
with_devices = pytest.mark.parametrize("name", WITH_DEVICES)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Register the platforms that are made up, before those that find themselves everywhere."""
    others = dict(PLATFORMS)
    PLATFORMS.clear()
    PLATFORMS.update({**MADE_UP, **others})
    yield
    PLATFORMS.clear()
    PLATFORMS.update(others)


def touch(root: Path, path: str, text: str = "") -> None:
    """Make a file below a root, and its folders."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text, encoding="utf-8")


def gaudi_card(root: Path, module: int, index: int) -> None:
    touch(root, f"sys/class/accel/accel{index}/device/module_id", f"{module}\n")
    touch(root, f"sys/class/accel/accel{index}/device/pci_addr", "0000:19:00.0\n")
    touch(root, f"sys/class/infiniband/hbl_{index}/device/infiniband_verbs/uverbs{index}")
    for node in (f"accel/accel{index}", f"accel/accel_controlD{index}", f"infiniband/uverbs{index}"):
        touch(root, f"dev/{node}")


def rod(root: Path, module: int, index: int) -> None:
    touch(root, f"sys/class/rod/rod{index}/place", f"{module}\n")
    touch(root, f"sys/class/rod/rod{index}/net/verbs{index}")
    touch(root, f"dev/net/verbs{index}")
    touch(root, f"dev/abacus/rod{index}")


def pane(root: Path, module: int, index: int) -> None:
    text = f"cpu 0\nminor {index}\nserial {900000000000000000017 + module}\n"
    touch(root, f"sys/class/slate/nodes/{index}/properties", text)
    touch(root, f"dev/slate/pane{index}")
    touch(root, "dev/slate/all")


def chalk(root: Path, module: int, index: int) -> None:
    touch(root, "dev/chalk")
    path = root / "etc/cdi/chalk.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"kind": "vendor.example/chalk"}
    names = [*known.get("devices", []), {"name": ("CHALK-aa", "CHALK-bb")[module]}]
    touch(root, "etc/cdi/chalk.json", json.dumps({**known, "devices": names}))


def nvidia_card(root: Path, module: int, index: int) -> None:
    text = f"Model: NVIDIA L4\nGPU UUID: GPU-{module}\nDevice Minor: {index}\n"
    touch(root, f"proc/driver/nvidia/gpus/0000:1{index}:00.0/information", text)
    touch(root, f"sys/bus/pci/devices/0000:1{index}:00.0/vendor", "0x10de\n")
    touch(root, f"sys/bus/pci/devices/0000:1{index}:00.0/class", "0x030200\n")
    for node in (f"nvidia{index}", "nvidiactl", "nvidia-uvm"):
        touch(root, f"dev/{node}")


def render_card(vendor: str, kind: str, driver: str) -> Callable[[Path, int, int], None]:
    """Return what makes a card that has a render node."""

    def make(root: Path, module: int, index: int) -> None:
        folder = f"sys/bus/pci/devices/0000:2{module}:00.0"
        for name, text in (("vendor", vendor), ("class", kind), (f"drm/renderD{index}/dev", f"226:{index}")):
            touch(root, f"{folder}/{name}", f"{text}\n")
        touch(root, f"sys/module/{driver}/version")
        (root / folder / "driver").symlink_to(root / f"sys/module/{driver}")
        for node in ("kfd", f"dri/renderD{index}", f"dri/by-path/pci-0000:2{module}:00.0-render"):
            touch(root, f"dev/{node}")

    return make


def render_modules(device: str, **more: Any) -> dict[str, Any]:
    """Return what is observed of two cards that have render nodes."""
    cards = [
        {"module_id": number, "index": 6 - 2 * number, "device_id": f"0000:2{number}:00.0", "name": device}
        | {"memory_mib": 24576, "numa_node": 0, **more}
        for number in range(2)
    ]
    return {"device_name": device, "driver_version": "1", "modules": cards}


def no_card(root: Path, module: int, index: int) -> None:
    """A platform without devices has no card to make."""


@dataclass(frozen=True)
class Kind:
    """How hosts of a platform are made here, and what is expected of them; a new platform adds one to KINDS.

    card: makes a card below a root, by its module_id and index. options: what docker create gets for two cards, of the
    indices 6 and 4; {group} is the number of the nodes' group. missing: a node that the second card needs, and its
    pattern in messages. more: further nodes that arrive, and the message about them. gives: what a runtime gives to a
    container, by its environment. facts: what is observed there, where the platform itself must ask a tool.
    """

    card: Callable[[Path, int, int], None]
    options: str = ""
    missing: tuple[str, str] = ("", "")
    more: tuple[frozenset[str], str] = (frozenset(), "")
    gives: Callable[[dict[str, str]], set[str]] = lambda environment: set()
    facts: dict[str, Any] | None = None


def nodes_of(variable: str, *names: str) -> Callable[[dict[str, str]], set[str]]:
    """Return a runtime that gives the nodes of the indices which a variable has."""
    return lambda environment: {
        f"/dev/{name}{index}" for index in environment.get(variable, "").split(",") if index for name in names
    }


SIXTEEN = "card indices [4, 6, 16] instead of [4, 6]"
KINDS = {
    "gaudi": Kind(
        gaudi_card,
        "--runtime habana --env HABANA_VISIBLE_DEVICES=6,4",
        ("dev/infiniband/uverbs4", "dev/infiniband/uverbs4"),
        (frozenset({"/dev/accel/accel16", "/dev/accel/accel_controlD16"}), SIXTEEN),
        nodes_of("HABANA_VISIBLE_DEVICES", "accel/accel", "accel/accel_controlD"),
        facts={"modules": gaudi_host()["modules"][:2]},
    ),
    "cuda": Kind(
        nvidia_card,
        "--runtime nvidia --device /dev/nvidiactl --device /dev/nvidia-uvm --device=/dev/nvidia6 --device=/dev/nvidia4 "
        "--env NVIDIA_VISIBLE_DEVICES=GPU-0,GPU-1",
        ("dev/nvidia4", "dev/nvidia4"),
        (frozenset({"GPU-2"}), "devices ['GPU-0', 'GPU-1', 'GPU-2'] instead of ['GPU-0', 'GPU-1']"),
        lambda environment: {name for name in environment.get("NVIDIA_VISIBLE_DEVICES", "").split(",") if name},
        facts={
            **{"device_name": "NVIDIA L4", "driver_version": "580.95.05"},
            "modules": [
                {"module_id": number, "index": 6 - 2 * number, "device_id": f"GPU-{number}", "name": "NVIDIA L4"}
                | {"memory_mib": 23034, "capability": "8.9", "numa_node": 0}
                for number in range(2)
            ],
        },
    ),
    "rocm": Kind(
        render_card("0x1002", "0x120000", "amdgpu"),
        "--device /dev/kfd --security-opt seccomp=unconfined --device /dev/dri/renderD6 --device /dev/dri/renderD4 "
        "--group-add {group}",
        ("dev/dri/renderD4", "dev/dri/renderD4"),
        (frozenset({"/dev/dri/renderD16"}), SIXTEEN),
        facts=render_modules("AMD Instinct MI300X", capability="gfx942"),
    ),
    "xpu": Kind(
        render_card("0x8086", "0x038000", "xe"),
        "--volume /dev/dri/by-path:/dev/dri/by-path:ro --device /dev/dri/renderD6 --device /dev/dri/renderD4 "
        "--group-add {group}",
        ("dev/dri/renderD4", "dev/dri/renderD4"),
        (frozenset({"/dev/dri/renderD16"}), SIXTEEN),
        facts=render_modules("Intel(R) Arc(TM) Pro B60 Graphics"),
    ),
    "cpu": Kind(no_card),
    "abacus": Kind(
        rod,
        "--runtime rods --env RODS=6,4",
        ("dev/net/verbs4", "dev/net/verbs4"),
        (frozenset({"/dev/abacus/rod16"}), SIXTEEN),
        nodes_of("RODS", "abacus/rod"),
    ),
    "slate": Kind(
        pane,
        "--device /dev/slate/all --device /dev/slate/pane6 --device /dev/slate/pane4 --group-add {group}",
        ("dev/slate/pane4", "dev/slate/pane4"),
        (frozenset({"/dev/slate/pane16"}), SIXTEEN),
    ),
    "chalk": Kind(
        chalk,
        "--device vendor.example/chalk=CHALK-aa --device vendor.example/chalk=CHALK-bb",
        ("etc/cdi/chalk.json", "etc/cdi/chalk*.json"),
        (
            frozenset({"CHALK-cc"}),
            "devices ['CHALK-aa', 'CHALK-bb', 'CHALK-cc'] instead of ['CHALK-aa', 'CHALK-bb']",
        ),
    ),
}


@dataclass
class Engine:
    """Takes the place of the Docker client: a container gets what its options ask for, and nothing else."""

    root: Path
    kind: Kind
    calls: list[str] = field(default_factory=list)
    created: list[str] = field(default_factory=list)
    given: set[str] = field(default_factory=set)  # nodes and names of CDI
    meanwhile: Callable[[Engine], None] = lambda engine: None
    said: str = ""

    def __call__(self, *arguments: str, **_: Any) -> subprocess.CompletedProcess[str]:
        """Answer a call of the client."""
        self.calls.append(arguments[0])
        problem, out = "", json.dumps([{"State": {"Pid": 7, "Running": True}}])
        if arguments[0] == "create":
            self.created, self.given = list(arguments[1:]), set()
            problem = self.take()
        elif arguments[0] == "start":
            problem, out = self.said or self.start(), ""
        elif arguments[0] == "exec":
            out = "".join(f"Card: 80GB (UUID: {name})\n" for name in sorted(self.given))
        return subprocess.CompletedProcess([], int(bool(problem)), out, problem)

    def of(self, option: str) -> list[str]:
        """Return the values of an option of docker create."""
        return [value for name, value in zip(self.created, self.created[1:], strict=False) if name == option]

    def take(self) -> str:
        """Take the options, and return why no container is made of them."""
        for device in self.of("--device"):
            kind, is_cdi, name = device.partition("=")
            if is_cdi:
                known = [json.loads(path.read_text()) for path in self.root.glob("etc/cdi/*.json")]
                names = {one["name"] for file in known if file["kind"] == kind for one in file["devices"]}
                if name not in names:
                    return f"unresolvable CDI devices {device}"
                self.given.add(name)
            elif not (self.root / device.lstrip("/")).exists():
                return f'error gathering device information while adding custom device "{device}": no such file'
            else:
                self.given.add(device)
        assert all(group.isdigit() for group in self.of("--group-add")), "an image need not know a name"
        return "" if set(self.of("--runtime")) <= {one.name for one in runtimes()} else "Unknown runtime specified"

    def start(self) -> str:
        """Start the container: a runtime gives the nodes that its variable names, as far as they are there."""
        environment = dict(word.split("=", 1) for word in self.of("--env"))
        self.given |= self.kind.gives(environment)
        self.meanwhile(self)
        for node in (node for node in self.given if node.startswith("/dev/")):
            if (self.root / node.lstrip("/")).exists():
                touch(self.root, f"proc/7/root{node}")
        touch(self.root, "proc/7/environ", "\0".join(f"{key}={value}" for key, value in environment.items()))
        return ""


@dataclass
class Machine:
    """A host of a platform with a model that is planned and started there."""

    root: Path
    platform: Platform
    plan: dict[str, Any]
    program: Any
    engine: Engine

    @property
    def launch_file(self) -> Path:
        """Return the model's launch file."""
        return self.root / "etc/gaudi-serve/m.json"

    def write(self) -> None:
        """Write the model's files as the role does."""
        for path, file in service.vllm_service_files([self.plan], TEMPLATE).items():
            touch(self.root, path.lstrip("/"), file["content"])

    def start(self) -> str:
        """Start the model's container by the supervisor; return why that fails, or an empty text."""
        one = self.program.Supervisor(self.launch_file)
        one.port_must_be_free = lambda: None
        one.stopping.set()  # what is not there is not waited for
        try:
            one.create()
        except self.program.SupervisorError as error:
            return str(error)
        return ""


def facts_of(name: str) -> dict[str, Any]:
    """Return ``gaudi_host`` of a host of a platform with two cards, as they are observed."""
    return copy.deepcopy(gaudi_host(accelerator=name, **(KINDS[name].facts or PLATFORMS[name].observe())))


def plan_of(name: str, **more: Any) -> dict[str, Any]:
    """Return the plan of a host on which one model gets both cards."""
    cards = {"tensor_parallel_size": 2} if PLATFORMS[name].devices else {}
    model = {"name": "m", "weights": "/m/x", "image": "vllm:1", "launch_profile": "vllm", **cards, "seed": 2, **more}
    return vllm_plan([model], facts_of(name), host_name="g")


@pytest.fixture
def machine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return a host of the platform that a test asks for; its cards have other indices than at the last boot."""
    name = request.getfixturevalue("name")
    for module, index in ((0, 6), (1, 4)):
        KINDS[name].card(tmp_path, module, index)
    program, engine = load_program(PROGRAM), Engine(tmp_path, KINDS[name])
    monkeypatch.setattr(program, "ROOT", tmp_path)
    monkeypatch.setattr(program, "docker", engine)
    # The same answer as from Docker's socket.
    monkeypatch.setattr(
        program.Supervisor, "inspect", lambda one: json.loads(engine("container", "inspect", one.container).stdout)[0]
    )
    plan = plan_of(name)
    assert plan["errors"] == []
    found = Machine(tmp_path, PLATFORMS[name], plan["models"][0], program, engine)
    found.write()
    return found


@platforms
def test_a_host_is_recognised_and_its_facts_can_be_planned(name: str, machine: Machine) -> None:
    assert platform_here(str(machine.root)).name == name == system(str(machine.root))["accelerator"]
    seen = machine.platform.observe()
    assert {"device_name", "modules"} <= seen.keys()
    # How many are on the bus, beside what a tool shows.
    assert "pci_cards" in seen or not machine.platform.devices
    host, problems = checked_host({**facts_of(name), "driver_version": "1.21.3-57"})
    assert problems == []
    assert machine.platform.about(Host.of(host))


@platforms
def test_a_platform_reports_what_later_steps_carry_out(name: str) -> None:
    one = PLATFORMS[name]
    access = one.access(Host())
    assert bool(access) == bool(one.devices)
    assert access is None or {*access.variables, *access.forbidden} <= {*one.card_variables} <= card_variables()
    assert ENGINES[one.engine].serves(one)
    runtime = access.runtime if access else None
    if runtime:
        # Role container_runtime installs it where hosts need it.
        assert one.runtime and one.runtime.name == runtime and f"{runtime}_runtime" in one.needs
    # Something verifies what has arrived.
    assert access is None or access.inside or access.shows
    # Memory is counted with, or a note reports that it is not.
    assert one.no_memory or not one.devices or one.memory or one.generation(Host.of(facts_of(name)))


@platforms
def test_memory_that_is_not_counted_with_is_reported_in_the_platforms_words(name: str, machine: Machine) -> None:
    told = [text for text in machine.plan["warnings"] if "memory is not checked" in text]
    assert [text for text in told if name in text] == ([machine.platform.no_memory] if name in MADE_UP else [])


@platforms
def test_a_launch_file_alone_starts_a_container_with_exactly_its_devices(name: str, machine: Machine) -> None:
    assert machine.start() == ""
    created = " ".join(machine.engine.created)
    options = KINDS[name].options.format(group=machine.root.stat().st_gid)
    assert re.search(rf"(:rw|readonly) {re.escape(options)}{' ' * bool(options)}vllm:1 vllm serve /m/x ", created)
    shows = (machine.plan["device_access"] or {}).get("shows")
    assert ("exec" in machine.engine.calls) == bool(shows)
    launch = json.loads(machine.launch_file.read_text(encoding="utf-8"))
    assert launch == json.loads(json.dumps(service.vllm_container(machine.plan)))


@with_devices
def test_a_card_that_is_not_there_is_waited_for(name: str, machine: Machine) -> None:
    access = machine.plan["device_access"]
    if "files" not in access:
        # What CDI gives has no number that could be another.
        for path in machine.root.glob("etc/cdi/*.json"):
            path.write_text(json.dumps({**json.loads(path.read_text()), "devices": []}))
        assert machine.start().startswith("the container does not start: unresolvable CDI devices ")
        return
    for path in machine.root.glob(access["files"].lstrip("/")):
        if "6" in path.parts[-2] or "6" in path.parts[-3]:
            path.unlink()
    gone = (access.get("ids") or ["0"])[0]
    assert machine.start().startswith(f"cards [{gone if gone.isdigit() else repr(gone)}] are missing; there are [")
    assert machine.engine.calls == ["image"]


@with_devices
def test_a_missing_node_stops_the_start_before_the_engine_is_asked(name: str, machine: Machine) -> None:
    path, shown = KINDS[name].missing
    (machine.root / path).unlink()
    told = machine.start()
    assert told.startswith("the driver does not show ")
    assert f"{machine.root}/{shown} (module_id 1)" in told
    assert told.endswith(machine.platform.access(Host()).without)  # type: ignore[union-attr]
    assert machine.engine.calls == ["image"]


MEASURING = {"image": "vllm:1", "env": {"NCCL_DEBUG": "WARN"}, "nodes": 1, "node": 0, "timeout": 60} | {
    **{"address": "127.0.0.1", "port": 5555, "options": {}, "checkout": "/opt/x", "repository": "/x", "commit": ""},
}


def measuring(name: str) -> tuple[Host, list[dict[str, Any]]]:
    """Return a host after a boot that has numbered its two cards again, and the measurements of their links."""
    facts = facts_of(name)
    for module, index in zip(facts["modules"], (6, 4), strict=False):
        module["index"] = index
    return Host.of(facts), link_runs(facts, {})


@platforms
def test_a_measurement_of_links_gets_its_devices_as_a_model_does(name: str, machine: Machine) -> None:
    host, runs = measuring(name)
    assert bool(runs) == (machine.platform.links is not None)
    for run in runs:
        command = links.docker_command(MEASURING, host, run, str(machine.root))
        options = KINDS[name].options.format(group=machine.root.stat().st_gid)
        assert f"--label gaudi-serve.hccl=1 {options} --net host --ipc host" in " ".join(command)
        measures = machine.platform.links
        if measures and measures.backend:
            # As a model's container, and nothing more.
            given = {"--cap-add": [*machine.platform.capabilities], "--ulimit": [*machine.platform.ulimits]}
            given |= {"--cap-drop": ["ALL"], "--entrypoint": ["python3"]}
            for option, values in given.items():
                assert [value for word, value in pairwise(command) if word == option] == values
            env = {**machine.platform.env, **measures.env, **MEASURING["env"]}
            assert [f"{key}={value}" for key, value in env.items()] == [
                word for before, word in pairwise(command) if before == "--env"
            ][-len(env) :]
            told = json.loads(command[-1])
            assert (told["backend"], told["devices"], told["ranks"]) == (measures.backend, measures.devices, 2)


@with_devices
def test_a_missing_node_stops_a_measurement_of_links(
    name: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, shown = KINDS[name].missing
    (machine.root / path).unlink()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("the engine was asked"))
    host, runs = measuring(name)
    for run in runs:
        found = links.measured(MEASURING, host, run, str(machine.root))
        assert found["problem"].startswith(f"all: the driver does not show /{shown}"), found
        assert not found["passed"]


@with_devices
def test_other_devices_inside_end_the_start(name: str, machine: Machine) -> None:
    more, told = KINDS[name].more
    for node in more:
        touch(machine.root, node.lstrip("/"))
    machine.engine.meanwhile = lambda engine: engine.given.update(more)
    assert machine.start() == f"the container got {told}"


@with_devices
def test_fewer_devices_inside_end_the_start(name: str, machine: Machine) -> None:
    machine.engine.meanwhile = lambda engine: engine.given.clear()
    none = "devices []" if "shows" in machine.plan["device_access"] else "card indices []"
    assert machine.start().startswith(f"the container got {none} instead of ")


@with_devices
def test_nothing_else_chooses_among_the_devices(name: str, machine: Machine) -> None:
    access = machine.platform.access(Host())
    assert access
    for variable in (*access.variables, *access.forbidden):
        machine.write()
        with machine.launch_file.with_suffix(".env").open("a", encoding="utf-8") as file:
            file.write(f"{variable}=all\n")
        told = machine.start()
        twice = f"{variable} is set twice for the container, by "
        assert told.startswith(twice if variable in access.variables else f"{variable} is set by ")
        (error,) = plan_of(name, env={variable: "all"})["errors"]
        assert (error["key"], "the plan chooses the cards" in error["message"]) == ("env", True)


@platforms
def test_a_runtime_that_ends_silently_is_explained_by_its_platform(name: str, machine: Machine) -> None:
    machine.engine.said = "failed to retrieve OCI runtime container pid"
    access = machine.platform.access(Host())
    hint = access.hint if access else ""
    assert machine.start() == f"the container does not start: {machine.engine.said}{'; ' * bool(hint)}{hint}"


@platforms
def test_what_runs_is_known_by_its_container_and_nothing_is_left_to_do(
    name: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine.start() == ""
    labels = dict(word.split("=", 1) for word in machine.engine.of("--label"))
    box = {
        "Name": "/vllm-m",
        "Id": "a" * 64,
        "Config": {"Labels": labels, "Cmd": service.vllm_container(machine.plan)["command"], "Env": []},
        "State": {"Running": True, "StartedAt": "now"},
        **{"Created": "c", "Image": "i"},
    }
    shown = "Id=vllm-m.service\nActiveState=active\nUnitFileState=enabled\nMainPID=0\n"
    answers = {"systemctl": shown, "ps": "a\n", "inspect": json.dumps([box]), "image": "", "ss": ""}
    monkeypatch.setattr(observe_services, "ROOT", str(machine.root))
    for key, path in (("UNITS", service.UNITS), ("CONFIG", service.CONFIG), ("STATE", "/var/lib/gaudi-serve")):
        monkeypatch.setattr(observe_services, key, machine.root / path.lstrip("/"))
    (machine.root / "var/lib/gaudi-serve").mkdir(parents=True)
    monkeypatch.setattr(observe_services, "listeners", list)
    monkeypatch.setattr(
        observe_services, "run", lambda argv: Result(0, answers[argv[0] if argv[0] == "systemctl" else argv[1]], "")
    )
    machine.launch_file.unlink()
    unit = observe_services.observe()["units"]["m"]
    assert (unit["module_ids"], unit["lost"]) == (machine.plan["module_ids"], ["launch"])
    machine.write()
    seen = {**observe_services.observe(), "supervisor_sha256": digest("#!/usr/bin/python3\n")}
    found = changes([machine.plan], seen)
    assert [found[key] for key in ("write", "restart", "start", "stop", "orphans")] == [[], [], [], [], []]
    served = {"m": {**seen["units"]["m"], "holds": True}}
    facts = {**facts_of(name), "services": served}
    for card in facts["modules"]:
        card["in_use"] = True
    model = {"name": "m", "weights": "/m/x", "image": "vllm:1", "launch_profile": "vllm", "seed": 2}
    cards = {"tensor_parallel_size": 2} if machine.platform.devices else {}
    again = vllm_plan([{**model, **cards}], facts, host_name="g")
    assert again["errors"] == []
    assert vllm_plan_changes(again["models"], served, set()) == []
    taken = vllm_service_reset(services(units={"m": {"container": {"running": True}}}), left())
    assert taken["containers"] == ["vllm-m"] and "/etc/gaudi-serve/m.json" in taken["paths"]


@platforms
def test_the_engine_gets_the_runtime_of_a_platform_and_loses_it_with_a_reset(name: str) -> None:
    runtime = PLATFORMS[name].runtime
    plain = {**wanted_engine(), "habana": False}
    if runtime is None:
        assert json.loads(container_runtime.daemon_json(None, False, True, "", "g")) == {"live-restore": True}
        return
    text = container_runtime.daemon_json(None, runtime.name, True, "", "g")
    assert json.loads(text)["runtimes"] == {runtime.name: {"path": runtime.path, "runtimeArgs": []}}
    settings = {f"{runtime.name}_config": "c = 1"} if runtime.settings else {}
    asked = {**plain, **settings, runtime.name: True, f"{runtime.name}_version": "", "daemon_json": text}
    bare = engine_of_host(packages={"docker.io": "20"}, daemon_json=None, **settings)
    bare["info"] = {**bare["info"], "runtimes": {}}
    due = container_runtime.container_runtime_changes(bare, asked)
    assert due[f"install_{runtime.name}"] == [f"{runtime.package}: None -> newest"]
    assert (due["write"], due["reload"]) == (["daemon.json"], [f"the running engine lacks the {runtime.name} runtime"])
    programs = {f"{runtime.name}_programs": dict.fromkeys(runtime.programs, True)}
    done = {**bare, **programs, "packages": {"docker.io": "20", runtime.package: "1"}, "daemon_json": text}
    done["info"] = {**done["info"], "runtimes": {runtime.name: runtime.entry}}
    assert not container_runtime.container_runtime_changes(done, asked)["due"]
    assert container_runtime.container_runtime_drift(done, asked) == []
    broken = {**done, f"{runtime.name}_programs": {}}
    assert container_runtime.container_runtime_drift(broken, asked) == [
        f"{runtime.package}: its {' and '.join(runtime.programs)} is missing"
    ]
    record = {"found": {"daemon_json": None, "daemon_json_mode": None, "enabled": True}}
    back = reset_host.container_runtime_reset(
        {**done, "daemon_json_mode": "0644"}, left(records={"container_runtime": record})
    )
    assert back["paths"] == ["/etc/docker/daemon.json"]
    assert f"{runtime.name} runtime of the engine" in back["did"]


def test_a_runtime_is_observed_under_its_own_name(tmp_path: Path) -> None:
    touch(tmp_path, "usr/bin/rods-cli")
    (tmp_path / "usr/bin/rods-cli").chmod(0o755)
    assert ABACUS.runtime
    assert observe_runtime.device_runtime(ABACUS.runtime, root=str(tmp_path)) == {
        "rods_config": None,
        "rods_programs": {"rods-cli": True},
        "rods_problem": None,
    }


def old_launch(machine: Machine) -> str:
    """Return the launch file that a version before the block wrote."""
    launch = json.loads(machine.launch_file.read_text(encoding="utf-8"))
    del launch["device_access"]
    return json.dumps(launch, indent=2, sort_keys=True) + "\n"


OLD = pytest.mark.parametrize("name", ["gaudi", "cpu"])


@OLD
def test_a_launch_file_of_a_version_before_goes_on_as_it_did(name: str, machine: Machine) -> None:
    assert machine.start() == ""
    new = machine.engine.created
    machine.launch_file.write_text(old_launch(machine), encoding="utf-8")
    assert machine.start() == ""
    assert machine.engine.created == new
    if name == "gaudi":
        (machine.root / "dev/accel/accel_controlD6").unlink()
        text = f"the driver does not show {machine.root}/dev/accel/accel_controlD6 (module_id 0); without it the habana"
        assert machine.start().startswith(text)


def test_what_the_supervisor_knows_of_old_launch_files_is_what_the_platform_has() -> None:
    access = PLATFORMS["gaudi"].access(Host())
    assert access and access.as_dict() == load_program(PROGRAM).BEFORE


@OLD
def test_a_launch_file_that_lacks_the_block_is_written_and_restarts_nothing(name: str, machine: Machine) -> None:
    before = {"launch_sha256": digest(old_launch(machine)), "supervisor": "of a version before"}
    state = live([machine.plan], **before)
    due = changes([machine.plan], state)
    assert [file["path"] for file in due["write"]] == ["/etc/gaudi-serve/m.json"]
    assert (due["adopt"], due["restart"], due["start"], due["stop"]) == (["m"], [], [], [])
    # Of a run that was cut off between the two: only the file differs.
    due = changes([machine.plan], live([machine.plan], launch_sha256=before["launch_sha256"]))
    assert (len(due["write"]), due["adopt"], due["restart"]) == (1, [], [])
    assert service.vllm_service_summary(due) == ["write /etc/gaudi-serve/m.json"]
    assert not changes([machine.plan], live([machine.plan]))["due"]
    launch = json.loads(old_launch(machine))
    served = {
        "m": {
            **{"launch": launch, "env": machine.plan["env"], "digest": machine.plan["digest"], "active": True},
            **{"module_ids": machine.plan["module_ids"], "port": machine.plan["port"], "supervisor": "x"},
        }
    }
    assert vllm_plan_changes([machine.plan], served, supervisor="x") == []
    assert vllm_plan_changes([machine.plan], served, supervisor="y") == [
        "~ m: replace its supervisor (its server keeps running)"
    ]


@with_devices
def test_a_change_of_the_block_is_written_and_its_server_goes_on(name: str, machine: Machine) -> None:
    state = live([machine.plan])
    known = machine.platform.access(Host())
    assert known
    for key, value in {"without": "or else", "hint": "look there", "options": ("--shm-size", "1g")}.items():
        other = replace(known, **{key: value})
        changed = replace(machine.platform, access=lambda host, other=other: other)
        PLATFORMS[name] = changed
        (plan,) = plan_of(name)["models"]
        assert plan["digest"] == machine.plan["digest"]
        due = changes([plan], state)
        assert ([file["path"] for file in due["write"]], due["restart"]) == (["/etc/gaudi-serve/m.json"], [])


def test_the_choices_of_roles_are_the_registered_platforms(registered: None) -> None:
    own = [name for name in PLATFORMS if name not in MADE_UP]
    preflight = yaml.safe_load((ROOT / "roles/preflight/meta/argument_specs.yml").read_text())
    image = yaml.safe_load((ROOT / "roles/vllm_image/meta/argument_specs.yml").read_text())
    assert preflight["argument_specs"]["main"]["options"]["preflight_accelerator"]["choices"] == ["auto", *own]
    images = image["argument_specs"]["main"]["options"]["vllm_image_images"]["options"]
    assert images["accelerator"]["choices"] == own


def test_a_name_with_blanks_is_a_device_of_the_platform_that_reports_it() -> None:
    host = gaudi_host(accelerator="chalk", **CHALK.observe())
    assert checked_host(host)[1] == []
    for wrong in ("CHALK\n80GB", "PENCIL 80GB", "HL 225", 7):
        assert [key for key, _, _ in checked_host({**host, "device_name": wrong})[1]] == ["gaudi_host.device_name"]


def test_the_variables_that_give_devices_stand_in_one_place() -> None:
    """Each stands in its platform's file; the supervisor knows those of launch files of before, and nothing else."""
    vendors = re.compile(r"habana|accel|hbl|\bhlib", re.IGNORECASE)
    text = PROGRAM.read_text(encoding="utf-8")
    before = text[text.index("# How a container gets its devices") : text.index("class SupervisorError")]
    assert not vendors.search(text.replace(before, ""))
    names = [variable for one in PLATFORMS.values() if (known := one.access(Host())) for variable in known.variables]
    files = [*(ROOT / "lib/gaudi_serve").rglob("*.py"), *(ROOT / "library").glob("*.py")]
    files += (ROOT / "action_plugins").glob("*.py")
    found = [path for path in files for name in names if f'"{name}' in path.read_text(encoding="utf-8")]
    assert sorted(path.name for path in found) == ["cuda.py", "gaudi.py"]


def test_the_page_on_planning_has_every_key_by_which_cards_are_described() -> None:
    page = (Path(__file__).parents[2] / "docs/guides/planning.md").read_text(encoding="utf-8")
    keys = ("name", "memory_mib", "capability", "links", "no_peer", "alone")
    assert [key for key in keys if f"| `{key}` |" not in page] == []
