"""The queue of scripts/test: its order, and that no failure is missed."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from testhosts_lib import part_queue

ROOT = Path(__file__).parents[2]


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module of the queue, with a cache of its own and two parts at a time."""
    monkeypatch.setenv("GAUDI_SERVE_CACHE", str(tmp_path))
    monkeypatch.setattr(part_queue, "LANES", 2)
    return part_queue


def part(queue: Any, code: str, seconds: int, heavy: bool = False) -> Any:
    """Return a part that is a line of Python."""
    return queue.Part([sys.executable, "-c", code], seconds, heavy)


def test_heavy_parts_run_one_at_a_time_and_the_longest_begins_first(queue: Any, tmp_path: Path) -> None:
    note = f"import time; open({str(tmp_path / 'log')!r}, 'a').write('%s '); time.sleep(0.3)"
    busy = str(tmp_path / "busy")
    alone = f"; import os; os.mkdir({busy!r}); time.sleep(0.3); os.rmdir({busy!r})"
    parts = {name: part(queue, note % name, seconds) for name, seconds in (("a", 5), ("b", 9))}
    parts |= {name: part(queue, note % name + alone, seconds, True) for name, seconds in (("x", 1), ("y", 3), ("z", 2))}
    ended = queue.Queue(parts).run()
    assert [one.passed for one in ended] == [True] * 5
    begun = (tmp_path / "log").read_text().split()
    assert {*begun[:2]} == {"y", "b"}
    assert begun.index("y") < begun.index("z") < begun.index("x")


def test_a_line_for_each_begin_and_end_has_the_minutes_that_are_left(queue: Any, capsys: Any) -> None:
    parts = {"a": part(queue, "", 600, True), "b": part(queue, "", 600, True), "c": part(queue, "", 60)}
    queue.Queue(parts).run()
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert said[0] == "begins a about 20 min left"
    assert "begins c about 20 min left" in said[1:3]
    assert said[-1].startswith("ok b") and said[-1].endswith("; the last")
    assert any(line.startswith("begins b") and line.endswith("about 10 min left") for line in said)


def test_a_failure_is_shown_at_once_and_the_others_go_on(queue: Any, capsys: Any) -> None:
    failing = "import sys; print('FAILED tests/test_x.py::test_it'); print('1 failed, 3 passed in 0.1s'); sys.exit(1)"
    later = "import time; time.sleep(0.5); print('7 passed in 0.5s')"
    ended = queue.Queue({"bad": part(queue, failing, 2), "good": part(queue, later, 1)}).run()
    assert [one.reasons for one in ended] == [("FAILED tests/test_x.py::test_it",), ()]
    assert [(one.name, one.passed, one.counts) for one in ended] == [
        ("bad", False, "1 failed, 3 passed"),
        ("good", True, "7 passed"),
    ]
    said = capsys.readouterr().out
    assert said.index("FAILED tests/test_x.py::test_it") < said.index("ok      good")
    assert "the whole log: " in said


def test_the_reasons_of_a_failed_life_are_found_in_its_frame(queue: Any) -> None:
    framed = [
        "  \x1b[2m│\x1b[0m ok: [mol-a]",
        "  \x1b[2m│\x1b[0m ________ test_it_serves ________",
        '  \x1b[2m│\x1b[0m fatal: [mol-a]: FAILED! => {"msg": "too slow"}',
        "  \x1b[2m│\x1b[0m assert 2 == 0",
        "  \x1b[2m│\x1b[0m FAILED molecule/fleet/tests/test_x.py::test_it_serves",
        "  \x1b[2m│\x1b[0m PLAY RECAP",
    ]
    assert queue.reasons("\n".join(framed)) == (
        "________ test_it_serves ________",
        'fatal: [mol-a]: FAILED! => {"msg": "too slow"}',
        "assert 2 == 0",
        "FAILED molecule/fleet/tests/test_x.py::test_it_serves",
    )


def test_a_part_that_is_killed_or_takes_too_long_has_failed(queue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "SPARE_S", 0)
    monkeypatch.setattr(queue, "SLOWEST", 1)
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    ended = queue.Queue({"killed": part(queue, killed, 1), "slow": part(queue, "import time; time.sleep(60)", 1)}).run()
    assert {one.name: one.passed for one in ended} == {"killed": False, "slow": False}
    assert all(one.seconds < 30 for one in ended)


def test_what_a_part_took_orders_the_next_run_on_this_machine(queue: Any) -> None:
    queue.Queue({"a": part(queue, "import time; time.sleep(0.4)", 1), "b": part(queue, "", 9)}).run()
    again = queue.Queue({"a": part(queue, "", 1), "b": part(queue, "", 9)})
    assert again.next() == "a"


def test_only_what_ran_all_its_tests_is_reported_as_passed(queue: Any) -> None:
    after: dict[str, bool] = {}
    said = {"good": "2 passed in 0.1s", "skips": "2 passed, 1 skipped in 0.1s", "none": "3 deselected in 0.1s"}
    parts = {name: part(queue, f"print({text!r})", 1)._replace(tests=True) for name, text in said.items()}
    parts |= {"lint": part(queue, "", 1), "bad": part(queue, "import sys; sys.exit(1)", 1)}
    queue.Queue(parts, after.__setitem__).run()
    assert after == {"good": True, "skips": False, "none": False, "lint": True, "bad": False}


def test_a_process_that_leaves_its_part_ends_with_it(queue: Any, tmp_path: Path) -> None:
    place = tmp_path / "pid"
    child = f"import os, time; os.setsid(); open({str(place)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    # The part ends when its child has written its number.
    leaves = "import os, subprocess, sys, time\n"
    leaves += f"subprocess.Popen([sys.executable, '-c', {child!r}])\n"
    leaves += f"while not (os.path.exists({str(place)!r}) and os.path.getsize({str(place)!r})): time.sleep(0.05)\n"
    assert [one.passed for one in queue.Queue({"leaves": part(queue, leaves, 1)}).run()] == [True]
    running, end = Path(f"/proc/{place.read_text()}/cmdline"), time.monotonic() + 10
    while running.exists() and running.read_bytes() and time.monotonic() < end:
        time.sleep(0.05)
    assert not running.exists() or not running.read_bytes()


def test_each_file_runs_alone_and_none_that_breaks_is_missed(tmp_path: Path) -> None:
    files = {
        "test_a.py": "import json\njson.loads = None\ndef test_it(): pass\n",
        "test_b.py": "import json\ndef test_it(): assert json.loads('1') == 1\n",
        "test_c.py": "def test_it(): assert False\n",
        "test_d.py": "import os, signal\ndef test_it(): os.kill(os.getpid(), signal.SIGKILL)\n",
        "test_e.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    argv = [sys.executable, str(ROOT / "tests/alone.py"), "1", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    said = done.stdout
    assert [re.search(rf"status (\S+) of \S+{name} alone", said) is not None for name in sorted(files)] == [
        *(False, False),
        *(True, True, True),
    ]
    assert re.search(r"5 files alone, 3 of them failed\n.*\b1 failed, 2 passed in", said), said


def test_a_mistake_in_syntax_is_found_where_ansible_is_imported_only_once(tmp_path: Path) -> None:
    playbook = tmp_path / "play.yml"
    playbook.write_text("---\n- name: A role that does not exist\n  hosts: localhost\n  roles: [nosuch]\n")
    argv = [sys.executable, ROOT / "scripts/ansible-lint", "--offline", "-q", "--nocolor", playbook]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2
    assert "syntax-check[specific]: the role 'nosuch' was not found" in done.stdout + done.stderr
