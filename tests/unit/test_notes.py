"""Notes of hosts: shared ones once, acknowledged ones not at all."""

from __future__ import annotations

from typing import Any

import pytest
from gaudi_serve.plan.fleet import vllm_fleet_plan
from gaudi_serve.show.notes import STANDING, open_notes, shared_lines
from helpers.plans import known

DUE = "HCCL validation pending (never measured): playbooks/validate.yml"
HELD = "driver 1.21.3-57 was put there by other means: it is not held at its release"
RUNTIME = "habanalabs-container-runtime 1.20.0-1 is not of release 1.21.3"


def test_a_note_of_several_hosts_is_one_line() -> None:
    assert shared_lines({"a": [DUE, HELD], "b": [DUE]}) == [f"a, b: {DUE}", f"a: {HELD}"]
    assert shared_lines({name: [DUE] for name in "abcdef"}) == [f"a, b, c and 3 more: {DUE}"]
    assert shared_lines({"a": []}) == []


@pytest.mark.parametrize(("name", "note"), list(zip(STANDING, (DUE, HELD, RUNTIME), strict=True)))
def test_each_standing_note_can_be_acknowledged_and_no_other_goes_with_it(name: str, note: str) -> None:
    others = [one for one in (DUE, HELD, RUNTIME, "HCCL all_reduce: all 258.1 GB/s") if one != note]
    assert open_notes([note, *others], [name]) == others
    assert open_notes([note], None) == open_notes([note], "typo") == [note]


@pytest.mark.parametrize("value", [["hccl"], "link_validation", True])
def test_what_is_no_note_is_refused_with_those_that_are(value: Any) -> None:
    fleet = vllm_fleet_plan({"a": known(fleet_acknowledged=value)}, ["a"], [])
    (error,) = fleet["errors"]
    assert (error["key"], error["allowed"]) == ("fleet_acknowledged", f"must be a list of {', '.join(STANDING)}")
