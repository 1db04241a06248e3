"""The habana runtime's config.toml: edited where that is safe, and what of it lets no container start.

Only the controller reads TOML: the hosts' Python may be one without tomllib.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

from ..core.errors import InputError, one_line, shown

PATH = "/etc/habana-container-runtime/config.toml"
SECTION, KEY = "habana-container-runtime", "visible_devices_all_as_default"
WANTED = f"{KEY} = false"
NAMED = r"""(?:{0}|"{0}"|'{0}')"""
HEADER = re.compile(rf"\s*\[\s*{NAMED.format(SECTION)}\s*\]\s*(#.*)?")
OF_KEY = re.compile(rf"\s*{NAMED.format(KEY)}\s*=")
DOTTED = re.compile(rf"\s*{NAMED.format(SECTION)}\s*\.\s*{NAMED.format(KEY)}\s*=")
# What the runtime is given, and what that does to every container.
STOPS = {
    "accept-habana-visible-devices-envvar-when-unprivileged": "refuses every container without CAP_SYS_ADMIN",
    "mount_accelerators": "gives no container a card",
}


def parsed(text: str | None, host_name: str = "this host") -> dict[str, Any]:
    """Return the file's content.

    Raises:
        InputError: with the place, where the text is no TOML, or where the section is no table.
    """
    import tomllib

    try:
        found = tomllib.loads(text or "")
    except tomllib.TOMLDecodeError as problem:
        raise _refusal(host_name, f"is no TOML, and the runtime starts no container with it: {problem}") from None
    if not isinstance(found.get(SECTION, {}), dict):
        raise _refusal(host_name, f"{SECTION} must be a table, it is {shown(found[SECTION])}")
    return found


def habana_config(text: str | None, host_name: str = "this host") -> str:
    """Return the habana runtime's config.toml with ``visible_devices_all_as_default = false``.

    Without it, a container of this runtime that names no cards gets all of them. The runtime reads the key in its own
    section only. All else stays to the letter, in every way in which TOML lets a section be written.

    Args:
        text: the file's text, None where there is none.
        host_name: how messages call the host.

    Raises:
        InputError: where the text is no TOML, or where no edit of one line leaves all else what it is.
    """
    found = parsed(text, host_name)
    if found.get(SECTION, {}).get(KEY) is False:
        return text or ""
    expected = copy.deepcopy(found)
    expected.setdefault(SECTION, {})[KEY] = False
    for result in _edits(text or ""):
        try:
            if parsed(result) == expected:
                return result
        except InputError:
            continue
    way = "is written in a way that cannot be edited safely, such as an inline table"
    raise _refusal(host_name, f"section {SECTION} {way}; set {WANTED} there")


def habana_config_problems(text: str | None, host_name: str = "this host") -> list[str]:
    """Return why no server can start with this config.toml, as sentences; what habana_config mends is none.

    Args:
        text: the file's text, None where there is none.
        host_name: how messages call the host.
    """
    try:
        habana_config(text, host_name)
    except InputError as problem:
        return [str(problem)]
    found = parsed(text)
    return [
        str(_refusal(host_name, f"{key} = false {effect}; take the line out, or set it to true"))
        for key, effect in STOPS.items()
        if found.get(key) is False
    ]


def _refusal(host_name: str, text: str) -> InputError:
    return InputError(f"{host_name}: {PATH}: {one_line(text)}. The file is unchanged; fix it and run again.")


def _edits(text: str) -> Iterator[str]:
    """Yield the texts that one changed line makes, the most natural first; which of them is right, TOML itself says."""
    lines = text.split("\n")
    for begin in (number + 1 for number, line in enumerate(lines) if HEADER.fullmatch(line)):
        end = next((i for i in range(begin, len(lines)) if lines[i].lstrip().startswith("[")), len(lines))
        # A line in force goes before one that is commented out: the key twice would be no TOML.
        for number in range(begin, end):
            if OF_KEY.match(lines[number]):
                yield _with(lines, number, number + 1, WANTED)
        for number in range(begin, end):
            if OF_KEY.match(lines[number].lstrip().lstrip("#")):
                yield _with(lines, number, number + 1, WANTED)
        yield _with(lines, begin, begin, WANTED)
    for number, line in enumerate(lines):
        if DOTTED.match(line):
            yield _with(lines, number, number + 1, f"{SECTION}.{WANTED}")
    ended = text if not text or text.endswith("\n") else f"{text}\n"
    yield f"{ended}[{SECTION}]\n{WANTED}\n"
    yield f"{SECTION}.{WANTED}\n{text}"


def _with(lines: list[str], begin: int, end: int, line: str) -> str:
    return "\n".join([*lines[:begin], line, *lines[end:]])
