"""The habana runtime's config.toml: safe edits, and settings with which no container starts.

Only the controller parses TOML: the hosts' Python may lack tomllib.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..core.errors import InputError, one_line, shown
from .base import Settings

PATH = "/etc/habana-container-runtime/config.toml"
SECTION, KEY = "habana-container-runtime", "visible_devices_all_as_default"
WANTED = f"{KEY} = false"
NAMED = r"""(?:{0}|"{0}"|'{0}')"""
HEADER = re.compile(rf"\s*\[\s*{NAMED.format(SECTION)}\s*\]\s*(#.*)?", re.IGNORECASE)
OF_KEY = re.compile(rf"\s*{NAMED.format(KEY)}\s*=", re.IGNORECASE)
DOTTED = re.compile(rf"\s*{NAMED.format(SECTION)}\s*\.\s*{NAMED.format(KEY)}\s*=", re.IGNORECASE)
LEVEL = re.compile(r"(debug|info|warn|error)([+-]\d+)?", re.IGNORECASE)


@dataclass(frozen=True)
class Rule:
    """The allowed values of a key. A value of another type ends the runtime or its hook.

    effect: what another wrong value does.
    """

    type: type
    allowed: str
    right: Callable[[Any], bool] = lambda _: True
    effect: str = ""

    def problem(self, key: str, value: Any) -> str | None:
        """Return the error in a value, and what to do."""
        typed = type(value) is self.type
        if typed and self.right(value):
            return None
        effect = (typed and self.effect) or "lets no container start"
        # A variable may be a secret.
        written = "(hidden)" if self.type is list else shown(value)
        return f"{key} = {written} {effect}; take the line out{self.allowed and ', or set it to '}{self.allowed}"


SWITCH, TEXT, PLACE = Rule(bool, "true or false"), Rule(str, "a text"), Rule(str, "a path", bool)
# The keys that the runtime and its hook read, by section; other keys have no effect.
RULES: dict[str, dict[str, Rule]] = {
    "": {
        "accept-habana-visible-devices-envvar-when-unprivileged": Rule(
            bool, "true", bool, "refuses every container without CAP_SYS_ADMIN"
        ),
        "mount_accelerators": Rule(bool, "true", bool, "gives no container a card"),
        "mount_uverbs": SWITCH,
        "binaries-dir": TEXT,
    },
    "network-layer-routes": {"path": TEXT},
    "habana-container-cli": {
        "root": Rule(str, "", lambda _: False, "becomes an option that the hook's program does not know"),
        **{"path": PLACE, "debug": PLACE, "mount_accelerators": SWITCH, "mount_uverbs": SWITCH},
        "environment": Rule(list, "a list of texts", lambda words: all(isinstance(word, str) for word in words)),
    },
    SECTION: {
        **{"debug": PLACE, KEY: SWITCH, "systemd_cgroup": SWITCH},
        "log_level": Rule(str, "debug, info, warn or error", lambda level: bool(LEVEL.fullmatch(level))),
        "mode": Rule(str, "oci", lambda mode: mode != "legacy", "gives no container the uverbs of its cards"),
    },
}


def parsed(text: str | None, host_name: str = "this host") -> dict[str, Any]:
    """Return the file's content with sections and keys in lowercase: the runtime ignores their case.

    Raises:
        InputError: with the place, if the text is not TOML.
    """
    import tomllib

    try:
        found = tomllib.loads(text or "")
    except tomllib.TOMLDecodeError as problem:
        raise _refusal(host_name, f"is not TOML, and the runtime starts no container with it: {problem}") from None
    result: dict[str, Any] = {}
    for name, value in found.items():
        if not isinstance(value, dict):
            result[name.lower()] = value
            continue
        before = result.get(name.lower())
        section = before if isinstance(before, dict) else {}
        result[name.lower()] = {**section, **{key.lower(): one for key, one in value.items()}}
    return result


def habana_config(text: str | None, host_name: str = "this host") -> str:
    """Return the habana runtime's config.toml with ``visible_devices_all_as_default = false``.

    Without it, a container of this runtime that names no cards gets all of them. The runtime reads the key in its own
    section only. All other text stays unchanged, in every way in which TOML lets a section be written.

    Args:
        text: the file's text, None if there is no file.
        host_name: name of the host in messages.

    Raises:
        InputError: if the text is not TOML, its section is no table, or no edit of one line keeps everything else
            unchanged.
    """
    found = parsed(text, host_name)
    if not isinstance(found.get(SECTION, {}), dict):
        raise _refusal(host_name, _no_table(SECTION, found[SECTION]))
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
    """Return why no server can start with this config.toml, as sentences, except errors that habana_config repairs.

    Args:
        text: the file's text, None if there is no file.
        host_name: name of the host in messages.
    """
    reasons = []
    try:
        habana_config(text, host_name)
    except InputError as problem:
        reasons.append(str(problem))
    try:
        found = parsed(text)
    except InputError:
        return reasons
    for section, rules in RULES.items():
        told = _problems(section, found.get(section, {}) if section else found, rules)
        reasons += [str(_refusal(host_name, one)) for one in told]
    return list(dict.fromkeys(reasons))


def habana_config_notes(text: str | None) -> list[str]:
    """Return notes for users on a config.toml with which servers start."""
    try:
        off = parsed(text).get("mount_uverbs") is False
    except InputError:
        return []
    return [f"{PATH}: mount_uverbs = false: containers get no uverbs of their cards"] if off else []


def named_programs(text: str) -> set[str]:
    """Return habana-container-cli if a config.toml sets its path, which is then the user's choice."""
    lines = re.MULTILINE | re.IGNORECASE
    section = re.search(r"^\s*\[\s*[\"']?habana-container-cli[\"']?\s*\]([^\[]*)", text, lines)
    named = section and re.search(r"^\s*path\s*=", section[1], lines)
    return {"habana-container-cli"} if named else set()


def _problems(section: str, values: Any, rules: dict[str, Rule]) -> Iterator[str]:
    if not isinstance(values, dict):
        yield _no_table(section, values)
        return
    for key, rule in rules.items():
        told = rule.problem(f"{section}.{key}" if section else key, values[key]) if key in values else None
        if told:
            yield told


def _no_table(section: str, value: Any) -> str:
    return f"{section} must be a table, it is {shown(value)}"


def _refusal(host_name: str, text: str) -> InputError:
    return InputError(f"{host_name}: {PATH}: {one_line(text)}. The file is unchanged; fix it and run again.")


def _edits(text: str) -> Iterator[str]:
    """Yield the texts that one changed line makes, the most natural first; the caller checks them as TOML."""
    lines = text.split("\n")
    for begin in (number + 1 for number, line in enumerate(lines) if HEADER.fullmatch(line)):
        end = next((i for i in range(begin, len(lines)) if lines[i].lstrip().startswith("[")), len(lines))
        # An active line comes before a commented one: with both, the key would occur twice, which TOML forbids.
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


SETTINGS = Settings(
    path=PATH,
    configured=habana_config,
    edit=WANTED,
    lacks=f"{KEY} is not set, planned false",
    problems=habana_config_problems,
    notes=habana_config_notes,
    given=named_programs,
)
