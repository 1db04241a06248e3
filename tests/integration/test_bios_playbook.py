"""BIOS settings in whole runs: hosts that are a file each, their BMCs strict ones of four makers over TLS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import forked
import pytest
from helpers.bmc import AMI, DELL, HPE, PASSWORD, SUPERMICRO, Box, Served, certificate, served
from helpers.simulated.fleet import ROOT, change, fleet, serving_state, state_of

BIOS, ALLOWED = "playbooks/bios.yml", "host_tuning_reboot_allowed=true"
RECORD = "/var/lib/gaudi-serve/bios.json"
C6 = "CPUC6Report#0840"


class Hosts:
    """Hosts with a BMC each."""

    def __init__(self, folder: Path, state: dict[str, Any], places: list[Served], **variables: Any) -> None:
        self.folder, self.places = folder, places
        self.environment = fleet(
            folder,
            len(places),
            state,
            bios_bmc_timeout=5,
            bios_settle_timeout=1,
            **{"fleet_all_at_once": True, **variables},
        )
        self.environment["ANSIBLE_STDOUT_CALLBACK"] = "default"
        path = folder / "hosts.json"
        inventory = json.loads(path.read_text(encoding="utf-8"))
        for number, place in enumerate(places, 1):
            inventory["all"]["hosts"][f"h{number:02}"] = place.variables()
            change(folder, f"h{number:02}", bmc=place.control)
        path.write_text(json.dumps(inventory), encoding="utf-8")

    def set(self, name: str, **variables: Any) -> None:
        """Give a host variables of its own."""
        path = self.folder / "hosts.json"
        inventory = json.loads(path.read_text(encoding="utf-8"))
        inventory["all"]["hosts"][name] |= variables
        path.write_text(json.dumps(inventory), encoding="utf-8")

    def behind_a_gateway(self, *names: str) -> None:
        """Let gateways send requests to the hosts, one if none is named."""
        path = self.folder / "hosts.json"
        inventory = json.loads(path.read_text(encoding="utf-8"))
        gateway = {"fleet_gateway": {"clients": {"c": {"key": "k" * 32}}}, "vllm_models": None, "bios_settings": {}}
        inventory["all"]["hosts"] |= dict.fromkeys(names or ("gw",), gateway)
        inventory["all"]["vars"] |= {"fleet_gateway_secret": "0123456789abcdef" * 2}
        path.write_text(json.dumps(inventory), encoding="utf-8")
        for name in names or ("gw",):
            change(self.folder, name)

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run Ansible, and return its status and all that it printed on one line. No BMC has a session left."""
        argv = ["ansible-playbook", "-i", str(self.folder / "hosts.json"), *arguments]
        status, text = forked.playbook(argv, ROOT, self.environment, 300)
        assert [place.box.sessions for place in self.places] == [{}] * len(self.places)
        assert PASSWORD not in text
        return status, " ".join(text.split())

    @property
    def told(self) -> list[tuple[str, int]]:
        """Return what the gateway got about h01, with the number of its reboots before, and without repetitions."""
        return list(dict.fromkeys((state, boots) for _, state, boots in self.state("gw").get("told", [])))

    def state(self, name: str = "h01") -> dict[str, Any]:
        """Return what a host has."""
        return state_of(self.folder, name)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a key and a certificate."""
    return certificate(tmp_path_factory.mktemp("bmc"))


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what a host has that serves."""
    return serving_state(tmp_path_factory.mktemp("served"))


@pytest.fixture
def start(tmp_path: Path, files: tuple[Path, Path], state: dict[str, Any]) -> Iterator[Any]:
    """Return what starts hosts with their BMCs."""
    with ExitStack() as stack:

        def begin(*boxes: Box, **variables: Any) -> Hosts:
            places = [stack.enter_context(served(box, *files)) for box in boxes]
            return Hosts(tmp_path, state, places, **variables)

        yield begin


