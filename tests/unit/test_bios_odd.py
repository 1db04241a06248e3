"""BMCs that answer oddly: what is sent once, what again, what a run waits for, and what a message contains."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.bios.client import Bmc, BmcError, Redfish
from gaudi_serve.bios.compare import compared
from gaudi_serve.bios.kept import keep_values, kept_values, restoring
from gaudi_serve.bios.observe import observed, settle, stage
from gaudi_serve.bios.profiles import builtin, profile_settings
from gaudi_serve.bios.work import carried_out
from gaudi_serve.stages.base import Given, Pending
from gaudi_serve.stages.bios import STAGE
from helpers.bmc import AMI, DELL, HPE, PASSWORD, SUPERMICRO, USER, Box, Odd, Served, certificate, enumeration, served

C6 = "CPUC6Report#0840"
HTML = "<html><body>Sign in</body></html>"
Serve = Callable[..., Served]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a key and a certificate."""
    return certificate(tmp_path_factory.mktemp("bmc"))


@pytest.fixture
def serve(files: tuple[Path, Path]) -> Iterator[Serve]:
    """Return a function that serves a BMC until the test ends."""
    with ExitStack() as stack:
        yield lambda about, **more: stack.enter_context(served(Box(about, **more), *files))


def bmc(place: Served, **more: Any) -> Bmc:
    given = {"address": place.address, "user": USER, "password": PASSWORD, "fingerprint": place.fingerprint}
    return Bmc.of({**given, "wait_s": 1, "pause_s": 0.02, **more})


def seen(place: Served, **more: Any) -> dict[str, Any]:
    with Redfish(bmc(place, **more)) as client:
        return observed(client, registry=True)


def send(place: Served, settings: dict[str, Any], **more: Any) -> dict[str, Any]:
    with Redfish(bmc(place, **more)) as client:
        return stage(client, settings)


def asked(place: Served, **known: Any) -> Pending:
    """Return what the stage would do, after its look."""
    given = Given("h1", {**place.variables(), "gaudi_bios": {"failed": {}}, **known})
    found = STAGE.look(given)
    assert found
    read = carried_out({"bmc": vars(bmc(place)), "settings": {}, "before": {}, "job": "", **found[1]}, check=False)
    return STAGE.asked(given, lambda name, arguments: read)


def times(method: str, part: str, *odd: Odd | None) -> Callable[[str, str], Odd | None]:
    """Return a function with odd answers, one after another, to requests of a method whose path has a part."""
    left = list(odd)

    def answer(asked_method: str, path: str) -> Odd | None:
        return left.pop(0) if left and asked_method == method and part in path else None

    return answer


def always(method: str, part: str, odd: Odd) -> Callable[[str, str], Odd | None]:
    return lambda asked_method, path: odd if asked_method == method and part in path else None


def count(place: Served, method: str, part: str = "") -> int:
    return sum(one == method and part in path for one, path in place.box.asked)


# ---- secrets


@pytest.mark.parametrize("escaped", [False, True])
@pytest.mark.parametrize("filler", [0, 380, 390])
def test_no_message_contains_the_password_which_the_bmc_repeats(serve: Serve, filler: int, escaped: bool) -> None:
    word = 'pass"word-canary'
    text = f"{'x' * filler} The value {json.dumps(word) if escaped else word} for Password is not valid."
    error = {"error": {"@Message.ExtendedInfo": [{"MessageId": "Base.1.8.PropertyValueFormatError", "Message": text}]}}
    place = serve(DELL, odd=always("POST", "Sessions", Odd(400, json.dumps(error))))
    read = carried_out({"bmc": vars(bmc(place, password=word)), "state": "read"}, check=False)
    assert "status 400" in read["problem"]
    assert "pass" not in read["problem"].replace("the password is not sent again", "")


