"""For every run of a playbook: loads the project's filters once, and sets a separate exit status for refused runs."""

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
short_description: Loads plugins once, and distinguishes a refused run from a failed one
description:
  - A task runs in a fork of the controller's process, whose loaded plugins are lost with it. This callback loads them
    before the fork, which halves the time of a run that changes nothing. It shows nothing.
  - A run ends with status 3, not 2, if hosts were refused, nothing else failed and nothing was changed.
"""

REFUSED = 3
# The features of ansible-core that it uses came with this release. No code here may need a newer one.
OLDEST = [2, 19]
# The first words of every refusal before any change.
NOTHING = "Nothing has been changed"


def refuse_older(found: str) -> None:
    """End the run with a sentence if ansible-core is too old; otherwise it would fail later with a traceback."""
    if [int(part) for part in re.findall(r"\d+", found)[:2]] < OLDEST:
        needed = ".".join(map(str, OLDEST))
        sys.stderr.write(
            f"gaudi-serve: this is ansible-core {found}; {needed} or newer is needed (requirements.txt names "
            "the tested one, make deps installs it). Nothing has been changed.\n"
        )
        raise SystemExit(REFUSED)


class CallbackModule(CallbackBase):  # type: ignore[misc]  # ansible-core has no type information
    """Shows nothing. Its first event comes before the first fork, its last one after all others."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "gaudi_serve"

    def __init__(self) -> None:
        super().__init__()
        self.refused: dict[str, bool] = {}
        self.loaded: set[str] = set()
        self.read: set[str] = set()

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Refuse an ansible-core that is too old, and load the filters, the catalog and the modules of tasks.

        Raises:
            SystemExit: before the first task.
        """
        refuse_older(__version__)
        # A run needs its objects until its end, and garbage collection would take a seventh of its time.
        gc.set_threshold(100_000, 50, 100)
        with contextlib.suppress(Exception):  # reported where it is used
            filter_loader.get("model_catalog").j2_function([], builtin=True)
        for name in ("set_fact", "debug", "fail", "normal"):
            action_loader.get(f"ansible.builtin.{name}", class_only=True)
        shell_loader.get("sh", class_only=True)
        become_loader.get("sudo", class_only=True)

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Load the code that is sent to hosts. A fork would parse its documentation, which is YAML, for every task."""
        for name in self.connections(play) - self.loaded:
            self.loaded.add(name)
            with contextlib.suppress(Exception):  # reported where it is used
                connection_loader.get(name, class_only=True)
        self.keep_variables(play)
        self.tell_unread(play)

    def keep_variables(self, play: Any) -> None:
        """Read the variable files of the play once, instead of for every task of every host."""
        for name in play.get_vars_files():
            with contextlib.suppress(Exception):  # reported where it is used
                found = play.get_loader().path_dwim_relative_stack(play.get_search_path(), "vars", name)
                play.get_loader().load_from_file(found, cache="all", unsafe=True, trusted_as_template=True)

    def tell_unread(self, play: Any) -> None:
        """Report which variable file of a host cannot be parsed, because Ansible's error does not name the file."""
        try:
            known = play.get_variable_manager().get_vars(play=play)
            for name in known["ansible_play_hosts_all"]:
                if name not in self.read:
                    self.read.add(name)
                    known["hostvars"].raw_get(name)
        except AnsibleParserError as problem:
            # Only the position: the lines around it, or the unreadable text, may contain secrets.
            place: Any = getattr(problem.__context__, "obj", None)
            if path := getattr(place, "path", None):
                self._display.warning(f"{path}:{place.line_num}: {problem}")
        except Exception:  # reported where it is used
            return

    def connections(self, play: Any) -> set[str]:
        """Return the connection of the first host of a play, which most of the other hosts also use."""
        with contextlib.suppress(Exception):
            known = play.get_variable_manager().get_vars(play=play)
            found = [known["hostvars"].raw_get(name) for name in known["ansible_play_hosts_all"][:1]]
            return {str(one.get("ansible_connection", play.connection or C.DEFAULT_TRANSPORT)) for one in found}
        return set()

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Record whether a host's last failure was a refusal."""
        if not ignore_errors:
            said = result.result.get("msg")
            first = said[0] if isinstance(said, list) and said else said
            self.refused[result.host.get_name()] = str(first).startswith(NOTHING)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """End the run with the status of a refusal if nothing else failed.

        Raises:
            SystemExit: ansible-playbook then exits with this status.
        """
        failed = [name for name in stats.processed if stats.failures.get(name)]
        lost = any(stats.dark.values())
        if failed and not lost and not any(stats.changed.values()) and all(map(self.refused.get, failed)):
            raise SystemExit(REFUSED)
