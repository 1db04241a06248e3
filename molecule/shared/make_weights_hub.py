#!/usr/bin/env python3
"""Make small models for a hub, a mounted folder and a git remote: make_weights_hub.py FOLDER."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

COMMIT = "c" * 40
CONFIG = {
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "num_hidden_layers": 2,
    "hidden_size": 512,
    "vocab_size": 1000,
}
SHARDS = 8
SIZE = 4 << 20  # bytes of a shard


def shard(path: Path, seed: int) -> None:
    """Write a valid safetensors file."""
    header = json.dumps({f"w{seed}": {"dtype": "F8_E4M3", "shape": [SIZE], "data_offsets": [0, SIZE]}}).encode()
    header += b" " * (-len(header) % 8)
    content = random.Random(seed).randbytes(SIZE)  # noqa: S311 - these are not secrets
    path.write_bytes(len(header).to_bytes(8, "little") + header + content)


def model(folder: Path) -> None:
    """Write a model of several shards with their index."""
    folder.mkdir(parents=True)
    names = [f"model-{number:05}-of-{SHARDS:05}.safetensors" for number in range(1, SHARDS + 1)]
    for number, name in enumerate(names):
        shard(folder / name, number)
    index = {"metadata": {}, "weight_map": {f"w{number}": name for number, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(CONFIG))


def repository(root: Path, name: str) -> Path:
    """Name the branches and tags of a repository, and return the folder of its commit."""
    folder = root / "hub/test" / name
    folder.mkdir(parents=True)
    (folder / "refs.json").write_text(json.dumps({"main": COMMIT, "master": COMMIT, "v1": COMMIT}))
    return folder / COMMIT


def git(folder: Path, *words: str) -> None:
    """Run git without the machine's own settings."""
    who = {f"GIT_{role}_{key}": "a@b" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    environment = {**os.environ, **who, "GIT_CONFIG_GLOBAL": "/dev/null"}
    subprocess.run(["git", *words], cwd=folder, env=environment, capture_output=True, check=True)


def main(root: Path) -> None:
    """Make everything again."""
    shutil.rmtree(root, ignore_errors=True)
    for name in ("FP8", "Other"):
        model(repository(root, name))
    measurement = repository(root, "measurement")
    measurement.mkdir()
    (measurement / "inc_measure_output_0.json").write_text("{}")
    model(root / "nfs/Copied")
    bare, clone = root / "git/Cloned.git", root / "clone"
    model(clone)
    bare.mkdir(parents=True)
    git(bare, "init", "--quiet", "--bare", "-b", "main", ".")
    for words in (
        ("init", "--quiet", "-b", "main", "."),
        ("lfs", "install", "--local"),
        ("lfs", "track", "*.safetensors"),
        ("add", "--all"),
        ("commit", "--quiet", "-m", "weights"),
        ("remote", "add", "origin", f"file://{bare.resolve()}"),
        ("push", "--quiet", "origin", "main"),
    ):
        git(clone, *words)
    shutil.rmtree(clone)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
