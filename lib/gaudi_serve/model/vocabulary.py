"""The vocabulary of gpt-oss, which its weights lack: where it comes from, and where a server finds it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .architecture import Architecture
from .spec import Spec

KIND = "gpt_oss"
# Variables with the folder in which a server looks for it (openai/harmony#95). In the second, it has another name.
ENCODINGS = "TIKTOKEN_ENCODINGS_BASE"
FOLDERS = (ENCODINGS, "TIKTOKEN_RS_CACHE_DIR")
FILE = "o200k_base.tiktoken"
# Address and checksum are those of openai/harmony, src/tiktoken_ext/public_encodings.rs.
SOURCE = {
    "kind": "file",
    "url": f"https://openaipublic.blob.core.windows.net/encodings/{FILE}",
    "sha256": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
}


def folder_of(weights: str) -> str:
    """Return the folder into which a run fetches the vocabulary, next to that of the weights."""
    return f"{weights.rstrip('/')}-vocabulary"


def is_read(architecture: Architecture) -> bool:
    """Return whether a model needs the vocabulary."""
    return KIND in (architecture.kind, architecture.inner_kind)


def facts(path: str, config: Mapping[str, Any]) -> dict[str, bool]:
    """Return whether the vocabulary is next to a folder of weights; empty if the model needs none."""
    return {"vocabulary": Path(folder_of(path), FILE).is_file()} if is_read(Architecture.of(config)) else {}


def missing_folder(spec: Mapping[str, Any], models: Iterable[tuple[str, Architecture]]) -> str | None:
    """Return the folder of the vocabulary that a server needs; None if it needs none, or its user names a folder.

    Args:
        spec: the model.
        models: the weights and the architecture of each model of its server.
    """
    env = spec.get("env")
    if isinstance(env, Mapping) and {*FOLDERS} & {*env}:
        return None
    return next((folder_of(weights) for weights, architecture in models if is_read(architecture)), None)


def with_vocabulary(spec: Spec, architectures: Iterable[Architecture]) -> Spec:
    """Return a model whose server finds the vocabulary in the folder into which a run fetches it."""
    folder = missing_folder(spec, zip((one.weights for one in spec.served), architectures, strict=False))
    if folder is None:
        return spec
    mount = {"source": folder, "target": folder, "read_only": True}
    return spec.but(env={**(spec.get("env") or {}), ENCODINGS: folder}, mounts=[*(spec.get("mounts") or []), mount])
