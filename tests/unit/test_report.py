"""What people read: refusals and the final table."""

from __future__ import annotations

from typing import Any

from gaudi_serve.plan.refusal import host_findings
from gaudi_serve.show.report import endpoint_table
from helpers.plans import DEBIAN, EMPTY, gaudi_host, model, planned


def sentences(plan: Any, system: Any, host: Any, **more: Any) -> list[str]:
    """Return why a run must not begin: what is wrong with the host, and then with its plan."""
    found = [one.message for one in host_findings(plan, system, host, **more)]
    return found + [error["message"] for error in plan["errors"]]


def refusal(system: dict[str, Any] = DEBIAN, **more: Any) -> list[str]:
    """Return the reasons against an empty plan on the usual host."""
    host = gaudi_host(driver_version="1.21.3-abc", **more.pop("host", {}))
    return sentences(EMPTY, system, host, host_name="gaudi01", **more)


def test_a_good_host_is_not_refused() -> None:
    assert refusal() == []
    assert refusal({"id": "ubuntu", "version_id": "22.04", "pretty_name": "U"}, wanted="gaudi", cards=8) == []


def test_unsupported_system_is_refused_with_the_list() -> None:
    fedora = {"id": "fedora", "version_id": "41", "pretty_name": "Fedora Linux 41"}
    assert refusal(fedora) == [
        "gaudi01: Fedora Linux 41 is not supported; supported are debian 12, debian 13, ubuntu 22.04, ubuntu 24.04"
    ]


def test_missing_card_wrong_driver_wrong_kind() -> None:
    assert refusal(cards=9) == [
        "gaudi01: accelerator_cards is 9, but hl-smi shows 8: module_ids [0, 1, 2, 3, 4, 5, 6, 7]"
    ]
    assert refusal(release="1.22.0") == [
        "gaudi01: driver 1.21.3-abc and image release 1.22.0 differ; both must be of one release: "
        "playbooks/driver.yml -e driver_upgrade_allowed=true replaces a driver that apt installed; any other "
        "must be removed first, as docs/guides/migrating.md shows"
    ]
    assert refusal(wanted="cpu") == ["gaudi01: accelerator is cpu, but this is a gaudi host"]
    assert refusal(host={"problem": ["hl-smi: not found"]}) == [
        "gaudi01: the cards do not answer: hl-smi: not found. Is the driver of release 1.21.3 loaded? "
        "playbooks/driver.yml installs it"
    ]


def test_what_a_run_would_trip_over_later_is_refused_now() -> None:
    assert refusal(release="1.21") == ["gaudi01: accelerator_release 1.21: must be a quoted release such as '1.24.1'"]
    (broken,) = refusal(daemon='{"a": 1,}')
    assert broken.startswith("gaudi01: /etc/docker/daemon.json: line 1, column ")
    assert refusal(secrets={"a": "b"}) == ["gaudi01: vllm_secrets: a: must be a mapping of environment variables"]
    plan = planned(model(image="typo:1"))
    system, host = DEBIAN, gaudi_host(driver_version="1.21.0")
    assert sentences(plan, system, host, images=["typo:1"]) == []
    assert sentences(plan, system, host, host_name="gaudi01", images=["vllm:1"]) == [
        "gaudi01: model qwq: image 'typo:1': neither on this host nor in vllm_images; there are ['vllm:1']"
    ]


def test_errors_of_the_plan_are_reasons() -> None:
    plan = planned(model(port=0))
    assert sentences(plan, DEBIAN, gaudi_host(driver_version="1.21.0")) == [
        "gaudi01: model qwq: port 0: must be an integer from 1 to 65535"
    ]


def test_table_of_all_hosts() -> None:
    unit = {"state": "active", "smoke": {"first_token_s": 0.0421}}
    hostvars = {
        "a": {
            "preflight_plan": planned(model()),
            "gaudi_services": {"units": {"qwq": unit}},
            "host_tuning_notes": ["hugepages capped"],
            "host_tuning_reboot_required": True,
        },
        "b": {"preflight_plan": planned(model(name="two")), "gaudi_services": {"units": {}}},
        "c": {},
    }
    assert endpoint_table(hostvars, ["a", "b", "c"]) == [
        "HOST  MODEL  CARDS  STATE      URL                        FIRST TOKEN",
        "----  -----  -----  ---------  -------------------------  -----------",
        "a     qwq    0,1    active     http://127.0.0.1:30001/v1  42 ms",
        "b     two    0,1    not there  http://127.0.0.1:30001/v1  -",
        "a: hugepages capped",
        "a: reboot required: the running kernel lacks arguments that grub.cfg has",
    ]


def test_the_url_is_that_of_the_live_server() -> None:
    """A check shows a server that still listens where an earlier run put it."""
    for live, url in (
        ({"port": 30009, "launch": {"command": ["vllm", "--host", "0.0.0.0"]}}, "http://10.0.0.11:30009/v1"),
        ({"port": 30001, "launch": {"command": ["vllm", "--host", "fd00::1"]}}, "http://[fd00::1]:30001/v1"),
        ({}, "http://127.0.0.1:30001/v1"),
    ):
        units = {"units": {"qwq": {"state": "active", **live}}}
        known = {"preflight_plan": planned(model()), "gaudi_services": units, "gaudi_host": {"ip": "10.0.0.11"}}
        assert url in endpoint_table({"a": known}, ["a"], check=True)[2]


def test_hosts_that_dropped_out_are_named_below_the_table() -> None:
    lines = endpoint_table({}, [], ["gaudi02"])
    assert lines[0].startswith("HOST")
    assert lines[-1].startswith("gaudi02: dropped out of this run")


def test_the_table_of_a_check_reports_that_it_shows_what_is_live_before() -> None:
    assert endpoint_table({}, [], [], check=True)[-1].startswith("check mode: nothing was changed")


def test_a_variable_stands_once_in_a_container() -> None:
    plan = {"models": [{**planned(model(env={"A": 1}))["models"][0], "state": "stopped"}], "errors": []}
    host = gaudi_host(driver_version="1.21.3")
    secrets = {"qwq": {"A": "s3cret", "HABANA_VISIBLE_DEVICES": "s3cret", "B": "s3cret"}, "elsewhere": {"A": "b"}}
    assert sentences(plan, DEBIAN, host, host_name="gaudi01", secrets=secrets) == [
        "gaudi01: model qwq: vllm_secrets: A is also set by the model's launch; a container uses only one of the two, "
        "so set it in one place",
        "gaudi01: model qwq: vllm_secrets: HABANA_VISIBLE_DEVICES must not be set: the plan chooses the cards; set "
        "module_ids",
    ]
    assert sentences(plan, DEBIAN, host, secrets={"qwq": {"B": "s3cret"}}) == []
