"""What a person sees of real runs of small playbooks: in a pipe, on a terminal, under ansible-runner."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import ansible_runner
import forked
import pytest
from helpers.screen import Screen
from runs import eventually

ROOT = Path(__file__).parents[2]
ROWS, COLUMNS = 12, 200  # of a terminal
PLAY = """\
- name: Tune the hosts
  hosts: all
  vars: {gaudi_stage: host}
  gather_facts: false
  tasks:
    - name: Sysctl | Write the file
      ansible.builtin.copy: {content: "a\\n", dest: "{{ inventory_dir }}/{{ inventory_hostname }}.conf", mode: "0644"}

    - name: Nothing to do
      ansible.builtin.command: {argv: ["true"]}
      changed_when: false

- name: A play of someone
  hosts: all
  gather_facts: false
  tasks:
    - name: Make things
      ansible.builtin.command: {argv: [echo, "{{ item }}"]}
      changed_when: true
      loop: [one, two]

    - name: Keep a secret
      ansible.builtin.command: {argv: [echo, hunter2]}
      changed_when: true
      no_log: true

    - name: Show something
      ansible.builtin.debug:
        msg: ["alike on all", "this is {{ inventory_hostname }}", "{{ inventory_hostname }}: disk full"]

    - name: Show a variable
      ansible.builtin.debug: {var: inventory_hostname}
      run_once: true

    - name: Try, and repair
      block:
        - name: Ask for what is not there
          ansible.builtin.include_tasks: inner.yml
      rescue:
        - name: Repair it
          ansible.builtin.debug: {msg: repaired}

    - name: Not of importance
      ansible.builtin.command: {argv: [sh, -c, "echo unimportant >&2; exit 1"]}
      ignore_errors: true # a failure that a run goes on after is what is to be shown here as none
      when: inventory_hostname == 'b'

    - name: Fail on one
      ansible.builtin.command: {argv: [sh, -c, "echo why >&2; exit 3"]}
      when: inventory_hostname == 'b'
"""
SHOWN = """\
a  host       sysctl  0 s
b  host       sysctl  0 s
a, b:
  alike on all
  disk full
a: this is a
b: this is b
inventory_hostname: a
a, b: repaired
b  A play of someone  Not of importance: failed, which is ignored: non-zero return code
FAILED  b  A play of someone  Fail on one (FOLDER/play.yml:48)
  non-zero return code
  command: sh -c echo why >&2; exit 3
  status: 3
  stderr:
    why
a  A play of someone  make things (one, two); keep a secret  0 s
b  A play of someone  make things (one, two); keep a secret (then it failed)  0 s
a: changed: host, A play of someone (0 s)
b: failed in A play of someone; changed: host, A play of someone (0 s)
"""
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")},
    **{"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "TERM": "xterm", "COLUMNS": "200"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the playbook, and an inventory of two names of this machine."""
    hosts = "".join(f"{name} ansible_connection=local ansible_python_interpreter={sys.executable}\n" for name in "ab")
    (tmp_path / "hosts.ini").write_text(hosts)
    (tmp_path / "play.yml").write_text(PLAY)
    (tmp_path / "inner.yml").write_text("- name: Fail within\n  ansible.builtin.fail: {msg: from within}\n")
    return tmp_path


def argv(folder: Path, *arguments: str, play: str = "play.yml") -> list[str]:
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    return [program, "-i", str(folder / "hosts.ini"), str(folder / play), *arguments]


