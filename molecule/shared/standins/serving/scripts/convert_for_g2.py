#!/usr/bin/python3
"""Stand-in for the vendor's conversion of FP8 weights for Gaudi2, with its options.

It refuses an input without an index, as the real one does, writes shard by shard and the index last, and takes
STANDIN_CONVERT_STEP_S seconds a shard. STANDIN_FAULT=convert leaves a shard out, as a script that went wrong would.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path

INDEX = "model.safetensors.index.json"


def converted(source: Path, target: Path) -> None:
    """Copy a shard with a mark in its header; tensors stay where they are."""
    content = source.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header.setdefault("__metadata__", {})["converted"] = "g2"
    new = json.dumps(header).encode()
    new += b" " * (-len(new) % 8)
    target.write_bytes(len(new).to_bytes(8, "little") + new + content[8 + length :])


def main() -> None:
    """Convert a folder."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("-i", "--input_path", type=Path, required=True)
    parser.add_argument("-o", "--output_path", type=Path, required=True)
    given = parser.parse_args()
    index = json.loads((given.input_path / INDEX).read_text(encoding="utf-8"))
    given.output_path.mkdir(parents=True, exist_ok=True)
    names = sorted(set(index["weight_map"].values()))
    for number, name in enumerate(names, 1):
        print(f"processing {given.input_path / name} ({number}/{len(names)})", flush=True)
        time.sleep(float(os.environ.get("STANDIN_CONVERT_STEP_S", "0")))
        if os.environ.get("STANDIN_FAULT") != "convert" or number < len(names):
            converted(given.input_path / name, given.output_path / name)
    for path in given.input_path.iterdir():
        if path.is_file() and path.suffix in (".json", ".txt", ".model", ".py"):
            shutil.copyfile(path, given.output_path / path.name)
    sys.exit(0)


if __name__ == "__main__":
    main()
