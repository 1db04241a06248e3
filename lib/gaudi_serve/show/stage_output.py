"""The output of a run for people: stages, their changes, errors and slow tasks.

This module only turns events into lines; the callback ``gaudi_serve_stages`` connects it to Ansible.
"""

from __future__ import annotations

import dataclasses
import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..core.errors import BROKE, connection_broke
from ..core.words import counted, some_names
from ..stages import registry

Result = Mapping[str, Any]

# The stages that preflight announces. Messages that they repeat before their first change are not shown again.
STAGES = tuple(registry.STAGES.values())
ANNOUNCED = re.compile(rf"({'|'.join(STAGES)}): ")
MODEL_LINE = re.compile(r"[+~-] \S")
# The end of a progress message of vllm_wait; the live line shows its own time.
MINUTES = re.compile(r" \(\d+ min\)$")
# Names for a group of tasks (the part before the bar in their names) that describe the change better than its tasks.
# A key is the stage and the group; the empty name is for steps that are not results.
TOPICS = {
    ("host", "Grub"): "kernel arguments",
    ("host", "Sysctl"): "sysctl",
    ("host", "Governor"): "CPU governor",
    ("images", "Load"): "",
    ("images", "Build"): "",
    ("images", "Serve"): "",
}
# Modules that change only the toolkit's own records; they are shown only if a stage changed nothing else.
NOTES = ("gaudi_baseline", "gaudi_lock", "gaudi_dpkg")
# Verbs of pending changes, and their past forms for finished ones.
DONE = {
    "disable": "disabled",
    "enable": "enabled",
    "install": "installed",
    "provide": "provided",
    "purge": "purged",
    "reboot": "rebooted",
    "reload": "reloaded",
    "remove": "removed",
    "restart": "restarted",
    "start": "started",
    "stop": "stopped",
    "write": "written",
}
STATES = {"started": "start", "restarted": "restart", "stopped": "stop", "reloaded": "reload"}
FILES = ("copy", "template", "file", "lineinfile", "blockinfile", "replace", "get_url", "deb822_repository")
# Messages of a role that a playbook shows again for each host at its end.
LISTED_AT_THE_END = ("Reset | Show the changes",)
FEW = 3  # files that are listed by name; above this, only their number is shown
MANY = 4  # hosts; above this, the failed ones are shown again at the end with their reasons
SUMMARY_LENGTH = 200  # characters of such a reason
# Beginnings of failure messages that give no reason: of every refusal, and of every failed program.
HEADING, PROGRAM = "Nothing has been changed", "non-zero return code"
COUNTED, LOST = ("ok", "changed", "failures", "unreachable"), ("error", "unreachable")
LONG_S = 10.0  # a task that takes longer is shown while it runs
PLAIN_EVERY_S = 60.0  # without a terminal, a slow task is shown again after this time
# Keys of a failed result that give no reason: Ansible's own, and those that are shown separately.
QUIET_KEYS = (
    *("changed", "failed", "invocation", "diff", "exception", "warnings", "deprecations", "skipped", "skip_reason"),
    *("msg", "cmd", "rc", "stdout", "stderr", "module_stdout", "module_stderr", "stdout_lines", "stderr_lines"),
    *("start", "end", "delta", "item", "results", "censored", "attempts", "unreachable", "failed_when_result"),
    *("ansible_loop_var", "ansible_facts", "finished", "started", "ansible_job_id", "results_file", "elapsed"),
    "old_python",
)


@dataclasses.dataclass(frozen=True)
class Line:
    """A line for the screen; ``kind`` chooses its colour: plain, changed, error, unreachable, waiting or ok."""

    text: str
    kind: str = "plain"


@dataclasses.dataclass(frozen=True)
class Play:
    """A play, or one of its batches.

    hosts: the hosts of the play. stage: the stage that a play of the project sets (``vars: {gaudi_stage: host}``);
    for other plays, the name is shown.
    """

    name: str
    hosts: tuple[str, ...] = ()
    check: bool = False
    stage: str = ""

    @property
    def ours(self) -> bool:
        """Return whether the play belongs to the project."""
        return bool(self.stage)

    @property
    def label(self) -> str:
        """Return the short name of its stage, or the name of the play."""
        return self.stage or self.name