def test_no_message_contains_the_token_or_what_a_task_or_a_job_repeats(serve: Serve) -> None:
    place = serve(SUPERMICRO)
    error = {"error": {"message": f"Session token-1 of {PASSWORD} is unknown."}}
    place.box.odd = always("GET", "Bios", Odd(500, json.dumps(error)))
    with pytest.raises(BmcError, match=r"status 500: Session \(hidden\) of \(hidden\) is unknown"):
        seen(place)
    job = {"Id": "JID_1", "JobType": "BIOSConfiguration", "JobState": "Failed", "Message": f"User {PASSWORD} failed."}
    other = serve(DELL, jobs=[job])
    given = {"bmc": vars(bmc(other)), "state": "settled", "settings": {}, "before": {}, "job": "JID_1", "settle_s": 0}
    assert "User (hidden) failed" in str(carried_out(given, check=False)["warnings"])
    # A value that the BMC does not understand as Redfish.
    place.box.odd = always("GET", "Systems", Odd(200, json.dumps({"Members": [PASSWORD]})))
    read = carried_out({"bmc": vars(bmc(place)), "state": "read"}, check=False)
    assert "not Redfish's" in read["problem"] and PASSWORD not in read["problem"]


# ---- logins


@pytest.mark.parametrize(
    "odd",
    [
        Odd(401, HTML, "text/html"),
        Odd(401, "Unauthorized", "text/plain"),
        Odd(401),
        Odd(403, HTML, "text/html"),
        Odd(0),
        Odd(200, HTML, "text/html"),
        Odd(429, "{}", headers={"Retry-After": "0"}),
        *(Odd(status, HTML, "text/html") for status in (400, 500, 502, 503, 504)),
    ],
    ids=lambda odd: f"{odd.status} {odd.body[:6]}",
)
def test_a_login_is_sent_once_whatever_comes_back(serve: Serve, odd: Odd) -> None:
    place = serve(DELL, odd=always("POST", "Sessions", odd))
    with pytest.raises(BmcError, match=r"nothing is tried again|the password is not sent again"):
        seen(place, password="wrong")
    assert count(place, "POST") == 1


def test_a_login_that_is_not_answered_in_time_is_sent_once(serve: Serve) -> None:
    place = serve(DELL, odd=always("POST", "Sessions", Odd(201, "{}" * 50, every_s=0.1)))
    begin = time.monotonic()
    with pytest.raises(BmcError, match=r"the login got no answer .*takes too long"):
        seen(place, limit_s=0.3)
    assert (count(place, "POST"), time.monotonic() - begin < 3) == (1, True)


def test_nobody_gets_the_password_before_the_service_answers(serve: Serve) -> None:
    place = serve(
        DELL, odd=times("GET", "/redfish/v1/", Odd(200, HTML, "text/html"), Odd(503, HTML, "text/html"), Odd(0))
    )
    assert seen(place)["system"]["model"] == "PowerEdge XE9680"
    assert [method for method, _ in place.box.asked[:5]] == ["GET"] * 4 + ["POST"]
    place.box.odd = always("GET", "/redfish/v1/", Odd(200, HTML, "text/html"))
    place.box.asked.clear()
    with pytest.raises(BmcError, match="answers with no JSON object"):
        seen(place, wait_s=0.1)
    assert count(place, "POST") == 0


def test_a_session_that_is_refused_again_and_again_is_opened_twice_at_most(serve: Serve) -> None:
    place = serve(DELL, most=9, odd=always("GET", "Systems", Odd(401, HTML, "text/html")))
    with pytest.raises(BmcError, match="status 401"):
        seen(place)
    assert count(place, "POST") == 2


def test_a_bmc_without_sessions_gets_basic_logins_and_a_wrong_one_once(serve: Serve) -> None:
    place = serve(HPE, has_sessions=False)
    assert seen(place)["system"]["maker"] == "HPE"
    assert (count(place, "POST"), count(place, "DELETE")) == (0, 0)
    place.box.logins = 0
    with pytest.raises(BmcError, match="it refuses user operator or the password; nothing is tried again"):
        seen(place, password="wrong")
    assert place.box.logins == 1
    # Without an answer nobody knows whether it counted.
    place.box.logins, place.box.odd = 0, always("GET", "ystems", Odd(0))
    with pytest.raises(BmcError, match="the login got no answer"):
        seen(place, password="wrong")
    assert place.box.logins == 1
    # An accepted login is repeated as any other request.
    place.box.odd = times("GET", "bios", Odd(0), Odd(503), Odd(0))
    assert seen(place)["current"]


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_bmc_that_announces_sessions_and_has_none_gets_basic_logins(serve: Serve, status: int) -> None:
    place = serve(HPE)
    place.box.odd = always("POST", "Sessions", Odd(status, HTML, "text/html"))
    assert seen(place)["system"]["maker"] == "HPE"
    assert count(place, "POST") == 1 and place.box.logins


