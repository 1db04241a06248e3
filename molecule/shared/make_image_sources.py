"""Make what an image is built from: git repositories, a package index, a libfabric archive; all small, all working.

``make_image_sources.py FOLDER``: FOLDER/git is for git daemon, FOLDER/www for a web server, FOLDER/pins.json has
the commits and the checksum. The vLLM in it is the one of the serving image's stand-in.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

SERVING = Path(__file__).resolve().parent / "standins" / "serving"
IDENTITY = {f"GIT_{who}_{what}": "gaudi-serve" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
DATES = {f"GIT_{who}_DATE": "2025-01-01T00:00:00Z" for who in ("AUTHOR", "COMMITTER")}

VLLM_SETUP = """\
import os
from setuptools import find_packages, setup

if os.environ.get("VLLM_TARGET_DEVICE") != "hpu":
    raise SystemExit("VLLM_TARGET_DEVICE must be hpu")
needs, extras = ["pillow"], {"audio": ["librosa"]}
setup(
    name="vllm",
    version="0.9.0",
    packages=find_packages(),
    scripts=["bin/vllm"],
    install_requires=needs,
    extras_require=extras,
)
"""
INC_SETUP = """\
import sys
from setuptools import setup

if sys.argv.pop(1) != "pt":
    raise SystemExit("usage: python setup.py pt develop")
setup(name="neural_compressor_pt", version="3.4", py_modules=["neural_compressor_pt"])
"""
PLAIN_SETUP = 'from setuptools import setup\nsetup(name="{name}", version="1.0", py_modules=["{module}"])\n'
# As with the real two: both install PIL, and who comes last has it.
PILLOW = "OWNER = '{name}'\n"
SIMD_SETUP = """\
import os
from setuptools import setup

if os.environ.get("CC") != "cc -mavx2":
    raise SystemExit("CC must ask for vector instructions")
setup(name="pillow-simd", version="9.5.0.post1", py_modules=["PIL"])
"""
WRAPPER_MAKEFILE = """\
libhccl_ofi_wrapper.so:
\ttest -e $(LIBFABRIC_ROOT)/lib/libfabric.so
\techo wrapper > $@
"""
HCCL_MAKEFILE = """\
hccl_demo:
\ttest -d /usr/lib/habanalabs
\techo measurement > $@
"""
CONFIGURE = """\
#!/bin/sh
[ "$*" = "--prefix=/opt/libfabric --with-synapseai=/usr" ] || { echo "unknown options: $*" >&2; exit 1; }
printf 'all:\\ninstall:\\n\\tmkdir -p /opt/libfabric/lib && echo fabric > /opt/libfabric/lib/libfabric.so\\n' > Makefile
"""


def main(folder: Path) -> None:
    """Make everything again."""
    shutil.rmtree(folder, ignore_errors=True)
    vllm = folder / "work" / "vllm-fork"
    for name in ("vllm", "bin", "scripts"):
        shutil.copytree(SERVING / name, vllm / name, ignore=shutil.ignore_patterns("__pycache__"))
    write(vllm / "setup.py", VLLM_SETUP)
    write(vllm / "requirements-hpu.txt", "tabulate\n")
    module = folder / "work" / "vllm-hpu-extension"
    write(module / "setup.py", PLAIN_SETUP.format(name="vllm-hpu-extension", module="vllm_hpu_extension"))
    write(module / "vllm_hpu_extension.py", "")
    inc = folder / "work" / "neural-compressor"
    write(inc / "setup.py", INC_SETUP)
    write(inc / "neural_compressor_pt.py", "")
    write(folder / "work" / "hccl_ofi_wrapper" / "Makefile", WRAPPER_MAKEFILE)
    shutil.copytree(SERVING / "hccl_demo", folder / "work" / "hccl_demo", ignore=shutil.ignore_patterns("__pycache__"))
    write(folder / "work" / "hccl_demo" / "Makefile", HCCL_MAKEFILE)
    pins = {path.name: commit(path, folder / "git") for path in sorted((folder / "work").iterdir())}
    packages(folder / "www" / "simple")
    pins["libfabric"] = libfabric(folder / "www" / "libfabric-1.20.0.tar.bz2")
    shutil.rmtree(folder / "work")
    write(folder / "pins.json", json.dumps(pins))


def packages(index: Path) -> None:
    """Fill the package index."""
    for name in ("librosa", "tabulate"):
        files = {"setup.py": PLAIN_SETUP.format(name=name, module=name), f"{name}.py": ""}
        sdist(index / name, f"{name}-1.0", files)
    pillow = {"setup.py": PLAIN_SETUP.format(name="pillow", module="PIL"), "PIL.py": PILLOW.format(name="pillow")}
    sdist(index / "pillow", "pillow-1.0", pillow)
    simd = {"setup.py": SIMD_SETUP, "PIL.py": PILLOW.format(name="pillow-simd")}
    sdist(index / "pillow-simd", "pillow-simd-9.5.0.post1", simd)


def write(path: Path, text: str) -> None:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def commit(tree: Path, repositories: Path) -> str:
    """Put a tree into a bare repository of its name, and return the commit, which only follows the content."""
    environment = {**os.environ, **IDENTITY, **DATES, "GIT_CONFIG_GLOBAL": "/dev/null"}

    def git(*argv: str | Path) -> str:
        done = subprocess.run(["git", *argv], env=environment, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "--quiet", "--initial-branch", "main", tree)
    git("-C", tree, "add", "--all")
    git("-C", tree, "commit", "--quiet", "--message", "All of it")
    git("clone", "--quiet", "--bare", tree, repositories / f"{tree.name}.git")
    return git("-C", tree, "rev-parse", "HEAD")


def sdist(folder: Path, stem: str, files: dict[str, str]) -> None:
    """Write a source package."""
    name, _, version = stem.rpartition("-")
    folder.mkdir(parents=True)
    with tarfile.open(folder / f"{stem}.tar.gz", "w:gz") as archive:
        add(archive, stem, {**files, "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"})


def libfabric(path: Path) -> str:
    """Write what looks like libfabric's release, and return its checksum."""
    with tarfile.open(path, "w:bz2") as archive:
        add(archive, "libfabric-1.20.0", {"configure": CONFIGURE})
    return hashlib.sha256(path.read_bytes()).hexdigest()


def add(archive: tarfile.TarFile, folder: str, files: dict[str, str]) -> None:
    """Put files into an archive."""
    for name, text in files.items():
        member = tarfile.TarInfo(f"{folder}/{name}")
        member.size, member.mode = len(text.encode()), 0o755
        archive.addfile(member, io.BytesIO(text.encode()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
