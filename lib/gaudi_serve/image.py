"""The serving images: what each is made of, and the name that says so."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .errors import InputError

Entry = dict[str, Any]

# The vendor's base image of a release: its operating system and the PyTorch it brings.
BASES = {
    "1.21": "ubuntu22.04/habanalabs/pytorch-installer-2.6.0",
    "1.22": "ubuntu22.04/habanalabs/pytorch-installer-2.7.1",
    "1.23": "ubuntu22.04/habanalabs/pytorch-installer-2.9.0",
}
REGISTRY = "vault.habana.ai/gaudi-docker"
VLLM = {"repository": "https://github.com/HabanaAI/vllm-fork", "branch": "aice/v1.21.0", "folder": "/opt/vllm-fork"}
LIBFABRIC = "1.20.0"
SOURCE = re.compile(r"(https?|git|file|ssh)://[\w.@:/~+-]+")
BRANCH, COMMIT, RELEASE = re.compile(r"[\w./+-]+"), re.compile(r"[0-9a-f]{40}"), re.compile(r"\d+\.\d+\.\d+")
PARTS = ("vllm", "extension", "inc")
KEYS = {"base", "release", *PARTS, "multimodal", "audio", "host_nics"}

CHECKOUT = """\
RUN git clone --branch {branch} {repository} {folder} && git -C {folder} checkout --detach {commit} \\
    && git -C {folder} rev-parse HEAD > {folder}.commit
"""
INSTALL = {
    "vllm": "RUN pip install -r {folder}/requirements-hpu.txt && VLLM_TARGET_DEVICE=hpu pip install -e {folder}\n",
    "extension": "RUN pip install -e {folder}\n",
    "inc": "RUN cd {folder} && python setup.py pt develop\n",
}
# From the manual: Pillow with vector instructions for pictures, vLLM's libraries for sound.
MULTIMODAL = 'RUN pip uninstall --yes pillow && CC="cc -mavx2" pip install --upgrade --force-reinstall pillow-simd\n'
AUDIO = "RUN pip install 'vllm[audio]'\n"
# Jobs of more than four cards between boxes or Gaudi2E groups go over host NICs.
HOST_NICS = f"""\
RUN curl -fsSL https://github.com/ofiwg/libfabric/releases/download/v{LIBFABRIC}/libfabric-{LIBFABRIC}.tar.bz2 \\
      | tar -xj -C /tmp && cd /tmp/libfabric-{LIBFABRIC} \\
    && ./configure --prefix=/opt/libfabric --with-synapseai=/usr && make -j && make install \\
    && rm -rf /tmp/libfabric-{LIBFABRIC}
ENV LIBFABRIC_ROOT=/opt/libfabric LD_LIBRARY_PATH=/opt/libfabric/lib:$LD_LIBRARY_PATH
RUN git clone https://github.com/HabanaAI/hccl_ofi_wrapper.git /opt/hccl_ofi_wrapper && cd /opt/hccl_ofi_wrapper \\
    && make -j && cp libhccl_ofi_wrapper.so /usr/lib/habanalabs/ && ldconfig
"""


def vllm_images(images: Sequence[Mapping[str, Any]], release: str = "1.21.3") -> list[Entry]:
    """Return the images with everything that is to be known before one is built.

    Args:
        images: entries of ``vllm_images``. One with ``build: gaudi`` and a name without a tag is made
            from its ``recipe``: ``release``, ``base``, ``vllm``, ``extension``, ``inc`` (each
            ``repository``, ``branch``, ``commit``, ``folder``), ``multimodal``, ``audio``, ``host_nics``.
        release: release of driver and serving image, for recipes that name none.

    Returns:
        The entries; a built one with ``dockerfile``, ``alias`` (its name without a tag) and the name
        ``<alias>:<release>-<digest of the Dockerfile>``, so that a tag names a content.

    Raises:
        InputError: with the image, the key, the value and what is allowed.
    """
    return [_built(entry, release) if entry.get("build") == "gaudi" else dict(entry) for entry in images]


def _built(entry: Mapping[str, Any], release: str) -> Entry:
    alias = str(entry["name"])
    if ":" in alias.rpartition("/")[2] or "@" in alias:
        raise _refusal(alias, "name", alias, "a name without a tag: the tag says what is in a built image")
    recipe = entry.get("recipe") or {}
    if not isinstance(recipe, Mapping) or set(recipe) - KEYS:
        raise _refusal(alias, "recipe", recipe, "a mapping of " + ", ".join(sorted(KEYS)))
    used = str(recipe.get("release") or release)
    text = dockerfile(alias, recipe, used)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return {**entry, "alias": alias, "name": f"{alias}:{used}-{digest}", "dockerfile": text, "accelerator": "gaudi"}


def dockerfile(alias: str, recipe: Mapping[str, Any], release: str) -> str:
    """Return the Dockerfile of a recipe. Mirrors and proxies are not in it: they are no content.

    Raises:
        InputError: for a release without a known base image, or a part that is not pinned.
    """
    text = f"FROM {_base(alias, recipe, release)}\nWORKDIR /workspace\nARG PIP_INDEX_URL\n"
    for part in PARTS:
        given = recipe.get(part) or ({} if part == "vllm" else None)
        if given is not None:
            source = _source(alias, part, given)
            text += CHECKOUT.format(**source) + INSTALL[part].format(**source)
    for key, lines in (("multimodal", MULTIMODAL), ("audio", AUDIO), ("host_nics", HOST_NICS)):
        if recipe.get(key, False) is True:
            text += lines
        elif recipe.get(key, False) is not False:
            raise _refusal(alias, f"recipe.{key}", recipe[key], "true or false")
    return text


def _base(alias: str, recipe: Mapping[str, Any], release: str) -> str:
    if recipe.get("base"):
        return str(recipe["base"])
    if not RELEASE.fullmatch(release):
        raise _refusal(alias, "recipe.release", release, "a quoted release such as '1.21.3'")
    known = BASES.get(release.rpartition(".")[0])
    if not known:
        raise _refusal(alias, "recipe.release", release, f"has no known base image ({', '.join(BASES)}); say base:")
    return f"{REGISTRY}/{release}/{known}:latest"


def _source(alias: str, part: str, given: Any) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise _refusal(alias, f"recipe.{part}", given, "a mapping of repository, branch, commit, folder")
    source = {"folder": f"/opt/{part}", **(VLLM if part == "vllm" else {}), **given}
    allowed = {
        "repository": (SOURCE, "an address of a git repository"),
        "branch": (BRANCH, "a branch or tag"),
        "commit": (COMMIT, f"40 hexadecimal digits, such as 'git ls-remote {source.get('repository')}' shows"),
        "folder": (re.compile(r"/[\w./-]+"), "an absolute path"),
    }
    for key, (pattern, text) in allowed.items():
        if not isinstance(source.get(key), str) or not pattern.fullmatch(source[key]):
            raise _refusal(alias, f"recipe.{part}.{key}", source.get(key), text)
    if set(source) - set(allowed):
        raise _refusal(alias, f"recipe.{part}", sorted(set(source) - set(allowed)), "no such keys")
    return source


def _refusal(alias: str, key: str, value: Any, allowed: str) -> InputError:
    return InputError(f"vllm_images: {alias}: {key} {value!r}: {allowed}")
