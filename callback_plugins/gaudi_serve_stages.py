"""What a person sees of a run: its stages. With -v and more it is Ansible's own output."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import os
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible import constants, context
from ansible.plugins.callback.default import CallbackModule as Default
from ansible.release import __version__

# Works from every playbook, molecule, ansible-runner and AWX, with nothing installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from gaudi_serve.show.live_row import LiveRow, can_reserve
from gaudi_serve.show.progress import Reports
from gaudi_serve.show.stage_output import Line, Outcome, Play, StageOutput, Task

DOCUMENTATION = """
name: gaudi_serve_stages
type: stdout
short_description: Shows a run as its stages
description:
  - One line a host and stage that changed something, with what and how long; a live line for what takes longer than
    ten seconds; messages and errors whole; nothing for what had nothing to do.
  - With C(-v) and more it behaves as Ansible's own, which E(ANSIBLE_STDOUT_CALLBACK=default) brings too.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
"""

TICK_S = 1.0
# From ansible-core 2.21 on, the task of a result is a copy with its templates rendered; before, task_fields had these.
RENDERED_TASKS = tuple(map(int, __version__.split(".")[:2])) >= (2, 21)
COLOURS = {
    "changed": constants.COLOR_CHANGED,
    "error": constants.COLOR_ERROR,
    "ok": constants.COLOR_OK,
    "unreachable": constants.COLOR_UNREACHABLE,
    "waiting": constants.COLOR_SKIP,
}
# Who waits for a person must not be written over.
ASKS = ("pause",)


def staged(method: Callable[..., list[Line] | None]) -> Callable[..., None]:
    """Show an event in the project's way; in Ansible's where more is asked for, or where this way fails."""
    name = method.__name__

    @functools.wraps(method)
    def shown(self: CallbackModule, *args: Any, **kwargs: Any) -> None:
        if self.verbose:
            getattr(super(CallbackModule, self), name)(*args, **kwargs)
            return
        with self.lock:
            try:
                self.take_reports()
                self.show(method(self, *args, **kwargs) or [])
                self.redraw()
            except Exception as problem:
                # Nothing that happened may be lost by a mistake of this file.
                self._display.warning(f"{self.CALLBACK_NAME}: {name}: {problem!r}; this is Ansible's own output")
                getattr(super(CallbackModule, self), name)(*args, **kwargs)

    return shown


class CallbackModule(Default):  # type: ignore[misc]  # ansible-core has no type information
    """Translates Ansible's events for StageOutput, and its lines for the screen."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "gaudi_serve_stages"

    def __init__(self) -> None:
        super().__init__()
        # Also of the thread that shows what takes long, and of the one in which results of items arrive.
        self.lock = threading.RLock()
        self.process = os.getpid()
        self.output = StageOutput()
        self.row: LiveRow | None = None
        self.reports: Reports | None = None
        self.ended = threading.Event()
        self.diff_host = ""

    @property
    def verbose(self) -> bool:
        """Tell whether more is asked for than stages."""
        return bool(self._display.verbosity > 0)

    # ---- the screen

    def begin(self) -> None:
        """Begin to watch what takes long."""
        # ansible-runner takes what is written for events, of whichever callback it was made.
        read = "AWX_ISOLATED_DATA_DIR" in os.environ or context.CLIARGS.get("step")
        self.row = LiveRow(sys.stdout) if not read and can_reserve(sys.stdout) else None
        self.reports = Reports.opened()
        self.output = StageOutput(time.monotonic(), self.width() if self.row else 0)
        atexit.register(self.end)
        threading.Thread(target=self.watch, name=self.CALLBACK_NAME, daemon=True).start()

    @staticmethod
    def width() -> int:
        """Return the terminal's width in characters; 80 where it does not say."""
        return shutil.get_terminal_size().columns

    @property
    def live(self) -> bool:
        """Tell whether the terminal has a row for what takes long."""
        return bool(self.row and self.row.columns)

    def take_reports(self) -> None:
        """Take what running tasks report of their progress; without a live line it is shown as it is."""
        for text in self.reports.received() if self.reports else ():
            if not (self.output.progress(text, time.monotonic()) and self.live):
                self._display.display(text)
                self.flush()

    def show(self, lines: Sequence[Line]) -> None:
        """Write lines."""
        if not lines:
            return
        to_stderr = bool(self._plugin_options.get("display_failed_stderr"))
        for line in lines:
            failed = line.kind in ("error", "unreachable")
            self._display.display(line.text, color=COLOURS.get(line.kind), stderr=to_stderr and failed)
        self.flush()

    @staticmethod
    def flush() -> None:
        """Let what is written be seen at once, also in a pipe."""
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()

    def redraw(self) -> None:
        """Show on the live line what takes long just now; nothing where a person is asked something."""
        if self.row and not self.ended.is_set():
            self.row.draw("" if self.asks() else self.output.live(time.monotonic(), self.row.columns))

    def asks(self) -> bool:
        """Tell whether a running task waits for a person."""
        return any(run.task.module in ASKS for run in self.output.running.values())

    def release(self) -> None:
        """Show nothing more of what takes long."""
        self.ended.set()
        if self.row:
            self.row.release()

    def watch(self) -> None:
        """Show what takes long, until the run ends."""
        while not self.ended.wait(TICK_S):
            with self.lock, contextlib.suppress(Exception):
                if self.ended.is_set():
                    continue
                self.take_reports()
                if self.live:
                    self.redraw()
                elif not self.asks():
                    self.show(self.output.slow(time.monotonic()))

    def end(self) -> None:
        """Leave nothing unsaid where the run is broken off."""
        if os.getpid() == self.process and not self.ended.is_set():
            with self.lock, contextlib.suppress(Exception):
                self.release()
                self.show(self.output.end_play())

    # ---- Ansible's events

    @staged
    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Begin the run."""
        self.begin()

    @staged
    def v2_playbook_on_vars_prompt(self, *args: Any, **kwargs: Any) -> list[Line]:
        """Say what there is to say before a question."""
        return self.output.end_play()

    @staged
    def v2_playbook_on_play_start(self, play: Any) -> list[Line]:
        """End the play before, and begin this."""
        self._play = play
        hosts: tuple[str, ...] = ()
        with contextlib.suppress(Exception):
            found = play.get_variable_manager()._inventory.get_hosts(play.hosts)
            hosts = tuple(host.get_name() for host in found)
        stage = str((play.vars or {}).get("gaudi_stage", ""))
        return self.output.play(Play(play.get_name().strip(), hosts, bool(play.check_mode), stage))

    @staged
    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> list[Line]:
        """Say what the task before has said."""
        return self.output.task(task_of(task))

    @staged
    def v2_playbook_on_handler_task_start(self, task: Any) -> list[Line]:
        """Say what the task before has said."""
        return self.output.task(task_of(task))

    @staged
    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Note that a host works."""
        self.output.started(host.get_name(), task_of(task), time.monotonic())

    @staged
    def v2_runner_on_ok(self, result: Any) -> list[Line]:
        """Note what was changed."""
        return [*self.warned(result), *self.output.ok(self.outcome(result), time.monotonic())]

    @staged
    def v2_runner_item_on_ok(self, result: Any) -> list[Line]:
        """Note what was changed."""
        self._handle_warnings(result.result)
        return self.output.item(self.outcome(result, item=True))

    @staged
    def v2_runner_on_skipped(self, result: Any) -> None:
        """Note that a host had nothing to do."""
        self.output.skipped(self.outcome(result), time.monotonic())

    @staged
    def v2_runner_item_on_skipped(self, result: Any) -> None:
        """Nothing is said of it."""

    @staged
    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> list[Line]:
        """Say what failed and why, but where the playbook deals with it itself."""
        self._handle_warnings(result.result)
        told = {**dealt_with(result.task, ignore_errors), **told_by(result)}
        return self.output.failure(self.outcome(result), time.monotonic(), **told)

    @staged
    def v2_runner_item_on_failed(self, result: Any) -> list[Line]:
        """Say which item failed and why."""
        self._handle_warnings(result.result)
        told = {**dealt_with(result.task, bool(field(result, "ignore_errors"))), **told_by(result)}
        return self.output.item_failure(self.outcome(result, item=True), **told)

    @staged
    def v2_runner_on_unreachable(self, result: Any) -> list[Line]:
        """Say which host cannot be reached."""
        self._handle_warnings(result.result)
        return self.output.unreachable(self.outcome(result), time.monotonic(), bool(result.task.ignore_unreachable))

    @staged
    def v2_on_file_diff(self, result: Any) -> None:
        """Show differences of files as Ansible does, below a line of our own."""
        self.diff_host = result.host.get_name()
        self._last_task_banner = None
        super().v2_on_file_diff(result)
        self._last_task_banner = None

    def _print_task_banner(self, task: Any) -> None:
        if self.verbose or not self.diff_host:
            super()._print_task_banner(task)
            return
        self.show(self.output.diff(self.diff_host, task_of(task)))
        self.diff_host, self._last_task_banner = "", task._uuid

    @staged
    def v2_runner_retry(self, result: Any) -> None:
        """Nothing is said of it: the live line shows that it lasts."""

    @staged
    def v2_runner_on_async_poll(self, result: Any) -> None:
        """Nothing is said of it: the live line shows that it lasts."""

    @staged
    def v2_runner_on_async_ok(self, result: Any) -> None:
        """Nothing is said of it: the task's own end does."""

    @staged
    def v2_runner_on_async_failed(self, result: Any) -> None:
        """Nothing is said of it: the task's own end does."""

    @staged
    def v2_playbook_on_include(self, included_file: Any) -> None:
        """Nothing is said of it."""

    @staged
    def v2_playbook_on_notify(self, handler: Any, host: Any) -> None:
        """Nothing is said of it."""

    @staged
    def v2_playbook_on_no_hosts_matched(self) -> None:
        """Keep that a play is about nobody."""
        self.output.nobody = True

    @staged
    def v2_playbook_on_no_hosts_remaining(self) -> list[Line]:
        """Say what there is to say; why hosts have dropped out stands above."""
        return self.output.flush()

    @staged
    def v2_playbook_on_stats(self, stats: Any) -> list[Line]:
        """End the run."""
        self.release()
        counts = {host: stats.summarize(host) for host in stats.processed}
        lines = self.output.stats(counts, time.monotonic())
        if stats.custom and self._plugin_options.get("show_custom_stats"):
            for key, value in sorted(stats.custom.items()):
                lines.append(Line(f"{'RUN' if key == '_run' else key}: {self._dump_results(value, indent=1)}"))
        return lines

    def warned(self, result: Any) -> list[Line]:
        """Show warnings; those that begin with their host as messages are, so that several hosts share a line."""
        host = result.host.get_name()
        texts = [str(text) for text in result.result.get("warnings") or []]
        if texts and all(text.startswith(f"{host}: ") for text in texts):
            result.result.pop("warnings")
            return self.output.note(host, task_of(result.task), texts)
        self._handle_warnings(result.result)
        return []

    # ---- translation

    def outcome(self, result: Any, item: bool = False) -> Outcome:
        """Return a result of Ansible as the pure part takes it; without what is secret."""
        found = result.result
        hidden = bool(found.get("_ansible_no_log") or "censored" in found)
        # Of strategy free, only the result has a name whose variables are filled in.
        task = dataclasses.replace(task_of(result.task), here=str(field(result, "name") or ""))
        if task.module == "debug" and "msg" not in found and not hidden:
            found = {"msg": self._debug_text(found, result.task.action)}
        given = field(result, "args")
        label = str(self._get_item_label(found)) if item else ""
        return Outcome(
            host=result.host.get_name(),
            task=task,
            result=found,
            args={} if hidden or not isinstance(given, Mapping) else given,
            changed=result.is_changed(),
            item=(label or "an item") if item else "",
            hidden=hidden,
        )

    def _debug_text(self, found: Any, action: str) -> str:
        """Return what a debug of a variable shows."""
        self._clean_results(found, action)
        return textwrap.dedent(str(self._dump_results(found))).strip("\n")


