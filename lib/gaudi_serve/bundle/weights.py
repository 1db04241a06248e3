"""Weights with a source, and the packages that download them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..catalog.merge import merged
from ..model.host import Host
from ..model.shared import members
from ..stages.weights import PACKAGES, weights_targets
from .host import BundleHost
from .items import Item
from .roles import pins

# The default servers of the clients.
HOMES = {"hub": "https://huggingface.co", "modelscope": "ModelScope"}
COMMIT = re.compile(r"[0-9a-f]{40}")
NO_REVISION = "no revision: the newest of that day; set source.revision to a commit"
MOVES = "revision {} may move: set source.revision to a commit of 40 digits"
TEXTS = "the calibration fetches its texts (the dataset pile) itself: calibrate outside and carry the measurements"
CLIENTS = "roles/model_weights/files/requirements.txt"


def weights(host: BundleHost) -> list[Item]:
    """Return the weights that a host downloads, and the programs for the download."""
    found: list[Item] = [item for item, _ in sources_of(host)] + _files(host)
    kinds = {source["kind"] for _, source in sources_of(host)}
    for target in weights_targets(host.known["model_weights_models"] or []):
        if target["step"] == "calibrate":
            need = host.need("model_weights", target["name"])
            found.append(Item("weights", f"texts for calibrating {target['name']}", need=need, problem=TEXTS))
    return [*found, *_programs(host, kinds)]


def sources_of(host: BundleHost) -> list[tuple[Item, Mapping[str, Any]]]:
    """Return the weights that a host downloads, each with its source from role model_weights."""
    sizes, found = _sizes(host), []
    for target in weights_targets(host.known["model_weights_models"] or []):
        source = target["source"]
        if target["step"] in ("fetch", "measure") and source["kind"] not in ("path", "file"):
            size = sizes.get(target["target"]) or sizes.get(str(target.get("for")))
            found.append((_item(host, target, size if target["step"] == "fetch" else None), source))
    return found


def _files(host: BundleHost) -> list[Item]:
    """Return the single files that a host downloads."""
    targets = [
        one for one in weights_targets(host.known["model_weights_models"] or []) if one["source"]["kind"] == "file"
    ]
    return [
        Item(
            *("download", source["url"].rpartition("/")[2], f"sha256:{source['sha256']}", source["url"]),
            need=host.need("model_weights", target["name"]),
            pinned=True,
        )
        for target in targets
        for source in (target["source"],)
    ]


def _item(host: BundleHost, target: Mapping[str, Any], size: int | None) -> Item:
    source = target["source"]
    revision, kind = str(source.get("revision") or ""), source["kind"]
    place = str(source.get("url") or source.get("endpoint") or HOMES[kind])
    fixed = COMMIT.fullmatch(revision) is not None
    return Item(
        *("weights", str(source.get("repo") or source["url"]), revision, place),
        need=host.need("model_weights", target["name"]),
        pinned=fixed,
        problem="" if fixed else MOVES.format(revision) if revision else NO_REVISION,
        bytes=size,
    )


def _sizes(host: BundleHost) -> dict[str, int]:
    """Return the sizes in bytes of folders of weights: from the host, or from the catalog."""
    known, facts = host.known, host.machine.get("weights") or {}
    found = {path: int(one["bytes"]) for path, one in facts.items() if one and one.get("bytes")}
    machine, release = Host.of(host.machine), str(known["vllm_image_release"])
    for given in known["preflight_models"] or ():
        full = merged(given, known["preflight_catalog"], known["preflight_model_defaults"] or {}, machine, release)
        for one in (full, *members(full)):
            if one.get("weights") and one.get("weight_bytes"):
                found.setdefault(str(one["weights"]).rstrip("/"), int(one["weight_bytes"]))
    return found


def _programs(host: BundleHost, kinds: set[str]) -> list[Item]:
    """Return the packages and clients that download from these kinds of sources."""
    source = str(host.known["model_weights_from_host"] or "")
    if source not in ("", host.name):
        return []  # that host downloads for all hosts
    clients = bool(kinds & {*HOMES})
    needed = {"git": "git" in kinds, "git-lfs": "git" in kinds, "python3-venv": clients}
    found = host.packages([name for name in PACKAGES if needed[name]], "model_weights")
    origin = str(host.known["model_weights_index_url"] or "") or "package index of pip"
    need = host.need("model_weights")
    wheels = pins(CLIENTS) if clients else []
    return found + [Item("python", *pin, origin, need=need, pinned=bool(pin[1])) for pin in wheels]
