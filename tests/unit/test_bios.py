"""BIOS settings against a strict BMC of four makers: what is compared, refused, sent, waited for and kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.bios.client import Answer, Bmc, BmcError, Redfish, plain_fingerprint
from gaudi_serve.bios.compare import compared
from gaudi_serve.bios.observe import observed, settle, stage
from gaudi_serve.bios.profiles import builtin, is_profiles, is_settings, profile_settings
from gaudi_serve.bios.registry import Registry, base_name
from gaudi_serve.bios.work import carried_out
from gaudi_serve.host.observe_bios import observe
from gaudi_serve.inventory.variables import INPUTS
from gaudi_serve.plan.downtime import downtimes
from gaudi_serve.stages.base import Given, Pending
from gaudi_serve.stages.bios import STAGE
from helpers.bmc import DELL, HPE, MAKERS, PASSWORD, SUPERMICRO, USER, Box, Odd, Served, certificate, served
from helpers.plugins import load, run_collection_module, run_module

C6 = "CPUC6Report#0840"
NO_VALUES = "must be one of no values: the registry has none"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a key and a certificate."""
    return certificate(tmp_path_factory.mktemp("bmc"))


class Bmcs:
    """BMCs that end with the test."""

    def __init__(self, stack: ExitStack, files: tuple[Path, Path]) -> None:
        self.stack, self.files = stack, files

    def serve(self, about: dict[str, Any], **more: Any) -> Served:
        """Serve one."""
        return self.stack.enter_context(served(Box(about, **more), *self.files))


@pytest.fixture
def bmcs(files: tuple[Path, Path]) -> Iterator[Bmcs]:
    """Return where BMCs are served; none of them may have a session left at the end."""
    with ExitStack() as stack:
        yield Bmcs(stack, files)


def bmc(place: Served, **more: Any) -> Bmc:
    given = {"address": place.address, "user": USER, "password": PASSWORD, "fingerprint": place.fingerprint}
    return Bmc.of({**given, "wait_s": 2, "pause_s": 0.02, **more})


def seen(place: Served, **more: Any) -> dict[str, Any]:
    with Redfish(bmc(place, **more)) as client:
        found = observed(client, registry=True)
    assert place.box.sessions == {}
    return found


def asked(place: Served, **known: Any) -> Pending:
    """Return what the stage would do, after its look."""
    given = Given("h1", {**place.variables(), "gaudi_bios": {"failed": {}}, **known})
    found = STAGE.look(given)
    if found is None:
        return STAGE.pending(given)
    read = carried_out({"bmc": {**vars(bmc(place))}, "settings": {}, "before": {}, "job": "", **found[1]}, check=False)
    return STAGE.asked(given, lambda name, arguments: read)


def send(place: Served, found: Pending) -> dict[str, Any]:
    with Redfish(bmc(place)) as client:
        return stage(client, found.changes["patch"])


# ---- the client


def test_a_bmc_is_trusted_by_its_fingerprint_or_its_authority_and_by_nothing_else(bmcs: Bmcs) -> None:
    place = bmcs.serve(DELL)
    colons = ":".join(place.fingerprint[at : at + 2] for at in range(0, 64, 2)).upper()
    for trusted in ({"fingerprint": f"SHA256:{colons}"}, {"fingerprint": "", "ca": place.ca}):
        assert seen(place, **trusted)["system"]["model"] == "PowerEdge XE9680"
    place.box.asked.clear()
    for wrong, text in (
        (
            {"fingerprint": "0" * 64},
            f"has the SHA-256 fingerprint {place.fingerprint}, which differs from bios_bmc_fingerprint",
        ),
        ({"fingerprint": ""}, "its certificate is not accepted: self-signed certificate; set bios_bmc_ca or"),
    ):
        with pytest.raises(BmcError, match=text):
            seen(place, **wrong)
    # The password was sent to nobody.
    assert place.box.asked == []


def test_a_refused_password_is_tried_once_and_is_in_no_text(bmcs: Bmcs) -> None:
    place = bmcs.serve(DELL)
    with pytest.raises(BmcError, match="it refuses user operator or the password; nothing is tried again") as found:
        seen(place, password="hunter2")
    assert [method for method, _ in place.box.asked] == ["GET", "POST"]
    assert "hunter2" not in str(found.value) + repr(bmc(place, password="hunter2"))


def test_a_bmc_that_starts_or_has_no_session_to_spare_is_waited_for_with_a_bound(bmcs: Bmcs) -> None:
    place = bmcs.serve(HPE, starting=5)
    assert seen(place)["system"]["maker"] == "HPE"
    place.box.starting = 10**6
    with pytest.raises(BmcError, match=r"no answer within 0\.1 s: status 503: The service is temporarily unavailable"):
        seen(place, wait_s=0.1)
    place.box.starting, place.box.most = 0, 0
    with pytest.raises(BmcError, match="number of simultaneous sessions exceeding the limit"):
        seen(place, wait_s=0.1)
    with pytest.raises(BmcError, match=r"BMC 127\.0\.0\.1:1: no answer within 0\.1 s: .*refused"):
        seen(place, address="127.0.0.1:1", wait_s=0.1)