def test_what_cannot_be_set_is_refused_on_all_hosts_at_once_and_check_mode_sends_nothing(start: Any) -> None:
    boxes = Box(DELL), Box(SUPERMICRO), Box(HPE), Box(AMI)
    hosts = start(*boxes, bios_settings={"ProcTurbo": "Sometimes"})
    hosts.set("h04", bios_bmc_via="host")
    status, text = hosts.run(BIOS)
    assert status != 0
    for name in (
        "h01: BIOS: ProcTurbo: this BIOS has no such attribute; did you mean ProcTurboMode?",
        "h02: BIOS: ProcTurbo",
    ):
        assert name in text
    assert "h03: BIOS: ProcTurbo: 'Sometimes' must be Enabled, Disabled" in text
    status, text = hosts.run(BIOS, "-e", f"bios_bmc_address={hosts.places[0].address}", "--limit", "h01,h02")
    assert status != 0
    for name, others in (("h01", "h02, h03, h04"), ("h02", "h01, h03, h04")):
        assert (
            f"{name}: bios_bmc_address {hosts.places[0].address}: is also the address of the BMC of {others}" in text
        ), text
    profile = json.dumps({"bios_settings": {}, "bios_profile": "performance", "host_tuning_reboot_allowed": True})
    status, text = hosts.run(BIOS, "--check", "--diff", "-vvv", "-e", profile)
    assert status == 0, text
    assert "ATTRIBUTE DESIRED PENDING CURRENT" in text.replace('", "', " ")
    assert "+SriovGlobalEnable: Enabled" in text and "-SriovGlobalEnable: Disabled" in text
    assert "m is down from stage bios on for about 30 min: the host reboots for its BIOS settings" in text
    assert "two boots may be needed: PowerRegulator" in text
    # By the host itself.
    assert "PMS005Enable" in text and hosts.state("h04")["asked"]
    assert [(one.sent, one.resets) for one in boxes] == [([], 0)] * 4


def test_settings_and_kernel_arguments_take_one_reboot_and_the_next_run_changes_nothing(start: Any) -> None:
    box = Box(SUPERMICRO)
    hosts = start(box, bios_profile="performance", host_tuning_kernel_args=["iommu=pt"])
    # Without permission the settings are staged, and the run reports it.
    status, text = hosts.run("site.yml")
    assert (status, box.resets, len(box.sent)) == (0, 0, 1), text
    assert "are pending until a reboot (host_tuning_reboot_allowed: true)" in text
    status, text = hosts.run("playbooks/status.yml")
    assert status != 0
    assert "h01: bios: CPUC6Report#0840: Auto -> Disable (pending until a reset)" in text
    status, text = hosts.run("site.yml", "-vvv", "-e", ALLOWED)
    assert (status, box.resets, len(box.sent)) == (0, 1, 1), text
    assert (hosts.state()["boots"], hosts.state()["cmdline"][-1]) == (1, "iommu=pt")
    assert box.current[C6] == "Disable"
    assert (hosts.state()["held"], hosts.state()["files"].get(RECORD)) == ({}, None)
    status, text = hosts.run("site.yml", "-e", ALLOWED)
    assert (status, box.resets) == (0, 1), text
    assert "changed=0" in text


def test_makers_that_need_two_boots_get_two_and_no_more_also_where_the_host_asks_its_bmc(start: Any) -> None:
    boxes = Box(DELL), Box(HPE)
    hosts = start(*boxes, bios_profile="performance")
    # Only the host itself reaches its BMC, and sends it everything.
    hosts.set("h02", bios_bmc_via="host")
    status, text = hosts.run(BIOS, "-e", ALLOWED, "-vvv")
    assert status == 0, text
    assert hosts.state("h01").get("asked", 0) == 0 and hosts.state("h02")["asked"] > 2
    assert [(one.resets, len(one.sent)) for one in boxes] == [(2, 2)] * 2
    assert [boxes[0].current["ProcCStates"], boxes[1].current["MinProcIdlePower"]] == ["Disabled", "NoCStates"]
    assert {one["JobState"] for one in boxes[0].jobs} == {"Completed"}


