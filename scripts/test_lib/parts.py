"""The parts of the tests, from tests/parts.yml."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from testhosts_lib import common
from testhosts_lib.part_queue import Part

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/parts.yml"
PINS = "requirements-dev.txt"
KEYS = {*("command", "tests", "scenario", "seconds", "short", "gate", "lint", "engine", "containers")}
KEYS |= {*("covers", "shows", "slow")}
SHORT = ":short"  # the tests of a part that make test runs: without those that are marked long
WORDS = {
    "{python}": sys.executable,
    "{doctrees}": str(common.cache() / "doctrees" / str(zlib.crc32(str(ROOT).encode()))),
}


class Definition(NamedTuple):
    """A part as tests/parts.yml describes it.

    name: as users type it; of the shorter form with ``:short``.
    seconds: measured on two quiet processors.
    gate: make test runs it; of a part with two forms only the short one.
    everything: it covers all files, since it reads them all.
    covers: paths of roles, packages, playbooks and files that it covers; the import graph adds what these use.
    shows: what no cheaper part shows; for the page about the tests.
    """

    name: str
    kind: str
    seconds: int
    gate: bool
    everything: bool
    covers: tuple[str, ...]
    shows: str
    data: dict[str, Any]

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the paths of the part's own tests, and of what they run in."""
        if self.kind == "scenario":
            return (f"molecule/{self.base}", "molecule/conftest.py", "molecule/shared", ".config", PINS)
        return (*self.data["tests"], "tests/conftest.py", "pyproject.toml", PINS) if self.kind == "pytest" else ()

    @property
    def base(self) -> str:
        """Return the name without the form."""
        return self.name.removesuffix(SHORT)

    @property
    def scenario_hosts(self) -> tuple[str, ...]:
        """Return the hosts that a scenario makes."""
        text = (ROOT / f"molecule/{self.base}/inventory/hosts.yml").read_text(encoding="utf-8")
        return tuple(yaml.safe_load(text)["all"]["children"]["testhosts"]["hosts"])

    def part(self) -> Part:
        """Return it as the queue takes it."""
        short = self.name.endswith(SHORT)
        environment = {} if self.gate else {"GAUDI_SERVE_LONG": "1"}
        if self.kind == "scenario":
            argv = ["molecule", "test", "--destroy=never", "--scenario-name", self.base]
            return Part(argv, self.seconds, True, True, self.scenario_hosts, environment, True)
        if self.kind == "pytest":
            argv = [sys.executable, "-m", "pytest", *self.data["tests"], *(["-m", "not long"] if short else [])]
        else:
            argv = [WORDS.get(word, word) for word in self.data["command"]]
        hosts = tuple(self.data.get("containers", ()))
        return Part(argv, self.seconds, False, bool(self.data.get("engine")), hosts, environment, self.kind == "pytest")


def definitions() -> dict[str, Definition]:
    """Return every part by its name, the short forms among them, in the order of the file."""
    found = {}
    for name, data in yaml.safe_load(DATA.read_text(encoding="utf-8")).items():
        if wrong := {*data} - KEYS:
            sys.exit(
                f"tests/parts.yml: {name}: unknown keys {', '.join(sorted(wrong))}; known are {', '.join(sorted(KEYS))}"
            )
        kind = "scenario" if data.get("scenario") else "pytest" if "tests" in data else "command"
        covers, shows = tuple(data.get("covers", ())), data.get("shows", "")
        everything, gate, short = covers == ("everything",), bool(data.get("gate")), data.get("short")
        rest = (everything, covers, shows, data)
        found[name] = Definition(name, kind, data["seconds"], gate and not short, *rest)
        if short:
            found[name + SHORT] = Definition(name + SHORT, kind, short, gate, *rest)
    return found


def selected(words: list[str], known: dict[str, Definition]) -> list[str]:
    """Return the names of the parts that words of the command line select.

    Raises:
        SystemExit: a word is neither a part nor a name for several.
    """
    whole = [name for name in known if not name.endswith(SHORT)]
    several = {
        "gate": [name for name, one in known.items() if one.gate],
        "all": whole,
        "lint": [name for name in whole if known[name].data.get("lint")],
        "molecule": [name for name in whole if known[name].kind == "scenario"],
        "integration": [name for name in whole if name.startswith("integration")],
    }
    found = []
    for word in words:
        if word not in several and word not in known:
            sys.exit(
                f"scripts/test: unknown part {word}; known are changed, unverified, {', '.join([*several, *known])}"
            )
        found += several.get(word, [word])
    return list(dict.fromkeys(found))
