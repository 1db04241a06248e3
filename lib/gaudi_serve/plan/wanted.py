"""The requested state of a host, from its inventory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.checks import is_true
from ..model.between import NEITHER, NICS, Between
from ..stages.accelerator_network import between_of, port_warnings


@dataclass(frozen=True)
class Wanted:
    """The requested state of a host, from its inventory.

    models: the user's list; None if it is not set. catalog: known models; ``model: <entry>`` uses the entry's keys, and
    a model's own keys override them. images: entries of ``vllm_images``; None if they cannot be read. secrets: of
    ``vllm_secrets``. defaults: keys for every model in which neither it nor the catalog sets them.
    accelerator, cards: required of the host. release: of driver and serving image, such as 1.21.3; empty if it is not
    set. host_nics: the machine has NICs for traffic between cards (matters only on Gaudi2E).
    device_family: the family that unknown cards count as, such as HL-325. move_allowed: running models may get other
    cards if others need theirs, which restarts them. cards_excluded: serial numbers of cards that get no
    model; cards_accepted: those of sick cards that may get models.
    weights_come: a later stage downloads the weights with a ``source``; images_come: the same for images. gateway:
    settings of a gateway on the host. cluster_address: where the other hosts of its models reach it; empty for the
    address of its default route. between: the network between devices of several hosts. port_notes: notes about ports
    of its cards that carry no traffic. offline: the host has no internet. left: models that are not planned now and
    stay unchanged on their cards, each with the reason, or an empty text if an error has it.
    """

    models: Any
    catalog: Mapping[str, Any] = field(default_factory=dict)
    images: Sequence[Any] | None = ()
    secrets: Any = None
    defaults: Any = None
    accelerator: str = "auto"
    cards: int = 0
    release: str = ""
    host_nics: bool = False
    device_family: str = ""
    move_allowed: bool = False
    cards_excluded: Sequence[str] = ()
    cards_accepted: Sequence[str] = ()
    weights_come: bool = True
    images_come: bool = True
    gateway: Any = None
    cluster_address: str = ""
    between: Between = NEITHER
    port_notes: Sequence[str] = ()
    offline: bool = False
    left: Mapping[str, str] = field(default_factory=dict)

    @property
    def nics(self) -> bool:
        """Return whether network cards connect groups of cards."""
        return self.host_nics or self.between.kind == NICS

    @classmethod
    def of_role(cls, known: Mapping[str, Any]) -> Wanted:
        """Return the requested state from the variables of role preflight."""
        stages = known["preflight_for"]
        return cls(
            models=known["preflight_models"],
            catalog=known["preflight_catalog"],
            images=known["preflight_images"] or [],
            secrets=known["preflight_secrets"],
            defaults=known["preflight_model_defaults"],
            accelerator=known["preflight_accelerator"],
            cards=int(known["preflight_cards"]),
            release=str(known["preflight_release"]),
            host_nics=is_true(known["preflight_host_nics"]),
            device_family=known["preflight_device_family"],
            move_allowed=is_true(known["preflight_move_allowed"]),
            cards_excluded=list(known["preflight_cards_excluded"] or []),
            cards_accepted=list(known["preflight_cards_accepted"] or []),
            weights_come=is_true(known["preflight_weights_come"]),
            images_come=not stages or "vllm_image" in stages,
            gateway=known.get("fleet_gateway"),
            cluster_address=str(known.get("vllm_cluster_address") or ""),
            between=between_of(known),
            port_notes=port_warnings(known),
            offline=is_true(known.get("gaudi_offline")),
        )