# ---- requests


@pytest.mark.parametrize(
    "odd",
    [Odd(200, HTML, "text/html", done=True), Odd(202, "Accepted", "text/plain", done=True), Odd(0, done=True)],
    ids=lambda odd: f"{odd.status} {odd.body[:6]}",
)
def test_a_change_whose_answer_is_lost_or_is_no_json_is_sent_once_and_looked_for(serve: Serve, odd: Odd) -> None:
    place = serve(SUPERMICRO, odd=always("PATCH", "Bios", odd))
    assert send(place, {C6: "Disable"}) == {"job": ""}
    assert (count(place, "PATCH"), place.box.pending) == (1, {C6: "Disable"})


def test_a_change_that_the_bmc_does_not_have_after_its_answer_was_lost_is_an_error(serve: Serve) -> None:
    place = serve(SUPERMICRO, odd=always("PATCH", "Bios", Odd(0)))
    with pytest.raises(BmcError, match=f"no answer to PATCH .*/SD: .*; it does not have {C6} = Disable"):
        send(place, {C6: "Disable"})
    assert count(place, "PATCH") == 1
    other = serve(SUPERMICRO, shows_pending=False, announced=False, odd=always("PATCH", "Bios", Odd(0)))
    with pytest.raises(BmcError, match="cannot know whether it has them"):
        send(other, {C6: "Disable"})
    assert count(other, "PATCH") == 1


@pytest.mark.parametrize("status", [502, 504, 500])
def test_a_change_is_not_repeated_after_an_error_of_a_proxy(serve: Serve, status: int) -> None:
    place = serve(SUPERMICRO, odd=always("PATCH", "Bios", Odd(status, HTML, "text/html")))
    with pytest.raises(BmcError, match=f"PATCH .*: status {status}: no reason"):
        send(place, {C6: "Disable"})
    assert count(place, "PATCH") == 1


@pytest.mark.parametrize("method", ["GET", "PATCH"])
def test_a_busy_bmc_is_asked_again_at_the_time_that_it_names(serve: Serve, method: str) -> None:
    place = serve(SUPERMICRO, odd=times(method, "Bios", Odd(429, "{}", headers={"Retry-After": "1"}), Odd(429)))
    begin = time.monotonic()
    send(place, {C6: "Disable"}, wait_s=5)
    assert place.box.pending == {C6: "Disable"}
    assert 1 <= time.monotonic() - begin < 4


def test_the_end_of_a_session_is_repeated_until_the_bmc_takes_it(serve: Serve) -> None:
    place = serve(SUPERMICRO, odd=times("DELETE", "Sessions", Odd(503), Odd(0), Odd(502, HTML, "text/html")))
    seen(place)
    assert (count(place, "DELETE"), place.box.sessions) == (4, {})
    place.box.odd = always("DELETE", "Sessions", Odd(503))
    begin = time.monotonic()
    seen(place, wait_s=0.2)
    assert time.monotonic() - begin < 2


@pytest.mark.parametrize("part", ["Registries", "Bios"])
def test_a_bmc_that_drips_has_one_limit_for_a_request(serve: Serve, part: str) -> None:
    place = serve(SUPERMICRO, odd=always("GET", part, Odd(200, "{" + " " * 500 + "}", every_s=0.05)))
    begin = time.monotonic()
    with pytest.raises(BmcError, match=r"no answer within 0\.5 s: the answer takes too long"):
        seen(place, limit_s=0.3, wait_s=0.5)
    assert time.monotonic() - begin < 3