@dataclasses.dataclass(frozen=True)
class Task:
    """A task. ``name`` may begin with role and colon, ``path`` is file and line, ``here`` is its name in results."""

    name: str
    action: str = ""
    path: str = ""
    run_once: bool = False
    here: str = dataclasses.field(default="", compare=False)

    @property
    def module(self) -> str:
        """Return the module's name without its collection."""
        return self.action.rpartition(".")[2]

    @property
    def own_name(self) -> str:
        """Return the name without the role."""
        own = (self.here or self.name).rpartition(" : ")[2].strip()
        return own if own not in ("", self.action) else self.module

    @property
    def group(self) -> str:
        """Return the part of the name before the bar; empty without a bar."""
        return self.own_name.partition(" | ")[0] if " | " in self.own_name else ""

    @property
    def phrase(self) -> str:
        """Return the action of the task, beginning in lowercase."""
        text = self.own_name.partition(" | ")[2] or self.own_name
        return text if text[:2].isupper() else text[:1].lower() + text[1:]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a task, or of one item of its loop, on a host; ``args`` is empty if they are secret."""

    host: str
    task: Task
    result: Result = dataclasses.field(default_factory=dict)
    args: Result = dataclasses.field(default_factory=dict)
    changed: bool = False
    item: str = ""
    hidden: bool = False


@dataclasses.dataclass(frozen=True)
class Change:
    """A change; a ``weak`` one is shown only if there is no better one."""

    verb: str
    name: str
    weak: bool = False
    item: str = ""


@dataclasses.dataclass
class StageResult:
    """The changes of a stage on one host."""

    changes: list[Change] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    failed: bool = False


@dataclasses.dataclass
class Running:
    """A task that is running on a host."""

    task: Task
    begin: float
    told: float  # time of the last report, or of the start
    progress: str = ""


def names(words: Sequence[str], most: int = 0) -> str:
    """Return words in one line; above ``most`` words (0: no limit), the rest as a number."""
    if most and len(words) > most:
        return f"{', '.join(words[: most - 1])} and {len(words) - most + 1} more"
    return ", ".join(words)


def format_duration(seconds: float) -> str:
    """Return a duration as readable text: seconds, or minutes and seconds."""
    whole = round(seconds)
    return f"{whole} s" if whole < 120 else f"{whole // 60} min {whole % 60:02} s"


def base(path: object) -> str:
    """Return the last part of a path."""
    return str(path).rstrip("/").rpartition("/")[2]


def changes(outcome: Outcome, stage: str) -> list[Change]:
    """Return the changes of an outcome, from the module's arguments and result, or else from the task's name."""
    task, args, result = outcome.task, outcome.args, outcome.result
    topic = TOPICS.get((stage, task.group))
    if task.module in NOTES:
        installed = args.get("installed") if isinstance(args.get("installed"), Mapping) else {}
        images = (installed or {}).get("images") or {}
        # An image without an identifier is still being provided and may fail.
        come = [Change("provide", str(name)) for name, known in images.items() if known]
        return come or [Change("", task.phrase, weak=True)]
    if task.module == "debug":
        return [Change("", _without_would(line)) for line in said(result)]
    if topic:
        return [Change("", topic)]
    found = [] if outcome.hidden else _by_module(task.module, args, result)
    if topic == "":
        return [Change(change.verb, change.name, weak=True) for change in found] or [Change("", task.phrase, weak=True)]
    return found or [Change("", task.phrase, item="" if outcome.hidden else outcome.item)]


def _by_module(module: str, args: Result, result: Result) -> list[Change]:
    if module == "gaudi_files":
        written, removed = result.get("written") or [], result.get("removed") or []
        return [*(Change("write", base(path)) for path in written), *(Change("remove", base(path)) for path in removed)]
    if module in ("apt", "package", "dnf"):
        given = args.get("name") or args.get("pkg") or []
        packages = given if isinstance(given, list) else str(given).split(",")
        verb = ("purge" if args.get("purge") else "remove") if args.get("state") == "absent" else "install"
        return [Change(verb, str(package).strip()) for package in packages if str(package).strip()]
    if module in ("systemd_service", "systemd", "service"):
        return _unit(args, result)
    if module == "reboot":
        return [Change("reboot", "")]
    path = (args.get("dest") or args.get("path") or args.get("name")) if module in FILES else ""
    return [Change("remove" if args.get("state") == "absent" else "write", base(path))] if path else []


def _unit(args: Result, result: Result) -> list[Change]:
    name = str(args.get("name") or "").removesuffix(".service")
    if not name:
        return [Change("reload", "systemd", weak=True)]
    verb = STATES.get(str(args.get("state") or ""), "")
    before = result.get("status")
    if verb == "restart" and isinstance(before, Mapping) and before.get("ActiveState") in ("inactive", "failed"):
        verb = "start"
    if not verb and args.get("enabled") is not None:
        verb = "enable" if args["enabled"] else "disable"
    return [Change(verb, name)] if verb else []


def _without_would(line: str) -> str:
    return line.removeprefix("would ")


def what(found: Iterable[Change], check: bool) -> str:
    """Return changes as words, grouped by verb in order of first use."""
    every = list(dict.fromkeys(found))
    kept = [change for change in every if not change.weak] or every
    groups: dict[str, list[str]] = {}
    for change in kept:
        # A change without a verb is a group of its own, with the items of its loop.
        groups.setdefault(change.verb or f" {change.name}", []).append(change.name if change.verb else change.item)
    parts = []
    for verb, named in groups.items():
        if verb.startswith(" "):
            items = [item for item in named if item]
            parts.append(f"{verb[1:]} ({names(items, 6)})" if items else verb[1:])
            continue
        about = counted(len(named), "file") if verb in ("write", "remove") and len(named) > FEW else names(named)
        words = (verb, about) if check else (about, DONE[verb])
        parts.append(" ".join(word for word in words if word))
    return ("; " if any(", " in part for part in parts) else ", ").join(parts)


def said(result: Result) -> list[str]:
    """Return the lines of a result's message: one for each entry of a list, or each line of a text."""
    if result.get("failed") and connection_broke(str(result.get("msg") or ""), result):
        return [f"{BROKE}. Check that the host answers; the next run completes what this one began"]
    return [line for text in _texts(result.get("msg")) for line in text.splitlines() or [""]]


