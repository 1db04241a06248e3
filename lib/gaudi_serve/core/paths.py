"""Paths of the toolkit's files on a host."""

from __future__ import annotations

from collections.abc import Sequence

UNITS = "/etc/systemd/system"
CONFIG = "/etc/gaudi-serve"
# This path is inside a container of Ray.
RAY_MEMBER = "/usr/local/lib/gaudi-serve/ray-member"
# The text by which a unit is the toolkit's, and the file by which a folder of certificates is.
MARKER = "X-Gaudi-Serve="
MARK = "gaudi-serve"
# Lists the files that the toolkit has written elsewhere for a Prometheus or a Grafana of the site.
PLACES = "/etc/gaudi-monitoring/places.json"


def vllm_unit_paths(names: Sequence[str]) -> list[str]:
    """Return all paths that the toolkit writes for the named models."""
    return [
        path
        for name in names
        for path in (
            *[f"{CONFIG}/{name}.{kind}" for kind in ("env", "json", "buckets", "ray", "token", "secret")],
            *[f"/var/lib/gaudi-serve/{name}/{record}.json" for record in ("smoke", "supervisor", "stopped", "ends")],
            f"/var/lib/gaudi-serve/{name}/label.key",
            # The unit is last, so that the next run finds and finishes an interrupted one.
            f"{UNITS}/vllm-{name}.service",
        )
    ]
