"""Shows a run as its stages. With -v and more it shows Ansible's own output."""

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

# Works from every playbook, molecule, ansible-runner and AWX, without installation.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from gaudi_serve.show.live_row import LiveRow, can_reserve
from gaudi_serve.show.progress import Reports
from gaudi_serve.show.stage_output import Line, Outcome, Play, StageOutput, Task

DOCUMENTATION = """
name: gaudi_serve_stages
type: stdout
short_description: Shows a run as its stages
description:
  - Shows one line for each host and stage with changes, with the changes and the duration, a live line for tasks that
    run longer than ten seconds, and complete messages and errors. Shows nothing for stages without changes.
  - With C(-v) and more it shows Ansible's own output, as E(ANSIBLE_STDOUT_CALLBACK=default) does.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
"""

TICK_S = 1.0
# From ansible-core 2.21 on, the task of a result is a copy with rendered templates; before, task_fields had these.
RENDERED_TASKS = tuple(map(int, __version__.split(".")[:2])) >= (2, 21)
COLOURS = {
    "changed": constants.COLOR_CHANGED,
    "error": constants.COLOR_ERROR,
    "ok": constants.COLOR_OK,
    "unreachable": constants.COLOR_UNREACHABLE,
    "waiting": constants.COLOR_SKIP,
}
# A prompt must not be overwritten.
ASKS = ("pause",)


def staged(method: Callable[..., list[Line] | None]) -> Callable[..., None]:
    """Show an event in the project's format; in Ansible's with -v, or if this format fails."""
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
                # A bug in this file must not hide an event.
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
        # Also used by the thread of the live line, and by the thread that receives results of items.
        self.lock = threading.RLock()
        self.process = os.getpid()
        self.output = StageOutput()
        self.row: LiveRow | None = None
        self.reports: Reports | None = None
        self.ended = threading.Event()
        self.diff_host = ""

    @property
    def verbose(self) -> bool:
        """Return whether the user asked for more than stages."""
        return bool(self._display.verbosity > 0)

    # ---- the screen

    def begin(self) -> None:
        """Start the thread of the live line."""
        # ansible-runner reads the output as events, whichever callback wrote it.
        read = "AWX_ISOLATED_DATA_DIR" in os.environ or context.CLIARGS.get("step")
        self.row = LiveRow(sys.stdout) if not read and can_reserve(sys.stdout) else None
        self.reports = Reports.opened()
        self.output = StageOutput(time.monotonic(), self.width() if self.row else 0)
        atexit.register(self.end)
        threading.Thread(target=self.watch, name=self.CALLBACK_NAME, daemon=True).start()

    @staticmethod
    def width() -> int:
        """Return the terminal's width in characters; 80 if it is unknown."""
        return shutil.get_terminal_size().columns

    @property
    def live(self) -> bool:
        """Return whether the terminal has a row for the live line."""
        return bool(self.row and self.row.columns)

    def take_reports(self) -> None:
        """Accept progress reports of running tasks. Without a live line they are shown as they are."""
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
        """Flush the output, so that it is visible at once, also in a pipe."""
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()

    def redraw(self) -> None:
        """Show long tasks on the live line; nothing while a prompt waits."""
        if self.row and not self.ended.is_set():
            self.row.draw("" if self.asks() else self.output.live(time.monotonic(), self.row.columns))

    def asks(self) -> bool:
        """Return whether a running task waits for a user."""
        return any(run.task.module in ASKS for run in self.output.running.values())

    def release(self) -> None:
        """Remove the live line."""
        self.ended.set()
        if self.row:
            self.row.release()

    def watch(self) -> None:
        """Update the live line until the run ends."""
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
        """Show everything that is pending if the run is interrupted."""
        if os.getpid() == self.process and not self.ended.is_set():
            with self.lock, contextlib.suppress(Exception):
                self.release()
                self.show(self.output.end_play())

    # ---- Ansible's events

    @staged
    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Start the run."""
        self.begin()

    @staged
    def v2_playbook_on_vars_prompt(self, *args: Any, **kwargs: Any) -> list[Line]:
        """Show everything that is pending before a prompt."""
        return self.output.end_play()

    @staged
    def v2_playbook_on_play_start(self, play: Any) -> list[Line]:
        """End the previous play, and start this one."""
        self._play = play
        hosts: tuple[str, ...] = ()
        with contextlib.suppress(Exception):
            hosts = tuple(play.get_variable_manager().get_vars(play=play)["ansible_play_hosts_all"])
        stage = str((play.vars or {}).get("gaudi_stage", ""))
        return self.output.play(Play(play.get_name().strip(), hosts, bool(play.check_mode), stage))

    @staged
    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> list[Line]:
        """Show the output of the previous task."""
        return self.output.task(task_of(task))

    @staged
    def v2_playbook_on_handler_task_start(self, task: Any) -> list[Line]:
        """Show the output of the previous task."""
        return self.output.task(task_of(task))

    @staged
    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Record that a host works."""
        self.output.started(host.get_name(), task_of(task), time.monotonic())

    @staged
    def v2_runner_on_ok(self, result: Any) -> list[Line]:
        """Record a change."""
        return [*self.warned(result), *self.output.ok(self.outcome(result), time.monotonic())]

    @staged
    def v2_runner_item_on_ok(self, result: Any) -> list[Line]:
        """Record a change."""
        self._handle_warnings(result.result)
        return self.output.item(self.outcome(result, item=True))

    @staged
    def v2_runner_on_skipped(self, result: Any) -> None:
        """Record that a host had nothing to do."""
        self.output.skipped(self.outcome(result), time.monotonic())

    @staged
    def v2_runner_item_on_skipped(self, result: Any) -> None:
        """Show nothing."""

    @staged
    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> list[Line]:
        """Show what failed and why, unless the playbook handles it itself."""
        self._handle_warnings(result.result)
        told = {**dealt_with(result.task, ignore_errors), **told_by(result)}
        return self.output.failure(self.outcome(result), time.monotonic(), **told)

    @staged
    def v2_runner_item_on_failed(self, result: Any) -> list[Line]:
        """Show which item failed and why."""
        self._handle_warnings(result.result)
        told = {**dealt_with(result.task, bool(field(result, "ignore_errors"))), **told_by(result)}
        return self.output.item_failure(self.outcome(result, item=True), **told)

    @staged
    def v2_runner_on_unreachable(self, result: Any) -> list[Line]:
        """Show which host is unreachable."""
        self._handle_warnings(result.result)
        return self.output.unreachable(self.outcome(result), time.monotonic(), bool(result.task.ignore_unreachable))

    @staged
    def v2_on_file_diff(self, result: Any) -> None:
        """Show differences of files as Ansible does, below a line of this callback."""
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
        """Show nothing: the live line shows that the task runs."""

    @staged
    def v2_runner_on_async_poll(self, result: Any) -> None:
        """Show nothing: the live line shows that the task runs."""

    @staged
    def v2_runner_on_async_ok(self, result: Any) -> None:
        """Show nothing: the end of the task does."""

    @staged
    def v2_runner_on_async_failed(self, result: Any) -> None:
        """Show nothing: the end of the task does."""

    @staged
    def v2_playbook_on_include(self, included_file: Any) -> None:
        """Show nothing."""

    @staged
    def v2_playbook_on_notify(self, handler: Any, host: Any) -> None:
        """Show nothing."""

    @staged
    def v2_playbook_on_no_hosts_matched(self) -> None:
        """Record that a play has no hosts."""
        self.output.nobody = True

    @staged
    def v2_playbook_on_no_hosts_remaining(self) -> list[Line]:
        """Show everything that is pending. The reasons of hosts that dropped out are above."""
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
        """Show warnings; those that begin with their host as messages, so that several hosts share a line."""
        host = result.host.get_name()
        texts = [str(text) for text in result.result.get("warnings") or []]
        if texts and all(text.startswith(f"{host}: ") for text in texts):
            result.result.pop("warnings")
            return self.output.note(host, task_of(result.task), texts)
        self._handle_warnings(result.result)
        return []

    # ---- translation

    def outcome(self, result: Any, item: bool = False) -> Outcome:
        """Return a result of Ansible for StageOutput, without secrets."""
        found = result.result
        hidden = bool(found.get("_ansible_no_log") or "censored" in found)
        # With strategy free, only the result has a task name with rendered variables.
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
        """Return the output of a debug of a variable."""
        self._clean_results(found, action)
        return textwrap.dedent(str(self._dump_results(found))).strip("\n")