def test_a_session_that_the_bmc_has_forgotten_is_opened_again_and_each_is_closed(bmcs: Bmcs) -> None:
    place = bmcs.serve(DELL, most=1)
    with Redfish(bmc(place)) as client:
        client.get("/redfish/v1/Systems")
        place.box.sessions.clear()
        client.get("/redfish/v1/Systems")
        with pytest.raises(BmcError, match="GET /redfish/v1/Nothing: status 404: The resource at the URI"):
            client.get("/redfish/v1/Nothing")
    assert (place.box.sessions, place.box.opened) == ({}, 2)
    with pytest.raises(RuntimeError, match="of the test"), Redfish(bmc(place)):
        raise RuntimeError("of the test")
    assert place.box.sessions == {}


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("bmc1", ("bmc1", 443)),
        ("bmc1:8443", ("bmc1", 8443)),
        ("[fe80::1]:8443", ("fe80::1", 8443)),
        ("fe80::1", ("fe80::1", 443)),
    ],
)
def test_an_address_may_have_a_port(address: str, place: tuple[str, int]) -> None:
    assert Bmc(address, "u", "p").place == place
    assert INPUTS["bios_bmc_address"].good(address)


# ---- names and values


@pytest.mark.parametrize(
    ("written", "name"),
    [
        (C6, C6),
        ("CPUC6Report", C6),
        ("CPUC6Report#0999", C6),
        ("SR_IOVSupport_0048", "SR-IOVSupport#0048"),
        ("IntelVTforDirectedI_O_VT_d", "IntelVTforDirectedI/O(VT-d)#1E12"),
        ("EnhancedHaltState(C1E)", "EnhancedHaltState(C1E)#0841"),
    ],
)
def test_a_name_of_supermicro_counts_by_the_part_before_its_suffix(written: str, name: str) -> None:
    registry = Registry.of({"Attributes": SUPERMICRO["attributes"]})
    assert registry.name(written) == (name, "")
    assert base_name(name) == base_name(written)


def test_names_that_mean_none_or_several_attributes_are_refused() -> None:
    several = [*SUPERMICRO["attributes"], {"AttributeName": "CPUC6Report#0A01", "Type": "Boolean"}]
    registry = Registry.of({"Attributes": several})
    assert registry.name("CPUC6Report")[1] == (
        "is the name of several attributes: CPUC6Report#0840, CPUC6Report#0A01; write one of them"
    )
    assert registry.name("PackageCStates")[1] == ("this BIOS has no such attribute; did you mean PackageCState#0843?")


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("SR-IOVSupport#0048", "Enable", "Enabled"),
        (C6, "Disabled", "Disable"),
        ("PackageCState#0843", "c0/c1 State", "C0/C1 state"),
        (C6, False, "must be Disable, Enable, Auto"),
        (C6, "Off", "must be Disable, Enable, Auto"),
    ],
)
def test_a_value_takes_the_spelling_of_the_registry(name: str, value: Any, found: str) -> None:
    attribute = Registry.of({"Attributes": SUPERMICRO["attributes"]}).attributes[name]
    assert found in attribute.value(value)


def test_values_are_known_by_what_people_see_and_numbers_and_texts_have_limits() -> None:
    registry = Registry.of({"Attributes": DELL["attributes"]})
    ami = {"AttributeName": "PMS005", "Type": "Enumeration"}
    ami |= {"Value": [{"ValueName": f"PMS005{one}", "ValueDisplayName": one} for one in ("Disable", "Enable")]}
    assert Registry.of({"Attributes": [ami]}).attributes["PMS005"].value("Disabled") == ("PMS005Disable", "")
    delay, tag, password = (registry.attributes[name] for name in ("AcPwrRcvryUserDelay", "AssetTag", "SetupPassword"))
    assert delay.value("90") == (90, "")
    assert delay.value(5)[1] == "must be an integer from 60 to 600"
    assert tag.value("x" * 11)[1] == "must be a text of 0 to 10 characters"
    assert password.value("x")[1] == "is of type Password, which is not set here"


# ---- the stage, by maker


def test_without_variables_nothing_is_asked_and_nothing_is_found() -> None:
    for known in ({}, {"bios_bmc_address": "bmc", "bios_settings": {}, "bios_profile": ""}):
        assert STAGE.look(Given("h1", known)) is None
        found = STAGE.pending(Given("h1", known))
        assert (list(found.due), list(found.drift), list(found.refusal), found.changes["lines"]) == ([], [], [], [])


def test_settings_without_a_bmc_are_refused_by_their_names() -> None:
    given = Given("h1", {"bios_settings": {"A": "B"}, "bios_bmc_address": "bmc", "bios_profile": "perf"})
    assert STAGE.look(given) is None
    assert STAGE.pending(given).refusal == [
        "h1: bios_profile 'perf': must be one of performance",
        "h1: bios_profile is set, so bios_bmc_user, bios_bmc_password must be set too: the toolkit sends "
        "settings to the "
        "host's BMC",
    ]


def test_three_columns_show_desired_pending_and_current_values(bmcs: Bmcs) -> None:
    place = bmcs.serve(SUPERMICRO, pending={C6: "Enable", "PackageCState#0843": "C0/C1 state"})
    found = asked(
        place, bios_settings={"CPUC6Report": "Disable", "PackageCState": "C0/C1 state", "SR-IOVSupport": "Enable"}
    )
    assert found.changes["lines"] == [
        "ATTRIBUTE           DESIRED      PENDING      CURRENT",
        "------------------  -----------  -----------  --------",
        "CPUC6Report#0840    Disable      Enable       Auto",
        "PackageCState#0843  C0/C1 state  C0/C1 state  Auto",
        "SR-IOVSupport#0048  Enabled      -            Disabled",
    ]
    # What is pending already is not sent again.
    assert found.changes["patch"] == {C6: "Disable", "SR-IOVSupport#0048": "Enabled"}
    assert found.due == [
        "CPUC6Report#0840: Auto -> Disable (pending Enable)",
        "SR-IOVSupport#0048: Disabled -> Enabled",
    ]
    assert found.facts["reboots"] is False and found.facts["reboot_required"]


