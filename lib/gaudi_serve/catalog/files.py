"""The catalog of known models: one YAML file per model."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import InputError, readable, shown
from ..core.yaml_text import load
from ..engines import ENGINES
from .keys import findings
from .merge import BY_SIZE

Catalog = dict[str, dict[str, Any]]
# The project's own folder, independent of the playbook's place.
BUILTIN = str(Path(__file__).resolve().parents[3] / "roles/preflight/files/catalog")


def model_catalog(folders: Sequence[str], strict: bool = True, builtin: bool = False) -> Catalog:
    """Return the catalog: every ``<entry>.yml`` of the folders. A later folder overrides an earlier one.

    Args:
        folders: The folders.
        strict: False: leave out what is wrong, because another check reports it.
        builtin: Read the project's own folder before them.

    Raises:
        InputError: A folder is missing, a file is not a YAML mapping, or a key is unknown. The message has one line
            each, with the file, the key and what is allowed.
    """
    if not isinstance(folders, list):
        raise InputError(f"vllm_catalog_dirs: {shown(folders)}: must be a list of folders")
    catalog: Catalog = {}
    problems: list[str] = []
    for folder in ([BUILTIN] if builtin else []) + folders:
        entries, found = catalog_folder(folder)
        catalog.update(entries)
        problems += found
    if problems and strict:
        raise InputError("\n".join(problems))
    return catalog


def catalog_folder(folder: Any) -> tuple[Catalog, list[str]]:
    """Return the valid entries of one folder, and a sentence for each problem in it."""
    if not _is_folder(folder):
        return {}, [f"vllm_catalog_dirs: {readable(folder)}: no such folder"]
    entries: Catalog = {}
    problems: list[str] = []
    for path in sorted(Path(folder).glob("*.yml")):
        try:
            stat = path.stat()
            entry, found = _entry(path, stat.st_mtime_ns, stat.st_size)
        except OSError as problem:
            entry, found = None, (f"cannot be read: {problem.strerror}",)
        problems += [f"{path}: {text}" for text in found]
        if not found:
            entries[path.stem] = entry
    return entries, problems


# Every task of preflight needs the catalog. What the process reads before it forks is available to all tasks.
@functools.cache
def _entry(path: Path, _changed_ns: int, _size: int) -> tuple[Any, tuple[str, ...]]:
    entry, found = _read(path)
    return entry, tuple(found or _problems(entry))


def sound_entries(catalog: Mapping[Any, Any]) -> tuple[Catalog, list[str]]:
    """Return the valid entries of a catalog in a variable, and a sentence for each invalid one."""
    entries: Catalog = {}
    problems: list[str] = []
    for name, entry in catalog.items():
        found = _problems(entry) if isinstance(name, str) else ["its name must be a text; quote it"]
        problems += [f"preflight_catalog: {readable(name)}: {text}" for text in found]
        if not found:
            entries[name] = entry
    return entries, problems


def _is_folder(folder: Any) -> bool:
    try:
        return isinstance(folder, str) and Path(folder).is_dir()
    except OSError:
        # The name is too long, or a parent folder cannot be searched.
        return False


def _read(path: Path) -> tuple[Any, list[str]]:
    # Only the controller reads catalogs. Modules that share this package have no yaml.
    import yaml

    try:
        return load(path.read_text(encoding="utf-8"), quick=str(path.parent) == BUILTIN), []
    except OSError as problem:
        return None, [f"cannot be read: {problem.strerror}"]
    except UnicodeDecodeError:
        return None, ["not UTF-8; it must be a YAML text file"]
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark
        return None, [
            f"line {mark.line + 1}, column {mark.column + 1}: not YAML: {problem.problem}" if mark else "not YAML"
        ]
    # An impossible date raises ValueError.
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        return None, [f"not YAML: {' '.join(str(problem).split())}"]


def _problems(entry: Any) -> list[str]:
    if not isinstance(entry, Mapping):
        what = "is empty" if entry is None else f"is {shown(entry)}"
        return [f"{what}; a catalog entry must be a mapping with the keys of a model"]
    problems = ["name and model belong to the models that use the entry"] if {"name", "model"} & set(entry) else []
    common = {key: value for key, value in entry.items() if key not in ("name", "model", BY_SIZE, *ENGINES)}
    own = {name: entry[name] for name in ENGINES if name in entry}
    # A model is complete with the keys of one engine. Keys that all engines provide are not missing.
    brought = [set(keys) for keys in own.values() if isinstance(keys, Mapping)]
    missing = set.intersection(*brought) if brought else set()
    problems += [text for key, text in _found(common) if key not in missing]
    for engine, keys in own.items():
        if isinstance(keys, Mapping):
            problems += [f"{engine}: {text}" for key, text in _found(keys) if key in keys]
        else:
            problems.append(f"{engine}: is {shown(keys)}; must be a mapping of keys for that engine, such as {{}}")
    return problems + (_of_sizes(entry[BY_SIZE]) if BY_SIZE in entry else [])


def _of_sizes(sizes: Any) -> list[str]:
    """Return the problems with the keys of an entry that are only for a number of cards."""
    allowed = "must be a mapping of numbers of cards to mappings of keys, such as 16: {max_num_seqs: 64}"
    if not isinstance(sizes, Mapping) or not all(
        str(cards).isdecimal() and isinstance(keys, Mapping) for cards, keys in sizes.items()
    ):
        return [f"{BY_SIZE}: is {shown(sizes)}; {allowed}"]
    return [f"{BY_SIZE}: {cards}: {text}" for cards, own in sizes.items() for key, text in _found(own) if key in own]


def _found(keys: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the problems with some keys of a model, as (key, sentence)."""
    found = []
    for key, value, allowed in findings({"name": "catalog", **keys}):
        text = value if value == "(hidden)" else shown(value)
        found.append((key, f"{key}: {allowed}" if value is None else f"{key} {text}: {allowed}"))
    return found
