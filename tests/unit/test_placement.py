"""The ledger of cards: what is kept, what moves, what is refused, and which cores go with the cards."""

from __future__ import annotations

import pytest
from gaudi_serve.model.host import Host
from helpers.placing import disjoint_cores, machine, place, request, running


def test_small_models_leave_a_whole_node_to_a_large_one() -> None:
    placed, errors, _ = place([request("a", 1), request("b", 2), request("c", 4), request("d", 1)], machine())
    assert errors == []
    assert placed == {"a": [0], "b": [1, 2], "c": [4, 5, 6, 7], "d": [3]}


def test_pinned_models_come_first_wherever_they_stand() -> None:
    placed, errors, _ = place([request("a", 2), request("b", 1, [0])], machine())
    assert (placed, errors) == ({"b": [0], "a": [1, 2]}, [])


def test_a_model_spans_nodes_only_where_no_node_has_room() -> None:
    placed, errors, _ = place([request("a", 3, [0, 1, 2]), request("b", 3, [4, 5, 6]), request("c", 2)], machine())
    assert (placed["c"], errors) == ([3, 7], [])


def test_gaudi2e_groups_are_not_crossed_without_host_nics() -> None:
    specs = [request("a", 3, [0, 1, 2]), request("b", 3, [4, 5, 6]), request("c", 2)]
    _, errors, _ = place(specs, machine("HL-288"))
    assert errors[0]["message"] == (
        "g: model c: tensor_parallel_size 2: this host has 8 cards, 2 of them free (held: 0: a, 1: a, 2: a, 4: b, "
        "5: b, 6: b); no group of four has so many free, and only host NICs connect the groups; declare host NICs "
        "(gaudi_host_nics: true) if the machine has them"
    )
    placed, errors, _ = place(specs, machine("HL-288"), host_nics=True)
    assert (placed["c"], errors) == ([3, 7], [])


def test_gaudi2e_cards_named_across_the_groups_are_refused() -> None:
    _, errors, _ = place([request("a", 2, [3, 4])], machine("HL-288E"))
    assert "module_ids [3, 4]: lie in the groups 0-3 and 4-7, which only host NICs connect" in errors[0]["message"]
    assert place([request("a", 2, [3, 4])], machine("HL-225"))[1] == []


def test_the_fewest_running_models_move_and_only_where_they_must() -> None:
    host = machine("HL-288", services=running(a=[0], b=[4], c=[5]))
    placed, errors, moved = place(
        [request("a", 1), request("b", 1), request("c", 1), request("big", 4)], host, move_allowed=True
    )
    assert errors == []
    # One move, not two: a makes room for big.
    assert placed == {"b": [4], "c": [5], "big": [0, 1, 2, 3], "a": [6]}
    assert moved == {"a": [0]}
    # On a machine without groups nobody moves.
    placed, _, moved = place(
        [request("a", 1), request("b", 1), request("big", 4)], machine(services=running(a=[0], b=[4]))
    )
    assert (placed["a"], placed["b"], moved) == ([0], [4], {})


def test_where_nothing_helps_nobody_moves() -> None:
    host = machine("HL-288", services=running(a=[0], b=[4]))
    placed, errors, moved = place([request("a", 1), request("b", 1), request("x", 4), request("y", 4)], host)
    assert (placed, moved) == ({"a": [0], "b": [4]}, {})
    assert [error["model"] for error in errors] == ["x", "y"]


def test_one_impossible_request_does_not_cost_the_others_their_cards() -> None:
    placed, errors, _ = place([request("a", 9), request("b", 2)], machine())
    assert (placed, [error["model"] for error in errors]) == ({"b": [0, 1]}, ["a"])


