"""The supervisor's own decisions; what it does with a real engine is in molecule's life service."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from hashlib import sha256
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import UnixStreamServer as UnixServer
from types import ModuleType
from typing import Any
from urllib.parse import unquote

import pytest
from gaudi_serve.host.secret import secret_changed, secret_stale
from gaudi_serve.monitoring.metrics import REASONS
from gaudi_serve.platforms.between import verbs_nodes
from gaudi_serve.stages.service import vllm_container
from helpers.plans import model, planned
from helpers.programs import load_program

PROGRAM = Path(__file__).parents[2] / "roles/vllm_service/files/vllm-supervisor"


@pytest.fixture(scope="module")
def supervisor() -> ModuleType:
    """Return the program as a module."""
    return load_program(PROGRAM)


@pytest.fixture
def one(supervisor: ModuleType, tmp_path: Path) -> Any:
    """Return a supervisor of a planned model."""
    (plan,) = planned(model(recipe_cache_path="/data/cache"))["models"]
    path = tmp_path / "qwq.json"
    path.write_text(json.dumps(vllm_container(plan)), encoding="utf-8")
    path.with_suffix(".env").write_text("A=1\n", encoding="utf-8")
    found = supervisor.Supervisor(path)
    found.state = tmp_path / "state"
    found.state.mkdir()
    return found


def test_pause_grows_with_every_failure_and_starts_again_with_another_launch(
    supervisor: ModuleType, tmp_path: Path
) -> None:
    backoff = supervisor.Backoff(tmp_path, "a")
    pauses = []
    for _ in range(8):
        pauses.append(backoff.seconds())
        backoff.failed()
    assert pauses == [0, 5, 10, 20, 40, 80, 160, 300]
    assert supervisor.Backoff(tmp_path, "b").seconds() == 0
    backoff.reset()
    assert backoff.seconds() == 0
    (tmp_path / "failures.json").write_text("{half", encoding="utf-8")
    assert backoff.seconds() == 0


def test_container_gets_the_manuals_options_its_cards_and_nothing_more(one: Any) -> None:
    options = one.options([6, 7])
    text = " ".join(options)
    for wanted in (
        "--name vllm-qwq",
        "--network host",
        "--ipc host",
        "--cap-add SYS_NICE",
        "--runtime habana",
        "--env HABANA_VISIBLE_DEVICES=6,7",
        "--mount type=bind,source=/data/QwQ-32B,target=/data/QwQ-32B,readonly",
        "--security-opt no-new-privileges",
        "--cap-drop ALL",
        "--cap-add DAC_OVERRIDE",
        "--read-only --tmpfs /tmp:exec,mode=1777",
        f"--label gaudi-serve.env={sha256(b'A=1' + bytes([10])).hexdigest()}",
    ):
        assert wanted in text
    assert "/data/cache/qwq/1.21.3-bfloat16-HL-225:rw" in text
    assert "--privileged" not in options
    assert "--rm" not in options


def test_a_network_card_without_its_node_starts_no_server(
    supervisor: ModuleType, one: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "ROOT", tmp_path)
    nodes = [asdict(node) for node in verbs_nodes(["mlx5_0"])]
    one.launch["device_access"] = {**one.launch["device_access"], "beside": nodes, "groups": []}
    verbs, devices = tmp_path / "sys/class/infiniband/mlx5_0/device/infiniband_verbs", tmp_path / "dev/infiniband"
    devices.mkdir(parents=True)
    (devices / "rdma_cm").touch()
    with pytest.raises(
        supervisor.SupervisorError, match=r"mlx5_0/device/infiniband_verbs/\* of the network card is missing"
    ):
        one.options([6, 7])
    # The kernel numbers it otherwise after a boot.
    for number in (3, 0):
        (verbs / f"uverbs{number}").mkdir(parents=True)
        with pytest.raises(
            supervisor.SupervisorError, match=f"/dev/infiniband/uverbs{number} of the network card is missing"
        ):
            one.options([6, 7])
        (devices / f"uverbs{number}").touch()
        text = " ".join(one.options([6, 7]))
        assert f"--device /dev/infiniband/uverbs{number} --device /dev/infiniband/rdma_cm" in text


def test_secret_file_is_named_only_where_there_is_one(one: Any) -> None:
    assert not any(option.endswith(".secret") for option in one.options([0]))
    one.path.with_suffix(".secret").write_text("VLLM_API_KEY=x\n", encoding="utf-8")
    options = one.options([0])
    assert str(one.path.with_suffix(".secret")) in options
    assert not any("VLLM_API_KEY" in option for option in options)


def test_a_variable_that_stands_twice_stops_the_start(supervisor: ModuleType, one: Any) -> None:
    one.path.with_suffix(".env").write_text("A=1\nHABANA_VISIBLE_DEVICES=ALL\n", encoding="utf-8")
    with pytest.raises(supervisor.SupervisorError, match=r"HABANA_VISIBLE_DEVICES is set twice .*/qwq\.env and the"):
        one.options([0])
    one.path.with_suffix(".env").write_text("A=1\n", encoding="utf-8")
    one.path.with_suffix(".secret").write_text("A=s3cret\n", encoding="utf-8")
    with pytest.raises(supervisor.SupervisorError, match=r"A is set twice .*/qwq\.secret and .*/qwq\.env;") as error:
        one.options([0])
    assert "s3cret" not in str(error.value)
    one.path.with_suffix(".secret").write_text("B=s3cret\n", encoding="utf-8")
    assert sum(option.startswith("HABANA_VISIBLE_DEVICES=") for option in one.options([0])) == 1
    one.path.with_suffix(".env").unlink()
    with pytest.raises(supervisor.SupervisorError, match=r"qwq\.env is missing"):
        one.options([0])


class SocketAnswer(BaseHTTPRequestHandler):
    """Answers of Docker's own interface."""

    def answer(self, status: int, body: Any) -> None:
        """Send an answer."""
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b"" if status == 204 else json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def address_string(self) -> str:
        """Return a text, because the other end of a socket has no address."""
        return ""


