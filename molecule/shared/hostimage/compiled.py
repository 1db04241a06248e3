"""Keeps what Python compiles out of zip files.

Ansible sends its modules as source in a zip file, and compiling them again takes a third of the time of every task, on
an emulated machine two thirds. What runs is the same. Every Python of the machine imports this, so it imports little
itself.
"""

# ruff: noqa: PTH103, PTH105, PTH123 - pathlib takes longer to import than all else here

import _imp
import marshal
import os
import zipimport
from types import CodeType

FOLDER = "/var/cache/compiled"
compile_source = zipimport._compile_source  # type: ignore[attr-defined]


def compiled(path: str, source: bytes) -> CodeType:
    """Return the code of a module: what another process has compiled, or what this one compiles."""
    kept = f"{FOLDER}/{_imp.source_hash(0, source).hex()}"
    try:
        with open(kept, "rb") as handle:
            code: CodeType = marshal.load(handle)  # noqa: S302 - written below, by the user who runs modules
    except (OSError, EOFError, ValueError, TypeError):  # none, or what a power cut has left of one
        code = compile_source(path, source)
        keep(kept, marshal.dumps(code))
    return code


def keep(path: str, code: bytes) -> None:
    """Write a file whole, where that is allowed; without a sync, which would flush others' writes to the disk, too."""
    beside = f"{path}.{os.getpid()}"
    try:
        os.makedirs(FOLDER, exist_ok=True)
        with open(beside, "wb") as handle:
            handle.write(code)
        os.replace(beside, path)
    except OSError:
        return  # of a user who may not: compiled again the next time


zipimport._compile_source = compiled  # type: ignore[attr-defined]
