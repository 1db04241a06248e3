"""Which files a part of the tests covers: what it declares, its tests, and all that these use."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Where Python finds the repository's own modules (pyproject.toml has the same for pytest).
PYTHON_PATHS = ("lib", "tests", "molecule/shared", "scripts", "roles/model_weights/files", "")
# What every run of a playbook uses.
ANSIBLE = ("ansible.cfg", "requirements.txt", "callback_plugins", "filter_plugins/gaudi_serve.py")
# These name all filters and all stages. What uses them covers only filters that it names, and stages of its roles.
CROSSINGS = ("filter_plugins/gaudi_serve.py", "lib/gaudi_serve/stages/registry.py")
PLUGINS = ("library", "action_plugins")
WORD = re.compile(r"^\s*(?:- )?(?:gaudi\.serve\.)?([a-z_]+):", re.M)
FILTER = re.compile(r"\|\s*(?:gaudi\.serve\.)?([a-z_]+)")
PATH = re.compile(r"[\w./-]+\.(?:yml|yaml|j2|py|json|sh)\b")
PYTHON = re.compile(r"#!.*python")
FROM = re.compile(r"^[ \t]*from (\.*)([\w.]*) import (\([^)]*\)|[^\n#]+)", re.M)
IMPORT = re.compile(r"^[ \t]*import ([\w., ]+)$", re.M)
NAMED = re.compile(r"(?<=[\"'\s=:])([\w-]+(?:/[\w.-]+)+|[\w.-]+\.\w+)(?=[\"'\s/:,;])")
QUOTED = re.compile(r"[\"']([\w-]+(?:/[\w.-]+)+)[\"']")
TESTS = ("tests/", "molecule/", "scripts/")
COMMENT = re.compile(r"(?:^|\s)#.*$", re.M)
# Playbooks are also named in messages for people; only these keys use them.
PLAYBOOK = re.compile(r"^(site|playbooks/[\w-]+)\.yml$")
STARTS = re.compile(
    r"^\s*(?:- )?(?:(?:ansible\.builtin\.)?import_playbook|converge|prepare|create|destroy|verify): (\S+)$", re.M
)
ROLE = re.compile(r"\b(?:role|name): ['\"]?(?:gaudi\.serve\.)?([a-z_]+)['\"]?\s*(?:[,}#]|$)", re.M)
# Modules that an action plugin runs (scripts/collection renames the same calls), and files that a template chooses.
CALLED = re.compile(r"_execute_module\(\s*(?:module_name=)?[\"'](\w+)|run_as_task\(self, [\"'](\w+)")
CHOSEN = re.compile(r"([\w./-]*)\{\{([^{}]*)\}\}([\w.-]*\.yml)")
# Data beside a program, which it finds by its own place.
BESIDE = ("lib/", "tests/helpers/simulated/")
OF_ROLE = re.compile(r'\brole="([a-z_]+)"')


@cache
def listed() -> tuple[str, ...]:
    """Return the names in the working tree that git tracks, or would.

    Raises:
        SystemExit: this is no checkout.
    """
    argv = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"scripts/test: needs a git checkout: {done.stderr.strip()}")
    return tuple(filter(None, done.stdout.split("\0")))


@cache
def links() -> frozenset[str]:
    """Return the symbolic links of the working tree."""
    return frozenset(name for name in listed() if (ROOT / name).is_symlink())


@cache
def files() -> frozenset[str]:
    """Return the files of the working tree that git tracks, or would; a file below a link has another name."""
    return frozenset(name for name in listed() if (ROOT / name).is_file() and not in_link(name))


@cache
def in_link(name: str) -> bool:
    """Return whether a path is a link, or below one: its file has another name."""
    path = ROOT / name
    return path.is_symlink() or (path.parent != ROOT and in_link(os.path.relpath(path.parent, ROOT)))


@cache
def folders() -> dict[str, set[str]]:
    """Return the files below each folder."""
    found: dict[str, set[str]] = {}
    for name in files():
        for folder in Path(name).parents:
            found.setdefault(str(folder), set()).add(name)
    return found


def at(folder: str, path: str) -> str:
    """Return the name of a file by its path from a folder."""
    return os.path.normpath(f"{folder or '.'}/{path}")


def below(path: str) -> set[str]:
    """Return the files of a path: one file, or all of a folder."""
    return {path} if path in files() else folders().get(path.rstrip("/"), set())


@cache
def text_of(name: str) -> str:
    """Return the text of a file; of one that is none, nothing."""
    try:
        return (ROOT / name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def is_python(name: str) -> bool:
    """Return whether a file is a Python program."""
    return name.endswith(".py") or bool(PYTHON.match(text_of(name)))


@cache
def filters() -> dict[str, str]:
    """Return the file that defines each filter."""
    found = {}
    for base, names in imports(CROSSINGS[0]) if CROSSINGS[0] in files() else ():
        found |= {name: module(base) or "" for name in names}
    return found


@cache
def stage_of() -> dict[str, str]:
    """Return the file of the stage of each role."""
    found = {}
    for name in below("lib/gaudi_serve/stages"):
        if role := OF_ROLE.search(text_of(name)):
            found[role[1]] = name
    return found


def module(name: str, folders: Iterable[str] = PYTHON_PATHS) -> str | None:
    """Return the file of a module of the repository; None for those of others."""
    for folder in folders:
        base = at(folder, name.replace(".", "/"))
        for path in (f"{base}.py", f"{base}/__init__.py"):
            if path in files():
                return path
    return None


def imports(name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the modules from which a program imports, each with the names that it takes."""
    for dots, base, names in FROM.findall(text_of(name)):
        above = name.split("/")[: -len(dots)] if dots else []
        yield ".".join([*above, *([base] if base else [])]), re.findall(r"(\w+)(?: as \w+)?", names)
    for names in IMPORT.findall(text_of(name)):
        yield from ((one.split()[0], []) for one in names.split(",") if one.strip())


