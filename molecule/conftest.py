"""What the scenarios' tests share: rerunning a playbook on a scenario's hosts, and asking a server."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forked
import pytest
import yaml
from lives import Life, differences, looked_at
from runs import Run, eventually, host_name

PROJECT = Path(__file__).parents[1]
LONG = bool(os.environ.get("GAUDI_SERVE_LONG"))


def pytest_configure(config: Any) -> None:
    """Make the markers known."""
    for line in (
        "on(*hosts): the hosts of the scenario that the test is about; the others have none",
        "long: runs in make test-all alone",
        "anyhow: begins on hosts in any state; the others find them as converge has left them",
    ):
        config.addinivalue_line("markers", line)


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leave out what is about another host, instead of passing or skipping there, and what takes long."""
    about = [item for item in items if is_about(item)]
    # A name that no host has would take the test away in silence.
    lost = {item.originalname for item in items} - {item.originalname for item in about}
    if lost:
        raise pytest.UsageError(f"no host of the scenario is one that is named for {', '.join(sorted(lost))}")
    kept = [item for item in about if LONG or not item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
    # Tests of a life run in any order; this shows it.
    if order := os.environ.get("GAUDI_SERVE_ORDER"):
        random.Random(order).shuffle(items)  # noqa: S311 - reproducible, not secret


def is_about(item: Any) -> bool:
    """Return whether a test is about the host that it would run on."""
    marker = item.get_closest_marker("on")
    return marker is None or host_name(item.callspec.params["_testinfra_host"]) in marker.args


@pytest.fixture(scope="session")
def life() -> Life | None:
    """Return how the scenario's hosts are repaired; None where the tests do so themselves."""
    return None


@pytest.fixture(scope="session", autouse=True)
def first_look(life: Life | None) -> None:
    """Keep how converge has left the hosts, before the first test."""
    if life is not None:
        hosts = Playbook().hosts
        # A probe that fails here would fail alike before every test, and nothing would ever differ.
        assert not [text for text in looked_at(hosts, life.parts).values() if "Traceback" in text]
        differences(hosts, life.parts)


@pytest.fixture(autouse=True)
def as_converged(request: pytest.FixtureRequest, life: Life | None) -> None:
    """Let a test find the hosts as converge has left them, whatever was done to them before."""
    if life is None or request.node.get_closest_marker("anyhow"):
        return
    playbook = Playbook()
    if wrong := differences(playbook.hosts, life.parts):
        life.repair(playbook, sorted(wrong))
        left = differences(playbook.hosts, life.parts)
        assert not left, f"not as they were before the tests, although repaired: {left}"


class Halted:
    """A run that was stopped; what it gave is known when it has ended."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.run = Run(-1, "")


class Playbook:
    """Runs playbooks of the project on the scenario's inventory."""

    def __init__(self) -> None:
        self.inventory = Path(os.environ["MOLECULE_SCENARIO_DIRECTORY"]) / "inventory"
        read = yaml.safe_load((self.inventory / "hosts.yml").read_text(encoding="utf-8"))
        self.hosts: list[str] = list(read["all"]["children"]["testhosts"]["hosts"])
        self.environment = {
            **os.environ,
            **{"ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
            # Every task, and the recap, which tests read; what a person sees has tests of its own.
            "ANSIBLE_STDOUT_CALLBACK": "default",
        }

    def argv(self, name: str, *arguments: str, **extra: Any) -> list[str]:
        """Return the command of a run."""
        given = [word for key, value in extra.items() for word in ("-e", json.dumps({key: value}))]
        return ["ansible-playbook", "-i", str(self.inventory), str(PROJECT / name), *arguments, *given]

    def __call__(self, name: str, *arguments: str, until: Callable[[], bool] | None = None, **extra: Any) -> Run:
        """Run to the end; or kill the run as soon as a condition holds."""
        argv = self.argv(name, *arguments, **extra)
        if until is not None:
            with self.stopped(argv, until) as halted:
                forked.kill(halted.pid)
            return halted.run
        return Run(*forked.playbook(argv, PROJECT, self.environment, 1200))

    @contextlib.contextmanager
    def stopped(self, argv: list[str], until: Callable[[], bool]) -> Iterator[Halted]:
        """Start a run, stop it (it lives, and does nothing) as soon as a condition holds, and let it go on after."""
        with tempfile.TemporaryFile("w+") as said:
            process = forked.start(argv, PROJECT, self.environment, said)
            try:
                reached = eventually(lambda: until() or process.poll() is not None, 120, 0.1)
                if process.poll() is not None or not reached:
                    said.seek(0)
                    pytest.fail(f"the run did not get to where it was to be stopped: {said.read()}")
                os.killpg(process.pid, signal.SIGSTOP)
                halted = Halted(process.pid)
                yield halted
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGCONT)
                process.wait(300)
            said.seek(0)
            halted.run = Run(process.returncode, said.read())


@pytest.fixture
def playbook(host: Any) -> Playbook:
    """Return what runs playbooks; it needs ``host`` only to keep the tests in the order of their file."""
    return Playbook()


@pytest.fixture
def unit(host: Any) -> Callable[..., str]:
    """Return a function that reads one property of a model's unit, and prints its journal when it is not active."""

    def read(model: str, name: str) -> str:
        text: str = host.check_output(f"systemctl show vllm-{model} --property={name} --value")
        if name == "ActiveState" and text != "active":
            print(host.run(f"journalctl -u vllm-{model} -n 40 -o cat --no-pager").stdout)
        return text

    return read


@pytest.fixture
def started(host: Any) -> Callable[[str], str]:
    """Return a function that reads when a model's container was started."""

    def read(model: str) -> str:
        text: str = host.check_output(f"docker inspect --format '{{{{.State.StartedAt}}}}' vllm-{model}")
        return text

    return read


@pytest.fixture
def ask(host: Any) -> Callable[..., dict[str, Any]]:
    """Return a function that asks a model a question inside its host."""

    def question(
        port: int, model: str, key: str = "", prompt: str = "List 3 countries and their capitals.", **options: Any
    ) -> Any:
        body = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 24, **options}
        header = f"-H 'Authorization: Bearer {key}'" if key else ""
        answer = host.run(
            f"curl -sS --max-time 60 -H 'Content-Type: application/json' {header} "
            f"-d '{json.dumps(body)}' http://127.0.0.1:{port}/v1/chat/completions"
        )
        return json.loads(answer.stdout or "{}")

    return question