def field(result: Any, name: str) -> Any:
    """Return a field of the task that a result is of, with its templates rendered."""
    return getattr(result.task, name) if RENDERED_TASKS else result.task_fields.get(name)


@functools.lru_cache(maxsize=64)
def task_of(task: Any) -> Task:
    """Return a task of Ansible as the pure part takes it."""
    path = str(task.get_path() or "")
    with contextlib.suppress(ValueError):
        path = os.path.relpath(path) if path and not os.path.relpath(path).startswith("..") else path
    return Task(task.get_name().strip(), str(task.action), path, task.run_once is True)


def told_by(result: Any) -> dict[str, Any]:
    """Return what the error of a result says of its remedy, and where it came from if that is kept."""
    summary = getattr(result, "exception", None)
    event = getattr(summary, "event", None)
    remedy = list(dict.fromkeys(text for each in chained(event) if (text := getattr(each, "help_text", None))))
    if event is None:
        return {"remedy": (), "trace": str(summary or "")}
    said = "" if result.result.get("msg") else "\n".join(each.msg for each in chained(event))
    traces = [text for each in chained(event) if (text := getattr(each, "formatted_traceback", None))]
    return {"remedy": remedy, "trace": "\n".join(filter(None, [said, *traces]))}


def chained(event: Any) -> Iterator[Any]:
    """Give an event, then its causes."""
    while event is not None:
        yield event
        event = getattr(getattr(event, "chain", None), "event", None)


def dealt_with(task: Any, ignored: bool) -> dict[str, Any]:
    """Tell how the playbook deals with a failure: by a rescue, whose own failures are told with what was before."""
    rescued = rescuing = False
    child, parent = task, task._parent
    while parent is not None and not rescued:
        if rescue := getattr(parent, "rescue", None):
            # An import leaves no trace in its block: what is in none of the other two parts is in the first.
            mine = {task._uuid, child._uuid}
            within = bool(mine & set(uuids(rescue)))
            rescuing = rescuing or within
            rescued = not within and not mine & set(uuids(getattr(parent, "always", None) or []))
        child, parent = parent, getattr(parent, "_parent", None)
    return {"ignored": ignored, "rescued": rescued, "rescuing": rescuing}


def uuids(parts: Sequence[Any]) -> Iterator[str]:
    """Give the names of tasks and blocks, and of all within them."""
    for part in parts:
        yield part._uuid
        for section in ("block", "rescue", "always"):
            yield from uuids(getattr(part, section, None) or [])
