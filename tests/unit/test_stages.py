"""What a person sees of a run, from events as Ansible gives them; GAUDI_SERVE_WRITE_GOLDEN=1 writes the texts again."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible.utils.display import Display
from gaudi_serve.show.progress import Reports
from gaudi_serve.show.stage_output import (
    STAGES,
    Change,
    Line,
    Outcome,
    Play,
    StageOutput,
    Task,
    changes,
    reason,
    what,
)
from gaudi_serve.stages import registry
from helpers.plugins import load

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden/stages"
BOTH = ("demo-cpu", "demo-gaudi")
HOST = [
    *("host: GRUB drop-in: is not there", "host: sysctl file: is not there", "host: cpu0: powersave -> performance"),
    "host: the running kernel lacks intel_idle.max_cstate=0",
]
RUNTIME = [
    "runtime: engine: is not installed, planned docker.io, apparmor",
    "runtime: daemon.json: live-restore is not set",
]
DUE: dict[str, list[str]] = {
    "demo-cpu": [*HOST, *RUNTIME, "images: provide vllm-cpu:0.32.0", "+ tiny: start on the CPU, port 8000"],
    "demo-gaudi": [
        *HOST,
        "host: the running kernel lacks iommu=pt",
        *RUNTIME,
        *("images: provide vllm-standin:1.21.3", "validate: measure all"),
        *("+ qwq-32b: start on cards 0,1, port 30001", "    as planned", "+ qwen: start on cards 2, port 30002"),
        "! qwq-32b is down from stage models on for about 14 min: it restarts",
    ],
}
WARNINGS = ["demo-gaudi: model qwq-32b: the folder has 0 of 66 GB; the estimate includes the rest"]
# Jinja in a folded scalar joins with two characters.
TABLE = r"HOST        MODEL  STATE\n----------  -----  ------\ndemo-cpu    tiny   active\ndemo-gaudi  qwq    active"


@cache
def plays() -> dict[str, str]:
    """Return the plays of the project with the stages that they report they are."""
    found: dict[str, str] = {}
    for path in [*ROOT.glob("playbooks/*.yml"), *ROOT.glob("playbooks/stages/*.yml")]:
        for play in yaml.safe_load(path.read_text(encoding="utf-8")):
            if "hosts" in play:
                found[play["name"]] = play.get("vars", {}).get("gaudi_stage", "")
    return found


class Screen:
    """A run with a clock of its own; what is shown is collected, the live line behind a mark."""

    def __init__(self, columns: int = 0, check: bool = False) -> None:
        self.now, self.columns, self.check = 0.0, columns, check
        self.output = StageOutput(0.0, columns)
        self.lines: list[str] = []
        self.counts: dict[str, dict[str, int]] = {}
        self.hosts: tuple[str, ...] = ()

    def show(self, lines: Sequence[Line]) -> None:
        self.lines += [line.text for line in lines]

    def play(self, name: str, *hosts: str) -> None:
        self.hosts = hosts or BOTH
        self.show(self.output.play(Play(name, self.hosts, self.check, plays().get(name, ""))))

    def count(self, host: str, key: str) -> None:
        counts = self.counts.setdefault(host, {})
        counts[key] = counts.get(key, 0) + 1

    def work(self, task: Task, seconds: float, hosts: Sequence[str], progress: Mapping[float, str]) -> None:
        """Let a task go on, and show second by second what is shown meanwhile."""
        self.show(self.output.task(task))
        for host in hosts:
            self.output.started(host, task, self.now)
        end = self.now + seconds
        while self.now + 1 <= end:
            self.now += 1
            for at, text in progress.items():
                if self.now == end - seconds + at and self.output.progress(text, self.now) and not self.columns:
                    self.lines += text.splitlines()
            if not self.columns:
                self.show(self.output.slow(self.now))
            elif live := self.output.live(self.now, self.columns):
                self.lines.append(f"\\r{live}")
        self.now = end

    def run(
        self,
        name: str,
        action: str = "command",
        *hosts: str,
        seconds: float = 0.5,
        changed: bool = True,
        args: Mapping[str, Any] | None = None,
        result: Mapping[str, Any] | None = None,
        items: Sequence[Mapping[str, Any]] = (),
        progress: Mapping[float, str] | None = None,
        **more: Any,
    ) -> None:
        task = Task(name, f"ansible.builtin.{action}", f"roles/x/{name}", more.pop("run_once", False))
        self.work(task, seconds, hosts or self.hosts, progress or {})
        for host in hosts or self.hosts:
            given = {"args": args or {}, "result": result or {}, "changed": changed, **more}
            for item in items:
                self.show(self.output.item(Outcome(host, task, **{**given, "args": item, "item": str(item["name"])})))
            self.show(self.output.ok(Outcome(host, task, **given), self.now))
            self.count(host, "ok")
            if changed:
                self.count(host, "changed")

    def say(self, name: str, texts: Mapping[str, Any], changed: bool = False, run_once: bool = False) -> None:
        """Let hosts report something with one task."""
        task = Task(name, "ansible.builtin.debug", run_once=run_once)
        self.show(self.output.task(task))
        for host, text in texts.items():
            self.show(self.output.ok(Outcome(host, task, {"msg": text}, changed=changed), self.now))
            self.count(host, "changed" if changed else "ok")

    def fail(self, host: str, name: str, result: Mapping[str, Any], action: str = "command", **how: Any) -> None:
        task = Task(name, f"ansible.builtin.{action}", "roles/x/tasks/main.yml:12")
        self.show(self.output.task(task))
        self.show(self.output.failure(Outcome(host, task, result), self.now, **how))
        if not (how.get("ignored") or how.get("rescued")):
            self.count(host, "failures")

    def text(self) -> str:
        self.show(self.output.stats(self.counts, self.now))
        return "\n".join(self.lines) + "\n"


def preflight(screen: Screen, announced: Mapping[str, list[str]]) -> None:
    screen.play("Preflight")
    screen.run("preflight : Preflight | Read the live state of the host", "gaudi_facts", seconds=2, changed=False)
    if announced:
        screen.say("preflight : Judge | Show the pending changes", announced)
    screen.say("preflight : Judge | Show warnings", {"demo-gaudi": WARNINGS})
    screen.play("Stop if a plan has errors")


def host_stage(screen: Screen) -> None:
    screen.play("Tune the hosts")
    screen.say("host_tuning : Apply | Show the differences", {host: ["GRUB drop-in: is not there"] for host in BOTH})
    screen.run("host_tuning : Apply | Save the baseline before the first change", "gaudi_baseline")
    written = {"written": ["/etc/default/grub.d/zz-gaudi-serve.cfg"]}
    screen.run("host_tuning : Grub | Write or remove the drop-in", "gaudi_files", result=written)
    screen.run("host_tuning : Sysctl | Write the file", "gaudi_files", result={"written": ["/etc/sysctl.d/a.conf"]})
    screen.run("host_tuning : Reboot | Reboot the host", "reboot", seconds=24)
    screen.say(
        "host_tuning : Apply | Show the differences", {host: ["cpu0: powersave -> performance"] for host in BOTH}
    )
    screen.run("host_tuning : Governor | Set the governor live")


def runtime_stage(screen: Screen) -> None:
    screen.play("Install the container runtime")
    packages = {"name": ["docker.io", "apparmor"], "state": "present"}
    screen.run("container_runtime : Install | Install Docker", "apt", args=packages, seconds=14)
    files = {"written": ["/etc/docker/daemon.json"]}
    screen.run("container_runtime : Configure | Write the files", "gaudi_files", result=files)
    restart = {"name": "docker.service", "state": "restarted", "daemon_reload": True}
    screen.run("container_runtime : Engine | Restart Docker", "systemd_service", args=restart)
    screen.run("container_runtime : Repositories | Secret", args={"name": "hunter2"}, hidden=True)


def images_stage(screen: Screen) -> None:
    screen.play("Provide the images")
    brought = {"installed": {"images": {"vllm-cpu:0.32.0": None}}}
    screen.run(
        "vllm_image : Load | Record that the host did not have the image", "gaudi_baseline", "demo-cpu", args=brought
    )
    spool = {"path": "/var/lib/gaudi-serve/spool", "state": "directory"}
    screen.run("vllm_image : Load | Create the spool folder", "file", "demo-cpu", args=spool)
    screen.run("vllm_image : Load | Load the archive", "command", "demo-cpu", seconds=75)
    provided = {"installed": {"images": {"vllm-cpu:0.32.0": "sha256:1"}}}
    screen.run("vllm_image : Load | Record the identifier of the image", "gaudi_baseline", "demo-cpu", args=provided)


def models_stage(screen: Screen) -> None:
    screen.play("Serve the models")
    written = {"written": [f"/etc/gaudi-serve/{name}" for name in ("a.env", "a.json", "b.env", "b.json")]}
    screen.run("vllm_service : Apply | Write units, environments and launch files", "gaudi_files", result=written)
    started = [{"name": f"vllm-{name}.service", "state": "started", "enabled": True} for name in ("qwq-32b", "qwen")]
    screen.run("vllm_service : Apply | Start units", "systemd_service", "demo-gaudi", items=started)
    progress = {
        30: "demo-gaudi: qwq-32b: warm-up: graph 12 of 40, 3 min left (1 min)",
        33: "demo-gaudi: qwq-32b: warm-up: graph 39 of 40, 1 min left (2 min)",
    }
    name = "vllm_service : Wait | Wait until all models answer"
    task = Task(name, "vllm_wait")
    screen.work(task, 36, ["demo-gaudi"], progress)
    screen.show(screen.output.ok(Outcome("demo-gaudi", task), screen.now))


def report(screen: Screen) -> None:
    screen.play("Report what is served")
    screen.say("Show the table", {"demo-cpu": TABLE}, run_once=True)


def first_run(columns: int = 0) -> str:
    screen = Screen(columns)
    preflight(screen, DUE)
    for stage in (host_stage, runtime_stage, images_stage, models_stage, report):
        stage(screen)
    return screen.text()


def nothing_due(columns: int = 0) -> str:
    screen = Screen(columns)
    preflight(screen, {})
    for name in ("Tune the hosts", "Install the driver", "Provide the images", "Serve the models"):
        screen.play(name)
    report(screen)
    return screen.text()


def check(columns: int = 0) -> str:
    screen = Screen(columns, check=True)
    preflight(screen, DUE)
    host_stage(screen)
    runtime_stage(screen)
    screen.play("Provide the images")
    would = {"demo-cpu": "would provide vllm-cpu:0.32.0 from /srv/vllm-cpu.tar"}
    screen.say("vllm_image : Load | Report the images that would be provided", would, changed=True)
    report(screen)
    return screen.text()


def failures(columns: int = 0) -> str:
    screen = Screen(columns)
    screen.play("Install the container runtime")
    screen.run("container_runtime : Install | Install Docker", "apt", args={"name": "docker.io"})
    inner = {"msg": "non-zero return code", "rc": 1, "cmd": ["docker", "info"], "stderr": "no daemon", "stdout": "a\nb"}
    screen.fail("demo-cpu", "container_runtime : Engine | Wait until Docker answers", inner, rescued=True)
    text = "demo-cpu: Docker refused daemon.json. The previous file is restored. See journalctl -u docker."
    screen.fail(
        "demo-cpu",
        "container_runtime : Engine | Fail, because Docker refused the file",
        {"msg": text},
        "fail",
        rescuing=True,
    )
    screen.fail("demo-gaudi", "container_runtime : Ignored", inner, ignored=True)
    refusal = ["Nothing has been changed. What must be fixed first:", "demo-gaudi: port: 99999: 1 to 65535\nand more"]
    screen.fail("demo-gaudi", "container_runtime : Refuse", {"msg": refusal}, "fail")
    screen.play("A play of someone", "other")
    screen.fail("other", "Try it", inner, ignored=True)
    secret = {"censored": "hidden by Ansible", "changed": False}
    screen.fail("other", "A secret", secret, remedy=["Give the key a value."])
    screen.fail("other", "A crash", {"msg": "MODULE FAILURE", "module_stdout": "Traceback\n  line\nKeyError"})
    gone = Outcome("demo-x", Task("Read the host", "gaudi_facts"), {"msg": "no route to host", "unreachable": True})
    screen.show(screen.output.unreachable(gone, screen.now, ignored=True))
    screen.show(screen.output.unreachable(gone, screen.now))
    screen.count("demo-x", "unreachable")
    return screen.text()


CASES: dict[str, Callable[[int], str]] = {
    "first_run": first_run,
    "nothing_due": nothing_due,
    "check": check,
    "failures": failures,
}


@pytest.mark.parametrize("columns", [0, 100], ids=["none", "terminal"])
@pytest.mark.parametrize("case", CASES)
def test_a_run_is_shown_as_its_stages(case: str, columns: int) -> None:
    shown = CASES[case](columns)
    path = GOLDEN / f"{case}_{'terminal' if columns else 'none'}.txt"
    if os.environ.get("GAUDI_SERVE_WRITE_GOLDEN"):
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8")


def test_a_run_has_few_lines() -> None:
    assert len(nothing_due().splitlines()) <= 15
    assert len(first_run().splitlines()) <= 60


def test_nothing_of_a_secret_is_shown() -> None:
    assert "hunter2" not in first_run()


def test_every_play_of_the_project_has_its_stage() -> None:
    assert [name for name, stage in plays().items() if not stage] == []
    assert set(registry.STAGES.values()) <= set(plays().values())
    assert tuple(registry.STAGES.values()) == STAGES


def test_hosts_that_report_the_same_report_it_once_in_the_order_of_the_play() -> None:
    screen = Screen()
    hosts = tuple(f"g{number:02}" for number in range(6))
    screen.play("Some play", *hosts)
    texts = {host: ["alike", "  below", *(["only g03"] if host == "g03" else [])] for host in hosts[::-1]}
    screen.say("Say", texts)
    screen.say("Report it else", {"g05": "g05: mine", "g01": "g01: mine"})
    screen.say("One", {"g05": "b", "g01": "b"})
    screen.say("Many", {host: f"{host}: shared" for host in hosts[1:]})
    screen.say("Each its own", {"g05": "g05: c", "g01": "g01: d"})
    screen.text()
    assert screen.lines[:9] == [
        *("all 6 hosts:", "  alike", "    below", "g03: only g03"),
        # What differs in the host's name alone is the same.
        *("g01, g05: mine", "g01, g05: b", "g01, g02, g03 and 2 more: shared", "g01: d", "g05: c"),
    ]


def test_what_a_stage_reports_of_a_change_that_nobody_has_announced_is_shown() -> None:
    screen = Screen()
    screen.play("Tune the hosts")
    screen.say("Apply | Show the differences", {"demo-cpu": ["cpu0: powersave -> performance"]})
    screen.run("Governor | Set the governor live", "command", "demo-cpu")
    assert screen.text().splitlines()[:2] == [
        "demo-cpu: cpu0: powersave -> performance",
        "demo-cpu    host       CPU governor  0 s",
    ]


def test_a_failed_item_is_reported_once_and_a_loop_is_named_with_its_items() -> None:
    screen = Screen()
    screen.play("Some play", "a")
    task = Task("Make | Make things", "command", "p.yml:3")
    for name in ("one", "two"):
        screen.show(screen.output.item(Outcome("a", task, changed=True, item=name)))
    screen.show(screen.output.item_failure(Outcome("a", task, {"msg": "no"}, item="three")))
    screen.show(screen.output.failure(Outcome("a", task, {"msg": "One or more items failed"}), 1.0))
    screen.count("a", "failures")
    assert screen.text().splitlines() == [
        "FAILED  a  Some play  Make | Make things (p.yml:3)",
        "  with three:",
        "  no",
        "a  Some play  make things (one, two) (then it failed)  0 s",
        "a: failed in Some play; changed: Some play (0 s)",
    ]


def test_of_many_hosts_those_that_failed_stand_at_the_end_with_their_reasons() -> None:
    screen = Screen()
    names = [f"g{number}" for number in range(1, 8)]
    screen.play("Serve the models", *names)
    screen.fail("g1", "Load", {"msg": "non-zero return code", "rc": 255, "stderr": "a\nsysctl: denied\n"})
    lost = Outcome("g2", Task("Pull", "command"), {"msg": "Task failed: No route to host"})
    screen.show(screen.output.unreachable(lost, 1.0))
    screen.count("g2", "unreachable")
    screen.fail(
        "g3", "Refuse", {"msg": ["Nothing has been changed. What must be fixed first:", "g3: port: 99999: no", "b"]}
    )
    screen.fail("g4", "Wait", {"msg": "g4: model m does not serve: failed\nthe last lines of its journal:"})
    screen.fail("g5", "A secret", {"censored": "hidden", "msg": ""})
    screen.run("Write", "copy", "g6", "g7", seconds=0, args={"dest": "/a"})
    assert screen.text().splitlines()[-6:] == [
        "g6, g7: changed: models (0 s)",
        "g1: failed in models: sysctl: denied; nothing changed (0 s)",
        "g2: cannot be reached: No route to host; nothing changed (0 s)",
        "g3: failed in models: port: 99999: no; nothing changed (0 s)",
        "g4: failed in models: model m does not serve: failed; nothing changed (0 s)",
        "g5: failed in models: its output is hidden, because the task has no_log; nothing changed (0 s)",
    ]


def test_only_what_waits_for_models_reports_progress() -> None:
    output = StageOutput()
    output.play(Play("Serve the models", ("a", "b"), stage="models"))
    output.started("a", Task("Wait", "vllm_wait"), 0.0)
    output.started("b", Task("Other", "command"), 0.0)
    assert output.progress("a: qwq: warm-up (1 min)", 5.0)
    assert not output.progress("b: something", 5.0)
    assert not output.progress("a: one\nb: two", 5.0)
    assert not output.progress("a: one\nwarning", 5.0)
    assert not output.progress("", 5.0)
    assert output.live(20.0, 30) == "a  models  qwq: warm-up, 20 …"
    assert output.slow(20.0) == [Line("b  models  other, 20 s so far", "waiting")]
    assert output.slow(21.0) == []
    assert [line.text for line in output.slow(80.0)] == ["b  models  other, 80 s so far"]


def test_words_for_what_changed() -> None:
    many = [Change("write", f"f{number}") for number in range(5)]
    assert what([*many, Change("", "sysctl")], check=False) == "5 files written, sysctl"
    assert (
        what([Change("remove", "a"), Change("purge", "b"), Change("purge", "c")], check=True) == "remove a; purge b, c"
    )
    assert what([Change("", "note", weak=True)], check=False) == "note"
    assert what([Change("reboot", "")], check=True) == "reboot"


def test_a_task_is_named_as_on_its_host_and_one_without_a_name_by_its_module() -> None:
    task = Task("role : Make a", "ansible.builtin.command", here="Make b")
    assert (task.own_name, task.phrase, task == Task("role : Make a", "ansible.builtin.command")) == (
        "Make b",
        "make b",
        True,
    )
    assert Task("ansible.builtin.shell", "ansible.builtin.shell").phrase == "shell"
    assert Task("Measure | HCCL runs").phrase == "HCCL runs"


def test_changes_of_packages_files_and_units() -> None:
    found = {
        "apt": ({"name": "a=1, b", "state": "absent", "purge": True}, "purge a=1, b"),
        "file": ({"path": "/x/y/", "state": "absent"}, "remove y"),
        "copy": ({"dest": "/x/y.conf"}, "write y.conf"),
        "systemd_service": ({"name": "docker.service", "enabled": False}, "disable docker"),
        "systemd": ({"daemon_reload": True}, "reload systemd"),
        "service": ({"name": "x"}, "do it"),
        "lineinfile": ({}, "do it"),
    }
    for module, (args, words) in found.items():
        outcome = Outcome("a", Task("Do it", f"ansible.builtin.{module}"), args=args, changed=True)
        assert what(changes(outcome, "runtime"), check=True) == words


@pytest.mark.parametrize(
    ("before", "words"), [("active", "restart x"), ("inactive", "start x"), ("failed", "start x"), (None, "restart x")]
)
def test_a_unit_that_did_not_run_is_started_and_not_restarted(before: str | None, words: str) -> None:
    result = {"status": {"ActiveState": before}} if before else {}
    args = {"name": "x.service", "state": "restarted"}
    outcome = Outcome("a", Task("Do it", "ansible.builtin.systemd_service"), result, args, changed=True)
    assert what(changes(outcome, "models"), check=True) == words


def test_a_loop_whose_items_are_all_skipped_leaves_nothing_behind() -> None:
    output = StageOutput()
    output.play(Play("Some play", ("a",)))
    task = Task("Do it", "command")
    output.item(Outcome("a", task, item="x"))
    output.skipped(Outcome("a", task), 1.0)
    output.ok(Outcome("a", task, changed=True), 2.0)
    assert [line.text for line in output.end_play()] == ["a  Some play  do it  0 s"]


def test_a_failure_without_a_word_reports_it_and_nothing_is_reported_twice() -> None:
    assert reason({}) == ["it failed silently"]
    assert reason({"msg": "bad", "stderr": "bad"}) == ["bad"]
    cut = {"failed": True, "msg": "Module result deserialization failed: No start of json char found"}
    assert "the connection to the host broke during this task" in reason(cut)[0] and len(reason(cut)) == 1
    assert reason({**cut, "module_stderr": "Traceback: x"})[0] == cut["msg"]
    assert reason({"failed": False, "msg": "broken pipe"}) == ["broken pipe"]
    assert reason({"msg": {"a": 1}, "status": 404, "url": "", "_x": 1}) == ['{"a": 1}', "status: 404"]
    assert reason({"msg": "bad"}, ["Do this."], "trace\nbad") == ["Do this.", "bad", "trace"]


def test_nobody_to_run_on_is_reported() -> None:
    output = StageOutput()
    output.nobody = True
    assert [line.kind for line in output.stats({}, 1.0)] == ["error"]


class FakeDisplay:
    """Keeps what Ansible would write."""

    verbosity = 0

    def __init__(self) -> None:
        self.written: list[str] = []

    def display(self, msg: str, **_: Any) -> None:
        self.written.append(msg)

    banner = warning = display


class LockTask:
    """A task of Ansible, as far as a callback looks at it."""

    action, run_once = "gaudi_lock", False

    def get_name(self) -> str:
        return "Lock"

    def get_path(self) -> str:
        return "x:1"


def test_warnings_that_several_hosts_share_are_shown_once() -> None:
    callback = load("callback_plugins/gaudi_serve_stages.py").CallbackModule()
    handled: list[Any] = []
    callback._handle_warnings = handled.append
    callback.output.play(Play("Some play", ("a", "b", "c")))
    task = LockTask()

    def told(name: str, text: str) -> Any:
        return SimpleNamespace(host=SimpleNamespace(get_name=lambda: name), task=task, result={"warnings": [text]})

    for host in ("a", "b"):
        result = told(host, f"{host}: took it over")
        assert callback.warned(result) == [] and result.result == {}
    # What does not name its host is Ansible's to show.
    other = told("c", "deprecated")
    assert callback.warned(other) == [] and handled == [other.result]
    assert [line.text for line in callback.output.flush()] == ["a, b: took it over"]


def test_a_mistake_of_the_callback_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[Line]:
        raise KeyError("x")

    callback = load("callback_plugins/gaudi_serve_stages.py").CallbackModule()
    callback._display = FakeDisplay()
    monkeypatch.setattr(callback.output, "flush", broken)
    callback.v2_playbook_on_no_hosts_remaining()
    warning, banner = callback._display.written
    assert "KeyError('x')" in warning
    assert banner == "NO MORE HOSTS LEFT"


def test_reports_of_running_tasks_are_shown_where_there_is_no_live_line() -> None:
    callback = load("callback_plugins/gaudi_serve_stages.py").CallbackModule()
    callback._display = FakeDisplay()
    callback.reports = Reports()
    callback.output.play(Play("Serve the models", ("a",), False, "models"))
    callback.output.started("a", Task("models : Wait", "vllm_wait", ""), 0.0)
    callback.reports.send("a: qwq: warm-up (1 min)")
    callback.reports.send("of nobody who runs")
    callback.take_reports()
    callback.take_reports()
    assert callback._display.written == ["a: qwq: warm-up (1 min)", "of nobody who runs"]
    assert callback.output.live(20.0, 60) == "a  models  qwq: warm-up, 20 s so far"
    callback.row = SimpleNamespace(columns=60)
    callback.reports.send("a: qwq: loading (2 min)")
    callback.take_reports()
    assert len(callback._display.written) == 2
    assert callback.output.live(20.0, 60) == "a  models  qwq: loading, 20 s so far"


def test_nothing_of_ansible_is_replaced() -> None:
    module = load("callback_plugins/gaudi_serve_stages.py")
    callback, before = module.CallbackModule(), vars(Display()).copy()
    callback.begin()
    try:
        assert vars(callback._display) == before
        assert callback.row is None  # of a test's output, which is not a terminal
    finally:
        callback.end()