# ---- tasks and jobs


def test_a_change_in_a_task_is_followed_to_its_end(serve: Serve) -> None:
    place = serve(SUPERMICRO, slow_task={"polls": 3, "TaskState": "Completed", "TaskStatus": "OK"})
    assert send(place, {C6: "Disable"}) == {"job": ""}
    assert place.box.pending == {C6: "Disable"}


@pytest.mark.parametrize("end", [{"TaskState": "Exception"}, {"TaskState": "Completed", "TaskStatus": "Critical"}])
def test_a_task_that_fails_is_an_error_with_its_message(serve: Serve, end: dict[str, Any]) -> None:
    messages = [{"MessageId": "Bios.1.0.Refused", "Message": "The BIOS refuses it."}]
    place = serve(SUPERMICRO, slow_task={"polls": 2, **end, "Messages": messages})
    with pytest.raises(BmcError, match=r"task 9 of the change is \w+: The BIOS refuses it\."):
        send(place, {C6: "Disable"})


def test_a_task_that_waits_for_the_reset_is_the_job_of_the_change(serve: Serve) -> None:
    place = serve(SUPERMICRO, slow_task={"polls": 2, "TaskState": "Pending"})
    assert send(place, {C6: "Disable"}) == {"job": "9"}
    # The same task is no foreign one for a later run.
    place.box.slow_task = None
    with Redfish(bmc(place)) as client:
        stage(client, {"SR-IOVSupport#0048": "Enabled"}, "9")
    assert len(place.box.pending) == 2


def test_a_task_without_an_end_is_an_error(serve: Serve) -> None:
    place = serve(SUPERMICRO, slow_task={"polls": 10**6, "TaskState": "Completed"})
    with pytest.raises(BmcError, match=r"task 9 is still Running after 0\.2 s"):
        send(place, {C6: "Disable"}, wait_s=0.2)


TASKS = "/redfish/v1/TaskService"


def with_tasks(*tasks: dict[str, Any]) -> dict[str, Any]:
    """Return the resources of a service with tasks."""
    members = {f"{TASKS}/Tasks/{one['Id']}": one for one in tasks}
    return {
        "/redfish/v1": {"Tasks": {"@odata.id": TASKS}},
        TASKS: {"Tasks": {"@odata.id": f"{TASKS}/Tasks"}},
        f"{TASKS}/Tasks": {"Members": [{"@odata.id": path} for path in members]},
        **members,
    }


def updating(**oem: Any) -> dict[str, Any]:
    """Return the resources of an update service."""
    path = "/redfish/v1/UpdateService"
    return {"/redfish/v1": {"UpdateService": {"@odata.id": path}}, path: {"Oem": oem}}


@pytest.mark.parametrize(
    ("about", "more", "text"),
    [
        (
            SUPERMICRO,
            with_tasks({"Id": "4", "TaskState": "Running", "Name": "BIOS Update"}),
            "4 (BIOS Update, Running)",
        ),
        (HPE, updating(Hpe={"State": "Updating"}), "UpdateService (update of firmware, Updating)"),
        (
            AMI,
            updating(AMIUpdateService={"UpdateInformation": {"UpdateStatus": "Flashing"}}),
            "UpdateService (update of firmware, Flashing)",
        ),
    ],
    ids=["task", "HPE", "AMI"],
)
def test_an_update_of_firmware_or_any_task_stops_a_change_and_a_reboot(
    serve: Serve, about: dict[str, Any], more: dict[str, Any], text: str
) -> None:
    place = serve(about, more=more)
    name, value = {"HPE": ("Sriov", "Disabled"), "ZT Systems": ("PMS005", "PMS005Disable")}.get(
        about["maker"], (C6, "Disable")
    )
    found = asked(place, bios_settings={name: value}, host_tuning_reboot_allowed=True)
    assert text in found.refusal[0] and "is not finished" in found.refusal[0]
    assert (found.changes["reboots"], list(found.due)) == (False, [])
    with pytest.raises(BmcError, match="is not finished"):
        send(place, {name: value})
    # Also where the settings are pending already, and only the reboot is left.
    place.box.pending[name] = value
    assert asked(place, bios_settings={name: value}, host_tuning_reboot_allowed=True).refusal
    assert not asked(place, bios_settings={name: value}).refusal
    assert place.box.sent == []


