"""What belongs to which release of Gaudi software, and that no default of the toolkit restarts what serves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.engines import ENGINES
from gaudi_serve.plan.changes import vllm_plan_changes
from gaudi_serve.plan.fleet import vllm_fleet_plan
from gaudi_serve.plan.host import vllm_plan
from gaudi_serve.plan.refusal import host_findings
from gaudi_serve.platforms import releases
from gaudi_serve.platforms.releases import DEFAULT, RELEASES, release_of, rows_of
from helpers.plans import gaudi_host, known, live_of, model

WISH = {"name": "m", "weights": "/data/m", "image": "vllm:1"}
SYSTEM = {"id": "ubuntu", "version_id": "22.04", "pretty_name": "Ubuntu 22.04"}


def plan(release: str, host: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Plan one model that names no engine."""
    return vllm_plan([{**WISH, **more}], host or gaudi_host(), host_name="g", release=release)


def test_rows_name_engines_that_there_are_and_every_engine_of_cards_has_one() -> None:
    named = {engine for row in RELEASES for engine in row.engines}
    assert named == {engine.name for engine in ENGINES.values() if "gaudi" in engine.platforms}


@pytest.mark.parametrize(
    ("release", "engine"),
    [
        ("1.21.3", "aice_1_21"),
        ("1.22.0", "aice_1_22"),
        ("1.23.0", "plugin"),
        ("1.24.0", "plugin"),
        ("1.24.1", "plugin"),
    ],
)
def test_a_release_chooses_the_engine_of_a_model_that_names_none(release: str, engine: str) -> None:
    (model,) = plan(release)["models"]
    assert model["launch_profile"] == engine


def test_an_engine_of_another_release_is_refused_with_the_rows_that_have_it() -> None:
    (error,) = plan("1.24.1", launch_profile="aice_1_21")["errors"]
    assert error["message"] == (
        "g: model m: launch_profile 'aice_1_21': belongs to release 1.21 (the fork's aice/v1.21.0), 1.22 (the fork's "
        "aice/v1.22.0 and vLLM 0.10.1 or 0.11.2 with the plugin); accelerator_release is 1.24.1, which starts plugin"
    )
    (error,) = plan("1.21.3", launch_profile="plugin")["errors"]
    assert "1.24.1 (vLLM 0.24.0 or 0.26.0 with the plugin); accelerator_release is 1.21.3" in error["message"]


@pytest.mark.parametrize("driver", [None, "1.24.1-7"])
def test_a_new_inventory_gets_the_current_release(driver: str | None) -> None:
    wish = {**WISH, "weights": "/data/m"}
    first = vllm_plan([wish], gaudi_host(driver_version=driver), host_name="g", release="")
    assert first == vllm_plan([wish], gaudi_host(driver_version=driver), host_name="g", release=DEFAULT)
    assert (first["errors"], first["models"][0]["launch_profile"]) == ([], "plugin")
    # What it has installed there is no reason to ask.
    served = gaudi_host(driver_version=DEFAULT, services=live_of(first))
    assert vllm_plan([wish], served, host_name="g", release="")["errors"] == []


def test_an_inventory_without_a_release_is_reported_what_to_write_where_another_one_is() -> None:
    fork = live_of(plan("1.21.3"))
    hosts = {
        "a": known(accelerator_release=None, gaudi_host=gaudi_host(driver_version="1.21.3-57", services=fork)),
        "b": known(accelerator_release=None, gaudi_host=gaudi_host(services=fork)),
        "c": known(accelerator_release=None, gaudi_host=gaudi_host(driver_version="1.24.0-5")),
        "d": known(accelerator_release=None, gaudi_host={"accelerator": "cpu"}),
    }
    fleet = vllm_fleet_plan(hosts, list(hosts), [])
    way = "see docs/guides/migrating.md"
    said = "accelerator_release must be set: its default 1.24.1 is not what this host has"
    assert [error["message"] for error in fleet["errors"]] == [
        f"a: {said} (driver 1.21.3, model m, served by aice_1_21); write '1.21.3' to stay; {way}",
        f"b: {said} (model m, served by aice_1_21); write that of its software to stay; {way}",
        f"c: {said} (driver 1.24.0); write '1.24.0' to stay; {way}",
    ]


def test_cards_that_a_release_does_not_serve_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    only_two = replace(RELEASES[-1], cards=("HL-225",))
    monkeypatch.setattr(releases, "RELEASES", (only_two,))
    host = gaudi_host(device_name="HL-325L", driver_version="1.24.1-7")
    said = [one.message for one in host_findings({"models": []}, SYSTEM, host, host_name="g", release="1.24.1")]
    assert said == ["g: accelerator_release 1.24.1 serves HL-225, and this host has HL-325L"]