def test_taken_port_is_named(supervisor: ModuleType, one: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        one.launch["port"] = other.getsockname()[1]
        with pytest.raises(supervisor.SupervisorError, match="cannot be used: Address already in use"):
            one.port_must_be_free()


def test_progress_becomes_the_units_status(supervisor: ModuleType, one: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(supervisor, "notify", lambda **fields: told.append(fields))
    one.progress("INFO [hpu_model_runner.py:1066] [Warmup][Prompt][3/24] batch_size:4 seq_len:768")
    one.progress("INFO [hpu_model_runner.py:1066] [Warmup][Graph/Decode][48/48] batch_size:4")
    one.progress("Loading safetensors checkpoint shards: 10%")
    one.progress("something else")
    one.ready = True
    one.progress("[Warmup][Prompt][4/24]")
    assert [fields["STATUS"] for fields in told] == [
        "warming up: prompt graph 3 of 24",
        "warming up: decode graph 48 of 48",
        "loading weights",
    ]


def test_a_container_of_someone_else_is_left_alone(
    supervisor: ModuleType, one: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {"Config": {"Labels": {}}, "State": {"Running": True, "StartedAt": "now"}}
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(one, "inspect", lambda: record)
    monkeypatch.setattr(supervisor, "docker", lambda *arguments, **_: calls.append(arguments))
    with pytest.raises(supervisor.SupervisorError, match="gaudi-serve did not create it"):
        one.adopted()
    one.remove()
    assert calls == []
    record["Config"]["Labels"] = one.labels()
    assert one.adopted()
    record["Config"]["Labels"] = {**one.labels(), "gaudi-serve.digest": "old"}
    assert not one.adopted()
    assert [call[0] for call in calls] == ["stop", "rm"]


class WithSecret:
    """A serving container with a secret, as its supervisor and the module that reads a host judge it."""

    def __init__(self, one: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.one, self.file = one, one.path.with_suffix(".secret")
        monkeypatch.setattr(one, "remove", lambda: None)
        monkeypatch.setattr(
            one, "inspect", lambda: {"Config": {"Labels": self.labels}, "State": {"Running": True, "StartedAt": "now"}}
        )
        self.start("VLLM_API_KEY=a\n")

    def start(self, text: str) -> None:
        """Give the container a secret, or none."""
        self.file.unlink(missing_ok=True)
        if text:
            self.file.write_text(text, encoding="ascii")
        self.labels = self.one.labels()

    @property
    def judged(self) -> tuple[bool, bool]:
        """Return whether the server is taken over, and whether status and runs see other secrets."""
        label = self.labels.get("gaudi-serve.secret")
        unit = {
            "container": {"running": True, "secret_mtime": self.labels["gaudi-serve.secret-mtime"]},
            "secret_stale": secret_stale(self.file, label, self.one.key),
            "secret_mtime": self.file.stat().st_mtime if self.file.exists() else None,
        }
        return self.one.adopted(), secret_changed(unit)


SAME, OTHER = (True, False), (False, True)


@pytest.fixture
def secret(one: Any, monkeypatch: pytest.MonkeyPatch) -> WithSecret:
    """Return it."""
    return WithSecret(one, monkeypatch)


def test_a_secret_that_was_touched_ends_no_server_and_another_one_does(secret: WithSecret) -> None:
    assert secret.one.key.stat().st_mode & 0o777 == 0o600
    assert sha256(secret.file.read_bytes()).hexdigest() not in secret.labels.values()
    assert secret.judged == SAME
    # Nor does an environment that was edited by hand; the next run restarts what was started with it.
    secret.one.path.with_suffix(".env").write_text("A=2\n", encoding="utf-8")
    assert secret.judged == SAME
    secret.one.path.with_suffix(".env").unlink()
    assert secret.judged == SAME
    secret.one.path.with_suffix(".env").touch()
    os.utime(secret.file, (1, 1))
    secret.file.chmod(0o640)
    assert secret.judged == SAME
    secret.file.write_text("VLLM_API_KEY=b\n", encoding="ascii")
    assert secret.judged == OTHER
    secret.file.unlink()
    assert secret.judged == OTHER
    secret.start("")
    assert secret.judged == SAME
    secret.file.write_text("VLLM_API_KEY=a\n", encoding="ascii")
    assert secret.judged == OTHER


def test_the_time_of_a_secret_counts_where_nothing_else_is_known(secret: WithSecret) -> None:
    # A container of an older version.
    del secret.labels["gaudi-serve.secret"]
    assert secret.judged == SAME
    os.utime(secret.file, (1, 1))
    assert secret.judged == OTHER
    # A disk on which the key cannot be written.
    secret.one.state = secret.one.state / "none"
    secret.start("VLLM_API_KEY=a\n")
    assert "gaudi-serve.secret" not in secret.labels and secret.judged == SAME
    secret.one.state = secret.one.state.parent
    # A lost key.
    secret.start("VLLM_API_KEY=a\n")
    secret.one.key.unlink()
    assert secret.judged == SAME


@pytest.mark.parametrize(
    ("status", "body", "found"),
    [
        (200, {"State": {"Running": True}}, {"State": {"Running": True}}),
        (404, {"message": "No such container: vllm-qwq"}, {}),
        # Docker is there, and does not know.
        (500, {"message": "shutting down"}, None),
        (200, None, None),
        (0, None, None),
    ],
)
def test_docker_is_asked_by_its_own_interface(
    supervisor: ModuleType,
    one: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    body: Any,
    found: Any,
) -> None:
    place = str(tmp_path / "d")
    monkeypatch.setattr(supervisor, "DOCKER", place)
    monkeypatch.setattr(supervisor, "docker", lambda *_, **__: pytest.fail("no client is started"))
    if not status:
        assert one.inspect() is None
        return

    class Answer(SocketAnswer):
        def do_GET(self) -> None:
            asked.append(self.path.partition("?")[0])
            listed = self.path.startswith("/containers/json?")
            self.send_response(200 if listed else status)
            self.end_headers()
            self.wfile.write(b"[]" if listed else json.dumps(body).encode() if body else b"{half")

    asked: list[str] = []
    with served(place, Answer):
        assert one.inspect() == found
    assert asked == ["/containers/vllm-qwq/json", *["/containers/json"] * (status == 404)]


@contextlib.contextmanager
def served(place: str, answer: type[BaseHTTPRequestHandler]) -> Iterator[None]:
    """Answer on a socket, as Docker does."""
    with UnixServer(place, answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def test_a_renamed_container_gets_its_name_back(
    supervisor: ModuleType, one: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "DOCKER", str(tmp_path / "d"))
    names = {"t": "vllm-qwq.trial", "a": "mine"}
    labels = {"t": {"gaudi-serve.trial": "1"}, "a": {"gaudi-serve.model": "qwq"}}

    class Answer(SocketAnswer):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            if path == "/containers/json":
                wanted = json.loads(unquote(query.removeprefix("filters=")))
                assert wanted == {"label": ["gaudi-serve.model=qwq"], "status": ["running", "paused"]}
                self.answer(
                    200, [{"Id": key, "Names": [f"/{name}"], "Labels": labels[key]} for key, name in names.items()]
                )
            else:
                known = next((key for key, name in names.items() if path == f"/containers/{name}/json"), None)
                self.answer(200 if known else 404, {"Id": known})

        def do_POST(self) -> None:
            place, _, query = self.path.partition("?")
            names[place.split("/")[2]] = query.removeprefix("name=")
            self.answer(204, None)

    with served(str(tmp_path / "d"), Answer):
        assert one.inspect() == {"Id": "a"}
        assert names == {"t": "vllm-qwq.trial", "a": "vllm-qwq"}
        names["a"] = "gone"
        del names["a"]
        assert one.inspect() == {}
        assert names == {"t": "vllm-qwq.trial"}


def test_a_docker_that_cannot_list_its_containers_renames_none(
    supervisor: ModuleType, one: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "DOCKER", str(tmp_path / "d"))

    class Answer(SocketAnswer):
        def do_GET(self) -> None:
            status = 500 if self.path.startswith("/containers/json?") else 404
            self.answer(status, {"message": "error while checking the status of containers"})

    with served(str(tmp_path / "d"), Answer):
        assert one.inspect() == {}


class TrialDocker:
    """Takes the place of the Docker client in a trial: refuses what it is given to refuse."""

    def __init__(self, **refuses: tuple[int, str, str]) -> None:
        self.refuses = refuses
        self.calls: list[tuple[str, ...]] = []

    def __call__(self, *arguments: str, **_: Any) -> subprocess.CompletedProcess[str]:
        """Answer a call."""
        self.calls.append(arguments)
        status, out, problem = self.refuses.get(arguments[0], (0, "null" if arguments[0] == "image" else "", ""))
        return subprocess.CompletedProcess([], status, out, problem)


@pytest.mark.parametrize(
    ("refuses", "why"),
    [
        ({}, ""),
        ({"image": (1, "", "")}, "image vllm:1 is not on this host"),
        ({"create": (1, "", "invalid ulimit type: foo")}, "Docker refuses the container: invalid ulimit type: foo"),
        ({"start": (1, "", "not a directory")}, "Docker refuses the container: not a directory"),
        ({"start": (0, "/a.jinja\n", "")}, "the container lacks /a.jinja: no mount provides it, nor does the image"),
        # As a link does that leads out of a mounted folder, or a folder of another user with mode 0700.
        (
            {"start": (0, "/data/QwQ-32B/a.jinja\n", "")},
            "the container lacks /data/QwQ-32B/a.jinja: its mount has no such file, a link that leaves the mount, or "
            "a folder that root may not enter",
        ),
        ({"start": (1, "", 'exec: "sh": executable file not found in $PATH')}, ""),
    ],
)
def test_docker_judges_a_launch_beside_the_container_that_serves(
    supervisor: ModuleType,
    one: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    refuses: dict[str, Any],
    why: str,
) -> None:
    docker = TrialDocker(**refuses)
    monkeypatch.setattr(supervisor, "docker", docker)
    monkeypatch.setattr(supervisor, "STATE", one.state.parent)
    monkeypatch.setattr(supervisor.Supervisor, "cards", lambda _: [6, 7])
    monkeypatch.setattr(supervisor.Supervisor, "nodes_must_be_there", lambda *_: None)
    (one.state.parent / "qwq").mkdir()
    assert supervisor.trial(one.path, ["/a.jinja", "/b"]) == bool(why)
    assert capsys.readouterr().err.strip() == why
    # The container that serves is never touched, and nothing is left.
    assert all("vllm-qwq" not in call for call in docker.calls)
    assert docker.calls[-1] == ("rm", "--force", "vllm-qwq.trial")
    if not refuses:
        full, alone = (call for call in docker.calls if call[0] == "create")
        assert full[-len(one.launch["command"]) :] == tuple(one.launch["command"])
        assert "HABANA_VISIBLE_DEVICES=6,7" in full and "--runtime" in full
        assert not {"--runtime", "HABANA_VISIBLE_DEVICES=6,7"} & {*alone}
        assert alone[-2:] == ("/a.jinja", "/b")
        mounts = [[value for name, value in itertools.pairwise(call) if name == "--mount"] for call in (full, alone)]
        assert mounts[0] == mounts[1] != []


def test_a_launch_file_that_cannot_be_read_touches_no_container(
    supervisor: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = TrialDocker()
    monkeypatch.setattr(supervisor, "docker", docker)
    assert supervisor.trial(tmp_path / "qwq.json", []) == 1
    assert docker.calls == [("rm", "--force", "vllm-qwq.trial")]


def test_cards_are_resolved_from_the_modules(
    supervisor: ModuleType, one: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(supervisor, "ROOT", tmp_path)
    for index, module in ((3, 0), (5, 1)):
        device = tmp_path / f"sys/class/accel/accel{index}/device"
        device.mkdir(parents=True)
        (device / "module_id").write_text(f"{module}\n", encoding="ascii")
    assert one.cards() == [3, 5]
    one.launch["module_ids"] = [0, 7]
    one.stopping.set()
    with pytest.raises(supervisor.SupervisorError, match=r"cards \[7\] are missing; there are \[0, 1\]"):
        one.cards()


def test_a_mount_takes_the_place_of_a_folder_for_scratch(one: Any) -> None:
    assert "/tmp:exec,mode=1777" in one.options([0])
    one.launch["mounts"] = [*one.launch["mounts"], {"source": "/srv/tmp", "target": "/tmp/", "read_only": False}]
    options = one.options([0])
    assert "/tmp:exec,mode=1777" not in options and "/srv/tmp:/tmp/:rw" in options
    assert "/run:exec,mode=1777" in options


def test_root_that_may_be_written_to(one: Any) -> None:
    one.launch["read_only"] = False
    assert not {"--read-only", "--tmpfs"} & set(one.options([0]))


def test_hint_for_a_server_that_wants_to_write_to_its_root_is_given_once(
    one: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        one.hint("OSError: [Errno 30] Read-only file system: '/opt/cache'")
    assert capsys.readouterr().out.count("read_only: false in the model") == 1


class Clock:
    """A clock that a test moves."""

    now = 1000.0

    def monotonic(self) -> float:
        """Return the made-up time."""
        return self.now


def test_server_that_is_silent_for_too_long_is_given_up_and_one_that_comes_back_is_not(
    supervisor: ModuleType, one: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = Clock()
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(supervisor, "time", clock)
    monkeypatch.setattr(supervisor, "notify", lambda **fields: said.append(fields))
    backoff = supervisor.Backoff(tmp_path, "a")
    one.answered(backoff)
    assert said[-1]["READY"] == 1
    for clock.now in (1000.0, 1599.0):
        one.judge_silence()
    assert said[-1] == {"STATUS": "has not answered /health for 599 s"}
    one.answered(backoff)
    assert said[-1]["STATUS"].startswith("serving on")
    for clock.now in (2000.0, 2599.0):
        one.judge_silence()
    clock.now = 2600.0
    with pytest.raises(
        supervisor.SupervisorError, match=r"not answered /health for 600 s \(hang_timeout_s 600\)"
    ) as end:
        one.judge_silence()
    assert end.value.reason == "frozen"


def test_silence_without_a_limit_is_only_reported(
    supervisor: ModuleType, one: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(supervisor, "time", clock)
    one.path.write_text(json.dumps({**one.launch, "hang_timeout_s": 0}), encoding="utf-8")
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(supervisor, "notify", lambda **fields: told.append(fields))
    one.judge_silence()
    clock.now += 10**6
    one.judge_silence()
    assert told[-1] == {"STATUS": "has not answered /health for 1000000 s"}
    # Nor does a launch file that has gone meanwhile end a server.
    one.path.unlink()
    clock.now += 10
    one.judge_silence()
    assert told[-1] == {"STATUS": "has not answered /health for 1000010 s"}


@pytest.fixture
def card(supervisor: ModuleType, one: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Give the model a card of index 3, as the driver shows it, and return the root of all of it."""
    monkeypatch.setattr(supervisor, "ROOT", tmp_path)
    one.launch["module_ids"] = [0]
    (tmp_path / "sys/class/infiniband/hlib_3/device/infiniband_verbs/uverbs7").mkdir(parents=True)
    files = (
        "dev/accel/accel3",
        "dev/accel/accel_controlD3",
        "dev/infiniband/uverbs7",
        "sys/class/accel/accel3/device/pci_addr",
    )
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "sys/class/accel/accel3/device/module_id").write_text("0\n", encoding="ascii")
    return tmp_path


def test_nodes_without_a_link_in_dev_char_get_one(
    supervisor: ModuleType, one: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Some versions of runc need it, or a daemon-reload takes the node from the container."""
    monkeypatch.setattr(supervisor, "ROOT", tmp_path)
    (tmp_path / "dev/char").mkdir(parents=True)
    for name, real in (("nvidiactl", "/dev/null"), ("nvidia3", "/dev/zero")):
        (tmp_path / f"dev/{name}").symlink_to(real)
    (tmp_path / "dev/nvidia-uvm").touch()
    paths = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia{index}", "/dev/gone")
    nodes = [{"path": path, "named_by": ""} for path in paths]
    one.launch |= {"module_ids": [0], "device_access": {"ids": ["GPU-a"], "nodes": nodes}}
    for _ in range(2):  # A link that is there stays.
        one.link_nodes([3])
    links = {path.name: str(path.readlink()) for path in (tmp_path / "dev/char").iterdir()}
    assert links == {"1:3": "../nvidiactl", "1:5": "../nvidia3"}


def test_devices_that_a_reload_of_systemd_takes_are_reported_and_the_server_goes_on(
    supervisor: ModuleType, one: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown, told, stamp = ["GPU 0: NVIDIA L4 (UUID: GPU-a)"], [], ["1000"]
    shows = {"shows": ["nvidia-smi", "-L"], "shown": r"\(UUID: (?P<id>GPU-[\w-]+)\)"}
    one.launch |= {"module_ids": [0], "device_access": {"ids": ["GPU-a"], **shows}}
    lost = subprocess.CompletedProcess([], 255, "", "Failed to initialize NVML: Unknown Error\n")
    monkeypatch.setattr(
        supervisor, "docker", lambda *_: subprocess.CompletedProcess([], 0, shown[0], "") if shown else lost
    )
    monkeypatch.setattr(supervisor, "notify", lambda **fields: told.append(fields))
    monkeypatch.setattr(
        supervisor.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, f"{stamp[0]}\n", "")
    )

    def look(now: str) -> None:
        stamp[0], one.reload_asked = now, -1000.0
        one.look_after_reload()

    look("1000")
    look("2000")
    assert told == []
    shown.clear()
    look("2000")
    assert told == []
    look("3000")
    text = (
        "since a daemon-reload of systemd, the container has devices [] instead of ['GPU-a'] (Failed to initialize "
        "NVML: Unknown Error); restart the model to repair this"
    )
    assert told == [{"STATUS": text}] and text in capsys.readouterr().out


def test_what_the_runtime_would_miss_without_a_word_is_named_before_the_start(
    supervisor: ModuleType, one: Any, card: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def docker(*arguments: str, **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(arguments[0])
        silent = "failed to retrieve OCI runtime container pid: open /run/x/init.pid: no such file or directory"
        return subprocess.CompletedProcess([], int(arguments[0] == "start"), "", silent)

    monkeypatch.setattr(supervisor, "docker", docker)
    monkeypatch.setattr(one, "port_must_be_free", lambda: None)
    with pytest.raises(
        supervisor.SupervisorError, match=r"init\.pid.*; the habana runtime writes its reason only to its log.*debug ="
    ):
        one.create()
    (card / "sys/class/infiniband/hbl_3/device/infiniband_verbs/uverbs8").mkdir(parents=True)
    (card / "dev/infiniband/uverbs8").touch()
    for name in ("accel/accel3", "accel/accel_controlD3", "infiniband/uverbs7", "infiniband/uverbs8"):
        calls.clear()
        (card / "dev" / name).unlink()
        with pytest.raises(supervisor.SupervisorError) as error:
            one.create()
        assert str(error.value) == (
            f"the driver does not show {card}/dev/{name} (module_id 0); without it the habana runtime makes no "
            "container, or one that lacks it"
        )
        assert calls == ["image"]
        (card / "dev" / name).touch()


def test_what_the_runtime_reports_a_container_is_reported(
    supervisor: ModuleType, one: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = {"HABANA_VISIBLE_DEVICES": "99", "HABANA_RUNTIME_ERROR": '"netConfig: deviceType: no such file"'}
    with subprocess.Popen(["/bin/sleep", "60"], env=environment) as process:
        try:
            monkeypatch.setattr(one, "inspect", lambda: {"State": {"Pid": process.pid}})
            with pytest.raises(supervisor.SupervisorError, match=r"\[\] instead of \[99\]; the habana .*netConfig"):
                one.check_cards([99])
            nodes = [Path("/dev/accel/accel99"), Path("/dev/accel/accel_controlD99")]
            monkeypatch.setattr(Path, "glob", lambda *_: nodes)
            one.check_cards([99])
            # Its server has crashed while it was looked at: what it wrote is the reason, not the empty folder of /proc.
            states = iter([{"State": {"Pid": process.pid}}, {"State": {"Pid": 0}}])
            monkeypatch.setattr(one, "inspect", lambda: next(states))
            monkeypatch.setattr(Path, "glob", lambda *_: [])
            one.check_cards([99])
        finally:
            process.kill()
    assert "reports HABANA_RUNTIME_ERROR: netConfig: deviceType: no such file" in capsys.readouterr().out


@pytest.mark.parametrize("content", [None, "", "{}", "{half", "[]"])
def test_a_lost_launch_file_is_waited_for_and_its_container_is_known(
    supervisor: ModuleType, one: Any, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    kept = one.path.read_text(encoding="utf-8")
    one.path.unlink()
    if content is not None:
        one.path.write_text(content, encoding="utf-8")
    lost = supervisor.Supervisor(one.path)
    assert (lost.container, lost.launch) == ("vllm-qwq", {})
    told: list[str] = []
    monkeypatch.setattr(supervisor, "notify", lambda **fields: told.append(fields["STATUS"]))
    # The next run repairs the file while this waits.
    monkeypatch.setattr(lost.stopping, "wait", lambda _: one.path.write_text(kept, encoding="utf-8") and False)
    lost.readable()
    assert lost.launch == one.launch
    assert told == [f"{one.path} is missing or damaged; the run that serves the models writes it again"]


def test_version_that_runs_is_written_down(
    supervisor: ModuleType, one: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one.state = one.path.parent / "none"
    one.record()
    assert "cannot record" in capsys.readouterr().out, "in a folder that is not there"
    one.state = one.path.parent
    one.record()
    record = json.loads((one.state / "supervisor.json").read_text(encoding="utf-8"))
    assert record == {"pid": os.getpid(), "sha256": sha256(PROGRAM.read_bytes()).hexdigest()}


@pytest.fixture
def adopted(one: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a supervisor that has adopted its container, and counts its ends."""
    monkeypatch.setattr(one, "adopted", lambda: True)
    monkeypatch.setattr(one, "follow", one.read_to_end.set)
    monkeypatch.setattr(one, "remove", lambda **_: None)
    before = signal.getsignal(signal.SIGTERM)
    yield one
    signal.signal(signal.SIGTERM, before)


def ends(one: Any) -> Any:
    """Return the ends that a supervisor has counted; None where there is no record."""
    path = one.state / "ends.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


@pytest.mark.parametrize(
    ("ready", "state", "reason"),
    [
        (True, {"ExitCode": 1}, "crash"),
        (False, {"ExitCode": 1}, "start_failed"),
        (True, {"ExitCode": 137, "OOMKilled": True}, "out_of_memory"),
        (False, {"ExitCode": 137, "OOMKilled": True}, "out_of_memory"),
    ],
)
def test_an_end_is_counted_by_its_reason(
    ready: bool, state: dict[str, Any], reason: str, adopted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopted.ready = ready
    monkeypatch.setattr(adopted, "inspect", lambda: {"State": {"Running": False, **state}})
    for count in (1, 2):
        assert adopted.run() == 1
        found = ends(adopted)
        assert found["counts"] == {reason: count}
        last = found["last"]
        assert (last["reason"], last["text"].startswith("the server ended with status")) == (reason, True)
        assert abs(time.time() - last["at"]) < 60
    # A record that a full disk has emptied begins again.
    (adopted.state / "ends.json").write_text("", encoding="ascii")
    assert adopted.run() == 1
    assert ends(adopted)["counts"] == {reason: 1}


ENGINE = "(EngineCore_DP0 pid=71) ERROR 11-25 10:00:00 [core.py:708] "
MEMORY = "ValueError: Available memory on node 0 (17.45/23.54 GiB) on startup is less than desired (0.92, 21.66 GiB)."
SERVER = (
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ([f"{ENGINE}Traceback (most recent call last):", f'{ENGINE}  File "a.py"', ENGINE + MEMORY, SERVER], MEMORY),
        # As vLLM 0.8 and the fork print it, a rank of torch, a worker of Ray in colours, and a plain process.
        ([f"ERROR 06-01 22:03:23 core.py:390] {MEMORY}", SERVER], MEMORY),
        ([f"ERROR 06-01 22:03:23 [core.py:396] {MEMORY}", SERVER], MEMORY),
        ([f"[rank0]: {MEMORY}"], MEMORY),
        ([f"\x1b[36m(RayWorkerProc pid=9, ip=10.0.0.2)\x1b[0m {MEMORY}"], MEMORY),
        (
            ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"],
            "torch.OutOfMemoryError: CUDA out of",
        ),
        (["vllm: error: unrecognized arguments: --max-sqs 8"], "vllm: error: unrecognized arguments: --max-sqs 8"),
        (["Fatal Python error: Segmentation fault", ""], "Fatal Python error: Segmentation fault"),
        # A second exception that adds something.
        (["KeyError: 'x'", "OSError: no such file"], "KeyError: 'x'; then OSError: no such file"),
        (
            [
                "(APIServer pid=1) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
                "(APIServer pid=1)   Value error, model type `x` is not known [type=value_error, input_value=1]",
                "(APIServer pid=1)     For further information visit https://errors.example/2.12",
            ],
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig Value error, model type",
        ),
        # Neither a warning that names an exception nor an answer to a client.
        (["WARNING 11-25 10:00:00 [x.py:1] ImportError: no module", "INFO: Error: 0", "Exceptional: 1"], ""),
    ],
)
def test_the_reason_of_an_end_has_the_first_exception(
    lines: list[str], cause: str, adopted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for line in lines:
        adopted.cause.seen(f"{line}\n")
    monkeypatch.setattr(adopted, "inspect", lambda: {"State": {"Running": False, "ExitCode": 1}})
    assert adopted.run() == 1
    text = ends(adopted)["last"]["text"]
    assert text.startswith(f"the server ended with status 1: {cause}" if cause else "the server ended with status 1")
    assert ": " in text if cause else text == "the server ended with status 1"
    assert "See root cause" not in text


def test_a_secret_in_an_exception_is_not_in_the_reason(
    adopted: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    adopted.path.with_suffix(".secret").write_text("HF_TOKEN=hf_s3cret\nVLLM_API_KEY=\n", encoding="ascii")
    adopted.cause.seen("HTTPError: 401 for https://user:hf_s3cret@hub.example/api\n")
    monkeypatch.setattr(adopted, "inspect", lambda: {"State": {"Running": False, "ExitCode": 1}})
    assert adopted.run() == 1
    text = ends(adopted)["last"]["text"]
    assert text == "the server ended with status 1: HTTPError: 401 for https://user:(hidden)@hub.example/api"
    assert "hf_s3cret" not in capsys.readouterr().out


def test_an_old_exception_of_a_server_that_served_is_no_reason(
    supervisor: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    cause, now = supervisor.Cause(), [0.0]
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now[0])
    now[0] = 1000.0
    cause.seen("ValueError: a client's request")
    assert cause.text(served=True) == ": ValueError: a client's request"
    now[0] += supervisor.RECENT_S + 1
    assert cause.text(served=True) == ""
    cause.seen("RuntimeError: lost device")
    assert cause.text(served=True) == ": RuntimeError: lost device"


def test_a_server_that_was_stopped_has_not_ended_by_itself(adopted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    adopted.stopping.set()
    assert adopted.run() == 0
    monkeypatch.setattr(adopted, "adopted", lambda: adopted.pause(5))
    assert adopted.run() == 0
    assert ends(adopted) is None


def test_a_model_that_is_stopped_on_all_hosts_has_failed_on_none(
    supervisor: ModuleType, adopted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watch(_: object) -> None:
        raise supervisor.SupervisorError("gaudi02: its unit was stopped", supervisor.OTHER_HOST)

    monkeypatch.setattr(adopted, "watch", watch)
    threading.Timer(0.1, adopted.stopping.set).start()
    assert adopted.run() == 0 and ends(adopted) is None
    # Only the other host was stopped.
    adopted.stopping.clear()
    monkeypatch.setattr(supervisor, "STOPPED_S", 0.1)
    assert adopted.run() == 1 and ends(adopted)["counts"] == {"other_host": 1}


def test_a_folder_that_is_full_keeps_no_server_from_its_next_start(supervisor: ModuleType, tmp_path: Path) -> None:
    supervisor.count_end(tmp_path / "not there", "crash", "x")


def test_reasons_are_those_that_metrics_know(supervisor: ModuleType) -> None:
    text = PROGRAM.read_text(encoding="utf-8")
    for reason in REASONS[:-1]:
        assert f'"{reason}"' in text
    assert {supervisor.OTHER_HOST, supervisor.FROZEN} <= set(REASONS)


@pytest.mark.parametrize(("key", "value"), [("port", 30009), ("host", "127.0.0.9")])
def test_a_launch_file_that_contradicts_itself_starts_nothing(
    supervisor: ModuleType, one: Any, monkeypatch: pytest.MonkeyPatch, key: str, value: Any
) -> None:
    monkeypatch.setattr(supervisor, "docker", lambda *_, **__: pytest.fail("nothing may be started"))
    one.launch[key] = value
    with pytest.raises(supervisor.SupervisorError, match=f"has {key} {value}, and its command --{key} "):
        one.create()


class Watched:
    """A server as its supervisor sees it: counters, clients, and whether a question comes back."""

    def __init__(self, supervisor: ModuleType, one: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        self.tokens, self.running, self.cache, self.metrics = 0, 0, 1e-05, True
        self.copies: list[int] = []  # tokens of further engines
        self.asked: list[str | None] = []  # the engines that probes named
        self.frozen = ""
        self.clients: set[str] = set()
        self.answer: int | None = 200  # None: none comes
        self.questions = 0
        monkeypatch.setattr(supervisor, "time", self.clock)
        monkeypatch.setattr(supervisor.threading, "Thread", Now)
        self.pulse = supervisor.Pulse(one.launch, one.path.with_suffix(".secret"))
        monkeypatch.setattr(self.pulse, "clients", lambda: set(self.clients))
        monkeypatch.setattr(self.pulse, "request", self.request)

    def request(
        self, method: str, path: str, body: str | None = None, timeout: float = 5, more: Any = None
    ) -> tuple[int, str]:
        """Answer as the server."""
        if method == "GET":
            text = f'vllm:generation_tokens_total{{engine="0"}} {self.tokens}.0\n'
            text += f"vllm:num_requests_running {self.running}\nvllm:kv_cache_usage_perc {self.cache:g}\n"
            for number, tokens in enumerate(self.copies, 1):
                text += f'vllm:generation_tokens_total{{model_name="m",engine="{number}"}} {tokens}\n'
            return (200, text) if self.metrics else (404, "")
        self.questions += 1
        engine = (more or {}).get("X-data-parallel-rank")
        self.asked.append(engine)
        if self.answer is None or (engine and engine == self.frozen):
            raise Unanswered
        if engine in (None, "0"):
            self.tokens += self.answer == 200
        else:
            self.copies[int(engine) - 1] += self.answer == 200
        return self.answer, ""

    def after(self, seconds: float, *, working: bool = False) -> float:
        """Look every five seconds, as the supervisor does, and return for how long nobody was served in the end."""
        found = 0.0
        for _ in range(int(seconds / 5)):
            self.clock.now += 5
            self.tokens += working
            found, self.engine = self.pulse.idle_for(600)
        return found


class Unanswered(Exception):
    """A question that does not come back."""


class Now:
    """A thread that runs at once, and does not end where no answer comes."""

    def __init__(self, target: Any, args: tuple[Any, ...], daemon: bool) -> None:
        self.target, self.args = target, args

    def start(self) -> None:
        """Run it."""
        with contextlib.suppress(Unanswered):
            self.target(*self.args)


@pytest.fixture
def watched(supervisor: ModuleType, one: Any, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Return a server that is watched."""
    return Watched(supervisor, one, monkeypatch)


def test_tokens_that_stand_still_while_requests_run_are_a_hang(watched: Watched) -> None:
    watched.clients = {"client"}
    watched.running, watched.answer = 3, None
    assert watched.after(60, working=True) == 0
    assert 400 <= watched.after(560) < 600
    assert watched.after(200) >= 600


def test_a_default_limit_shrinks_to_ten_times_the_longest_step(
    supervisor: ModuleType, one: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record = tmp_path / "steps.json"
    one.launch |= {"hang_timeout_s": 600, "hang_least_s": 120}
    watched = Watched(supervisor, one, monkeypatch)
    pulse = watched.pulse
    pulse.record = record
    assert pulse.limit() == 600  # no step is known
    watched.running = 1
    for seconds, limit in ((15, 150), (40, 400), (15, 400), (90, 600)):
        pulse.look(watched.clock.now, 600)
        watched.clock.now += seconds
        watched.tokens += 1
        pulse.look(watched.clock.now, 600)
        assert pulse.limit() == limit, seconds
    # An idle time is no step.
    assert json.loads(record.read_text()) == {"longest": 90, "digest": one.launch["digest"]}
    watched.running = 0
    pulse.look(watched.clock.now, 600)
    watched.clock.now += 500
    watched.tokens += 1
    pulse.look(watched.clock.now, 600)
    assert pulse.longest == 90
    # The next supervisor of the container knows it; that of another launch does not.
    assert supervisor.Pulse(one.launch, tmp_path / "s", record).longest == 90
    assert supervisor.Pulse({**one.launch, "digest": "x"}, tmp_path / "s", record, 7.0).longest == 7
    # A user's limit stays as it is.
    assert supervisor.Pulse({**one.launch, "hang_least_s": None}, tmp_path / "s", record).limit() == 600
    assert supervisor.Pulse({**one.launch, "hang_timeout_s": 0}, tmp_path / "s", record).limit() == 0


def test_a_frozen_engine_whose_gauges_report_nothing_is_known_by_a_question_that_does_not_come_back(
    watched: Watched,
) -> None:
    watched.after(3600)
    # Nobody waits: nothing is asked, and nothing is wrong.
    assert watched.questions == 0
    watched.clients, watched.answer = {"client"}, None
    assert watched.after(120) < 120
    assert watched.questions == 1
    assert watched.after(600) >= 600


@pytest.mark.parametrize("frozen", ["0", "1", "2"])
def test_a_frozen_copy_is_known_although_the_others_work(watched: Watched, frozen: str) -> None:
    watched.copies, watched.clients = [0, 0], {"client"}

    def after(seconds: int) -> float:
        found = 0.0
        for _ in range(seconds // 5):
            for number in {0, 1, 2} - {int(frozen)}:
                if number:
                    watched.copies[number - 1] += 3
                else:
                    watched.tokens += 3
            found = watched.after(5)
        return found

    assert after(3600) == 0
    watched.frozen = frozen
    assert after(300) < 600
    assert after(1200) >= 600 and watched.engine == frozen
    # A copy that works is asked for nothing, and one probe waits.
    assert set(watched.asked) == {frozen}


def test_copies_without_requests_answer_their_probes_and_are_no_hang(watched: Watched) -> None:
    watched.copies, watched.clients = [0], {"prometheus"}
    assert watched.after(24 * 3600) == 0
    assert {"0", "1"} == set(watched.asked) and watched.questions < 340


def test_clients_that_give_up_and_come_again_are_waiting_too(watched: Watched) -> None:
    watched.answer = None
    for number in range(60):
        watched.clients = {f"client {number}"}
        found = watched.after(15)
    assert found >= 600


def test_idle_servers_long_prompts_full_queues_and_servers_without_counters_are_no_hang(watched: Watched) -> None:
    # Monitoring that stays connected: asked more and more rarely.
    watched.clients = {"prometheus"}
    assert watched.after(24 * 3600) == 0
    assert 100 < watched.questions < 170
    # A long prompt: no token comes, and a question waits behind it, while its blocks fill the cache.
    watched.clients, watched.running, watched.answer = {"prometheus", "client"}, 1, None
    for _ in range(60):
        watched.cache += 1e-05
        assert watched.after(30) < 60
    watched.pulse.engines["0"].asked, watched.answer = None, 200
    # A full queue: tokens come.
    watched.running = 64
    assert watched.after(3600, working=True) == 0
    # What counts nothing is not judged.
    watched.metrics, watched.answer = False, None
    assert watched.after(3600) == 0


def test_requests_that_are_counted_though_their_clients_have_left_are_no_hang(watched: Watched) -> None:
    watched.running, watched.answer = 2, None
    assert watched.after(3600) == 0
    assert watched.questions == 0


def test_a_model_that_takes_no_question_is_judged_by_its_health_alone(watched: Watched) -> None:
    watched.clients, watched.running, watched.answer = {"client"}, 1, 404
    assert watched.after(3600) == 0
    assert watched.questions == 1


def test_a_frozen_server_ends_and_reports_why(
    supervisor: ModuleType, one: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(supervisor, "notify", lambda **fields: told.append(fields))
    still = [(0.0, ""), (300.0, ""), (0.0, ""), (600.0, "")]
    monkeypatch.setattr(supervisor.Pulse, "idle_for", lambda *_: still.pop(0))
    one.judge_work()
    assert told == []
    one.judge_work()
    one.judge_work()
    assert [one["STATUS"].partition(" on ")[0] for one in told] == [
        "answers /health, and does no work for 300 s",
        "serving",
    ]
    with pytest.raises(supervisor.SupervisorError, match=r"no token for 600 s, .* \(hang_timeout_s 600\)") as end:
        one.judge_work()
    assert end.value.reason == "frozen"
    one.path.write_text(json.dumps({**one.launch, "hang_timeout_s": 0}), encoding="utf-8")
    one.judge_work()


def test_a_warm_up_that_stands_still_is_given_up_by_its_own_pace(
    supervisor: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(supervisor, "time", clock)
    pace = supervisor.Pace()
    clock.now += 10**5  # loading weights has no pace
    pace.judge()
    for number in range(1, 6):
        pace.seen(f"warming up: prompt graph {number} of 20")
        clock.now += 40
    pace.judge()
    clock.now += 359
    pace.judge()
    clock.now += 1
    with pytest.raises(supervisor.SupervisorError, match=r"stands still: .* graph 5 of 20, for 400 s; .* took 40 s"):
        pace.judge()
    # Nobody has read the log while the engine was away.
    pace.again()
    pace.judge()
    # Between two phases, and after the last one, nothing is counted.
    pace.seen("warming up: decode graph 20 of 20")
    clock.now += 10**5
    pace.judge()


def test_requests_of_supervisor_and_monitoring_are_kept_out_of_the_journal(
    supervisor: ModuleType, one: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        'INFO:     127.0.0.1:41266 - "GET /health HTTP/1.1" 200 OK\n',
        '(APIServer pid=1) INFO:     10.0.0.9:5 - "GET /metrics HTTP/1.1" 200 OK\n',
        'INFO:     127.0.0.1:41266 - "GET /health HTTP/1.1" 503 Service Unavailable\n',
        'INFO:     127.0.0.1:41268 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n',
    ]

    class Logs:
        stdout = lines

        def __enter__(self) -> Logs:
            return self

        def __exit__(self, *_: object) -> None:
            one.stopping.set()

    monkeypatch.setattr(supervisor.subprocess, "Popen", lambda *_, **__: Logs())
    one.follow()
    assert capsys.readouterr().out == "".join(lines[2:])


@pytest.mark.parametrize(
    ("entry", "replaced"),
    [
        (["vllm", "serve"], True),
        (["python3", "-m", "vllm.entrypoints.openai.api_server"], True),
        (["/bin/bash"], True),
        (["/bin/sh", "-c"], True),
        (["/opt/nvidia/nvidia_entrypoint.sh"], False),
        (["/usr/local/bin/tini", "--"], False),
        (None, False),
        ([], False),
    ],
)
def test_an_image_s_own_server_or_shell_does_not_take_the_command_for_arguments(
    entry: list[str] | None, replaced: bool
) -> None:
    options = load_program(PROGRAM).entrypoint(json.dumps(entry) + "\n")
    assert options == (["--entrypoint", ""] if replaced else [])
