"""The releases of Gaudi software, and what belongs to each: the one place that says what is served with what.

Driver, packages and serving image are of one release. Which versions of vLLM the plugin has for a release is as its
pages say; the fork of a release is its branch aice/v<release>.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Release:
    """One release, or all that begin alike.

    name: what ``gaudi_release`` begins with. engines: those that its images start; the first is taken where a model
    names none (``vllm`` is plain vllm serve of the fork, in lazy mode; with the plugin that is ``plugin``). vllm:
    versions of vLLM that the plugin has for it; none where it has no plugin. fork: the branch of the vendor's fork.
    cards: how the names of its devices begin. base: the vendor's image with PyTorch, for recipes. image: the vendor's
    ready serving image.
    """

    name: str
    engines: tuple[str, ...]
    vllm: tuple[str, ...] = ()
    fork: str | None = None
    cards: tuple[str, ...] = ("HL-225", "HL-288", "HL-325", "HL-328", "HL-338", "HL-388")
    base: str | None = None
    image: str | None = None

    @property
    def upstream_torch(self) -> bool:
        """Tell whether its images have upstream's PyTorch: none has Gaudi's own, which alone knows lazy mode."""
        return self.base is None

    def has(self, version: str, *, all_of_it: bool = False) -> bool:
        """Tell whether the plugin of this release is for a vLLM at least as new: its newest one, or all of them."""
        found = [_numbers(one) for text in self.vllm for one in text.split(" to ")]
        return bool(found) and (min if all_of_it else max)(found) >= _numbers(version)

    @property
    def about(self) -> str:
        """Return a few words for messages."""
        served = f"the fork's {self.fork}" if self.fork else ""
        plugin = f"vLLM {' or '.join(self.vllm)} with the plugin" if self.vllm else ""
        return f"{self.name} ({' and '.join(part for part in (served, plugin) if part)})"


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


RELEASES = (
    Release(
        "1.21",
        ("aice_1_21", "deepseek_r1", "vllm"),
        fork="aice/v1.21.0",
        base="ubuntu22.04/habanalabs/pytorch-installer-2.6.0",
    ),
    Release(
        "1.22",
        ("aice_1_22", "aice_1_21", "deepseek_r1", "plugin", "vllm"),
        ("0.10.1", "0.11.2"),
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
        image="ubuntu24.04/habanalabs/vllm-0.26.0-ptupstream-2.11.0",
    ),
)

UPSTREAM_TORCH = "ptupstream"  # in the names of the vendor's images with upstream's PyTorch

# Of an inventory that names none, on hosts that have nothing of another one.
DEFAULT = "1.24.1"


def release_of(text: str) -> Release | None:
    """Return the row of a release such as 1.21.3; None where there is none."""
    return next((one for one in RELEASES if f"{text}.".startswith(f"{one.name}.")), None)


def together(one: str, other: str) -> bool:
    """Tell whether two versions, such as 1.21.3 and 1.21.3-57, are of one release: of one row, where both are known."""
    numbers = [re.match(r"\d+\.\d+\.\d+", text) for text in (one, other)]
    rows = [release_of(number[0]) if number else None for number in numbers]
    return one.split(".")[:2] == other.split(".")[:2] and (None in rows or rows[0] is rows[1])


def rows_of(engine: str) -> list[Release]:
    """Return the releases whose images start an engine."""
    return [one for one in RELEASES if engine in one.engines]