def test_ended_tasks_and_an_idle_update_service_stop_nothing_and_are_read_once(serve: Serve) -> None:
    ended = [
        {"Id": str(number), "TaskState": state} for number, state in enumerate(("Completed", "Exception", "Killed"))
    ]
    place = serve(
        SUPERMICRO,
        more={**with_tasks(*ended), **{k: v for k, v in updating(Hpe={"State": "Idle"}).items() if "U" in k}},
    )
    place.box.more["/redfish/v1"]["UpdateService"] = {"@odata.id": "/redfish/v1/UpdateService"}
    send(place, {C6: "Disable"})
    assert place.box.pending and count(place, "GET", "Tasks/0") == 1


def test_the_messages_of_the_last_change_are_shown(serve: Serve) -> None:
    bad = {"MessageId": "Bios.1.0.NotSupported", "MessageArgs": ["CPUC6Report"], "Severity": "Warning"}
    good = {"MessageId": "Base.1.8.Success", "Message": "Fine.", "Severity": "OK"}
    place = serve(SUPERMICRO)
    settings = {"SettingsObject": {"@odata.id": place.box.settings}, "Messages": [good, bad]}
    place.box.more = {SUPERMICRO["paths"]["bios"]: {"@Redfish.Settings": settings}}
    text = "Bios.1.0.NotSupported (CPUC6Report)"
    assert seen(place)["messages"] == [text]
    assert f"BIOS: it reports on its last change: {text}" in (asked(place, bios_settings={C6: "Disable"}).notes or [])
    assert not asked(place, bios_settings={C6: "Auto"}).notes
    given = {"bmc": vars(bmc(place)), "state": "settled", "settings": {}, "before": {}, "job": "", "settle_s": 0}
    assert carried_out(given, check=False)["warnings"] == [f"BMC {place.address}: the BIOS reports: {text}"]


def test_values_that_are_late_are_waited_for(serve: Serve) -> None:
    place = serve(SUPERMICRO)
    place.box.odd = lambda method, path: (
        place.box.current.update({C6: "Disable"}) if len(place.box.asked) > 20 else None
    )
    with Redfish(bmc(place)) as client:
        settle(client, {C6: "Disable"}, "", 5, 5)
    assert place.box.current[C6] == "Disable"


# ---- where a BMC stages settings, and of which system


@pytest.mark.parametrize(
    "odd",
    [None, Odd(200, json.dumps({"Id": "SD"})), Odd(404, HTML, "text/html")],
    ids=["with attributes", "without attributes before a change", "only while something is pending"],
)
def test_settings_at_sd_are_found_without_an_announcement(serve: Serve, odd: Odd | None) -> None:
    place = serve(AMI, announced=False)
    place.box.odd = lambda method, path: (
        odd if method == "GET" and path.endswith("/SD") and not place.box.sent else None
    )
    if odd:
        # Without an earlier answer there is no ETag, which such a BMC accepts as *.
        place.box.any_etag = True
    assert seen(place)["pending"] == {}
    send(place, {"PMS005": "PMS005Disable"})
    assert place.box.pending == {"PMS005": "PMS005Disable"}
    # No refused request comes first where the BMC has shown no resource: another client seems to have changed it.
    assert count(place, "PATCH") == (2 if odd and odd.status == 200 else 1)
    assert seen(place)["pending"] == place.box.pending


def two_systems(serial: str) -> dict[str, Any]:
    """Return the resources of a second system of a Supermicro BMC."""
    second = "/redfish/v1/Systems/2"
    bios = {"Attributes": {C6: "Enable"}, "AttributeRegistry": SUPERMICRO["registry"], "@odata.id": f"{second}/Bios"}
    return {
        "/redfish/v1/Systems": {"Members": [{"@odata.id": "/redfish/v1/Systems/1"}, {"@odata.id": second}]},
        second: {"Manufacturer": "Supermicro", "SerialNumber": serial, "Bios": {"@odata.id": f"{second}/Bios"}},
        f"{second}/Bios": bios,
    }


