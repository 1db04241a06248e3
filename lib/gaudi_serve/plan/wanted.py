"""What an inventory requests of a host, in one object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.aliases import value_of
from ..core.checks import is_true
from ..model.between import NEITHER, NICS, Between
from ..stages.accelerator_network import between_of, port_warnings


@dataclass(frozen=True)
class Wanted:
    """What an inventory requests of a host.

    models: the user's list; None where nobody has set one. catalog: known models; ``model: <entry>`` takes the entry's
    keys, a model's own keys win. images: entries of ``vllm_images``; None where they cannot be read. secrets: of
    ``vllm_secrets``. defaults: keys that every model takes where neither it nor the catalog has them.

    accelerator, cards: what the host must have. release: of driver and serving image, such as 1.21.3; empty where
    nobody has set one. host_nics: the machine has NICs for traffic between cards (matters on Gaudi2E only).
    device_family: as what cards are served whose name is not known, such as HL-325. move_allowed: running models may
    get other cards where others need theirs, which restarts them. cards_excluded: serial numbers of cards that get no
    model; cards_accepted: those of sick cards that get models all the same.

    weights_come: a later stage installs the weights that have a ``source``; images_come: the same of images. gateway:
    settings of a gateway on the host. cluster_address: where the other hosts of its models reach it; empty for the
    address of its default route. between: the network that devices of several hosts use. port_notes: which ports of its
    cards carry nothing. left: models that are not planned now and go on as they are, with their cards: of each why,
    empty where an error says it.
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
    left: Mapping[str, str] = field(default_factory=dict)

    @property
    def nics(self) -> bool:
        """Return whether network cards connect groups of cards."""
        return self.host_nics or self.between.kind == NICS

    @classmethod
    def of_role(cls, known: Mapping[str, Any]) -> Wanted:
        """Return what the variables of role preflight request."""
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
            gateway=value_of(known, "fleet_gateway"),
            cluster_address=str(known.get("vllm_cluster_address") or ""),
            between=between_of(known),
            port_notes=port_warnings(known),
        )