# Of each maker: how C6 is switched off, and its name, its value before and after, and what else the registry has.
C6_OF = {
    "Dell": ({"ProcCStates": "disable"}, "ProcCStates", "Enabled", "Disabled", "Enabled, Disabled"),
    "HPE": ({"MinProcIdlePower": "NoCStates"}, "MinProcIdlePower", "C6", "NoCStates", "C6, NoCStates"),
    "Supermicro": ({"CPUC6Report": "Disabled"}, C6, "Auto", "Disable", "Disable, Enable, Auto"),
    "AMI": (
        *({"PMS005": "Disable"}, "PMS005", "PMS005Enable", "PMS005Disable"),
        "PMS005Disable (Disable), PMS005Enable (Enable)",
    ),
}
# What makes the registry or the BIOS of a maker take it.
FREE = {"Dell": {"SysProfile": "Custom"}, "HPE": {"WorkloadProfile": "Custom"}}


@pytest.mark.parametrize("maker", MAKERS)
def test_every_maker_takes_over_at_a_reset_what_was_sent_and_refuses_what_it_does_not_have(
    bmcs: Bmcs, maker: str
) -> None:
    place = bmcs.serve(MAKERS[maker], current=FREE.get(maker, {}))
    wanted, name, before, after, choices = C6_OF[maker]
    given: dict[str, Any] = {"bios_settings": wanted, "host_tuning_reboot_allowed": True}
    (wrong,) = asked(place, bios_settings=dict.fromkeys(wanted, "Perhaps")).refusal
    assert wrong == f"h1: BIOS: {name}: 'Perhaps' must be {choices}"
    (wrong,) = asked(place, bios_settings={f"{name[:-1]}Y": "Disable"}).refusal
    assert "this BIOS has no such attribute" in wrong
    found = asked(place, **given)
    assert (found.changes["patch"], found.changes["before"]) == ({name: after}, {name: before})
    assert place.box.sent == []
    send(place, found)
    assert (place.box.current[name], place.box.pending) == (before, {name: after})
    staged = asked(place, **given)
    assert (staged.changes["patch"], staged.changes["reboots"]) == ({}, True)
    place.box.reset()
    assert (place.box.current[name], list(asked(place, **given).drift)) == (after, [])


@pytest.mark.parametrize("maker", MAKERS)
def test_every_makers_profile_is_current_after_two_boots_at_most(bmcs: Bmcs, maker: str) -> None:
    place = bmcs.serve(MAKERS[maker])
    given: dict[str, Any] = {"bios_profile": "performance", "host_tuning_reboot_allowed": True}
    first = asked(place, **given)
    for _ in range(2):
        found = asked(place, **given)
        if found.changes["patch"]:
            send(place, found)
            place.box.reset()
    # Both boots were announced where there were two.
    assert (list(asked(place, **given).drift), first.facts["down_minutes"]) == ([], 15 * place.box.resets)


@pytest.mark.parametrize("maker", MAKERS)
def test_modules_of_others_find_a_redfish_service_in_the_bmc_of_these_tests(
    bmcs: Bmcs, maker: str, tmp_path: Path
) -> None:
    pytest.importorskip("ansible_collections.community.general", reason="only package ansible provides it")
    place, (_, name, before, after, _) = bmcs.serve(MAKERS[maker], current=FREE.get(maker, {})), C6_OF[maker]
    (tmp_path / "bmc.pem").write_text(place.ca, encoding="ascii")
    given = {"baseuri": place.address, "validate_certs": True, "ca_path": str(tmp_path / "bmc.pem")}
    user = {**given, "username": USER, "password": PASSWORD}

    def run(module: str, category: str, command: str, **more: Any) -> dict[str, Any]:
        return run_collection_module("community.general", module, category=category, command=[command], **more)

    ((_, found),) = run("redfish_info", "Systems", "GetBiosAttributes", **user)["redfish_facts"]["bios_attribute"][
        "entries"
    ]
    assert found == place.box.current and found[name] == before
    assert run("redfish_config", "Systems", "SetBiosAttributes", bios_attributes={name: after}, **user)["changed"]
    assert (place.box.pending, place.box.current[name]) == ({name: after}, before)
    # For this toolkit it is pending, and on Dell's BMCs the job of someone else.
    now = asked(place, bios_settings={name: after})
    assert (now.changes["patch"], now.refusal, len(place.box.jobs)) == ({}, [], int(maker == "Dell"))
    if maker == "HPE":
        session = run("redfish_command", "Sessions", "CreateSession", **user)["session"]
        assert session["token"] in place.box.sessions.values()
        gone = {"session_uri": session["uri"], "auth_token": session["token"]}
        assert run("redfish_command", "Sessions", "DeleteSession", **given, **gone)["changed"]
        assert place.box.sessions == {}


def test_without_permission_to_reboot_settings_stay_pending(bmcs: Bmcs) -> None:
    place = bmcs.serve(SUPERMICRO)
    found = asked(place, bios_profile="performance")
    assert send(place, found) == {"job": ""}
    assert place.box.current[C6] == "Auto"
    again = asked(place, bios_profile="performance")
    # Nobody has allowed a reboot: nothing is due, and the run reports that settings are pending.
    assert (again.changes["patch"], list(again.due), list(again.left)) == ({}, [], [])
    assert "are pending until a reboot (host_tuning_reboot_allowed: true)" in (again.notes or [""])[0]
    assert "CPUC6Report#0840: Auto -> Disable (pending until a reset)" in again.drift
    allowed = asked(place, bios_profile="performance", host_tuning_reboot_allowed=True)
    assert allowed.changes["reboots"] and allowed.due[-1] == f"reboot for {len(allowed.drift)} BIOS settings"