def piped(folder: Path, *arguments: str, play: str = "play.yml", **environment: str) -> tuple[int, str]:
    """Run without a terminal, and return status and text."""
    # Of a module of one name a process that forks packs one.
    if not environment and play == "play.yml":
        return forked.playbook(argv(folder, *arguments, play=play), ROOT, ENVIRONMENT, 120)
    done = subprocess.run(
        argv(folder, *arguments, play=play),
        cwd=ROOT,
        env={**ENVIRONMENT, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout


@contextlib.contextmanager
def terminal(folder: Path, *arguments: str, play: str = "play.yml", **environment: str) -> Iterator[Terminal]:
    """Run on a pseudo-terminal, and give both."""
    ours, its = pty.openpty()
    termios.tcsetwinsize(ours, (ROWS, COLUMNS))
    given = {**ENVIRONMENT, **environment}
    with subprocess.Popen(
        argv(folder, *arguments, play=play), cwd=ROOT, env=given, stdin=its, stdout=its, stderr=its
    ) as process:
        os.close(its)
        yield Terminal(process, ours)
    os.close(ours)


@dataclasses.dataclass
class Terminal:
    """A run, and the other end of its terminal."""

    process: subprocess.Popen[bytes]
    ours: int

    def parts(self) -> Iterator[str]:
        """Yield what is written to it, as it comes."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        # A terminal whose other end is closed is an error of its input.
        with contextlib.suppress(OSError):
            while part := os.read(self.ours, 65536):
                yield decoder.decode(part)
        self.process.wait(120)


def on_a_terminal(folder: Path, *arguments: str, play: str = "play.yml", **environment: str) -> str:
    """Run on a pseudo-terminal, and return all that is written to it."""
    with terminal(folder, *arguments, play=play, **environment) as run:
        return "".join(run.parts())


def still(text: str, folder: Path) -> str:
    """Return a text without what differs from run to run."""
    return re.sub(r"\b\d+ s\b", "0 s", text).replace(str(folder), "FOLDER")


def test_a_run_is_its_stages_messages_and_errors(folder: Path) -> None:
    status, text = piped(folder)
    assert still(text, folder) == SHOWN
    assert status == 2


def test_a_terminal_has_colours_unless_they_are_not_wanted(folder: Path) -> None:
    text = on_a_terminal(folder)
    assert "\x1b[0;31mFAILED  b" in text
    assert "\x1b[0;33ma  host       sysctl" in text
    plain = still(re.sub(r"\x1b\[[\d;]*m", "", text).replace("\r\n", "\n"), folder)
    assert plain == SHOWN
    # ANSIBLE_NOCOLOR is a live line's, below.
    assert "\x1b[0;3" not in on_a_terminal(folder, "--limit", "a", NO_COLOR="1")


def test_a_check_reports_what_would_change_and_shows_differences(folder: Path) -> None:
    status, text = piped(folder, "--check", "--diff", "--limit", "a")
    assert status == 0
    lines = still(text, folder).splitlines()
    assert lines[0] == "a  host  Sysctl | Write the file:"
    assert {"+++ after: FOLDER/a.conf", "+a"} <= set(lines)
    assert "a  host       would change: sysctl  0 s" in lines
    assert lines[-1] == "a: would change: host (0 s)"


@pytest.mark.parametrize("how", ["-v", "default"])
def test_more_than_stages_is_ansibles_own(how: str, folder: Path) -> None:
    arguments, environment = (["-v"], {}) if how == "-v" else ([], {"ANSIBLE_STDOUT_CALLBACK": how})
    status, text = piped(folder, "--limit", "a", *arguments, **environment)
    assert status == 0
    assert "TASK [Sysctl | Write the file] ***" in text
    assert "PLAY RECAP ***" in text
    assert "  host  " not in text


def test_every_host_goes_at_its_own_pace(folder: Path) -> None:
    play = PLAY.replace("  gather_facts: false\n", "  gather_facts: false\n  strategy: free\n")
    (folder / "play.yml").write_text(play.replace("      run_once: true\n", "      when: inventory_hostname == 'a'\n"))
    status, text = piped(folder)
    assert status == 2
    shown = [re.sub(r":\d+\)", ")", line) for line in still(text, folder).splitlines()]
    expected = [re.sub(r":\d+\)", ")", line) for line in SHOWN.splitlines()]
    for line in (*expected[:2], *expected[10:]):
        assert line in shown, text
    assert {"alike on all", "this is a"} <= {line.removeprefix("a: ").strip() for line in shown}


def test_batches_and_a_play_about_nobody(folder: Path) -> None:
    head = PLAY.partition("- name: A play of someone")[0].replace("  hosts: all\n", "  hosts: all\n  serial: 1\n")
    (folder / "play.yml").write_text(head + "- name: For nobody\n  hosts: nobody\n  tasks: []\n")
    status, text = piped(folder)
    assert status == 0
    assert [line for line in still(text, folder).splitlines() if "WARNING" not in line] == [
        "a  host       sysctl  0 s",
        "b  host       sysctl  0 s",
        "a, b: changed: host (0 s)",
    ]


LONG = """\
- name: Serve the models
  hosts: a
  vars: {gaudi_stage: models}
  gather_facts: false
  tasks:
    - name: Configure | Write the files
      ansible.builtin.copy: {content: "a\\n", dest: "{{ inventory_dir }}/a.conf", mode: "0644"}

    - name: Wait | Wait until all models answer
      vllm_wait: {models: {qwq: 60}, report_every: 4}
"""
# In place of the project's module, which looks at units of systemd.
UNITS = """\
#!/usr/bin/python
import pathlib, time
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule({name: {"type": "raw"} for name in ("models", "restarts", "for_s", "interval")})
begin = pathlib.Path("BEGIN")
begin.exists() or begin.write_text(str(time.time()))
time.sleep(float(module.params["for_s"]))
active = time.time() - float(begin.read_text()) > 12.5
unit = {"active": active, "state": "activating", "sub_state": "start", "status": "warm-up: graph 3 of 9", "restarts": 0}
module.exit_json(units={"qwq": unit})
"""


@pytest.fixture
def long(folder: Path) -> Path:
    """Return a folder with a playbook that takes thirteen seconds."""
    (folder / "library").mkdir()
    (folder / "library/vllm_units.py").write_text(UNITS.replace("BEGIN", str(folder / "begin")))
    (folder / "long.yml").write_text(LONG)
    return folder


def test_what_takes_long_is_in_the_last_row_of_a_terminal(long: Path) -> None:
    screen, seen = Screen(ROWS, COLUMNS), set()
    with terminal(long, play="long.yml", ANSIBLE_NOCOLOR="1") as run:
        for part in run.parts():
            screen.feed(part)
            if screen.rows[-1] and screen.row < ROWS - 1:
                seen.add(screen.rows[-1])
            if "so far" in part and len(screen.rows) == ROWS:
                termios.tcsetwinsize(run.ours, (ROWS - 2, COLUMNS))
                screen.resize(ROWS - 2, COLUMNS)
    assert run.process.returncode == 0
    assert len(seen) > 1 and len(screen.rows) == ROWS - 2
    assert {re.sub(r"\d+ s", "0 s", line) for line in seen} == {"a  models  qwq: warm-up: graph 3 of 9, 0 s so far"}
    # All that is left at the end, in a terminal that scrolls as before.
    assert [still(line, long) for line in screen.text] == [
        "a  models     a.conf written  0 s",
        "a: changed: models (0 s)",
    ]
    assert screen.whole


def test_a_run_that_is_broken_off_gives_the_last_row_back(long: Path) -> None:
    screen = Screen(ROWS, COLUMNS)
    with terminal(long, play="long.yml") as run:
        for part in run.parts():
            screen.feed(part)
            if "so far" in part and not screen.whole:
                run.process.send_signal(signal.SIGINT)
    assert run.process.returncode == 99
    assert screen.whole
    assert "a  models     a.conf written" in screen.text[-1]
    assert not any("so far" in line for line in screen.text)


def test_an_error_gives_the_last_row_back(long: Path) -> None:
    screen = Screen(ROWS, COLUMNS)
    (long / "long.yml").write_text(LONG.replace("qwq: 60", "qwq: 11"))
    units = long / "library/vllm_units.py"
    units.write_text(units.read_text().replace("> 12.5", "> 60"))
    with terminal(long, play="long.yml") as run:
        for part in run.parts():
            screen.feed(part)
    assert run.process.returncode == 2
    assert screen.whole
    assert any("it does not answer after 1" in line for line in screen.text)
    assert not any("so far" in line for line in screen.text)


def test_what_takes_long_is_a_few_plain_lines_without_one(long: Path) -> None:
    status, text = piped(long, play="long.yml")
    assert status == 0
    lines = still(text, long).splitlines()
    assert "\r" not in text
    assert lines[0] == "a: qwq: warm-up: graph 3 of 9 (0 min)"
    assert len(lines) <= 6
    assert lines[-1] == "a: changed: models (0 s)"


def test_a_run_that_is_broken_off_reports_what_it_has_changed(long: Path) -> None:
    with subprocess.Popen(
        argv(long, play="long.yml"),
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        deadline = time.monotonic() + 30
        while not (long / "begin").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=60)
    assert "a  models     a.conf written" in text
    assert "Traceback" not in text


def test_a_run_that_a_test_kills_leaves_no_worker(long: Path) -> None:
    with (long / "said").open("w+") as said:
        run = forked.start(argv(long, play="long.yml"), ROOT, ENVIRONMENT, said)
        assert eventually((long / "begin").exists, 30)
        workers = forked.kill(run.pid)
        assert run.wait(10) == -signal.SIGKILL
    assert len(workers) == 1 and cmdline(workers[0])
    forked.end(workers)
    assert eventually(lambda: not cmdline(workers[0]), 10)


def cmdline(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@pytest.mark.parametrize("chosen", ["", "gaudi_serve_stages"])
def test_ansible_runner_gets_its_events(chosen: str, folder: Path) -> None:
    environment = {
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_CALLBACK_PLUGINS": str(ROOT / "callback_plugins"),
    }
    if chosen:
        environment["ANSIBLE_STDOUT_CALLBACK"] = chosen
    run = ansible_runner.run(
        private_data_dir=str(folder),
        **{"playbook": str(folder / "play.yml"), "inventory": str(folder / "hosts.ini"), "envvars": environment},
        **{"quiet": True, "limit": "a"},
    )
    assert (run.status, run.rc) == ("successful", 0)
    assert {"playbook_on_start", "runner_on_ok", "playbook_on_stats"} <= {event["event"] for event in run.events}
    text = run.stdout.read()
    assert ("PLAY RECAP" in text, "a: changed: host" in text) == (not chosen, bool(chosen))