def test_what_earlier_runs_have_sent_is_kept_until_the_next_boot(start: Any) -> None:
    boxes = Box(SUPERMICRO, shows_pending=False), Box(DELL)
    hosts = start(*boxes)
    wanted = {"h01": {"CPUC6Report": "Disable"}, "h02": {"ProcVirtualization": "Disabled"}}
    more = {**wanted, "h02": {**wanted["h02"], "SriovGlobalEnable": "Enabled"}}

    def run(settings: Any, *arguments: str) -> str:
        given = json.dumps({"wanted": settings, "bios_settings": "{{ wanted[inventory_hostname] }}"})
        status, text = hosts.run(BIOS, "-e", given, *arguments)
        assert status == 0, text
        return text

    run(wanted)
    assert "changed=0" in run(wanted)
    assert [one.sent for one in boxes] == [[{C6: "Disable"}], [wanted["h02"]]]
    # Its own job is replaced by one that applies both; nothing goes to the other BMC.
    run(more)
    assert [len(one.sent) for one in boxes] == [1, 2]
    assert [one["JobState"] for one in boxes[1].jobs] == ["Scheduled"]
    # Nobody desires anything any more, and the run reports what waits.
    status, text = hosts.run(BIOS)
    assert status == 0, text
    assert f"the next reboot applies what an earlier run sent: {C6} = Disable" in text
    run(more, "-e", ALLOWED)
    assert [(one.resets, len(one.sent)) for one in boxes] == [(1, 1), (1, 2)]
    assert more["h02"].items() <= boxes[1].current.items() and boxes[0].current[C6] == "Disable"
    assert [hosts.state(name)["files"].get(RECORD) for name in wanted] == [None, None]


def test_a_setting_that_never_sticks_fails_by_its_name_and_is_not_tried_by_the_next_run(start: Any) -> None:
    box = Box(SUPERMICRO, stubborn={C6})
    hosts = start(box, bios_settings={"CPUC6Report": "Disable"})
    hosts.behind_a_gateway()
    status, text = hosts.run(BIOS, "-e", ALLOWED)
    assert status != 0
    assert "h01: BIOS: CPUC6Report#0840: Disable did not stick, it is Auto after the reboot" in text
    assert box.resets == 2
    assert json.loads(hosts.state()["files"][RECORD])["failed"] == {"bios": "1.4b", "settings": {C6: "Disable"}}
    assert hosts.state()["held"] == {}
    # The gateway sends nothing to the host from before the first reboot until after the last one; the run has failed.
    assert (hosts.told, hosts.state("gw")["drained"]) == ([("drain", 0), ("ready", 2)], {})
    status, text = hosts.run(BIOS, "-e", ALLOWED)
    assert status != 0
    assert "did not stick before, and the value is Auto; the run does not try it again with BIOS 1.4b" in text
    assert box.resets == 2
    # With other firmware it may; and the record goes.
    box.bios, box.stubborn = "1.5", set()
    status, text = hosts.run(BIOS, "-e", ALLOWED)
    assert (status, box.resets, hosts.state()["files"].get(RECORD)) == (0, 3, None), text
    # A reboot for kernel arguments alone does the same, and leaves what someone else has drained.
    change(hosts.folder, "gw", told=[], drained={"h01": False})
    arguments = json.dumps({"host_tuning_kernel_args": ["iommu=pt"], "bios_settings": {}})
    status, text = hosts.run("playbooks/host.yml", "-e", ALLOWED, "-e", arguments, "--limit", "h01")
    assert (status, hosts.state()["boots"], hosts.told) == (0, 4, [("drain", 3), ("ready", 4)]), text
    assert hosts.state("gw")["drained"] == {"h01": False}


