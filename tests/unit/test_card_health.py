"""Sick and excluded cards: what counts as sick, and that no model is placed on them unless someone allows it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.core.run import Result
from gaudi_serve.inventory.variables import inventory_refusal
from gaudi_serve.plan.fleet import vllm_fleet_plan
from gaudi_serve.plan.wanted import Wanted
from gaudi_serve.platforms.hl_smi_health import CardHealth, card_sections, cards_health, judged
from gaudi_serve.show.status import fleet_status
from gaudi_serve.stages.base import Given
from gaudi_serve.stages.registry import BY_ROLE
from helpers.driver import live
from helpers.plans import gaudi_host, known, model

REPORT = (Path(__file__).parent / "data/hl_smi_q.txt").read_text(encoding="utf-8")
BUS = "0000:43:00.0"
SICK = "a replacement of rows waits"


def changed(*pairs: tuple[str, str]) -> CardHealth:
    """Judge the card of the report with other texts in it."""
    text = REPORT
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return judged(card_sections(text)[BUS], "HL-225")


def test_a_healthy_card_has_its_numbers_and_nothing_to_report() -> None:
    assert changed() == CardHealth("AM50016138", "1.12.1-fw-46.0.5-sec-6")


@pytest.mark.parametrize(
    ("old", "new", "sick"),
    [
        ("Pending                 : No", "Pending                 : Yes", "a replacement of rows in its memory waits"),
        (
            "Double Bit ECC          : 0",
            "Double Bit ECC          : 32",
            "32 rows of its memory are replaced for double",
        ),
        ("On Chip 1          :  29 C", "On Chip 1          :  83 C", "its chip is at 83 °C; its limit is 83 °C"),
        (
            "Temperature\n",
            "Temperature\n                Slowdown          : 29 C\n",
            "its limit is 29 °C",
        ),
        ("HBM 0 Temp         :  29 C", "HBM 0 Temp         : 105 C", "its HBM is at 105 °C; its limit is 105 °C"),
        ("VRM2 Temp          :  39 C", "VRM2 Temp          : 125 C", "its VRM is at 125 °C; its limit is 125 °C"),
        (
            "Temperature\n",
            "Temperature\n                Memory Max Operating Temp : 29 C\n",
            "its HBM is at 29 °C; its limit is 29 °C",
        ),
        ("HW Slowdown             : Not Active", "HW Slowdown             : Active", "its hardware reduces its clock"),
        ("Operational", "In reset", "its module status is In reset"),
        (
            "Thermal Slowdown\n                                        : Not Active",
            "Thermal Slowdown\n                                        : Active",
            "its clock is reduced because of its temperature",
        ),
    ],
)
def test_what_is_sick(old: str, new: str, sick: str) -> None:
    found = changed((old, new))
    assert len(found.sick) == 1 and sick in found.sick[0]


def test_what_is_worth_a_warning_alone() -> None:
    rows = changed(("Single Bit ECC          : 0", "Single Bit ECC          : 31"))
    assert (rows.sick, rows.warned) == ((), ("31 of 32 rows of its memory are replaced for single bit errors",))
    link = changed(("Current : x16", "Current : x8"), ("Current : 16GT/s", "Current : 8GT/s"))
    assert link.warned == ("its PCIe link has 8 of 16 lanes", "its PCIe link has 8 of 16 GT/s")
    power = changed(
        ("HW Slowdown             : Not Active", "HW Slowdown             : Active"),
        (f"Power Slowdown\n{' ' * 40}: Not Active", f"Power Slowdown\n{' ' * 40}: Active"),
    )
    assert (power.sick, power.warned) == ((), ("its clock is reduced because of its power draw",))


@pytest.mark.parametrize(("temperature", "sick"), [(90, ()), (105, ("its chip is at 105 °C; its limit is 105 °C",))])
def test_a_gaudi3_without_a_limit_of_the_vendor_has_that_of_its_parts(temperature: int, sick: tuple[str, ...]) -> None:
    hot = REPORT.replace("On Chip 1          :  29 C", f"On Chip 1          : {temperature} C")
    assert judged(card_sections(hot)[BUS], "HL-325").sick == sick
    # What the card shows itself counts first.
    own = hot.replace("Temperature\n", "Temperature\n                GPU Slowdown Temp : 85 C\n")
    assert judged(card_sections(own)[BUS], "HL-325").sick == (f"its chip is at {temperature} °C; its limit is 85 °C",)


def observed(report: str, errors: str = "", status: int = 0) -> tuple[dict[str, CardHealth], list[str]]:
    cards = [{"bus_id": BUS.upper(), "module_id": 0, "name": "HL-225", "driver_version": "1.12.1-10"}]
    return cards_health(lambda argv: Result(status, report if "-q" in argv else errors, ""), cards)


def test_errors_that_nothing_corrected_make_a_card_sick() -> None:
    header = "index, module_id, bus_id, ecc.errors.uncorrected.volatile.total\n"
    assert observed(REPORT, f"{header}0, 0, {BUS}, 0")[0][BUS].sick == ()
    found = observed(REPORT, f"{header}0, 0, {BUS}, 3")[0][BUS]
    assert found.sick == ("it has 3 uncorrected memory errors since its driver was loaded",)


def test_firmware_is_compared_with_the_other_cards_and_with_the_driver() -> None:
    cards = [
        {"bus_id": f"0000:4{place}:00.0", "module_id": place, "name": "HL-225", "driver_version": "1.12.1"}
        for place in range(3)
    ]
    text = "".join(REPORT.replace(BUS, str(card["bus_id"])) for card in cards[:2])
    text += REPORT.replace(BUS, "0000:42:00.0").replace("1.12.1-fw-46.0.5-sec-6", "1.11.0-fw-45.1.0-sec-6")
    found, notes = cards_health(lambda argv: Result(0, text if "-q" in argv else "", ""), cards)
    assert [found[f"0000:4{place}:00.0"].warned for place in range(2)] == [(), ()]
    assert found["0000:42:00.0"].warned == (
        "its firmware is 1.11.0-fw-45.1.0-sec-6; most cards have 1.12.1-fw-46.0.5-sec-6",
        "its firmware 1.11.0-fw-45.1.0-sec-6 does not belong to the driver's release 1.12.1",
    )
    assert notes == []


def test_what_cannot_be_read_is_reported() -> None:
    note = ["the health of cards [0] is not known: hl-smi -q does not show it"]
    for given in (("", "", 1), ("x\x1b[0m\n" * 9, "", 0), (":::\n : \n\t[0] AIP\n", "1,2\n", 0)):
        assert observed(*given) == ({BUS: CardHealth()}, note)


# ---- placement


def host(sick: dict[int, str] | None = None, **more: Any) -> dict[str, Any]:
    """Return a Gaudi host whose cards have serial numbers S0 to S7."""
    found = gaudi_host(**more)
    for card in found["modules"]:
        card |= {"serial": f"S{card['module_id']}", "sick": (sick or {}).get(card["module_id"], "")}
    return found


def plan(facts: dict[str, Any], *models: dict[str, Any], **variables: Any) -> dict[str, Any]:
    given = known(vllm_models=list(models), gaudi_host=facts, **variables)
    return vllm_fleet_plan({"a": given}, ["a"], [])


def cards_of(found: dict[str, Any]) -> list[int]:
    assert not found["errors"], found["errors"]
    return list(found["hosts"]["a"]["models"][0]["module_ids"])


def one(**more: Any) -> dict[str, Any]:
    return model(name="m", tensor_parallel_size=1, **more)


def running(*cards: int) -> dict[str, Any]:
    return {"m": {"module_ids": list(cards), "port": 30001, "active": True}}


def text_of(found: dict[str, Any]) -> str:
    return " | ".join([*(error["message"] for error in found["errors"]), *found["warnings"]])


def test_new_models_avoid_sick_and_excluded_cards() -> None:
    assert cards_of(plan(host(), one())) == [0]
    assert cards_of(plan(host({0: SICK}), one(), accelerator_cards_excluded=["S1"])) == [2]
    assert cards_of(plan(host({0: SICK}), one(), accelerator_cards_accepted=["S0"])) == [0]


def test_a_model_that_names_such_a_card_is_refused() -> None:
    found = plan(host({3: SICK}), one(module_ids=[3]))
    accept = "accelerator_cards_accepted: ['S3'] allows models on it; choose another card"
    assert f"card 3 (serial number S3) is sick: {SICK}; {accept}" in text_of(found)
    found = plan(host(), one(module_ids=[3]), accelerator_cards_excluded=["S3"])
    assert "card 3 (serial number S3) is excluded (accelerator_cards_excluded); choose another card" in text_of(found)


def test_without_room_the_plan_reports_which_cards_are_sick() -> None:
    found = plan(host({3: SICK, 4: SICK}), model(name="m", tensor_parallel_size=8, module_ids=None))
    assert "6 of them free (held: 3: sick, 4: sick); card 3 (serial number S3), card 4 (serial" in text_of(found)
    assert "accelerator_cards_accepted allows models on them" in text_of(found)


def test_a_model_on_a_sick_card_stays_and_is_announced() -> None:
    found = plan(host({5: SICK}, services=running(5)), one())
    assert cards_of(found) == [5]
    assert f"card 5 is sick: {SICK}; model m runs on it" in text_of(found)
    # One that does not run now starts on a healthy card.
    stopped = {"m": {"module_ids": [5], "port": 30001, "active": False}}
    assert cards_of(plan(host({5: SICK}, services=stopped), one())) == [4]
    # A move that someone allows for others is no reason to move it.
    assert cards_of(plan(host({5: SICK}, services=running(5)), one(), fleet_move_allowed=True)) == [5]


def test_a_model_on_an_excluded_card_is_refused_until_it_may_move() -> None:
    facts = host(services=running(5))
    found = plan(facts, one(), accelerator_cards_excluded=["S5"])
    assert len(found["errors"]) == 1
    assert (
        'a: model m: accelerator_cards_excluded ["S5"]: the model runs on card 5 (serial number S5): stop it '
        "(playbooks/stop.yml -e model=m), and it gets other cards; -e fleet_move_allowed=true lets running models move"
    ) in text_of(found)
    moved = plan(facts, one(), accelerator_cards_excluded=["S5"], fleet_move_allowed=True)
    assert cards_of(moved) == [4]
    assert "moves from cards [5] to [4], and restarts" in text_of(moved)
    assert cards_of(plan(facts, one(state="stopped"), accelerator_cards_excluded=["S5"])) == [5]
    # Its cards are not given away meanwhile.
    other = model(name="other", tensor_parallel_size=1, port=30002, module_ids=[5])
    both = plan(facts, one(), other, accelerator_cards_excluded=["S5"])
    assert len(both["errors"]) == 2


def test_mistakes_in_serial_numbers_are_reported() -> None:
    found = plan(host(), one(), accelerator_cards_excluded=["S55"])
    assert "accelerator_cards_excluded: 'S55' is not a card of this host" in text_of(found)
    assert "it has S0, S1, S2, S3, S4, S5, S6, S7" in text_of(found)
    bare = plan(gaudi_host(), one(), accelerator_cards_excluded=["S5"])
    assert "the serial numbers of its cards are not known" in text_of(bare)
    both = plan(host(), one(), accelerator_cards_excluded=["S5"], accelerator_cards_accepted=["S5"])
    assert "accelerator_cards_accepted S5: accelerator_cards_excluded has the same" in text_of(both)
    wrong = inventory_refusal({"accelerator_cards_excluded": [5]}, "a")
    assert wrong == [
        "a: accelerator_cards_excluded [5]: must be a list of quoted serial numbers, such as ['AM50016138']"
    ]


def test_status_shows_sick_and_excluded_cards() -> None:
    facts = host({5: SICK}, services=running(5))
    facts["modules"][2]["warned"] = "its PCIe link has 8 of 16 lanes"
    values = known(gaudi_host=facts, accelerator_cards_excluded=["S4"])
    values |= {"vllm_service_status": [], "preflight_plan": {"models": []}, "vllm_service_health": {}}
    notes = fleet_status({"a": values}, ["a"])["hosts"]["a"]["notes"]
    assert "card 4 (serial number S4) is excluded (accelerator_cards_excluded)" in notes
    assert f"card 5 is sick: {SICK}; model m runs on it" in notes
    assert "card 2: its PCIe link has 8 of 16 lanes" in notes


def test_ports_that_carry_nothing_are_a_warning_in_plan_and_status() -> None:
    outside = {"interface": "ens22", "mac": "", "mtu": 1500, "addresses": [], "neighbors": []}
    outside |= {"module_id": 0, "up": True, "carrier": False}
    ports = [{**outside, "port": 22}, {**outside, "port": 8, "carrier": True}, {**outside, "port": 23}]
    facts: dict[str, Any] = {
        # hl-smi shows ports to other hosts too; 8 has come up since, and nobody wants 23.
        "gaudi_driver": {"ports": {"0": [8, 22, 23], "3": [5, 6], "10": [7], "4": []}},
        "gaudi_network": {
            **{"ports": ports, "nics": [], "packages": [], "files": {}, "enabled": True},
            **dict.fromkeys(("gaudinet", "before", "settings")),
        },
        **{"accelerator_network_between": "ports", "driver_ports_may_be_down": [7]},
        "accelerator_network_ports": [{"module_id": 0, "port": number} for number in (8, 22)],
    }
    lines = [
        "card 3: no link to other cards on ports 5, 6 (hl-smi -n link)",
        "card 0: no link to other hosts on port 22 (accelerator_network_ports)",
    ]
    network = BY_ROLE["accelerator_network"]

    def planned() -> dict[str, Any]:
        """Plan a host, of which the stages have been asked before."""
        given = {**facts, "gaudi_system": {"accelerator": "gaudi", "kernel": "6.1"}, "gaudi_host": host()}
        return plan(host(), one(), **facts, **network.facts(network.pending(Given("a", given))))

    found = planned()
    assert [text for text in found["warnings"] if "no link" in text] == [f"a: {text}" for text in lines]
    # They keep no model away.
    assert cards_of(found) == [0]
    values = known(gaudi_host=host(), **facts)
    values |= {"vllm_service_status": [], "preflight_plan": {"models": []}, "vllm_service_health": {}}
    assert fleet_status({"a": values}, ["a"])["hosts"]["a"]["notes"] == lines
    # A port that is down is what the network's stage activates.
    ports[0]["up"] = False
    assert "to other hosts" not in text_of(planned())
    of_role = Wanted.of_role(defaultdict(str, {**facts, "preflight_cards": 0, "preflight_for": []}))
    assert list(of_role.port_notes) == lines[:1]


def test_ports_to_other_hosts_that_are_down_do_not_fail_the_drivers_stage() -> None:
    facts = live(ports={"0": [8, 22], "3": [5, 8], "10": [7]})
    given = {"gaudi_system": {"accelerator": "gaudi"}, "gaudi_host": host(), "gaudi_driver": facts}
    outside = [{"module_id": card, "port": port} for card, port in ((0, 8), (0, 22), (3, 8))]
    given |= {"gaudi_network": {"ports": outside}}
    given |= {"driver_ports_may_be_down": [7], "driver_release": "1.21.3", "driver_version": "", "driver_manage": True}
    given |= {key: [] for key in ("driver_packages", "driver_optional_packages", "driver_modules")}
    driver = BY_ROLE["driver"]
    found = driver.pending(Given("a", {**given, "driver_upgrade_allowed": False}))
    assert found.changes["down"] == ["card 3: ports 5 are down"]
    # So it has to know them.
    assert "network" in driver.reads


def test_links_of_excluded_cards_are_not_measured() -> None:
    variables = {
        **{"gaudi_host": host(), "gaudi_hccl": {}, "gaudi_services": {"images": {}}, "link_validation_image": "i"},
        **{"link_validation_nodes": [], "link_validation_drain": False, "link_validation_hccl_options": {}},
        **{"link_validation_max_age_days": 90, "link_validation_thresholds": {}, "link_validation_asked": True},
        **{"link_validation_env": {}, "accelerator_cards_excluded": ["S1"]},
    }
    changes = BY_ROLE["link_validation"].pending(Given("a", variables)).changes
    assert [run["module_ids"] for run in changes["runs"]] == [[0, 2, 3, 4, 5, 6, 7]]
    variables["gaudi_host"] = {**host(), "device_name": "HL-288"}
    runs = BY_ROLE["link_validation"].pending(Given("a", variables)).changes["runs"]
    assert [(run["name"], run["custom_comm"]) for run in runs] == [
        ("quad-0", [0, 1, 2]),
        ("quad-1", [3, 4, 5, 6]),
        ("all", None),
    ]
