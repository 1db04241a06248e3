"""Why a host cannot be read: a Python that is too old, or a user whom sudo does not make root."""

from __future__ import annotations

import re

from .. import OLDEST_PYTHON

VERSION = re.compile(r"Python (\d+)\.(\d+)(\S*)")
# What sudo, and Ansible waiting for it, say.
ROOT = re.compile(
    r"sudo: (?P<said>.*(?:password|terminal is required|sudoers).*)"
    r"|(?P<missing>(?:Missing|Incorrect) \w+ password)"
    r"|(?P<sudoers>\S+ is not in the sudoers file)"
    r"|(?P<waits>waiting for privilege escalation prompt)"
)


def python_refusal(said: str, host_name: str) -> str:
    """Return the sentence for a host whose Python is too old; empty where it is not.

    Args:
        said: what the interpreter prints of its version.
        host_name: how messages call the host.
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
    """Return the sentence for a host on which the user does not become root; empty where that is not the cause.

    Args:
        said: what Ansible says of a task that has failed.
        host_name: how messages call the host.
    """
    found = ROOT.search(said)
    if not found:
        return ""
    why = next(text for text in found.groups() if text).strip().rstrip(".")
    return (
        f"{host_name}: sudo does not make this user root ({why}): give the password with --ask-become-pass or "
        "ansible_become_password, or let the user use sudo without one"
    )
