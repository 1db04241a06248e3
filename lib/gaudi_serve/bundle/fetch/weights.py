"""Weights: the program of role model_weights downloads them into the layout of the hub."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.parse
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..items import Item
from ..roles import ROOT
from ..weights import CLIENTS, COMMIT, HOMES
from .base import Bundle, FetchError, Got, Outcome, again, each, of_kind, size_of
from .downloads import download
from .sources import place_of

PROGRAM = ROOT / "roles/model_weights/files/fetch_weights"
MANIFEST = ".gaudi-serve-weights.json"
MODULES = {"hub": "huggingface_hub", "modelscope": "modelscope_hub"}


def fetch(bundle: Bundle, items: Sequence[Item]) -> Outcome:
    """Download weights; files that a folder of the same repository already has are linked."""
    return each(of_kind(items, "weights"), bundle, lambda bundle, item: _Weights(bundle, item).got())


def kinds(bundle: Bundle, items: Sequence[Item]) -> set[str]:
    """Return the source kinds of items."""
    return {str(one["kind"]) for item in of_kind(items, "weights") for one in _sources(bundle, item)}


def _sources(bundle: Bundle, item: Item) -> list[dict[str, Any]]:
    """Return the sources of an item, which differ if hosts need different files."""
    key = (item.name, item.version, item.origin)
    return [dict(one["source"]) for one in bundle.access.weights if (one["name"], one["version"], one["origin"]) == key]


def _source(bundle: Bundle, item: Item) -> dict[str, Any]:
    """Return the source of an item, with the files that any host needs.

    Raises:
        FetchError: if no host has such a source.
    """
    same = _sources(bundle, item)
    if not same:
        raise FetchError(f"{item.label}: no host of this run has such a source")
    source = same[0]
    for key in ("include", "exclude"):
        lists = [one.get(key) or [] for one in same]
        if any(one != lists[0] for one in lists):
            # A host without an include list needs all files. If the exclude lists differ, no file is excluded.
            source[key] = sorted({name for one in lists for name in one}) if key == "include" and all(lists) else []
    return source


class _Weights:
    """The weights of one source."""

    def __init__(self, bundle: Bundle, item: Item) -> None:
        self.bundle, self.item = bundle, item
        self.source = _source(bundle, item)
        self.token = str(bundle.access.tokens.get(self.source["kind"]) or "")

    def got(self) -> Got:
        """Return the weights; missing ones are downloaded."""
        last = self.bundle.last(self.item)
        hub = self.source["kind"] == "hub"
        if last and self.item.pinned and self.same(last.path):
            if not hub:
                return again(last)
            if self.bundle.has(self.api(self.item.version)):
                return self.answered(last.path, self.item.version)
        return self.of_hub() if hub else self.of_others()

    def same(self, path: str) -> bool:
        """Return whether a folder came from this source with the same selection of files."""
        return bool(_read(self.bundle.folder / path / MANIFEST).get("source") == self.clean())

    def clean(self) -> dict[str, Any]:
        """Return the source as input of the program."""
        return {key: value for key, value in self.source.items() if value not in (None, "", [])}

    def of_others(self) -> Got:
        """Download a folder from ModelScope or a git repository; the bundle has it as a plain folder."""
        address = str(self.source.get("url") or f"https://modelscope/{self.source['repo']}")
        path = f"weights/folders/{place_of(address)}/{self.item.version or 'newest'}"
        self.bring(path, self.clean(), path)
        return Got(path, size_of(self.bundle.folder / path), fetched=self.revision(path))

    def of_hub(self) -> Got:
        """Download the revision from the hub, with the hub's response about it."""
        asked = self.item.version or "main"
        answer = self.ask(asked)
        commit = str(answer.get("sha") or "")
        if not COMMIT.fullmatch(commit):
            raise FetchError(f"the hub names no commit of {self.item.name} for {asked}")
        path = f"weights/{self.item.name}/resolve/{commit}"
        if not (self.bundle.has(path) and self.same(path)):
            self.bring(path, {**self.clean(), "revision": commit}, f"weights/{self.item.name}/resolve")
            self.note(path)
        self.write(answer, path, dict.fromkeys((commit, asked)))
        return self.answered(path, commit, str((answer.get("cardData") or {}).get("license") or ""))

    def answered(self, path: str, commit: str, licence: str = "") -> Got:
        """Return the result for weights of the hub that are in the bundle."""
        last = self.bundle.last(self.item)
        revisions = dict.fromkeys((commit, self.item.version or "main"))
        keeps = tuple(self.api(one) for one in revisions)
        fetched = "" if self.item.version == commit else commit
        size = size_of(self.bundle.folder / path)
        return Got(path, size, fetched=fetched, licence=licence or (last.licence if last else ""), keeps=keeps)

    def api(self, revision: str) -> str:
        """Return the path of the hub's response about a revision."""
        return f"weights/api/models/{self.item.name}/revision/{revision}"

    def ask(self, revision: str) -> Mapping[str, Any]:
        """Query the hub about a revision."""
        endpoint = str(self.source.get("endpoint") or HOMES["hub"]).rstrip("/")
        quoted = urllib.parse.quote(revision, safe="")
        stage = self.bundle.work / "answer"
        stage.unlink(missing_ok=True)
        download(f"{endpoint}/api/models/{self.item.name}/revision/{quoted}?blobs=true", stage, self.token)
        return _read(stage)

    def write(self, answer: Mapping[str, Any], path: str, revisions: Sequence[str] | Mapping[str, Any]) -> None:
        """Write the hub's response, reduced to downloaded files and to values that do not change daily."""
        names = set(_read(self.bundle.folder / path / MANIFEST).get("files") or ())
        files = [one for one in answer.get("siblings") or () if one.get("rfilename") in names]
        kept = {key: answer[key] for key in ("_id", "id", "modelId", "sha", "cardData", "tags") if key in answer}
        text = (
            json.dumps({**kept, "private": False, "gated": False, "siblings": files}, indent=1, sort_keys=True) + "\n"
        )
        for one in revisions:
            place = self.bundle.folder / self.api(one)
            if not place.is_file() or place.read_text(encoding="utf-8") != text:
                stage = self.bundle.work / "answer"
                stage.write_text(text, encoding="utf-8")
                place.parent.mkdir(parents=True, exist_ok=True)
                stage.replace(place)

    def bring(self, path: str, source: Mapping[str, Any], near: str) -> None:
        """Let the program download a folder; identical files of a similar folder are linked."""
        stage = self.bundle.work / path
        older = self.older(near)
        if older and not stage.exists():
            shutil.copytree(older, stage, copy_function=os.link)
        stage.parent.mkdir(parents=True, exist_ok=True)
        job = {
            **{"name": self.item.name, "host": "this machine", "target": str(stage), "source": dict(source)},
            **{"state": str(self.bundle.work / "weights-log"), "verify": "quick", "token": self.token},
        }
        done = subprocess.run(
            [self.python(), str(PROGRAM)], input=json.dumps(job), capture_output=True, text=True, check=False
        )
        lines = done.stdout.splitlines()
        if done.returncode != 0 or not lines:
            raise FetchError(_message(lines[-1]) if lines else self.bundle.reason("fetch_weights", done))
        self.bundle.swap(stage, path)

    def older(self, near: str) -> Path | None:
        """Return a folder that may have identical files."""
        found = [one.parent for one in sorted((self.bundle.folder / near).rglob(MANIFEST))]
        return found[-1] if found else None

    def note(self, path: str) -> None:
        """Write the requested source into the folder's record."""
        place = self.bundle.folder / path / MANIFEST
        stage = self.bundle.work / "record"
        stage.write_text(json.dumps({**_read(place), "source": self.clean()}, indent=1) + "\n", encoding="utf-8")
        stage.replace(place)

    def revision(self, path: str) -> str:
        """Return the commit that the program has downloaded for a movable revision."""
        found = str(_read(self.bundle.folder / path / MANIFEST).get("revision") or "")
        return "" if found == self.item.version else found

    def python(self) -> str:
        """Return a Python that has the hubs' clients; they are installed once, in a separate environment."""
        module = MODULES.get(self.source["kind"])
        if module is None or find_spec(module):
            return sys.executable
        folder = self.bundle.settings.key_dir.with_name("bundle-clients")
        python = folder / "bin/python"
        if not (folder / ".complete").exists():
            self.bundle.run([sys.executable, "-m", "venv", "--clear", folder])
            words = ["install", "--quiet", "--only-binary=:all:", "--requirement", str(ROOT / CLIENTS)]
            self.bundle.run([python, "-m", "pip", *words], {"PIP_DISABLE_PIP_VERSION_CHECK": "1"})
            (folder / ".complete").touch()
        return str(python)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _message(line: str) -> str:
    try:
        return str(json.loads(line)["msg"])
    except (ValueError, KeyError, TypeError):
        return "fetch_weights: ended without a message"
