"""Reasons why a host cannot be read: its Python is too old, or sudo does not make the user root."""

from __future__ import annotations

import re

from .. import OLDEST_PYTHON

VERSION = re.compile(r"Python (\d+)\.(\d+)(\S*)")
# Messages of sudo, and of Ansible while it waits for sudo.
ROOT = re.compile(
    r"sudo: (?P<said>.*(?:password|terminal is required|sudoers).*)"
    r"|(?P<missing>(?:Missing|Incorrect) \w+ password)"
    r"|(?P<sudoers>\S+ is not in the sudoers file)"
    r"|(?P<waits>waiting for privilege escalation prompt)"
)


def python_refusal(said: str, host_name: str) -> str:
    """Return the message for a host whose Python is too old, or an empty text.

    Args:
        said: The version that the interpreter prints.
        host_name: The name of the host in messages.
    """
    found = VERSION.search(said)
    if not found or (int(found[1]), int(found[2])) >= OLDEST_PYTHON:
        return ""
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return (
        f"{host_name}: its Python is {found[1]}.{found[2]}{found[3]}, and the toolkit needs {oldest} or newer there; "
        "install one, and set ansible_python_interpreter to it"
    )


def root_refusal(said: str, host_name: str) -> str:
    """Return the message for a host on which the user does not become root, or an empty text for another cause.

    Args:
        said: Ansible's output of the failed task.
        host_name: The name of the host in messages.
    """
    found = ROOT.search(said)
    if not found:
        return ""
    why = next(text for text in found.groups() if text).strip().rstrip(".")
    return (
        f"{host_name}: sudo does not make this user root ({why}): give the password with --ask-become-pass or "
        "ansible_become_password, or let the user use sudo without one"
    )
