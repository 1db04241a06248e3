"""Variables that have a new name: a host's old one counts as the new one, for one release."""

from __future__ import annotations

from collections.abc import Mapping

# The old name, and the new one.
ALIASES: Mapping[str, str] = {
    "hccl_validation_image": "link_validation_image",
    "hccl_validation_asked": "link_validation_asked",
    "hccl_validation_drain": "link_validation_drain",
    "hccl_validation_max_age_days": "link_validation_max_age_days",
    "hccl_validation_thresholds": "link_validation_thresholds",
    "hccl_validation_nodes": "link_validation_nodes",
    "hccl_validation_port": "link_validation_port",
    "hccl_validation_timeout": "link_validation_timeout",
    "hccl_validation_options": "link_validation_hccl_options",
    "hccl_validation_checkout": "link_validation_hccl_checkout",
    "hccl_validation_repository": "link_validation_hccl_repository",
    "hccl_validation_commit": "link_validation_hccl_commit",
}