def _texts(value: object) -> list[str]:
    if isinstance(value, (list, tuple)):
        return [text for part in value for text in _texts(part)]
    return [_text(value)] if value not in (None, "") else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False, sort_keys=True)


def reason(result: Result, remedy: Sequence[str] = (), trace: str = "") -> list[str]:
    """Return all lines that explain a failed result: the remedy, the message, then the output of programs."""
    lines = [line for text in remedy for line in text.splitlines()]
    lines += [line for line in said(result) if line not in lines]
    if "censored" in result:
        lines.append("its output is hidden, because the task has no_log")
    if "cmd" in result:
        words = result["cmd"]
        lines.append(f"command: {' '.join(map(str, words)) if isinstance(words, list) else words}")
    if result.get("rc") is not None:
        lines.append(f"status: {result['rc']}")
    for key in ("stderr", "stdout", "module_stderr", "module_stdout"):
        told = str(result.get(key) or "").strip("\n").splitlines()
        if [line for line in told if line not in lines]:
            lines += [f"{key}:", *(f"  {line}" for line in told)]
    rest = {key: value for key, value in result.items() if key not in QUIET_KEYS and not key.startswith("_")}
    lines += [f"{key}: {_text(value)}" for key, value in rest.items() if value not in (None, "", [], {})]
    lines += [line for line in trace.splitlines() if line not in lines]
    return lines or ["it failed silently"]


def summary(result: Result, words: Sequence[str], host: str) -> str:
    """Return one line that summarizes a failed result at the end of a long run."""
    lines = [line for line in said(result) if line.strip() and not line.startswith(HEADING)]
    if not lines or lines[0].startswith(PROGRAM):
        # Use the program's last line; its failure is already shown.
        told = [str(result.get(key) or "").strip().splitlines() for key in ("stderr", "stdout")]
        lines = [line[-1] for line in told if line] or lines or list(words)
    text = lines[0].strip().removeprefix(f"{host}: ").removeprefix("Task failed: ").rstrip(".:")
    return text if len(text) <= SUMMARY_LENGTH else f"{text[: SUMMARY_LENGTH - 1]}…"


