"""The supervisor before the stand-ins of runtime and hook: starts that 1.16.0 would let pass silently."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.stages.service import vllm_container
from helpers.plans import model, planned
from helpers.programs import load_program
from helpers.standin_runtime import behave_as, create, hooked

PROGRAM = Path(__file__).parents[3] / "roles/vllm_service/files/vllm-supervisor"
SILENT = "failed to retrieve OCI runtime container pid: open /run/x/init.pid: no such file or directory"


class Engine:
    """Takes the place of the Docker client: runtime and hook run, and /proc shows what runc would have made."""

    def __init__(self, host: Any, bundle: Path) -> None:
        self.host, self.bundle = host, bundle
        self.calls: list[str] = []
        self.asked = ""
        self.meanwhile: Callable[[], None] = lambda: None

    def __call__(self, *arguments: str, **_: Any) -> subprocess.CompletedProcess[str]:
        """Answer a call of the client."""
        self.calls.append(arguments[0])
        if arguments[0] == "create":
            self.asked = next(word for word in arguments if word.startswith("HABANA_VISIBLE_DEVICES="))
        said = self.start() if arguments[0] == "start" else ""
        record = json.dumps([{"State": {"Pid": 7, "Running": True}}])
        return subprocess.CompletedProcess([], int(bool(said)), record, said)

    def start(self) -> str:
        """Start the container, and return why it does not."""
        self.meanwhile()
        result, spec = create(self.host, self.bundle, self.asked)
        if not result.stdout:
            return SILENT
        hook = hooked(self.host, self.bundle)
        if hook.returncode:
            return str(hook.stderr)
        process = self.host.root / "proc/7"
        for device in spec["linux"].get("devices", []):
            node = process / "root" / device["path"].removeprefix("/")
            node.parent.mkdir(parents=True, exist_ok=True)
            node.touch()
        process.mkdir(parents=True, exist_ok=True)
        (process / "environ").write_text("\0".join(spec["process"]["env"]), encoding="utf-8")
        return ""


@pytest.fixture
def program() -> Any:
    """Return the supervisor as a module."""
    return load_program(PROGRAM)


@pytest.fixture
def engine(host: Any, bundle: Path, program: Any, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Return the engine of a host whose driver the supervisor looks at."""
    monkeypatch.setattr(program, "ROOT", host.root)
    made = Engine(host, bundle)
    monkeypatch.setattr(program, "docker", made)
    # The same answer as from Docker's socket.
    monkeypatch.setattr(
        program.Supervisor, "inspect", lambda one: json.loads(made("container", "inspect", one.container).stdout)[0]
    )
    return made


@pytest.fixture
def start(host: Any, engine: Engine, program: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Return a function that starts a model on card 3, and returns why that fails, or an empty text."""
    (plan,) = planned(model(tensor_parallel_size=1))["models"]
    path = host.root / "qwq.json"
    module = host.state["cards"][3]["module_id"]
    (host.root / "sys/class/accel/accel3/device/module_id").write_text(f"{module}\n", encoding="ascii")
    launch = {**vllm_container(plan), "module_ids": [module]}
    path.write_text(json.dumps(launch), encoding="utf-8")
    path.with_suffix(".env").write_text("A=1\n", encoding="utf-8")
    one = program.Supervisor(path)
    monkeypatch.setattr(one, "port_must_be_free", lambda: None)

    def begin() -> str:
        try:
            one.create()
        except program.SupervisorError as error:
            return str(error)
        return ""

    return begin


@pytest.fixture(params=["1.15.0", "1.16.0"])
def version(request: pytest.FixtureRequest, host: Any) -> str:
    """Let the runtime be of each of two versions."""
    behave_as(host, request.param)
    return str(request.param)


def test_a_whole_card_starts(engine: Engine, start: Callable[[], str], version: str) -> None:
    assert start() == ""
    assert engine.calls == ["image", "create", "start", "container"]


@pytest.mark.parametrize("node", ["accel/accel3", "accel/accel_controlD3", "infiniband/uverbs3"])
def test_a_missing_node_stops_the_start_before_the_runtime_is_asked(
    host: Any, engine: Engine, start: Callable[[], str], version: str, node: str
) -> None:
    (host.root / "dev" / node).unlink()
    module = host.state["cards"][3]["module_id"]
    assert start() == (
        f"the driver does not show {host.root}/dev/{node} (module_id {module}); without it the habana runtime makes no "
        "container, or one that lacks it"
    )
    assert engine.calls == ["image"]


def test_a_missing_uverbs_node_of_a_newer_driver_stops_the_start(
    host: Any, engine: Engine, start: Callable[[], str], version: str
) -> None:
    (host.root / "sys/class/infiniband/hlib_3").rename(host.root / "sys/class/infiniband/hbl_3")
    assert start() == ""
    engine.calls.clear()
    (host.root / "dev/infiniband/uverbs3").unlink()
    assert f"{host.root}/dev/infiniband/uverbs3 (module_id " in start()
    assert engine.calls == ["image"]


def test_a_card_with_the_same_last_digit_stops_the_start(host: Any, start: Callable[[], str]) -> None:
    host.add_node(13)
    assert start() == "the container got card indices [3, 13] instead of [3]"
    behave_as(host, "1.15.0")
    (host.root / "proc/7").rename(host.root / "proc/before")
    assert start() == ""


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ("accel/accel3", "the container got card indices [] instead of [3]"),
        (
            "accel/accel_controlD3",
            "the container got nodes ['accel3'] instead of ['accel3', 'accel_controlD3']",
        ),
        ("infiniband/uverbs3", ""),
    ],
)
def test_a_node_that_disappears_meanwhile_stops_the_start_too(
    host: Any, engine: Engine, start: Callable[[], str], version: str, node: str, said: str
) -> None:
    engine.meanwhile = (host.root / "dev" / node).unlink
    told = start()
    if said and version == "1.16.0":
        assert told == said
    else:
        assert told.startswith(
            f"the container does not start: {SILENT}; the habana runtime writes its reason only to its log"
        )


def test_cards_that_disappear_meanwhile_are_named_with_what_the_runtime_reports(
    host: Any, engine: Engine, start: Callable[[], str]
) -> None:
    engine.meanwhile = host.keep_nodes
    why = "the habana runtime reports: no accelerators found"
    assert start() == f"the container got card indices [] instead of [3]; {why}"
