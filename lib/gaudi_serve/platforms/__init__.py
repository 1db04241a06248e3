"""The platforms: kinds of machines, by the names that ``accelerator`` of a host's facts takes."""

from __future__ import annotations

from ..core.errors import refusal
from . import cpu, gaudi
from .base import Platform

# Where none finds its devices, it is the last.
PLATFORMS: dict[str, Platform] = {one.name: one for one in (gaudi.PLATFORM, cpu.PLATFORM)}
# Facts that were written by hand for a plan may leave it out.
USUAL = gaudi.PLATFORM.name

__all__ = ["PLATFORMS", "USUAL", "Platform", "accelerator_needs", "platform_here", "platform_of"]


def platform_of(accelerator: str | None) -> Platform:
    """Return the platform by the name that a host's facts say, if they do."""
    return PLATFORMS[accelerator or USUAL]


def accelerator_needs(accelerator: str) -> list[str]:
    """Return what hosts of a platform need that others do not: such as gaudi_driver, habana_runtime, hccl_validation.

    Raises:
        InputError: for a platform that does not exist.
    """
    if accelerator not in PLATFORMS:
        raise refusal("", "accelerator", accelerator, f"is not one of {', '.join(PLATFORMS)}")
    return list(PLATFORMS[accelerator].needs)


def platform_here(root: str = "/") -> Platform:
    """Return the platform of the machine that this runs on: the first that finds its devices."""
    return next(one for one in PLATFORMS.values() if one.here(root))