class StageOutput:
    """The output of a run, event by event. Times are seconds of one clock that the caller provides."""

    def __init__(self, now: float = 0.0, columns: int = 0) -> None:
        """Start the output of a run.

        Args:
            now: when the run began.
            columns: the terminal's width; 0 disables folding.
        """
        self.begin = now
        self.columns = columns
        self.current = Play("")
        self.work: dict[str, StageResult] = {}
        self.running: dict[str, Running] = {}
        self.waiting: dict[str, list[str]] = {}
        self.waiting_task: Task | None = None
        self.announced: set[tuple[str, str]] = set()
        self.told: dict[str, set[str]] = {}
        self.rescued: dict[str, list[str]] = {}
        self.items: set[tuple[str, str]] = set()
        self.changed: dict[str, list[str]] = {}
        self.failed: dict[str, str] = {}
        self.why: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self.nobody = False

    # ---- events

    def play(self, play: Play) -> list[Line]:
        """Begin a play; return the remaining lines of the previous play."""
        lines = self.end_play()
        self.current = play
        return lines

    def end_play(self) -> list[Line]:
        """Return the remaining lines of a play: one for each host with changes."""
        lines = self.flush()
        order = {host: number for number, host in enumerate(self.current.hosts)}
        for host in sorted(self.work, key=lambda name: (order.get(name, len(order)), name)):
            work = self.work[host]
            if work.changes:
                lines += self._stage_lines(host, work)
        self.work, self.running, self.rescued = {}, {}, {}
        return lines

    def task(self, task: Task) -> list[Line]:
        """Begin a task; return the messages of the previous task, or at a rollout's wave all remaining lines."""
        if self.current.ours and task.group == "Wave":
            return self.end_play()
        return self.flush() if task != self.waiting_task else []

    def started(self, host: str, task: Task, now: float) -> None:
        """Record that a host has started a task."""
        self.running[host] = Running(task, now, now)

    def ok(self, outcome: Outcome, now: float) -> list[Line]:
        """Process a successful result."""
        self._ended(outcome.host, now)
        return self.item(outcome) if not self._had_items(outcome) else []

    def item(self, outcome: Outcome) -> list[Line]:
        """Process the result of one item of a loop, or of a task without a loop."""
        lines: list[Line] = []
        if outcome.item:
            self.items.add((outcome.host, outcome.task.path + outcome.task.name))
        if outcome.task.module == "debug":
            lines = [] if outcome.task.own_name in LISTED_AT_THE_END else self._debug(outcome)
        if outcome.changed:
            work = self.work.setdefault(outcome.host, StageResult())
            if outcome.task.module == "debug" and self.current.label not in STAGES:
                self._note_change(outcome.host)
                return lines
            work.changes += changes(outcome, self.current.label)
            self._note_change(outcome.host)
        return lines

    def skipped(self, outcome: Outcome, now: float) -> None:
        """Record that a host skipped a task."""
        self._ended(outcome.host, now)
        self._had_items(outcome)

    def failure(
        self,
        outcome: Outcome,
        now: float,
        *,
        ignored: bool = False,
        rescued: bool = False,
        rescuing: bool = False,
        remedy: Sequence[str] = (),
        trace: str = "",
    ) -> list[Line]:
        """Process a failure; if the playbook handles it, keep the lines until a later failure needs them."""
        self._ended(outcome.host, now)
        if self._had_items(outcome):
            # Each failed item was already shown.
            if not (ignored or rescued):
                self._failed(outcome.host)
            return []
        return self.item_failure(
            outcome, ignored=ignored, rescued=rescued, rescuing=rescuing, remedy=remedy, trace=trace
        )

    def item_failure(
        self,
        outcome: Outcome,
        *,
        ignored: bool = False,
        rescued: bool = False,
        rescuing: bool = False,
        remedy: Sequence[str] = (),
        trace: str = "",
    ) -> list[Line]:
        """Process the failure of one item of a loop, or of a task without a loop.

        Args:
            outcome: the failed result.
            ignored: the playbook continues.
            rescued: the playbook has rescue tasks that report the failure.
            rescuing: the task is such a rescue task; the earlier failure is shown with it.
            remedy: Ansible's own advice.
            trace: the origin of the failure, if known.
        """
        if outcome.item:
            self.items.add((outcome.host, outcome.task.path + outcome.task.name))
        words = reason(outcome.result, remedy, trace)
        if outcome.item:
            words = [f"with {outcome.item}:", *words]
        if rescued:
            self.rescued.setdefault(outcome.host, []).extend([f"{outcome.task.own_name}:", *(f"  {w}" for w in words)])
            return []
        if ignored:
            if self.current.ours:
                return []
            head = f"{outcome.host}  {self.current.label}  {outcome.task.own_name}"
            return [*self.flush(), Line(f"{head}: failed, which is ignored: {words[0]}")]
        self._failed(outcome.host, summary(outcome.result, words, outcome.host))
        where = f" ({outcome.task.path})" if outcome.task.path and outcome.task.module not in ("fail", "assert") else ""
        head = f"FAILED  {outcome.host}  {self.current.label}  {outcome.task.own_name}{where}"
        before = self.rescued.pop(outcome.host, []) if rescuing else []
        words += ["before that failed:", *before] if before else []
        return [*self.flush(), Line(head, "error"), *(Line(f"  {word}".rstrip(), "error") for word in words)]

    def unreachable(self, outcome: Outcome, now: float, ignored: bool = False) -> list[Line]:
        """Process an unreachable host."""
        self._ended(outcome.host, now)
        words = reason(outcome.result)
        if ignored:
            text = f"{outcome.host}  cannot be reached, which is ignored: {words[0]}"
            return [*self.flush(), Line(text, "unreachable")]
        self._failed(outcome.host, summary(outcome.result, words, outcome.host))
        head = f"UNREACHABLE  {outcome.host}  {self.current.label}  {outcome.task.own_name}"
        return [*self.flush(), *(Line(text.rstrip(), "unreachable") for text in (head, *(f"  {w}" for w in words)))]

    def diff(self, host: str, task: Task) -> list[Line]:
        """Return the heading of a file difference."""
        return [*self.flush(), Line(f"{host}  {self.current.label}  {task.own_name}:")]

    def progress(self, text: str, now: float) -> bool:
        """Process a message of a running task; return whether it is progress for the live line."""
        lines = [line.partition(": ") for line in text.splitlines()]
        if not lines or not all(host in self.running and about for host, _, about in lines):
            return False
        if any(self.running[host].task.module != "vllm_wait" for host, _, _ in lines):
            return False
        for host in {host for host, _, _ in lines}:
            parts = [MINUTES.sub("", about) for name, _, about in lines if name == host]
            self.running[host].progress = "; ".join(parts)
            self.running[host].told = now
        return True

    def stats(self, counts: Mapping[str, Mapping[str, int]], now: float) -> list[Line]:
        """End the run; return the remaining lines and a summary by host, merged for hosts with the same result.

        With many hosts, the failed ones come last, with their reasons, because the failures have scrolled away by then.
        """
        lines = self.end_play()
        ends: dict[tuple[str, str], list[str]] = {}
        worked = [host for host in sorted(counts) if any(counts[host].get(key) for key in COUNTED)]
        many = len(worked) > MANY
        for host in worked:
            ends.setdefault(self._end(host, counts[host], many), []).append(host)
        if many:
            ends = dict(sorted(ends.items(), key=lambda end: end[0][1] in LOST))
        if not ends and self.nobody:
            return [*lines, Line("no host: the inventory has none, or no play is about one of --limit", "error")]
        alone = len(ends) == 1
        for (text, kind), hosts in ends.items():
            taken = now - self.begin if alone else max(self.seconds.get(host, 0.0) for host in hosts)
            who = f"all {len(hosts)} hosts" if alone and many else names(hosts)
            lines.append(Line(f"{who}: {text} ({format_duration(taken)})", kind))
        return lines

    # ---- slow tasks

    def live(self, now: float, width: int) -> str:
        """Return the line for the slow tasks, cut to a width; empty without slow tasks."""
        parts = [text for _, text in self._long(now)]
        text = "   ".join(parts)
        return text if len(text) < width else f"{text[: max(0, width - 2)]}…"

    def slow(self, now: float) -> list[Line]:
        """Return plain lines for slow tasks: after ten seconds, and then once a minute."""
        lines = []
        for hosts, text in self._long(now):
            if any(self._is_due(self.running[host], now) for host in hosts):
                lines.append(Line(text, "waiting"))
                for host in hosts:
                    self.running[host].told = now
        return lines

    @staticmethod
    def _is_due(running: Running, now: float) -> bool:
        # A task that reports progress has its own lines.
        pause = LONG_S if running.told == running.begin else PLAIN_EVERY_S
        return not running.progress and now - running.told >= pause

    def _long(self, now: float) -> list[tuple[list[str], str]]:
        groups: dict[tuple[Task, str], list[str]] = {}
        for host, running in sorted(self.running.items(), key=lambda pair: pair[1].begin):
            if now - running.begin >= LONG_S:
                groups.setdefault((running.task, running.progress), []).append(host)
        found = []
        for (task, progress), hosts in groups.items():
            taken = format_duration(now - min(self.running[host].begin for host in hosts))
            about = f"{self.current.label}  {progress or task.phrase}"
            found.append((hosts, f"{names(hosts, 4)}  {about}, {taken} so far"))
        return found

    # ---- messages

    def _debug(self, outcome: Outcome) -> list[Line]:
        """Keep a message until all hosts have reported; return the messages of the previous task."""
        told = self.told.setdefault(outcome.host, set())
        lines = said(outcome.result)
        if self.current.ours and not isinstance(outcome.result.get("msg"), list):
            # In a folded YAML scalar, Jinja's '\\n' stays two characters.
            lines = [part for line in lines for part in line.split("\\n")]
        stage = self.current.label
        if stage == "preflight":
            for line in lines:
                if found := ANNOUNCED.match(line):
                    self.announced.add((found[1], outcome.host))
                elif MODEL_LINE.match(line):
                    self.announced.add(("models", outcome.host))
                told.add(ANNOUNCED.sub("", line, count=1))
        elif stage in STAGES:
            if outcome.changed:
                # The line of the stage shows the change.
                return []
            begun = any(not change.weak for change in self.work.get(outcome.host, StageResult()).changes)
            if not begun and (stage, outcome.host) in self.announced:
                return []
            lines = [line for line in lines if line not in told]
            told.update(lines)
        return self.note(outcome.host, outcome.task, lines)

    def note(self, host: str, task: Task, lines: Sequence[str]) -> list[Line]:
        """Keep lines of a host until all hosts have reported; return the messages of the previous task."""
        before = self.flush() if task != self.waiting_task else []
        self.waiting_task = task
        if lines:
            self.waiting.setdefault(host, []).extend(lines)
        return before

    def flush(self) -> list[Line]:
        """Return the messages of hosts; a message of several hosts is shown once."""
        waiting, task = self.waiting, self.waiting_task
        self.waiting, self.waiting_task = {}, None
        if not waiting:
            return []
        order = {host: number for number, host in enumerate(self.current.hosts)}
        waiting = dict(sorted(waiting.items(), key=lambda pair: order.get(pair[0], len(order))))
        waiting = _without_names(waiting)
        if (task and task.run_once) or (len(waiting) == 1 and len(self.current.hosts) <= 1):
            return [Line(line) for lines in waiting.values() for line in lines]
        whole: dict[tuple[str, ...], list[str]] = {}
        for host, lines in waiting.items():
            whole.setdefault(tuple(lines), []).append(host)
        groups: dict[tuple[str, ...], list[str]] = {}
        if len(whole) == 1 or not all(_is_list(lines) for lines in whole):
            groups = {tuple(hosts): list(lines) for lines, hosts in whole.items()}
        else:
            units = {host: _units(lines) for host, lines in waiting.items()}
            for unit in dict.fromkeys(unit for found in units.values() for unit in found):
                having = tuple(host for host, found in units.items() if unit in found)
                groups.setdefault(having, []).extend(unit)
        shown = []
        for hosts, lines in groups.items():
            shown += self._of(hosts, lines)
        return shown

    def _of(self, hosts: tuple[str, ...], lines: Sequence[str]) -> list[Line]:
        own = tuple(f"{host}: " for host in hosts)
        if all(line.startswith(own) for line in lines):
            return [Line(line) for line in lines]
        every = len(hosts) > 4 and set(hosts) == set(self.current.hosts)
        who = f"all {len(hosts)} hosts" if every else some_names(hosts)
        if len(lines) == 1:
            return [Line(f"{who}: {lines[0]}")]
        return [Line(f"{who}:"), *(Line(f"  {line}".rstrip()) for line in lines)]

    # ---- helpers

    def _had_items(self, outcome: Outcome) -> bool:
        key = (outcome.host, outcome.task.path + outcome.task.name)
        if key not in self.items:
            return False
        self.items.discard(key)
        return True

    def _ended(self, host: str, now: float) -> None:
        if running := self.running.pop(host, None):
            taken = now - running.begin
            self.work.setdefault(host, StageResult()).seconds += taken
            self.seconds[host] = self.seconds.get(host, 0.0) + taken

    def _note_change(self, host: str) -> None:
        labels = self.changed.setdefault(host, [])
        if self.current.label not in labels:
            labels.append(self.current.label)

    def _failed(self, host: str, why: str = "") -> None:
        self.failed[host] = self.current.label
        if why:
            self.why[host] = why
        self.work.setdefault(host, StageResult()).failed = True

    def _stage_lines(self, host: str, work: StageResult) -> list[Line]:
        wide = max((len(name) for name in self.current.hosts), default=0)
        column = 9 if self.current.ours else 0
        would = "would change: " if self.current.check else ""
        failed = " (then it failed)" if work.failed else ""
        head = f"{host:{wide}}  {self.current.label:{column}}  "
        body = f"{would}{what(work.changes, self.current.check)}{failed}  {format_duration(work.seconds)}"
        if self.columns and len(head) + len(body) > self.columns - 1 > len(head) + 20:
            folded = textwrap.wrap(body, self.columns - 1 - len(head), break_long_words=False, break_on_hyphens=False)
            rest = [Line(" " * len(head) + text, "changed") for text in folded[1:]]
            return [Line(head + folded[0], "changed"), *rest]
        return [Line(head + body, "changed")]

    def _end(self, host: str, counts: Mapping[str, int], many: bool) -> tuple[str, str]:
        labels = self.changed.get(host, [])
        verb = "would change" if self.current.check else "changed"
        did = "nothing would change" if self.current.check else "nothing changed"
        if labels or counts.get("changed"):
            did = f"{verb}: {', '.join(labels)}" if labels else f"{verb} {counted(counts['changed'], 'thing')}"
        why = f": {self.why[host]}" if many and host in self.why else ""
        # A host that failed after it was unreachable had become reachable again.
        if counts.get("failures"):
            return f"failed in {self.failed.get(host, self.current.label)}{why}; {did}", "error"
        if counts.get("unreachable"):
            return f"cannot be reached{why}; {did}", "unreachable"
        return did, "changed" if counts.get("changed") else "ok"


def _without_names(waiting: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the lines of hosts; lines that several hosts share lose the host's name at the beginning."""
    cut = {host: [line.removeprefix(f"{host}: ") for line in lines] for host, lines in waiting.items()}
    count = Counter(text for host, lines in cut.items() for text in set(lines) - set(waiting[host]))
    return {
        host: [text if count[text] > 1 else line for line, text in zip(lines, cut[host], strict=True)]
        for host, lines in waiting.items()
    }


def _is_list(lines: Sequence[str]) -> bool:
    """Return whether each line stands alone; the lines of a table do not."""
    return not any(line.startswith("--") for line in lines)


def _units(lines: Sequence[str]) -> list[tuple[str, ...]]:
    """Return lines, each together with the indented lines below it."""
    units: list[list[str]] = []
    for line in lines:
        if line.startswith(" ") and units:
            units[-1].append(line)
        else:
            units.append([line])
    return [tuple(unit) for unit in units]
