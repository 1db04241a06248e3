"""Cards with links, of several kinds, or parts of divided ones: which a model gets, and what is reported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from gaudi_serve.model.host import Host
from gaudi_serve.plan.place import topology_notes
from gaudi_serve.platforms import PLATFORMS
from gaudi_serve.platforms.links import islands
from helpers.placing import place, request

NEAR = (("NV",), ("PIX", "PXB"))


@pytest.fixture(autouse=True)
def linked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the platform decide which links join cards."""
    monkeypatch.setitem(PLATFORMS, "gaudi", replace(PLATFORMS["gaudi"], near=NEAR, group=lambda host: None))


def cards(*kinds: str, links: dict[tuple[int, int], str] | None = None, nodes: str = "") -> dict[str, Any]:
    """Return a host with cards of these names; a name that begins with MIG is a part of a divided card."""
    found: list[dict[str, Any]] = [
        {"module_id": number, "numa_node": int(nodes[number]) if nodes else 0, "name": name}
        | ({"alone": True} if name.startswith("MIG") else {})
        for number, name in enumerate(kinds)
    ]
    for (one, other), kind in (links or {}).items():
        for here, there in ((one, other), (other, one)):
            found[here].setdefault("links", {})[str(there)] = kind
    return {"device_name": "HL-225", "modules": found, "services": {}}


def test_a_model_gets_cards_that_are_linked_directly() -> None:
    host = cards(*["L4"] * 4, links={(0, 2): "NV12", (1, 3): "NV12", (0, 1): "SYS"}, nodes="0011")
    assert place([request("a", 2)], host)[0] == {"a": [0, 2]}
    # Neither the node nor the order of numbers counts for more.
    assert place([request("a", 2), request("b", 2)], host)[0] == {"a": [0, 2], "b": [1, 3]}


def test_where_no_card_is_linked_directly_a_bridge_counts() -> None:
    host = cards(*["L4"] * 4, links={(0, 3): "PIX", (1, 2): "PIX", (0, 1): "SYS"})
    assert place([request("a", 2), request("b", 2)], host)[0] == {"a": [0, 3], "b": [1, 2]}


def test_more_cards_than_an_island_has_are_given_and_the_way_between_sockets_is_reported() -> None:
    host = cards(*["L4"] * 4, links={(0, 1): "NV4", (2, 3): "NV4", (1, 2): "SYS", (0, 2): "SYS"}, nodes="0011")
    placed, errors, _ = place([request("a", 4)], host)
    assert (placed, errors) == ({"a": [0, 1, 2, 3]}, [])
    (note,) = topology_notes(Host.of(host), placed["a"])
    assert note.startswith("its cards 0 and 2 are on different sockets")
    assert topology_notes(Host.of(host), [0, 1]) == []


def test_cards_of_two_kinds_are_not_mixed_unless_they_are_named() -> None:
    host = cards("A100", "L4", "A100", "L4")
    assert place([request("a", 2), request("b", 2)], host)[0] == {"a": [0, 2], "b": [1, 3]}
    _, errors, _ = place([request("a", 3)], host)
    assert errors[0]["message"] == (
        "g: model a: tensor_parallel_size 3: this host has 4 cards, 4 of them free; they are 2 A100 and 2 L4, and a "
        "model gets cards of one kind unless module_ids names them"
    )
    named = place([request("a", 2, [0, 1])], host)
    assert named[:2] == ({"a": [0, 1]}, [])
    (note,) = topology_notes(Host.of(host), [0, 1])
    assert note.startswith("its cards are of different kinds, A100 (card 0) and L4 (card 1)")


def test_a_model_without_room_is_named_by_the_sizes_that_it_has() -> None:
    host = cards(*["L4"] * 4)
    _, errors, _ = place([request("a", 3), {**request("b", 1), "pipeline_parallel_size": 2}], host)
    assert errors[0]["message"].startswith(
        "g: model b: tensor_parallel_size 1: with pipeline_parallel_size 2 needs 2 cards; this host has 4 cards, 1 of "
    )


def test_a_part_of_a_divided_card_works_alone() -> None:
    host = cards("MIG 3g.40gb", "MIG 3g.40gb", "H100", "H100")
    assert place([request("a", 2), request("b", 1)], host)[0] == {"a": [2, 3], "b": [0]}
    _, errors, _ = place([request("a", 2, [0, 1])], host)
    assert "card 0 is a part of a divided card, which cannot work with other cards" in errors[0]["message"]


def test_cards_that_cannot_read_each_other_are_reported() -> None:
    host = cards("RTX 4090", "RTX 4090", links={(0, 1): "PHB"})
    host["modules"][0]["no_peer"] = [1]
    (note,) = topology_notes(Host.of(host), [0, 1])
    assert "cannot read each other's memory" in note and "NCCL_P2P_DISABLE" in note


def test_the_first_level_of_links_that_a_host_has_makes_islands() -> None:
    found = Host.of(cards(*["x"] * 5, links={(0, 1): "PIX", (1, 2): "PIX", (3, 4): "NV2"})).cards
    assert islands(found, NEAR) == {0: 0, 1: 1, 2: 2, 3: 3, 4: 3}
    assert islands(found, NEAR[1:]) == {0: 0, 1: 0, 2: 0, 3: 3, 4: 4}
    assert islands(found, ()) == {}