def test_of_two_systems_behind_one_bmc_the_serial_number_chooses(serve: Serve) -> None:
    place = serve(SUPERMICRO, more=two_systems("S456"))
    assert seen(place, serial="S123")["current"][C6] == "Auto"
    assert seen(place, serial="S456")["current"] == {C6: "Enable"}
    text = (
        r"several systems, with the serial numbers /redfish/v1/Systems/1: S123 or TAG1; /redfish/v1/Systems/2: S456; "
    )
    for serial, more in (("", "set bios_bmc_serial to one of them"), ("S9", "bios_bmc_serial S9 is not one of them")):
        with pytest.raises(BmcError, match=text + more):
            seen(place, serial=serial)


def test_two_hosts_may_share_a_bmc_if_each_has_its_own_serial_number(serve: Serve) -> None:
    place = serve(SUPERMICRO)
    hosts = {
        name: {**place.variables(), "bios_bmc_serial": serial} for name, serial in (("h1", "S123"), ("h2", "S456"))
    }
    assert not asked(place, bios_settings={C6: "Disable"}, bios_bmc_serial="S123", hostvars=hosts).refusal
    given = Given("h1", {**place.variables(), "bios_settings": {C6: "Disable"}, "hostvars": hosts})
    for serial in ("", "S456"):
        known = Given("h1", {**given.known, "bios_bmc_serial": serial})
        assert STAGE.look(known) is None and "own bios_bmc_serial" in STAGE.pending(known).refusal[0]


# ---- profiles

AMD: dict[str, Any] = {
    **HPE,
    "model": "ProLiant DL385 Gen11",
    "attributes": [
        enumeration("WorkloadProfile", "GeneralPowerEfficientCompute", "Custom"),
        enumeration("PowerRegulator", "OsControl", "StaticHighPerf"),
        enumeration("MinProcIdlePower", "C6", "NoCStates"),
        enumeration("NumaGroupSizeOpt", "Flat", "Clustered"),
        enumeration("PerformanceDeterminism", "PowerDeterministic", "PerformanceDeterministic"),
        *(enumeration(name, "Disabled", "Enabled") for name in ("ProcAmdIoVt", "Sriov")),
    ],
}
AMD["current"] = {one["AttributeName"]: one["Value"][0]["ValueName"] for one in AMD["attributes"]}


def test_the_profile_of_hpes_amd_machines_leaves_out_what_they_lack_and_notes_it(serve: Serve) -> None:
    found = asked(serve(AMD), bios_profile="performance")
    assert not found.refusal
    assert found.changes["patch"] == {one["AttributeName"]: one["Value"][1]["ValueName"] for one in AMD["attributes"]}
    text = "BIOS: profile performance leaves out what this BIOS lacks: DataFabricCStateEnable, ProcX2Apic"
    assert text in (found.notes or [])


def test_a_name_of_a_profile_that_is_not_optional_is_still_refused(serve: Serve) -> None:
    entry = {"maker": "HPE", "model": "ProLiant DL385*", "bios": "*", "settings": {"Sriov": "Enabled", "Sriow": "x"}}
    place = serve(AMD)
    (text,) = asked(place, bios_profile="p", bios_profiles={"p": [entry]}).refusal
    assert "Sriow: this BIOS has no such attribute; did you mean Sriov?" in text
    found = asked(place, bios_profile="p", bios_profiles={"p": [{**entry, "optional": "Sriow"}]})
    assert (found.refusal, found.changes["patch"]) == ([], {"Sriov": "Enabled"})
    # A user's own setting is never left out.
    more = {"bios_settings": {"Sriow": "x"}, "bios_profiles": {"p": [{**entry, "optional": "Sriow"}]}}
    assert asked(place, bios_profile="p", **more).refusal