def test_a_running_model_whose_cards_cross_groups_or_are_gone_is_placed_again() -> None:
    host = machine("HL-288", services=running(a=[3, 4], b=[9]))
    placed, errors, moved = place([request("a", 2), request("b", 1)], host)
    assert (placed, errors, moved) == ({"a": [0, 1], "b": [2]}, [], {"a": [3, 4], "b": [9]})


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16])
def test_hosts_of_one_to_sixteen_cards(count: int) -> None:
    host = machine(nodes=tuple(number * 2 // count for number in range(count)))
    placed, errors, _ = place([request(f"m{number}", 1) for number in range(count)], host)
    assert (sorted(cards[0] for cards in placed.values()), errors) == (list(range(count)), [])


def test_cores_are_left_to_the_vendors_rule_where_it_holds() -> None:
    assert disjoint_cores(machine()) == {}


def test_interleaved_modules_get_disjoint_cores_of_their_node() -> None:
    cores = disjoint_cores(machine(nodes=(0, 1, 0, 1, 0, 1, 0, 1)))
    assert cores == {
        **{0: "0-9", 2: "10-19", 4: "20-29", 6: "30-39"},
        **{1: "40-49", 3: "50-59", 5: "60-69", 7: "70-79"},
    }


def test_a_running_model_is_not_moved_for_another_unless_that_is_allowed() -> None:
    host = machine(services=running(a=[0], b=[4]))
    specs = [request("a", 1), request("b", 1), request("new", 2, [0, 1])]
    placed, errors, moved = place(specs, host)
    assert (placed, moved) == ({"a": [0], "b": [4]}, {})
    assert [error["message"] for error in errors] == [
        "g: model new: module_ids [0, 1]: card 0 is used by model a, which runs; free are [2, 3, 5, 6, 7]; "
        "-e fleet_move_allowed=true lets running models move"
    ]
    assert place(specs, host, move_allowed=True)[2] == {"a": [0]}
    # Nor for one that finds no room otherwise.
    host = machine("HL-288", services=running(a=[0], b=[4]))
    placed, errors, moved = place([request("a", 1), request("b", 1), request("big", 4)], host)
    assert (placed, moved) == ({"a": [0], "b": [4]}, {})
    assert errors[0]["message"].endswith("; -e fleet_move_allowed=true lets running models move")
    # What is to be stopped, or gets another number of cards, does not run on as it is.
    for changed in ({"state": "stopped"}, {"tensor_parallel_size": 2}):
        placed, errors, _ = place([{**request("a", 1), **changed}, request("new", 1, [0])], host)
        assert (errors, placed["new"]) == ([], [0])


def test_bad_cards_are_given_to_nobody_and_named() -> None:
    host = machine()
    host["modules"][0] |= {"problem": "it is on the PCI bus, and hl-smi does not show it"}
    host["modules"][1] |= {"in_use": True, "held_by": "a program that hl-smi does not show (96564 MiB are used)"}
    placed, errors, _ = place([request("a", 2), request("b", 1, [0]), request("c", 1, [1])], host)
    assert placed == {"a": [2, 3]}
    assert [error["message"] for error in errors] == [
        "g: model b: module_ids [0]: card 0 cannot be used: it is on the PCI bus, and hl-smi does not show it; choose "
        "another card",
        "g: model c: module_ids [1]: card 1 is used by a program that hl-smi does not show (96564 MiB are used); "
        "end it or choose another card",
    ]
    _, errors, _ = place([request("big", 8)], host)
    assert "8 cards, 6 of them free (held: 0: it is on the PCI bus, and hl-smi does not show it, 1: a pro" in str(
        errors
    )


def test_a_running_model_keeps_a_card_that_has_gone_bad() -> None:
    host = machine(services=running(a=[0]))
    host["modules"][0] |= {"problem": "its row cannot be used"}
    assert place([request("a", 1), request("b", 1)], host)[:2] == ({"a": [0], "b": [1]}, [])
    assert Host.of(host).unused_cards == ["card 0: its row cannot be used; model a runs on it"]


def test_a_host_without_room_names_the_cards_that_it_has_lost() -> None:
    lost = [{"bus_id": "0000:18:00.0", "problem": "nvidia-smi does not show it"}]
    _, errors, _ = place([request("a", 8), request("b", 1)], machine(unusable_cards=lost))
    assert errors[0]["message"].endswith("7: a); card 0000:18:00.0 is left out: nvidia-smi does not show it")
