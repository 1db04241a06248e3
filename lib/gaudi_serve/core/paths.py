"""Where the toolkit keeps its files on a host."""

from __future__ import annotations

from collections.abc import Sequence

UNITS = "/etc/systemd/system"
CONFIG = "/etc/gaudi-serve"
# In a container of Ray.
RAY_MEMBER = "/usr/local/lib/gaudi-serve/ray-member"


def vllm_unit_paths(names: Sequence[str]) -> list[str]:
    """Return every path that the toolkit wrote for the named models."""
    return [
        path
        for name in names
        for path in (
            *[f"{CONFIG}/{name}.{kind}" for kind in ("env", "json", "buckets", "ray", "token", "secret")],
            *[f"/var/lib/gaudi-serve/{name}/{record}.json" for record in ("smoke", "supervisor", "stopped", "ends")],
            # Last: by it a run that was cut off here is finished by the next.
            f"{UNITS}/vllm-{name}.service",
        )
    ]