def test_an_older_board_takes_the_change_at_the_bios_itself_and_shows_nothing_pending(bmcs: Bmcs) -> None:
    place = bmcs.serve(SUPERMICRO, shows_pending=False)
    found = asked(place, bios_settings={"CPUC6Report": "Disable"})
    assert seen(place)["pending"] is None
    send(place, found)
    assert place.box.asked.count(("PATCH", "/redfish/v1/Systems/1/Bios")) == 1
    place.box.reset()
    assert not asked(place, bios_settings={"CPUC6Report": "Disable"}).drift


def test_attributes_that_an_update_has_renamed_are_found_and_unknown_ones_refused(bmcs: Bmcs) -> None:
    place = bmcs.serve(SUPERMICRO)
    place.box.rename(C6, "CPUC6Report_0A40")
    place.box.rename("PowerTechnology#2800", "PowerMode#2801")
    found = asked(place, bios_settings={C6: "Disable", "PowerTechnology": "Custom"})
    assert found.refusal == ["h1: BIOS: PowerTechnology: this BIOS has no such attribute"]
    assert asked(place, bios_settings={C6: "Disable"}).changes["patch"] == {"CPUC6Report_0A40": "Disable"}


def test_dell_takes_two_boots_where_one_setting_frees_others_and_its_jobs_are_waited_for(bmcs: Bmcs) -> None:
    place = bmcs.serve(DELL)
    given = {"bios_profile": "performance", "host_tuning_reboot_allowed": True}
    found = asked(place, **given)
    assert found.changes["patch"] == {"SysProfile": "Custom", "SriovGlobalEnable": "Enabled"}
    assert "ProcCStates: Enabled -> Disabled (after the first of two resets)" in found.due
    assert found.facts["down_minutes"] == 30
    job = send(place, found)["job"]
    assert (job, place.box.jobs[0]["JobState"]) == ("JID_000000000001", "Scheduled")
    # A run that was cut off here is completed by the next: its own job is no reason against it.
    cut_off = asked(place, **given)
    assert (cut_off.changes["patch"], cut_off.changes["job"], list(cut_off.refusal)) == ({}, job, [])
    place.box.reset()
    with Redfish(bmc(place)) as client:
        assert settle(client, {"SysProfile": "Custom"}, job, 5, 1)["job"]["state"] == "Completed"
    second = asked(place, **given)
    assert second.changes["patch"] == {"ProcPwrPerf": "OsDbpm", "ProcCStates": "Disabled", "ProcC1E": "Disabled"}
    assert second.facts["down_minutes"] == 15
    send(place, second)
    place.box.reset()
    assert not asked(place, **given).drift


def test_a_setting_that_stays_closed_is_refused_with_what_closes_it(bmcs: Bmcs) -> None:
    place = bmcs.serve(DELL)
    found = asked(place, bios_settings={"ProcCStates": "Disabled", "SystemMemoryModel": "Disabled"})
    assert found.refusal == [
        "h1: BIOS: SystemMemoryModel: is read-only, and Enabled in place of Disabled",
        "h1: BIOS: ProcCStates: Disabled cannot be set: it is read-only while SysProfile is "
        "'PerfPerWattOptimizedDapc'; set that too",
    ]
    assert (found.due, place.box.sent) == ([], [])


def test_a_job_of_others_is_respected_and_named(bmcs: Bmcs) -> None:
    place = bmcs.serve(DELL)
    place.box.jobs.append({"Id": "JID_7", "JobType": "BIOSConfiguration", "JobState": "Scheduled", "Message": ""})
    place.box.jobs.append({"Id": "JID_6", "JobType": "FirmwareUpdate", "JobState": "Scheduled", "Message": ""})
    (text,) = asked(place, bios_settings={"SriovGlobalEnable": "Enabled"}).refusal
    assert text.endswith(
        "a job of another client is not finished: JID_7 (bios, Scheduled), JID_6 (FirmwareUpdate, Scheduled); wait for "
        "its end, or delete it there, and run again"
    )
    # One that came between the look and the change.
    with pytest.raises(BmcError, match="JID_7"), Redfish(bmc(place)) as client:
        stage(client, {"SriovGlobalEnable": "Enabled"})
    assert (place.box.sent, place.box.sessions) == ([], {})


def test_a_job_that_fails_is_reported(bmcs: Bmcs) -> None:
    place = bmcs.serve(DELL)
    place.box.jobs.append({"Id": "JID_1", "JobType": "BIOSConfiguration", "JobState": "Failed", "Message": "No POST."})
    given = {"bmc": vars(bmc(place)), "state": "settled", "settings": {}, "before": {}, "job": "JID_1", "settle_s": 0}
    assert carried_out(given, check=False)["warnings"] == [
        f"BMC {place.address}: job JID_1 of the BIOS is Failed: No POST."
    ]