def test_the_default_is_the_same_wherever_it_stands() -> None:
    files = ["playbooks/vars/stages.yml", "roles/driver/defaults/main.yml", "roles/vllm_image/defaults/main.yml"]
    for name in (*files, "inventory/examples/mixed/group_vars/all.yml"):
        text = (Path(__file__).parents[2] / name).read_text(encoding="utf-8")
        found = [line for line in text.splitlines() if "_release:" in line and not line.lstrip().startswith("#")]
        assert [line for line in found if DEFAULT in line], name


def test_a_release_that_nobody_knows_is_refused_with_those_that_are_known() -> None:
    host = gaudi_host(driver_version="1.99.0-1")
    said = [one.message for one in host_findings({"models": []}, SYSTEM, host, host_name="g", release="1.99.0")]
    assert len(said) == 1
    assert said[0].startswith(
        "g: accelerator_release 1.99.0 is not known; known are 1.21 (the fork's aice/v1.21.0), 1.22 ("
    )
    assert release_of("1.2") is None
    assert [row.name for row in rows_of("aice_1_22")] == ["1.22"]


@pytest.mark.parametrize(
    ("driver", "release", "good"),
    [("1.24.1-7", "1.24.1", True), ("1.24.0-5", "1.24.1", False), ("1.21.2-1", "1.21.3", True)],
)
def test_driver_and_image_are_of_one_row_with_the_release(driver: str, release: str, good: bool) -> None:
    host = gaudi_host(driver_version=driver)
    said = [one.message for one in host_findings({"models": []}, SYSTEM, host, host_name="g", release=release)]
    assert (said == []) is good
    image = f"vault.habana.ai/gaudi-docker/{driver.split('-', maxsplit=1)[0]}/ubuntu24.04/habanalabs/vllm:1"
    found = vllm_plan([model(image=image)], gaudi_host(driver_version=release), host_name="g", release=release)
    assert ([one for one in found["errors"] if one["key"] == "image"] == []) is good


def test_what_serves_keeps_its_engine_where_the_release_still_has_it() -> None:
    served = live_of({"models": plan("1.22.0", launch_profile="aice_1_21")["models"]})
    again = plan("1.22.0", gaudi_host(services=served))["models"]
    assert again[0]["launch_profile"] == "aice_1_21"
    assert vllm_plan_changes(again, served, set()) == []
    # A launch file of a version that did not write the engine down.
    served["m"]["launch"].pop("launch_profile")
    assert plan("1.22.0", gaudi_host(services=served))["models"][0]["launch_profile"] == "aice_1_21"
    # Anyone who names another release has set it.
    assert plan("1.24.1", gaudi_host(services=served))["models"][0]["launch_profile"] == "plugin"


def test_the_page_has_every_row() -> None:
    page = (Path(__file__).parents[2] / "docs/guides/models.md").read_text(encoding="utf-8")
    for row in RELEASES:
        (line,) = [line for line in page.splitlines() if line.startswith(f"| {row.name}")]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells[1:] == [
            f"`{row.engines[0]}`",
            *[", ".join(f"`{one}`" for one in row.engines[1:])],
            ", ".join(row.vllm),
        ]


def test_a_release_that_yaml_made_a_number_of_raises_nothing() -> None:
    assert vllm_plan([WISH], gaudi_host(), host_name="g", release=1.24)["models"] is not None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("image", "release", "error", "warning"),
    [
        ("vault.habana.ai/gaudi-docker/1.22.0/ubuntu22.04/habanalabs/vllm:latest", "1.21.3", "1.22.0", None),
        ("vault.habana.ai/gaudi-docker/1.21.3/ubuntu22.04/habanalabs/vllm:latest", "1.21.3", None, None),
        ("registry.example:5000/vllm-gaudi:1.22.0", "1.21.3", None, "1.22.0"),
        ("registry.example:5000/vllm-gaudi:1.22.0-mine@sha256:" + "a" * 64, "1.21.3", None, "1.22.0"),
        ("vllm:1.21.3-7", "1.21.3", None, None),
        # Numbers that are no release of the software.
        ("vllm:7.0.1", "1.21.3", None, None),
        ("vllm:1.22.0.4", "1.21.3", None, None),
    ],
)
def test_the_release_of_an_image_is_compared_whatever_the_facts_are(
    image: str, release: str, error: str | None, warning: str | None
) -> None:
    # As facts that someone has written by hand: they name no images, and no driver.
    host = {key: value for key, value in gaudi_host().items() if key in ("accelerator", "device_name", "modules")}
    plan = vllm_plan(
        [model(image=image)], {**host, "ip": "10.0.0.1", "interface": "eth0"}, host_name="g", release=release
    )
    ends = f"accelerator_release is {release}; both must be of one release"
    sentence = f"g: model qwq: image {image!r}: is of release {error}, but {ends}"
    assert [one["message"] for one in plan["errors"]] == ([sentence] if error else [])
    told = [text for text in plan["warnings"] if "its tag is release" in text]
    assert told == ([f"g: model qwq: image {image}: its tag is release {warning}, and {ends}"] if warning else [])