def field(result: Any, name: str) -> Any:
    """Return a field of a result's task, with rendered templates."""
    return getattr(result.task, name) if RENDERED_TASKS else result.task_fields.get(name)


@functools.lru_cache(maxsize=64)
def task_of(task: Any) -> Task:
    """Return a task of Ansible for StageOutput."""
    path = str(task.get_path() or "")
    with contextlib.suppress(ValueError):
        path = os.path.relpath(path) if path and not os.path.relpath(path).startswith("..") else path
    return Task(task.get_name().strip(), str(task.action), path, task.run_once is True)


def told_by(result: Any) -> dict[str, Any]:
    """Return the remedy of a result's error, and its origin if that is available."""
    summary = getattr(result, "exception", None)
    event = getattr(summary, "event", None)
    remedy = list(dict.fromkeys(text for each in chained(event) if (text := getattr(each, "help_text", None))))
    if event is None:
        return {"remedy": (), "trace": str(summary or "")}
    said = "" if result.result.get("msg") else "\n".join(each.msg for each in chained(event))
    traces = [text for each in chained(event) if (text := getattr(each, "formatted_traceback", None))]
    return {"remedy": remedy, "trace": "\n".join(filter(None, [said, *traces]))}


def chained(event: Any) -> Iterator[Any]:
    """Yield an event, then its causes."""
    while event is not None:
        yield event
        event = getattr(getattr(event, "chain", None), "event", None)


def dealt_with(task: Any, ignored: bool) -> dict[str, Any]:
    """Return how the playbook handles a failure: by a rescue, whose own failures are shown with the first one."""
    rescued = rescuing = False
    child, parent = task, task._parent
    while parent is not None and not rescued:
        if rescue := getattr(parent, "rescue", None):
            # An import leaves no trace in its block: an entry that is not in the other two parts is in the first.
            mine = {task._uuid, child._uuid}
            within = bool(mine & set(uuids(rescue)))
            rescuing = rescuing or within
            rescued = not within and not mine & set(uuids(getattr(parent, "always", None) or []))
        child, parent = parent, getattr(parent, "_parent", None)
    return {"ignored": ignored, "rescued": rescued, "rescuing": rescuing}


def uuids(parts: Sequence[Any]) -> Iterator[str]:
    """Yield the names of tasks and blocks, and of everything within them."""
    for part in parts:
        yield part._uuid
        for section in ("block", "rescue", "always"):
            yield from uuids(getattr(part, section, None) or [])