def test_hpe_drops_what_its_workload_profile_closes_until_a_second_boot(bmcs: Bmcs) -> None:
    place = bmcs.serve(HPE)
    given = {"bios_profile": "performance", "host_tuning_reboot_allowed": True}
    found = asked(place, **given)
    text = (
        "two boots may be needed: PowerRegulator, EnergyPerfBias, MinProcIdlePower, MinProcIdlePkgState, "
        "NumaGroupSizeOpt may stick only after WorkloadProfile"
    )
    # In the plan, in the run and its check, and in the minutes.
    assert (found.due[-1], found.changes["lines"][-1], found.facts["down_minutes"]) == (text, text, 30)
    send(place, found)
    place.box.reset()
    place.box.starting = 0
    second = asked(place, **given)
    assert (second.facts["down_minutes"], "two boots" in " ".join(second.changes["lines"])) == (15, False)
    assert set(second.changes["patch"]) == {
        "PowerRegulator",
        "EnergyPerfBias",
        "MinProcIdlePower",
        "MinProcIdlePkgState",
    }
    assert (
        "h1: BIOS: PowerRegulator: StaticHighPerf did not stick, it is DynamicPowerSavings after the reboot"
        in " ".join(second.left)
    )
    send(place, second)
    place.box.reset()
    assert not asked(place, **given).drift
    assert {path for _, path in place.box.asked if "bios" in path} >= {"/redfish/v1/systems/1/bios/settings/"}


def test_a_value_that_never_sticks_is_not_tried_again_until_it_or_the_firmware_changes(bmcs: Bmcs) -> None:
    place = bmcs.serve(SUPERMICRO, stubborn={C6})
    given = {"bios_settings": {"CPUC6Report": "Disable"}, "host_tuning_reboot_allowed": True}
    found = asked(place, **given)
    send(place, found)
    place.box.reset()
    after = asked(place, **given)
    assert after.left == ["h1: BIOS: CPUC6Report#0840: Disable did not stick, it is Auto after the reboot (BIOS 1.4b)"]
    record = json.loads(after.changes["record"]["content"])
    assert record == {"failed": {"bios": "1.4b", "settings": {C6: "Disable"}}}
    kept = {"gaudi_bios": record}
    refused = asked(place, **given, **kept)
    assert (
        "CPUC6Report#0840: Disable did not stick before, and the value is Auto; the run does not try it again "
        "with BIOS 1.4b" in (refused.refusal[0])
    )
    assert (refused.due, refused.changes["reboots"]) == ([], False)
    for other in ({"bios_settings": {"CPUC6Report": "Enable"}}, {"bios_retry": True}):
        assert asked(place, **{**given, **kept, **other}).changes["reboots"]
    place.box.bios = "1.5"
    assert asked(place, **given, **kept).changes["reboots"]


def test_a_change_by_someone_else_between_look_and_patch_is_seen_by_its_etag(bmcs: Bmcs) -> None:
    place = bmcs.serve(HPE, stale=1)
    with Redfish(bmc(place)) as client:
        stage(client, {"Sriov": "Disabled"})
    assert place.box.pending == {"Sriov": "Disabled"}
    place.box.stale = 2
    with pytest.raises(BmcError, match="its ETag changes with every request"), Redfish(bmc(place)) as client:
        stage(client, {"Sriov": "Enabled"})


def test_what_others_have_set_is_reported_since_the_same_reset_applies_it(bmcs: Bmcs) -> None:
    place = bmcs.serve(SUPERMICRO, pending={"SR-IOVSupport#0048": "Enabled"})
    found = asked(place, bios_settings={"CPUC6Report": "Disable"})
    assert found.notes == ["BIOS: the next reboot also applies settings of others: SR-IOVSupport#0048 = Enabled"]
    # Of a setting that is right now, it would be undone.
    undone = asked(place, bios_settings={"SR-IOVSupport": "Disabled"})
    assert (undone.changes["patch"], undone.facts["reboot_required"]) == ({"SR-IOVSupport#0048": "Disabled"}, False)


def test_the_bmc_of_another_system_is_refused_by_its_serial_number(bmcs: Bmcs) -> None:
    place = bmcs.serve(DELL)
    given = {"bios_settings": {"SriovGlobalEnable": "Enabled"}}
    for good in ("S123", "TAG1", ""):
        assert not asked(place, **given, bios_bmc_serial=good).refusal
    assert asked(place, **given, bios_bmc_serial="S124").refusal == [
        f"h1: bios_bmc_serial S124: BMC {place.address} belongs to a system with serial number S123 or TAG1; "
        "is it another host's?"
    ]


def test_a_bmc_that_cannot_be_read_is_drift_in_a_status_and_a_refusal_in_a_run(bmcs: Bmcs) -> None:
    place = bmcs.serve(DELL, starting=10**6)
    given = Given("h1", {**place.variables(), "bios_settings": {"SriovGlobalEnable": "Enabled"}})
    read = carried_out({"bmc": {**vars(bmc(place)), "wait_s": 0.1}, "state": "read"}, check=False)
    found = STAGE.asked(given, lambda name, arguments: read)
    assert found.drift == found.refusal == [f"h1: {read['problem']}"]
    assert "no answer within 0.1 s: status 503" in read["problem"]


# ---- profiles


def test_of_the_entries_of_a_profile_the_most_particular_counts() -> None:
    system = {"maker": "Dell Inc.", "model": "PowerEdge XE9680", "bios": "2.1.7"}
    own = {
        "performance": [
            {"maker": "Dell", "model": "PowerEdge XE*", "settings": {"A": "1"}},
            {"maker": "dell", "model": ["PowerEdge XE9680"], "bios": "2.*", "settings": {"A": "2"}},
            {"maker": "HPE", "model": "x", "bios": "y", "settings": {"A": "3"}},
        ]
    }
    assert profile_settings("performance", own, system) == ({"A": "2"}, "")
    assert profile_settings("performance", own, {**system, "bios": "1.0"}) == ({"A": "1"}, "")
    assert profile_settings("performance", {}, system)[0]["SysProfile"] == "Custom"
    assert profile_settings("", own, system) == ({}, "")
    text = profile_settings("performance", {}, {"maker": "Quanta", "model": "D54", "bios": "3A"})[1]
    assert text.startswith(
        "bios_profile performance: has no entry for Quanta D54 with BIOS 3A, only for maker Dell model PowerEdge"
    )