def test_a_gateway_that_cannot_be_reached_keeps_a_host_from_its_reboot_and_the_others_ask_it_again(start: Any) -> None:
    box = Box(SUPERMICRO)
    hosts = start(box, bios_settings={"CPUC6Report": "Disable"})
    hosts.behind_a_gateway("gw", "gw2")
    change(hosts.folder, "gw2", away={"at": "gateway_servers", "seconds": 600})
    limit = ("--limit", "h01")
    arguments = json.dumps({"host_tuning_kernel_args": ["iommu=pt"], "bios_settings": {}})
    for run in ((BIOS, "-e", ALLOWED), ("playbooks/host.yml", "-e", ALLOWED, "-e", arguments)):
        change(hosts.folder, "gw", told=[])
        status, text = hosts.run(*run, *limit)
        assert status != 0 and "unreachable=0" in text, text
        assert "h01: gateway gw2 cannot be reached, and may send requests to this host, which is therefore not" in text
        assert "h01: gateway gw2 cannot be reached; if this host is drained there, the next run of playbooks" in text
        assert (hosts.told, hosts.state("gw")["drained"]) == ([("drain", 0), ("ready", 0)], {})
        assert (hosts.state()["boots"], box.sent, hosts.state()["held"]) == (0, [], {})
    # Without leave to reboot nothing is drained, nor by a check with it.
    change(hosts.folder, "gw", told=[])
    change(hosts.folder, "gw2", away={})
    for run in (("playbooks/host.yml", "-e", arguments), (BIOS, "--check", "-e", ALLOWED)):
        status, text = hosts.run(*run, *limit)
        assert (status, hosts.told) == (0, []), text


def test_a_rollout_takes_a_bios_change_as_a_reason_to_reboot_and_a_plan_announces_it(start: Any) -> None:
    boxes = [Box(SUPERMICRO) for _ in range(2)]
    hosts = start(*boxes, bios_settings={"CPUC6Report": "Disable"}, rollout_serial=1)
    status, text = hosts.run("playbooks/plan.yml", "-e", ALLOWED)
    assert status == 0
    assert "bios: CPUC6Report#0840: Auto -> Disable" in text and "bios: reboot for 1 BIOS setting" in text
    assert "m is down from stage bios on for about" in text
    status, text = hosts.run("playbooks/rollout.yml", "-e", ALLOWED, "-e", "rollout_approved=true")
    assert status == 0, text
    assert [(one.resets, one.current[C6]) for one in boxes] == [(1, "Disable")] * 2


def test_two_hosts_of_one_bmc_keep_their_earlier_values_and_a_reset_restores_them(start: Any) -> None:
    second = "/redfish/v1/Systems/2"
    box = Box(SUPERMICRO)
    box.more = {
        "/redfish/v1/Systems": {"Members": [{"@odata.id": "/redfish/v1/Systems/1"}, {"@odata.id": second}]},
        second: {"Manufacturer": "Supermicro", "SerialNumber": "S456", "Bios": {"@odata.id": f"{second}/Bios"}},
        f"{second}/Bios": {"Attributes": {C6: "Disable"}, "AttributeRegistry": SUPERMICRO["registry"]},
        f"{second}/Bios/SD": {"Attributes": {C6: "Disable"}},
    }
    hosts = start(box, Box(SUPERMICRO, serial="S9"), bios_settings={"CPUC6Report": "Disable"})
    hosts.set("h01", bios_bmc_serial="S123")
    hosts.set("h02", **{**hosts.places[0].variables(), "bios_bmc_serial": "S456"})
    status, text = hosts.run(BIOS)
    # Only the first system differs.
    assert (status, box.pending) == (0, {C6: "Disable"}), text
    kept = json.loads((hosts.folder / "bios/h01.json").read_text(encoding="utf-8"))
    assert kept["systems"]["S123"]["values"] == {C6: "Auto"}
    assert not (hosts.folder / "bios/h02.json").exists()
    box.reset()
    # The reset of this role, as playbooks/reset.yml includes it: simulated hosts have nothing else to reset.
    tasks: list[dict[str, Any]] = [
        {"include_role": {"name": "bios", "tasks_from": "reset"}},
        {"ansible.builtin.debug": {"msg": "{{ bios_reset.left }}"}},
    ]
    path = hosts.folder / "reset.yml"
    path.write_text(json.dumps([{"hosts": "h01", "gather_facts": False, "tasks": tasks}]), encoding="utf-8")
    reset = str(path)
    status, text = hosts.run(reset, "--check")
    assert "1 earlier value in" in text and "-e reset_bios=true sends them" in text, text
    status, text = hosts.run(reset, "-e", "bios_reset_values=true", "--check")
    assert (f"send the earlier BIOS values: {C6}: Disable -> Auto" in text, box.pending) == (True, {}), text
    status, text = hosts.run(reset, "-e", "bios_reset_values=true")
    assert (status, box.pending) == (0, {C6: "Auto"}), text
