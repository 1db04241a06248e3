"""The releases of software and their parts: the only place that defines which versions belong together.

Gaudi's driver, packages and serving image are of one release. The plugin's pages list its vLLM versions for a release;
the fork of a release is its branch aice/v<release>. On other platforms a release is one of vLLM, and the images are
those that its release script publishes (.buildkite/scripts/publish-release-images.sh of vLLM 0.33.0).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..core.images import split_registry
from ..core.versions import comparable

if TYPE_CHECKING:
    from packaging.version import Version


@dataclass(frozen=True)
class Release:
    """One release, or all that begin alike.

    name: first part of ``accelerator_release``. engines: those that its images start; the first is the default of a
    model (``vllm`` is plain vllm serve of the fork, in lazy mode; with the plugin that is ``plugin``). vllm: versions
    of vLLM that the plugin supports in it; empty without a plugin. fork: the branch of the vendor's fork. patches: the
    same for those of its releases that do not have all of them. cards: first parts of the names of its devices. base:
    the vendor's image with PyTorch, for recipes. image: the vendor's ready serving image.
    """

    name: str
    engines: tuple[str, ...]
    vllm: tuple[str, ...] = ()
    patches: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    fork: str | None = None
    cards: tuple[str, ...] = ("HL-225", "HL-288", "HL-325", "HL-328", "HL-338", "HL-388")
    base: str | None = None
    image: str | None = None

    def ready(self, release: str) -> str | None:
        """Return the name of the vendor's ready serving image for one of its releases, such as 1.24.1."""
        return f"{REGISTRY}/{release}/{self.image}:latest" if self.image else None

    @property
    def upstream_torch(self) -> bool:
        """Return whether its images have upstream's PyTorch: none has Gaudi's own, the only one with lazy mode."""
        return self.base is None or "upstream" in self.base

    def of(self, release: str) -> Release:
        """Return the row for one of its releases, such as 1.22.1, with only the vLLM versions of that release."""
        name = next((name for name in self.patches if f"{release}.".startswith(f"{name}.")), None)
        if name is None:
            return self
        vllm = self.patches[name]
        return replace(self, name=name, vllm=vllm, engines=tuple(one for one in self.engines if vllm or one != PLUGIN))

    def has(self, version: str, *, all_of_it: bool = False) -> bool:
        """Return whether the plugin of this release is for a vLLM at least as new: its newest one, or all of them."""
        return bool(self.vllm) and (self.oldest if all_of_it else self.newest) >= comparable(version)

    def serves(self, version: str) -> bool:
        """Return whether the plugin of this release is for this version of vLLM, or for another patch of it."""
        spans = [[comparable(one).release[:2] for one in text.split(" to ")] for text in self.vllm]
        return any(span[0] <= comparable(version).release[:2] <= span[-1] for span in spans)

    @property
    def oldest(self) -> Version:
        """Return the oldest vLLM version that it has."""
        return min(comparable(text.split(" to ")[0]) for text in self.vllm)

    @property
    def newest(self) -> Version:
        """Return the newest vLLM version that it has."""
        return max(comparable(text.split(" to ")[-1]) for text in self.vllm)

    @property
    def about(self) -> str:
        """Return a few words for messages."""
        served = f"the fork's {self.fork}" if self.fork else ""
        plugin = f"vLLM {' or '.join(self.vllm)} with the plugin" if self.vllm else ""
        return f"{self.name} ({' and '.join(part for part in (served, plugin) if part)})"


REGISTRY = "vault.habana.ai/gaudi-docker"
PLUGIN = "plugin"  # the engine that needs a vLLM version of the release

RELEASES = (
    Release(
        "1.21",
        ("aice_1_21", "deepseek_r1", "vllm"),
        fork="aice/v1.21.0",
        base="ubuntu22.04/habanalabs/pytorch-installer-2.6.0",
    ),
    Release(
        "1.22",
        ("aice_1_22", "aice_1_22_shared", "aice_1_21", "deepseek_r1", "plugin", "vllm"),
        ("0.10.1", "0.11.2"),
        {"1.22.0": (), "1.22.1": ("0.10.1",), "1.22.2": ("0.11.2",)},
        fork="aice/v1.22.0",
        base="ubuntu22.04/habanalabs/pytorch-installer-2.7.1",
    ),
    Release(
        "1.23",
        ("plugin",),
        ("0.11.2", "0.13.0 to 0.17.1"),
        base="ubuntu22.04/habanalabs/pytorch-installer-2.9.0",
    ),
    Release("1.24.0", ("plugin",), ("0.17.1", "0.19.0 to 0.21.0")),
    Release(
        "1.24.1",
        ("plugin",),
        ("0.24.0", "0.26.0"),
        base="ubuntu24.04/habanalabs/pytorch-upstream-installer-2.11.0",
        image="ubuntu24.04/habanalabs/vllm-0.26.0-ptupstream-2.11.0",
    ),
)