def test_what_the_project_has_as_profiles_is_sound() -> None:
    for variants in builtin().values():
        assert all(one.maker and is_settings(one.settings) for one in variants)
    for about in MAKERS.values():
        system = {"maker": about["maker"], "model": about["model"], "bios": "1"}
        settings, wrong = profile_settings("performance", {}, system)
        entries = {"Attributes": about["attributes"], "Dependencies": about["dependencies"]}
        read = {"registry": entries, "current": about["current"], "pending": {}}
        assert (wrong, compared(settings, read).refusals) == ("", [])
    for wrong_ in (
        {"p": {}},
        {"p": [{"settings": {"A": 1.5}}]},
        {"p": [{"sttings": {}}]},
        {"p": [{"model": 5}]},
    ):
        assert not is_profiles(wrong_)
    entry = {"settings": {"A": "1"}, "first": ["A"]}
    assert is_profiles({"p": [entry]}) and not is_profiles({"p": [{**entry, "first": {"A": 5}}]})


# ---- what an earlier run has sent


def kept(found: Pending, job: str = "", *, accepted: bool = True) -> dict[str, Any]:
    """Return the facts of a host on which the role has sent what was pending."""
    record = found.changes["sent"]
    sent = {**record["sent"], "boot": "b1", "job": job, "accepted": accepted}
    return {"gaudi_boot_id": "b1", "gaudi_bios": {**record, "sent": sent}}


def test_a_staged_job_of_an_earlier_run_is_replaced_and_one_of_others_is_not(bmcs: Bmcs) -> None:
    place = bmcs.serve(DELL)
    given: dict[str, Any] = {"bios_settings": {"ProcVirtualization": "Disabled"}, "gaudi_boot_id": "b1"}
    first = asked(place, **given)
    job = send(place, first)["job"]
    facts = kept(first, job)
    assert list(asked(place, **{**given, **facts}).due) == []
    # One more setting: the same job must apply both.
    more = {**given, "bios_settings": {"ProcVirtualization": "Disabled", "SriovGlobalEnable": "Enabled"}, **facts}
    second = asked(place, **more)
    assert (second.refusal, second.changes["job"]) == ([], job)
    assert second.changes["patch"] == {"ProcVirtualization": "Disabled", "SriovGlobalEnable": "Enabled"}
    assert "a job of another client" in asked(place, **{**more, "gaudi_bios": {}}).refusal[0]
    assert "a job of another client" in asked(place, **{**more, "gaudi_boot_id": "b2"}).refusal[0]
    with Redfish(bmc(place)) as client:
        stage(client, second.changes["patch"], second.changes["job"])
    assert [one["JobState"] for one in place.box.jobs] == ["Scheduled"]
    place.box.reset()
    assert second.changes["patch"].items() <= place.box.current.items()


def test_a_staged_setting_is_taken_back_by_its_own_run(bmcs: Bmcs) -> None:
    place = bmcs.serve(DELL)
    first = asked(place, bios_settings={"ProcVirtualization": "Disabled"}, gaudi_boot_id="b1")
    # The run was cut off before it knew the name of its job.
    send(place, first)
    back = asked(place, bios_settings={"ProcVirtualization": "Enabled"}, **kept(first))
    assert (back.refusal, back.changes["patch"]) == ([], {"ProcVirtualization": "Enabled"})


def test_a_board_that_shows_nothing_pending_is_sent_settings_once(bmcs: Bmcs) -> None:
    place = bmcs.serve(SUPERMICRO, shows_pending=False)
    given: dict[str, Any] = {"bios_settings": {C6: "Disable"}, "gaudi_boot_id": "b1"}
    first = asked(place, **given)
    assert first.changes["patch"] == {C6: "Disable"}
    send(place, first)
    again = asked(place, **{**given, **kept(first)})
    assert (again.changes["patch"], list(again.due), list(again.left)) == ({}, [], [])
    assert again.drift == [f"{C6}: Auto -> Disable (pending until a reset)"]
    assert asked(place, **{**given, **kept(first)}, host_tuning_reboot_allowed=True).changes["reboots"]
    # After a boot without it, and for another value, it is sent again.
    assert asked(place, **{**given, **kept(first), "gaudi_boot_id": "b2"}).changes["patch"] == {C6: "Disable"}
    other = asked(place, **{**given, **kept(first), "bios_settings": {C6: "Enable"}})
    assert other.changes["patch"] == {C6: "Enable"}


def test_what_a_bmc_has_not_accepted_is_sent_again(bmcs: Bmcs) -> None:
    place = bmcs.serve(SUPERMICRO, shows_pending=False)
    given: dict[str, Any] = {"bios_settings": {C6: "Disable"}, "gaudi_boot_id": "b1"}
    # The record is kept before settings are sent; then the BMC gave no answer.
    facts = kept(asked(place, **given), accepted=False)
    again = asked(place, **{**given, **facts})
    assert (again.changes["patch"], again.facts["reboot_required"]) == ({C6: "Disable"}, True)
    assert again.drift == [f"{C6}: Auto -> Disable"]
    assert asked(place, **facts).notes[0].startswith("BIOS: the next reboot may apply what")  # type: ignore[index]