def of_python(name: str) -> Iterator[str]:
    """Yield the files that a program imports or names."""
    places = (*PYTHON_PATHS, at(name, ".."))
    for written, names in imports(name):
        base = written.replace("ansible.module_utils.gaudi_serve", "gaudi_serve")
        found = [module(f"{base}.{one}".strip("."), places) for one in names] + [module(base, places)]
        yield from filter(None, found)
    # Python runs the packages above a module too.
    yield from {f"{folder}/__init__.py" for folder in Path(name).parents} & files()
    for word in {one or other for one, other in CALLED.findall(text_of(name))}:
        yield from {f"{folder}/{word}.py" for folder in PLUGINS} & files()
    if name.startswith(BESIDE):
        yield from (one for one in below(at(name, "..")) if not one.endswith(".py") or "/connection/" in one)
    # Tests use what they name; the library names playbooks in messages, and folders of which it reads a few files.
    # A path begins at the root, or at a folder above the program.
    pattern = NAMED if name.startswith(TESTS) else QUOTED
    for path in {*pattern.findall(text_of(name))}:
        for one in {at(str(folder), path) for folder in Path(name).parents}:
            yield from {one} & files() if name.startswith(("lib/", "molecule/shared/")) else below(one)
        if name.startswith("lib/"):  # pages read their templates and scripts there
            yield from below(f"playbooks/{path}")


def of_yaml(name: str) -> Iterator[str]:
    """Yield the files that a playbook, a task file or a template names, with modules, filters and roles."""
    text = COMMENT.sub("", text_of(name))
    # Names stand for files of the role, and of the folders beside.
    role = "/".join(name.split("/")[:2]) if name.startswith("roles/") else ""
    parts = ("tasks", "templates", "files", "vars") if role else ()
    places = [at(name, ".."), "", *(f"{role}/{part}" for part in parts)]
    chosen = {f"{a}{word}{b}" for a, what, b in CHOSEN.findall(text) for word in re.findall(r"'(\w+)'", what)}
    for path in {*PATH.findall(text), *chosen}:
        found = {at(place, path) for place in places} & files()
        yield from (one for one in found if not PLAYBOOK.match(one))
    for path in STARTS.findall(text):
        yield from {at(f"{name}/..", path)} & files()
    for word in {*WORD.findall(text)}:
        yield from {f"{folder}/{word}.py" for folder in PLUGINS} & files()
    yield from {path for word in {*FILTER.findall(text)} if (path := filters().get(word))}
    for word in {*ROLE.findall(text)}:
        yield from below(f"roles/{word}")


@cache
def uses(name: str) -> frozenset[str]:
    """Return the files that a file uses directly."""
    found: set[str] = set()
    if name in CROSSINGS:
        pass
    elif is_python(name):
        found |= {*of_python(name)}
    elif name.endswith((".yml", ".yaml", ".j2")):
        found |= {*of_yaml(name)}
    if name.startswith("roles/"):
        role = name.split("/")[1]
        found |= below(f"roles/{role}") | ({stage_of()[role]} if role in stage_of() else set())
    return frozenset(found - {name})


def forget() -> None:
    """Read all files again from here on."""
    for function in (listed, links, files, folders, in_link, text_of, filters, stage_of, uses):
        function.cache_clear()


def reached(names: Iterable[str]) -> set[str]:
    """Return files with all that they use, directly or not."""
    seen: set[str] = set()
    left = [*names]
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            left += uses(name) - seen
    return seen


def covered(declared: Iterable[str], tests: Iterable[str]) -> set[str]:
    """Return the files that a part covers, by the paths that it declares and those of its tests.

    Raises:
        SystemExit: a path does not exist.
    """
    paths = [*declared, *tests]
    for path in paths:
        if not below(path):
            sys.exit(f"tests/parts.yml: {path} does not exist")
    return reached(name for path in [*paths, *ANSIBLE] for name in below(path))