# Versions of vLLM begin with 0; a tag may also be a release of the software, or a user's own number.
VLLM = re.compile(r"vllm.*(?<![\d.])(0\.\d{2,4}\.\d{1,4})(?!\.?\d)")
# Every tag of vLLM's own images is its version; some have a fourth number.
OFFICIAL = re.compile(r"vllm-openai(?:-[a-z]+)?:v(0\.\d{1,4}\.\d{1,4})(?:\.\d{1,3})?(?![\d.])")
# vLLM's own images by the end of their repository's name: the platform of each.
OFFICIAL_FOR = {"": "cuda", "-rocm": "rocm", "-xpu": "xpu", "-cpu": "cpu"}
REPOSITORIES = {platform: f"vllm/vllm-openai{end}" for end, platform in OFFICIAL_FOR.items()}
# The vLLM release of the default image if no release is set.
VLLM_DEFAULT = "0.33.0"
VLLM_RELEASE = re.compile(r"0\.\d{1,4}\.\d{1,4}")
# The first release with an image, for platforms that got one recently.
SINCE = {"xpu": "0.26.0"}
# Since this release ROCm's plain tags have ROCm 10, whose driver requirement is undocumented; the other tags have 7.2,
# which AMD's drivers 30.x support.
ROCM_10_SINCE, ROCM_7_2 = "0.33.0", "-rocm72"
REPOSITORY = re.compile(r"(?:^|/)vllm/vllm-openai(-[a-z]+)?(?:[:@]|$)")
UPSTREAM_TORCH = "ptupstream"  # in the names of the vendor's images with upstream's PyTorch

# For an inventory without a release, on hosts without a driver of another one.
DEFAULT = "1.24.1"


def release_of(text: str) -> Release | None:
    """Return the row of a release such as 1.21.3; None if there is none."""
    row = _row(text)
    return row and row.of(text)


def _row(text: str) -> Release | None:
    return next((one for one in RELEASES if f"{text}.".startswith(f"{one.name}.")), None)


def stated_versions(version: str) -> str:
    """Return the releases whose plugin supports a version of vLLM, for a sentence."""
    found = [row.name for row in rows_of(PLUGIN) if row.serves(version)]
    return f"release {' or '.join(found)}" if found else "no release that is known"


def vllm_of(image: str) -> str | None:
    """Return the vLLM version in an image's name, such as .../vllm-0.26.0-ptupstream-2.11.0:latest."""
    tagged = split_registry(image)[1].partition("@")[0]
    found = OFFICIAL.search(tagged) or VLLM.search(tagged)
    return found[1] if found else None


def made_for(image: str) -> str | None:
    """Return the platform of one of vLLM's own images; None for every other image."""
    found = REPOSITORY.search(image)
    return OFFICIAL_FOR.get(found[1] or "") if found else None


def official_image(platform: str, release: str, live: str = "") -> str | None:
    """Return vLLM's own image for a platform; None if there is none.

    Args:
        platform: its name, such as cuda.
        release: that of the host's software; a version of vLLM determines the image, any other value does not.
        live: the image that serves the model now. If the release does not determine the image, an official live image
            for this platform stays, so that a new default restarts no model.
    """
    said = VLLM_RELEASE.fullmatch(release)
    if not said and made_for(live) == platform:
        return live
    version = release if said else VLLM_DEFAULT
    repository = REPOSITORIES.get(platform)
    if repository is None or comparable(version) < comparable(SINCE.get(platform, "0.0.0")):
        return None
    newer = platform == "rocm" and comparable(version) >= comparable(ROCM_10_SINCE)
    return f"{repository}:v{version}{ROCM_7_2 if newer else ''}"


def is_official(image: str) -> bool:
    """Return whether an image is vLLM's own or the vendor's ready one, which can be pulled without an entry."""
    ready = any(image == row.ready(row.name) for row in RELEASES)
    return ready or made_for(image) is not None


def together(one: str, other: str) -> bool:
    """Return whether two versions, such as 1.21.3 and 1.21.3-57, are of one release: of one row, if both are known."""
    found = [re.match(r"\d+\.\d+\.\d+", text) for text in (one, other)]
    rows = [_row(number[0]) if number else None for number in found]
    return one.split(".")[:2] == other.split(".")[:2] and (None in rows or rows[0] is rows[1])


def rows_of(engine: str) -> list[Release]:
    """Return the releases whose images start an engine; a row is split if only some of its releases do."""
    rows = (row.of(name) for row in RELEASES for name in ((engine == PLUGIN and row.patches) or [row.name]))
    return [row for row in rows if engine in row.engines]