def test_a_job_of_others_is_not_taken_for_that_of_a_run_that_was_cut_off(bmcs: Bmcs) -> None:
    place = bmcs.serve(DELL)
    given: dict[str, Any] = {"bios_settings": {"ProcVirtualization": "Disabled"}}
    # It was cut off before it sent anything; then someone else sent something else.
    facts = kept(asked(place, **given, gaudi_boot_id="b1"), accepted=False)
    with Redfish(bmc(place)) as client:
        stage(client, {"SriovGlobalEnable": "Enabled"})
    assert "a job of another client" in asked(place, **given, **facts).refusal[0]


def test_what_is_pending_on_dell_without_a_job_is_sent_since_no_reset_takes_it_over(bmcs: Bmcs) -> None:
    place = bmcs.serve(DELL, pending={"ProcVirtualization": "Disabled"})
    given: dict[str, Any] = {"bios_settings": {"ProcVirtualization": "Disabled"}, "host_tuning_reboot_allowed": True}
    found = asked(place, **given)
    assert found.changes["patch"] == {"ProcVirtualization": "Disabled"}
    send(place, found)
    place.box.reset()
    assert not asked(place, **given).drift


def test_what_was_sent_and_is_no_longer_wanted_is_reported(bmcs: Bmcs) -> None:
    place = bmcs.serve(SUPERMICRO)
    first = asked(place, bios_settings={C6: "Disable"}, gaudi_boot_id="b1")
    note = f"BIOS: the next reboot applies what an earlier run sent: {C6} = Disable"
    assert asked(place, **kept(first)).notes[0].startswith(note)  # type: ignore[index]
    assert asked(place, **{**kept(first), "gaudi_boot_id": "b2"}).notes is None


@pytest.mark.parametrize("shows_pending", [True, False])
def test_a_sent_setting_that_is_taken_out_is_not_that_of_others(bmcs: Bmcs, shows_pending: bool) -> None:
    place = bmcs.serve(SUPERMICRO, shows_pending=shows_pending)
    first = asked(place, bios_settings={C6: "Disable", "SR-IOVSupport": "Enabled"}, gaudi_boot_id="b1")
    send(place, first)
    place.box.pending["PackageCState#0843"] = "C2 state"
    notes = asked(place, bios_settings={"SR-IOVSupport": "Enabled"}, **kept(first)).notes or []
    own = f"BIOS: {C6} = Disable was sent by an earlier run, and takes effect at the next reboot"
    others = "BIOS: the next reboot also applies settings of others: PackageCState#0843 = C2 state"
    assert notes[1:] == ([own, others] if shows_pending else [own])


# ---- BMCs and inventories that are odd


def test_two_hosts_with_one_bmc_are_refused(bmcs: Bmcs) -> None:
    place = bmcs.serve(SUPERMICRO)
    hosts = {name: {"bios_bmc_address": place.address} for name in ("h1", "h2")} | {"h3": {}}
    found = asked(place, bios_settings={C6: "Disable"}, hostvars=hosts)
    text = f"h1: bios_bmc_address {place.address}: is also the address of the BMC of h2; each host has its own BMC, "
    text += "or with several systems on one BMC its own bios_bmc_serial"
    assert (found.refusal, list(found.due), place.box.asked) == ([text], [], [])
    # The same BMC, written in another way.
    for one, other in (("BMC1", "bmc1:443"), ("fe80::1", "[fe80::1]:443")):
        hosts["h2"] = {"bios_bmc_address": other}
        found = asked(place, **{"bios_settings": {C6: "Disable"}, "hostvars": hosts, "bios_bmc_address": one})
        assert "is also the address of the BMC of h2" in found.refusal[0]
    del hosts["h2"]
    assert not asked(place, bios_settings={C6: "Disable"}, hostvars=hosts).refusal


@pytest.mark.parametrize("name", [C6, "CPUC6Report"])
def test_a_setting_is_above_that_of_the_profile_under_any_of_its_names(bmcs: Bmcs, name: str) -> None:
    place = bmcs.serve(SUPERMICRO)
    found = asked(place, bios_profile="performance", bios_settings={name: "Enable"})
    assert not found.refusal and found.changes["patch"][C6] == "Enable"
    both = asked(place, bios_settings={C6: "Enable", "CPUC6Report": "Disable"})
    assert "mean this attribute, and give it different values" in both.refusal[0]


def test_authorities_without_a_certificate_are_named_at_once(bmcs: Bmcs, tmp_path: Path) -> None:
    # An empty file must not count as the control node's own authorities.
    empty = tmp_path / "ca.pem"
    empty.write_text("\n", encoding="utf-8")
    place = bmcs.serve(SUPERMICRO)
    with pytest.raises(ValueError, match="holds no certificate"):
        load("action_plugins/bios_settings.py").bmc_of(
            {**place.variables(), "bios_bmc_ca": str(empty), "bios_bmc_timeout": 5}
        )
    for text in ("hello", "-----BEGIN CERTIFICATE-----\nhello\n-----END CERTIFICATE-----\n"):
        with pytest.raises(BmcError, match="bios_bmc_ca holds no certificate that can be read"):
            seen(place, fingerprint="", ca=text, wait_s=600)
    assert place.box.asked == []


@pytest.mark.parametrize(
    "entries",
    [
        {"Attributes": ["A"]},
        {"Attributes": 7},
        {"Attributes": [{"AttributeName": "A", "Type": "Enumeration", "Value": 7}], "Dependencies": 7},
        {
            "Attributes": [{"AttributeName": "A", "Type": "Enumeration", "Value": ["x"]}],
            "Dependencies": [{"Dependency": {"MapToAttribute": "A", "MapToProperty": "ReadOnly", "MapFrom": ["x"]}}],
        },
    ],
)
def test_a_registry_of_another_form_is_refused_and_no_error_of_this_program(entries: Any) -> None:
    seen_ = {"registry": entries, "current": {"A": "x"}, "pending": {}}
    (text,) = compared({"A": "y"}, seen_).refusals
    assert text in ("the BMC shows no attribute registry, which is needed to check settings", f"A: 'y' {NO_VALUES}")
    rules = Registry.of(entries)
    assert rules.closed("A", {"A": "x"}) == ""


