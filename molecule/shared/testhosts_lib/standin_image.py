"""What stands for the vendor's serving images, and the archives: of the fork, and of upstream with the plugin.

The second is the first with an environment variable and the project's rules of buckets: on a host they share all layers
but one.
"""

from __future__ import annotations

import gzip
import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from . import base_image
from .common import KEY_LABEL, REPOSITORY, SHARED, HostError, cache, digest, remove_superseded, run, step

TAG = "gaudi-serve/vllm-standin:1.21.3"
PLUGIN_TAG = "gaudi-serve/vllm-standin:1.24.1"
FILES = SHARED / "standins" / "serving"
TOOLS = [SHARED / "standins" / "hl-smi"]
LIBRARY = REPOSITORY / "lib/gaudi_serve"
# The rules of the plugin's buckets, which the vendor's golden vectors prove, and what these import; packaging, which
# compares versions, is in every image of vLLM.
RULES = [LIBRARY / name for name in ("__init__.py", "buckets", "core", "model")]
PLUGIN_RECIPE = """\
ARG BASE
FROM ${BASE}
COPY gaudi_serve /usr/local/lib/python3.11/dist-packages/gaudi_serve
COPY packaging /usr/local/lib/python3.11/dist-packages/packaging
ENV STANDIN_STACK=plugin
"""


def key() -> str:
    """Return the key of the fork's image."""
    return digest(base_image.key(), FILES, *TOOLS)


def plugin_key() -> str:
    """Return the key of the plugin's image."""
    return digest(key(), PLUGIN_RECIPE, *RULES)


def archives() -> Path:
    """Return the folder of the archives; hosts see it read-only."""
    folder = cache() / "images"
    folder.mkdir(exist_ok=True)
    return folder


def label(tag: str) -> str:
    """Return the key that an image carries, or an empty text."""
    try:
        return run("docker", "image", "inspect", "--format", f'{{{{index .Config.Labels "{KEY_LABEL}"}}}}', tag).strip()
    except HostError:
        return ""


def save(tag: str, target: Path) -> None:
    """Write an image's archive beside its place, and move it there when it is whole."""
    beside = target.with_suffix(".part")
    argv = ["docker", "save", tag]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process, gzip.open(beside, "wb", compresslevel=1) as out:
        if process.stdout is None:
            raise HostError("docker save gives no output")
        shutil.copyfileobj(process.stdout, out, 1 << 20)
    if process.returncode != 0:
        beside.unlink()
        raise HostError(f"docker save {tag}: status {process.returncode}")
    beside.replace(target)


def ensure() -> Path:
    """Return the archive of the fork's image, made where it is missing."""
    return _archive("vllm-standin", TAG, key(), build)


def ensure_plugin() -> Path:
    """Return the archive of the plugin's image, made where it is missing."""
    return _archive("vllm-plugin-standin", PLUGIN_TAG, plugin_key(), build_plugin)


def _archive(name: str, tag: str, wanted: str, make: Callable[[], None]) -> Path:
    archive = archives() / f"{name}-{wanted}.tar.gz"
    if archive.exists():
        return archive
    if label(tag) != wanted:
        make()
    with step(f"Saving {tag}"):
        save(tag, archive)
    remove_superseded(f"images/{name}-*", archive)
    return archive


def build() -> None:
    """Build the fork's image."""
    base = base_image.ensure()
    with step("Building the serving image's stand-in"), tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        shutil.copytree(FILES, context, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        for path in TOOLS:
            shutil.copy(path, context / path.name)
        options = ["--build-arg", f"BASE={base}", "--label", f"{KEY_LABEL}={key()}", "--tag", TAG]
        run("docker", "build", *options, context, env={"DOCKER_BUILDKIT": "0"}, timeout=600)


def _packaging() -> Path:
    """Return the folder of package packaging, as the tests' own environment has it."""
    found = importlib.util.find_spec("packaging")
    if found is None or not found.submodule_search_locations:
        raise HostError("package packaging is not installed; make test and make demo install requirements.txt")
    return Path(found.submodule_search_locations[0])


def build_plugin() -> None:
    """Build the plugin's image, and the one that it is made from where that is missing."""
    if label(TAG) != key():
        build()
    with step("Building the stand-in of the plugin's serving image"), tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        (context / "Dockerfile").write_text(PLUGIN_RECIPE, encoding="utf-8")
        for path in RULES:
            target = context / "gaudi_serve" / path.relative_to(LIBRARY)
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, target, ignore=shutil.ignore_patterns(".*", "__pycache__"))
            else:
                shutil.copy(path, target)
        shutil.copytree(_packaging(), context / "packaging", ignore=shutil.ignore_patterns("__pycache__"))
        options = ["--build-arg", f"BASE={TAG}", "--label", f"{KEY_LABEL}={plugin_key()}", "--tag", PLUGIN_TAG]
        run("docker", "build", *options, context, env={"DOCKER_BUILDKIT": "0"}, timeout=600)
