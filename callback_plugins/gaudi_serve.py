"""What every run of a playbook has: the project's filters loaded once, and an exit status of its own when refused."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
from typing import Any

from ansible import constants as C
from ansible.errors import AnsibleParserError
from ansible.plugins.callback import CallbackBase
from ansible.plugins.loader import action_loader, become_loader, connection_loader, filter_loader, shell_loader
from ansible.release import __version__

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


def refuse_older(found: str) -> None:
    """End the run with a sentence where ansible-core is older than the project needs; later it would be a traceback."""
    if [int(part) for part in re.findall(r"\d+", found)[:2]] < OLDEST:
        needed = ".".join(map(str, OLDEST))
        sys.stderr.write(
            f"gaudi-serve: this is ansible-core {found}; {needed} or newer is needed (requirements.txt names "
            "the tested one, make deps installs it). Nothing has been changed.\n"
        )
        raise SystemExit(REFUSED)


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

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Load what reaches the hosts: a fork would read its documentation, which is YAML, for every task again."""
        for name in self.connections(play) - self.loaded:
            self.loaded.add(name)
            with contextlib.suppress(Exception):  # said where it is used
                connection_loader.get(name, class_only=True)
        self.keep_variables(play)
        self.tell_unread(play)

    def keep_variables(self, play: Any) -> None:
        """Read the play's files of variables once: they would be parsed again for every task of every host."""
        for name in play.get_vars_files():
            with contextlib.suppress(Exception):  # said where it is used
                found = play.get_loader().path_dwim_relative_stack(play.get_search_path(), "vars", name)
                play.get_loader().load_from_file(found, cache="all", unsafe=True, trusted_as_template=True)

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