@pytest.mark.parametrize(
    ("maker", "model"),
    [
        *(("Dell Inc.", model) for model in ("PowerEdge R7625", "PowerEdge R6615", "PowerEdge R640")),
        *(("HPE", model) for model in ("ProLiant DL580 Gen9", "Apollo 6500")),
        *(("Supermicro", model) for model in ("AS-8125GS-TNHR", "SYS-1029P")),
    ],
)
def test_a_machine_that_no_capture_is_of_has_no_entry(maker: str, model: str) -> None:
    assert all(one.model for variants in builtin().values() for one in variants)
    assert "has no entry" in profile_settings("performance", {}, {"maker": maker, "model": model, "bios": "1"})[1]


# ---- earlier values


def test_the_values_before_the_first_change_are_kept_for_each_system(tmp_path: Path) -> None:
    path = tmp_path / "bios" / "h1.json"
    assert kept_values(path) == {}
    system = {"serial": "S1", "model": "M", "bios": "1.4"}
    keep_values(path, system, {"A": "old", "B": 1})
    keep_values(path, {**system, "bios": "1.5"}, {"A": "newer", "C": True})
    assert kept_values(path) == {"A": "old", "B": 1, "C": True} == kept_values(path, "S1")
    keep_values(path, {**system, "serial": "S2"}, {"A": "other"})
    assert (kept_values(path), kept_values(path, "S1")["A"], kept_values(path, "S3")) == ({"A": "other"}, "old", {})
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match="is not a file of earlier BIOS values"):
        keep_values(path, system, {})


def test_earlier_values_are_restored_as_far_as_the_bios_takes_them(serve: Serve) -> None:
    place = serve(SUPERMICRO)
    values = {C6: "Enable", "SR-IOVSupport#0048": "Disabled", "Gone#0001": "x", "PackageCState#0843": "C9"}
    found = restoring(values, seen(place))
    assert (found["patch"], found["before"]) == ({C6: "Enable"}, {C6: "Auto"})
    assert found["lines"] == [f"{C6}: Auto -> Enable"]
    assert [text.partition(":")[0] for text in found["left"]] == ["Gone#0001", "PackageCState#0843"]
    send(place, found["patch"])
    place.box.reset()
    assert restoring({C6: "Enable"}, seen(place))["patch"] == {}


def test_a_reset_offers_the_earlier_values_and_sends_them_on_request() -> None:
    left = {"own": {"/var/lib/gaudi-serve": None}}
    kept: dict[str, Any] = {"path": "/i/bios/h1.json", "values": {C6: "Auto"}, "sends": False}
    found = STAGE.reset(Given("h1", {"gaudi_left": left, "__bios_kept": kept}))
    assert (found["due"], found["patch"]) == (False, {})
    assert found["left"] == [
        "BIOS settings stay as they are; 1 earlier value in /i/bios/h1.json on the control node: -e reset_bios=true "
        "sends them"
    ]
    kept |= {
        "sends": True,
        "patch": {C6: "Auto"},
        "before": {C6: "Disable"},
        "lines": [f"{C6}: Disable -> Auto"],
        "left": [],
    }
    found = STAGE.reset(Given("h1", {"gaudi_left": left, "__bios_kept": kept}))
    assert (found["due"], found["patch"], found["before"]) == (True, {C6: "Auto"}, {C6: "Disable"})
    assert found["did"] == [f"send the earlier BIOS values: {C6}: Disable -> Auto"]
    assert found["left"] == [f"BIOS: {C6}: Disable -> Auto takes effect at the next reboot"]


# ---- answers of real BMCs, from public reports


def test_a_settings_term_without_an_object_is_none(serve: Serve) -> None:
    # DMTF's Redfish-Tacklebox, issue 55.
    place = serve(AMI, announced=False, more={AMI["paths"]["bios"]: {"@Redfish.Settings": {"Messages": []}}})
    send(place, {"PMS005": "PMS005Disable"})
    assert place.box.pending == {"PMS005": "PMS005Disable"}


