"""What every run of a playbook has: the project's filters loaded once, and an exit status of its own when refused."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import jinja2
from ansible import constants as C
from ansible.errors import AnsibleParserError
from ansible.plugins.callback import CallbackBase
from ansible.plugins.loader import action_loader, become_loader, connection_loader, filter_loader, shell_loader
from ansible.release import __version__
from ansible.template import Templar

try:
    from ansible._internal._templating import _jinja_bits as jinja_bits
except ImportError:  # of an older or a newer release
    jinja_bits = None

DOCUMENTATION = """
name: gaudi_serve
type: aggregate
short_description: Loads plugins once, and tells a refused run from a failed one
description:
  - A task runs in a fork of the controller's process, which keeps no plugin that it loads. With this callback
    a run that changes nothing takes half the time. It shows nothing.
  - A run in which hosts were refused, nothing else failed and nothing was changed ends with status 3, not 2.
"""

REFUSED = 3
# What it uses of ansible-core came with this release. No sentence here may need a newer one.
OLDEST = [2, 19]
# The first words of every refusal that comes before anything is changed.
NOTHING = "Nothing has been changed"
WORD = re.compile(r"[A-Za-z_]\w*")


def refuse_older(found: str) -> None:
    """End the run with a sentence where ansible-core is older than the project needs; later it would be a traceback."""
    if [int(part) for part in re.findall(r"\d+", found)[:2]] < OLDEST:
        needed = ".".join(map(str, OLDEST))
        sys.stderr.write(
            f"gaudi-serve: this is ansible-core {found}; {needed} or newer is needed (requirements.txt names "
            "the tested one, make deps brings it). Nothing has been changed.\n"
        )
        raise SystemExit(REFUSED)


class Templates:
    """Compiled templates by their text, which forks inherit; each would compile what it needs for its one task anew.

    ansible-core compiles a template whenever it meets one, which is half of what a task costs that changes nothing.
    What is kept is Jinja's code of a text, without values, and without what tells whether the text may be a template.
    """

    def __init__(self) -> None:
        self.codes: dict[tuple[Any, ...], Any] = {}
        self.seen: set[tuple[str, str]] = set()
        self.environment: Any = None

    def install(self) -> None:
        """Let ansible-core compile no text twice.

        Raises:
            Exception: where its inner parts are others than those of the tested release; then nothing is kept.
        """
        kind, context = jinja_bits.AnsibleEnvironment, jinja_bits._TemplateCompileContext
        inner, settings = kind.compile, jinja_bits._TEMPLATE_OVERRIDE_FIELD_NAMES
        self.environment = Templar()._engine.environment

        def compiled(environment: Any, source: Any, *more: Any, **named: Any) -> Any:
            if type(source) is jinja2.nodes.Template or more or named or environment._debuggable_template_source:
                return inner(environment, source, *more, **named)
            now = context.current(optional=True)
            key = (str(source), now and now.escape_backslashes, *(getattr(environment, one) for one in settings))
            if key not in self.codes:
                self.codes[key] = inner(environment, source)
            return self.codes[key]

        kind.compile = compiled

    def learn(self, task: Any, files: Any) -> None:
        """Compile what a task's templates take, before the first fork works on it.

        Args:
            task: the task.
            files: the variables of the play's files, as they stand there.
        """
        role = task._role
        known = [*files, role.get_default_vars(), role.get_vars()] if role else [*files]
        waiting = [task.get_vars(), task.args, task.loop, task.delegate_to]
        while waiting:
            for text in texts(waiting.pop()):
                # Another role may mean another thing by the same name.
                if (str(role), text) not in self.seen:
                    self.seen.add((str(role), text))
                    with contextlib.suppress(Exception), jinja_bits._TemplateCompileContext(escape_backslashes=True):
                        self.environment.compile(text)
                    waiting += [some[name] for name in WORD.findall(text) for some in known if name in some]


def texts(value: Any) -> Iterator[str]:
    """Yield the templates in a value."""
    if isinstance(value, str):
        if "{{" in value or "{%" in value:
            yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from texts(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from texts(one)


class CallbackModule(CallbackBase):  # type: ignore[misc]  # ansible-core has no type information
    """Shows nothing; its first event comes before the first fork, its last one after all others."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "gaudi_serve"

    def __init__(self) -> None:
        super().__init__()
        self.refused: dict[str, bool] = {}
        self.loaded: set[str] = set()
        self.read: set[str] = set()
        self.templates = Templates()
        self.files: list[dict[str, Any]] = []

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Refuse an ansible-core that is too old, and load the file of filters, the catalog and what tasks are of.

        Raises:
            SystemExit: before the first task.
        """
        refuse_older(__version__)
        # What a run holds it needs to its end, and to look through it for garbage all the time takes a seventh of it.
        gc.set_threshold(100_000, 50, 100)
        with contextlib.suppress(Exception):  # told where it is used
            filter_loader.get("model_catalog").j2_function([], builtin=True)
        for name in ("set_fact", "debug", "fail", "normal"):
            action_loader.get(f"ansible.builtin.{name}", class_only=True)
        shell_loader.get("sh", class_only=True)
        become_loader.get("sudo", class_only=True)
        with contextlib.suppress(Exception):  # of another release: it takes longer
            self.templates.install()

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Load what reaches the hosts: a fork would read its documentation, which is YAML, for every task anew."""
        for name in self.connections(play) - self.loaded:
            self.loaded.add(name)
            with contextlib.suppress(Exception):  # said where it is used
                connection_loader.get(name, class_only=True)
        self.keep_variables(play)
        self.tell_unread(play)
        # No fork looks through what the controller holds for garbage, which would also copy all of it.
        gc.collect(0)
        gc.freeze()

    def keep_variables(self, play: Any) -> None:
        """Read the play's files of variables once: they would be parsed anew for every task of every host."""
        self.files = []
        for name in play.get_vars_files():
            with contextlib.suppress(Exception):  # said where it is used
                found = play.get_loader().path_dwim_relative_stack(play.get_search_path(), "vars", name)
                self.files.append(
                    play.get_loader().load_from_file(found, cache="all", unsafe=True, trusted_as_template=True)
                )

    def tell_unread(self, play: Any) -> None:
        """Say where a host's file of variables cannot be parsed: the error that ends the run then names no file."""
        variables = play.get_variable_manager()
        for host in variables._inventory.get_hosts(play.hosts):
            if host.name in self.read:
                continue
            self.read.add(host.name)
            try:
                variables.get_vars(play=play, host=host, include_hostvars=False)
            except AnsibleParserError as problem:
                # The place alone: the lines around it, or what could not be read, may hold secrets.
                place: Any = getattr(problem.__context__, "obj", None)
                if path := getattr(place, "path", None):
                    self._display.warning(f"{path}:{place.line_num}: {problem}")
                return
            except Exception:  # said where it is used
                return

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """Compile the task's templates once for all hosts."""
        with contextlib.suppress(Exception):
            self.templates.learn(task, self.files)

    def connections(self, play: Any) -> set[str]:
        """Return how the first host of a play is reached, which is how most of the others are."""
        with contextlib.suppress(Exception):
            variables = play.get_variable_manager()
            first = variables._inventory.get_hosts(play.hosts)[:1]
            found = [variables.get_vars(play=play, host=host, include_hostvars=False) for host in first]
            return {str(one.get("ansible_connection", play.connection or C.DEFAULT_TRANSPORT)) for one in found}
        return set()

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Keep whether a host's last failure was a refusal."""
        if not ignore_errors:
            said = result.result.get("msg")
            first = said[0] if isinstance(said, list) and said else said
            self.refused[result.host.get_name()] = str(first).startswith(NOTHING)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """End the run with the status of a refusal where it was nothing else.

        Raises:
            SystemExit: ansible-playbook then ends with this status in place of its own.
        """
        failed = [name for name in stats.processed if stats.failures.get(name)]
        lost = any(stats.dark.values())
        if failed and not lost and not any(stats.changed.values()) and all(map(self.refused.get, failed)):
            raise SystemExit(REFUSED)
