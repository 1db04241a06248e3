"""Names that variables had, which keep working for one release."""

from __future__ import annotations

from collections.abc import Mapping

OF_DRIVER = (
    *("release", "version", "packages", "optional_packages", "modules", "kernel_headers", "upgrade_allowed", "manage"),
    *("repository", "ports_may_be_down"),
)
# The old name of a variable, and the present one.
ALIASES: Mapping[str, str] = {f"gaudi_driver_{name}": f"driver_{name}" for name in OF_DRIVER}