@pytest.mark.parametrize("attributes", [None, {}, "none"])
def test_a_settings_object_without_attributes_has_nothing_pending(serve: Serve, attributes: Any) -> None:
    # Redfish-Tacklebox, issue 185 (none at all), and IBM's OpenBMC, pull request 210 (null).
    place = serve(SUPERMICRO)
    body = {"Id": "SD"} if attributes == "none" else {"Id": "SD", "Attributes": attributes}
    place.box.odd = always("GET", "/SD", Odd(200, json.dumps(body)))
    assert seen(place)["pending"] == {}


@pytest.mark.parametrize("name", ["Base.1.0.Success", "Base.1.0:Success", "Base.1.13.Success"])
def test_success_without_a_severity_is_no_message(serve: Serve, name: str) -> None:
    # DMTF's libredfish, issue 45 (Insyde); iLO writes a colon.
    place = serve(HPE)
    settings = {"SettingsObject": {"@odata.id": place.box.settings}, "Messages": [{"MessageId": name}]}
    place.box.more = {HPE["paths"]["bios"]: {"@Redfish.Settings": settings}}
    assert seen(place)["messages"] == []
    settings["Messages"] = {"MessageId": "Base.1.0.SettingsFailed"}  # type: ignore[assignment]  # AMI: one object
    assert seen(place)["messages"] == ["Base.1.0.SettingsFailed"]


def test_an_error_with_a_language_is_its_text(serve: Serve) -> None:
    # Dell's iDRAC-Redfish-Scripting, issue 7.
    text = "failed: Request URI: /redfish/v1/Systems/System.Embedded.1/Bios is invalid"
    body = {"error": {"message": {"lang": "en-us", "value": text}, "code": "1"}}
    place = serve(DELL, odd=always("GET", "Embedded.1/Bios", Odd(400, json.dumps(body))))
    with pytest.raises(BmcError, match=f"status 400: {text}"):
        seen(place)


def test_a_dell_that_makes_no_job_for_what_is_pending_has_accepted_it(serve: Serve) -> None:
    # NVIDIA's libredfish, pull request 97.
    place = serve(
        DELL, pending={"ProcVirtualization": "Disabled"}, odd=always("PATCH", "Settings", Odd(200, done=True))
    )
    assert send(place, {"ProcVirtualization": "Disabled"}) == {"job": ""}


def test_links_may_be_complete_addresses(serve: Serve) -> None:
    place = serve(SUPERMICRO)
    bios = {"Bios": {"@odata.id": f"https://{place.address}{SUPERMICRO['paths']['bios']}"}}
    place.box.more = {SUPERMICRO["paths"]["system"]: bios}
    assert seen(place)["current"][C6] == "Auto"


def test_values_that_a_bios_shows_as_texts_are_the_same_values() -> None:
    # OpenStack's sushy-tools shows booleans and numbers as texts.
    entries = {
        "Attributes": [
            {"AttributeName": "QuietBoot", "Type": "Boolean"},
            {"AttributeName": "NumCores", "Type": "Integer", "LowerBound": 1, "UpperBound": 20},
        ]
    }
    read = {"registry": entries, "current": {"QuietBoot": "true", "NumCores": "10"}, "pending": {}}
    found = compared({"QuietBoot": True, "NumCores": 10}, read)
    assert (found.refusals, found.patch, found.differing) == ([], {}, [])
    assert compared({"QuietBoot": "false"}, read).patch == {"QuietBoot": False}


def test_a_password_that_a_bios_shows_is_in_no_result(serve: Serve) -> None:
    place = serve(DELL, current={"SetupPassword": "canary"})
    assert "canary" not in json.dumps(seen(place))


def test_a_registry_that_only_its_file_names_is_found(serve: Serve) -> None:
    # OpenStack's sushy-tools: the list has another name.
    place = serve(SUPERMICRO)
    name, path = SUPERMICRO["registry"], f"/redfish/v1/Registries/{SUPERMICRO['registry']}"
    place.box.more = {
        path: {"Id": "BiosAttributeRegistry.v9", "Registry": "BiosAttributeRegistry9"},
        f"{path}/file": {"Id": name},
    }
    place.box.odd = None
    assert seen(place)["registry"]["Attributes"]