def test_paged_queues_and_members_that_are_links_are_followed(bmcs: Bmcs) -> None:
    job = {"Id": "JID_2", "JobType": "BIOSConfiguration", "JobState": "Scheduled", "Message": "m"}
    place = bmcs.serve(DELL)
    place.box.more = {
        f"{DELL['paths']['manager']}/Oem/Dell/Jobs": {
            "Members": [{**job, "Id": "JID_1"}],
            "Members@odata.nextLink": "/two",
        },
        "/two": {"Members": [{"@odata.id": "/j2"}]},
        "/j2": job,
    }
    # This firmware has only the newer path.
    place.box.odd = lambda _, path: Odd(404) if path.startswith(f"{DELL['paths']['manager']}/Jobs") else None
    assert [one["id"] for one in seen(place)["jobs"]] == ["JID_1", "JID_2"]


@pytest.mark.parametrize("members", [["/redfish/v1/Systems/1"], [{}], 7])
def test_an_answer_of_another_form_is_one_sentence(bmcs: Bmcs, monkeypatch: pytest.MonkeyPatch, members: Any) -> None:
    place = bmcs.serve(SUPERMICRO)
    real = Redfish.get

    def odd(client: Redfish, path: str) -> Answer:
        found = real(client, path)
        return Answer(200, {**found.body, "Members": members}, {}) if path.endswith("Systems") else found

    monkeypatch.setattr(Redfish, "get", odd)
    read = carried_out({"bmc": vars(bmc(place)), "state": "read"}, check=False)
    assert "answers in a form that is not Redfish's" in read["problem"] and place.address in read["problem"]
    assert place.box.sessions == {}


# ---- module, plan and record


def test_check_mode_sends_nothing_and_shows_what_would_be_sent(bmcs: Bmcs) -> None:
    place = bmcs.serve(DELL)
    given = {"bmc": vars(bmc(place)), "state": "staged", "settings": {"A": "b"}, "before": {"A": "c"}, "job": ""}
    found = carried_out({**given, "settle_s": 0}, check=True)
    assert (found["changed"], found["diff"]["before"], found["diff"]["after"]) == (True, "A: c\n", "A: b\n")
    assert place.box.asked == []
    assert carried_out({**given, "settings": {}, "settle_s": 0}, check=True)["changed"] is False


def test_the_module_reads_a_bmc_from_a_host_and_keeps_the_password_to_itself(bmcs: Bmcs) -> None:
    place = bmcs.serve(HPE)
    given = {"address": place.address, "user": USER, "password": PASSWORD, "fingerprint": place.fingerprint}
    found = run_module("bios_settings", bmc=given, state="read")
    assert found["bios"]["system"]["model"] == "ProLiant DL380a Gen11"
    assert PASSWORD not in json.dumps(found)
    assert place.box.sessions == {}
    answer = run_module(
        "bios_settings", bmc=given, state="staged", settings={"Sriov": "Disabled"}, _ansible_check_mode=False
    )
    assert (answer["changed"], place.box.pending) == (True, {"Sriov": "Disabled"})


def test_a_reboot_for_settings_takes_serving_models_down_for_its_minutes() -> None:
    live = {"m": {"active": True, "digest": "d", "module_ids": [0], "port": 1, "launch": {}, "env": {}, "holds": True}}
    known = {"bios_due": ["x"], "bios_reboots": True, "bios_down_minutes": 30, "gaudi_host": {"services": live}}
    (found,) = downtimes(known)
    assert (found.stage, found.reason) == ("bios", "the host reboots for its BIOS settings, and then it starts")
    assert found.minutes == 30
    assert downtimes({**known, "bios_reboots": False}) == []


def test_a_record_that_is_no_json_counts_as_none(tmp_path: Path) -> None:
    path = tmp_path / "bios.json"
    assert observe(str(path)) == {"failed": {}, "sent": {}}
    path.write_text('{"failed": {"bios": "1"}, "sent": 7}', encoding="utf-8")
    assert observe(str(path)) == {"failed": {"bios": "1"}, "sent": {}}
    path.write_text("[half", encoding="utf-8")
    assert observe(str(path)) == {"failed": {}, "sent": {}}


def test_a_reset_leaves_the_bios_and_forgets_the_record() -> None:
    left = {"own": {"/var/lib/gaudi-serve": ["bios.json", "m"]}}
    found = STAGE.reset(Given("h1", {"gaudi_left": left, "bios_profile": "performance"}))
    assert (found["due"], found["absent"]) == (True, ["/var/lib/gaudi-serve/bios.json"])
    assert found["left"] == ["BIOS settings stay as they are; change them with bios_settings, or in the BMC"]
    nothing = STAGE.reset(Given("h1", {"gaudi_left": {"own": {"/var/lib/gaudi-serve": None}}}))
    assert (nothing["due"], nothing["left"]) == (False, [])


@pytest.mark.parametrize("text", ["0" * 64, "SHA256:" + ":".join(["aB"] * 32), "ab" * 32])
def test_a_fingerprint_may_have_colons_and_a_prefix(text: str) -> None:
    assert len(plain_fingerprint(text)) == 64
    assert INPUTS["bios_bmc_fingerprint"].good(text) == (not text.startswith("SHA256"))
