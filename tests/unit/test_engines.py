"""Every engine and platform goes the same way, also one that is made up: one file, one line, nothing else to touch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.core.errors import InputError
from gaudi_serve.engines import ENGINES, Engine, Launch
from gaudi_serve.host.observe_host import system
from gaudi_serve.inventory.facts import checked_host
from gaudi_serve.model.host import Host
from gaudi_serve.model.spec import Spec
from gaudi_serve.plan.changes import vllm_plan_changes
from gaudi_serve.plan.fleet import vllm_fleet_lines, vllm_fleet_plan
from gaudi_serve.plan.host import vllm_plan
from gaudi_serve.plan.launch import vllm_launch
from gaudi_serve.platforms import (
    PLATFORMS,
    DeviceAccess,
    Platform,
    Runtime,
    accelerator_needs,
    platform_here,
)
from gaudi_serve.platforms.releases import rows_of
from gaudi_serve.show.status import fleet_status, fleet_status_lines
from gaudi_serve.stages import service
from gaudi_serve.stages.reset import vllm_service_reset
from helpers.golden import vectors
from helpers.leftovers import left, services
from helpers.plans import gaudi_host, known, live_of
from helpers.services import TEMPLATE, changes, live
from helpers.serving_models import SERVING, planned

BEADS = {"accelerator": "abacus", "device_name": "BEAD-1"}
NOTHING = {"device_name": None, "modules": []}
# The devices of a host of each platform.
DEVICES: dict[str, dict[str, Any]] = {"gaudi": {}, "cpu": {"accelerator": "cpu", **NOTHING}, "abacus": BEADS}
# Vectors of the vendor's own code; of the others docs/guides/models.md has the rules.
VECTORS = {name: f"launch_{name}" for name in ("aice_1_21", "aice_1_22", "deepseek_r1")}
ROOT = Path(__file__).parents[2]


def counted(spec: Spec, host: Host) -> Launch:
    """Return the launch of the made-up engine."""
    return Launch({"BEADS": host.device_name}, ["--model", spec["weights"], "--port", str(spec["port"])])


ABACUS = Platform(
    name="abacus",
    title="counting",
    engine="counting",
    options=lambda release: frozenset({"seed"}),
    software=lambda release: f"counting {release}",
    here=lambda root: Path(root, "dev/beads").exists(),
    about=lambda host: ["an abacus"],
    devices="beads",
    prefixes=("BEAD-",),
    access=lambda host: DeviceAccess(runtime="rods", variables={"RODS": "{indices}"}),
    runtime=Runtime("rods", "/usr/bin/rods", "rods"),
    names=r"BEAD-\d",
    group=lambda host: 4,
    observe=lambda: {"device_name": "BEAD-1", "modules": []},
)
COUNTING = Engine(
    name="counting",
    platforms=("abacus",),
    command=("count", "up"),
    defaults={"host": "127.0.0.1", "port": 9000, "tensor_parallel_size": 1},
    launch=counted,
    reads=("device_name",),
    capabilities=(),
    problems=lambda spec: [("seed", spec["seed"], "must be even")] if (spec.get("seed") or 0) % 2 else [],
)


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register an engine and a platform, for as long as a test runs, before those that find themselves everywhere."""
    others = dict(PLATFORMS)
    PLATFORMS.clear()
    monkeypatch.setitem(PLATFORMS, "abacus", ABACUS)
    PLATFORMS.update(others)
    monkeypatch.setitem(ENGINES, "counting", COUNTING)


def release_of(engine: str) -> str:
    """Return a release whose images start an engine."""
    rows = rows_of(engine)
    return f"{rows[0].name}.0" if rows else "1.21.3"


def host_of(platform: str, **more: Any) -> dict[str, Any]:
    """Return a host with eight cards, or none, of a platform."""
    return gaudi_host(**{**DEVICES.get(platform, {"accelerator": platform}), **more})


def wish(engine: str, **more: Any) -> dict[str, Any]:
    """Return a model that has no more than it must."""
    second = {"task": "embed", "shares_card_with": [{"name": "n", "weights": "/m/y", "task": "score"}]}
    several = second if engine in ENGINES and ENGINES[engine].share else {}
    return {"name": "m", "weights": "/m/x", "image": "vllm:1", "launch_profile": engine, **several, **more}


def plan_of(engine: str, **host: Any) -> dict[str, Any]:
    """Plan the model on a host of the platform that its engine is made for."""
    platform = {**ENGINES}[engine].platforms[0]
    plan = vllm_plan([wish(engine, seed=2)], host_of(platform, **host), host_name="g", release=release_of(engine))
    assert plan["errors"] == []
    return plan


engines = pytest.mark.parametrize("engine", [*ENGINES, "counting"])


@engines
def test_a_plan_has_all_that_a_container_needs(engine: str) -> None:
    (one,) = plan_of(engine)["models"]
    about = ENGINES[engine]
    assert one["launch_profile"] == engine
    assert all(isinstance(text, str) for text in [*one["env"], *one["env"].values(), *one["args"]])
    assert set(about.capabilities) <= set(one["cap_add"])
    assert one["ulimits"] == list(about.ulimits)
    platform = PLATFORMS[about.platforms[0]]
    access = platform.access(Host())
    assert one["runtime"] == (access and access.runtime)
    assert not set(access.variables if access else ()) & set(one["env"])
    assert bool(one["module_ids"]) == bool(platform.devices)
    command = service.vllm_container(one)["command"]
    begin = 1 + len(one["numactl"]) if one["numactl"] else 0
    assert tuple(command[begin : begin + len(about.command)]) == about.command
    assert [len(one["served"]), one["args"].count("--served-model-name")] == ([2, 0] if about.share else [1, 1])
    assert "--seed" in one["args"]


@engines
def test_the_same_request_is_the_same_launch_whatever_its_order_and_once_it_serves(engine: str) -> None:
    (one,) = plan_of(engine)["models"]
    platform = ENGINES[engine].platforms[0]
    turned = dict(reversed(wish(engine, seed=2).items()))
    (other,) = vllm_plan([turned], host_of(platform), release=release_of(engine))["models"]
    assert other["digest"] == one["digest"]
    served = live_of({"models": [one]})
    again = plan_of(engine, services=served)
    assert again["models"][0]["digest"] == one["digest"]
    assert vllm_plan_changes(again["models"], served, set()) == []


@engines
def test_units_are_started_once_and_taken_back(engine: str) -> None:
    models = plan_of(engine)["models"]
    assert changes(models, {"units": {}, "supervisor_sha256": None})["start"] == ["m"]
    assert not changes(models, live(models))["due"]
    files = service.vllm_service_files(models, TEMPLATE)
    assert ENGINES[engine].command[-1] in files["/etc/gaudi-serve/m.json"]["content"]
    serving = services(units={"m": {"container": {"running": True}}})
    taken = vllm_service_reset(serving, left())
    assert taken["units"] == ["m"] and taken["containers"] == ["vllm-m"]
    assert "/etc/gaudi-serve/m.json" in taken["paths"]


@engines
def test_a_fleets_plan_and_status_show_it(engine: str) -> None:
    host = {**host_of(ENGINES[engine].platforms[0]), "driver_version": f"{release_of(engine)}-57", "weights": {}}
    assert checked_host(host)[1] == []
    fleet = vllm_fleet_plan(
        {"a": known(gaudi_host=host, vllm_models=[wish(engine)], accelerator_release=release_of(engine))}, ["a"], []
    )
    assert fleet["errors"] == []
    lines = vllm_fleet_lines(fleet)
    assert lines[0].startswith(f"a: {PLATFORMS[host['accelerator']].about(Host.of(host))[0]}")
    unit = {"state": "active", "status": "serving", "restarts": 0}
    kept = {key: [] for key in ("preflight_status", "host_tuning_status", "vllm_service_status")}
    shown = fleet_status(
        {
            "a": {
                **{"gaudi_host": host, "gaudi_services": {"units": {"m": unit}}, "vllm_service_health": {"m": ""}},
                **{"preflight_plan": plan_of(engine), **kept},
            }
        },
        ["a"],
    )
    assert fleet_status_lines(shown)[-1] == "1 host: 1 as planned, 0 drifted, 0 could not be read"


@engines
def test_a_host_that_lacks_what_it_reads_is_refused_by_name(engine: str) -> None:
    about = ENGINES[engine]
    for key in about.reads:
        with pytest.raises(ValueError, match=rf"m: host\.{key}: "):
            vllm_launch(wish(engine), {**host_of(about.platforms[0]), key: None})


@engines
@pytest.mark.parametrize("platform", [*(name for name, one in PLATFORMS.items() if not one.refused), "abacus"])
def test_a_platform_that_it_does_not_serve_is_reported_with_what_is_served_there(engine: str, platform: str) -> None:
    errors = vllm_plan([wish(engine)], host_of(platform), host_name="g", release=release_of(engine))["errors"]
    if ENGINES[engine].serves(PLATFORMS[platform]):
        assert errors == []
    else:
        (error,) = errors
        served = ", ".join(one.name for one in ENGINES.values() if one.serves(PLATFORMS[platform]))
        assert error["key"] == "launch_profile"
        assert error["allowed"].endswith(f"; a {PLATFORMS[platform].title} host takes {served}")


@pytest.mark.parametrize("platform", [*(name for name, one in PLATFORMS.items() if not one.refused), "abacus"])
def test_a_platform_starts_its_own_engine_where_nobody_reports_otherwise(platform: str) -> None:
    (one,) = vllm_plan([{"name": "m", "weights": "/m/x", "image": "vllm:1"}], host_of(platform))["models"]
    assert one["launch_profile"] == PLATFORMS[platform].engine


def test_a_made_up_platform_is_recognised_observed_and_its_rules_hold(tmp_path: Path) -> None:
    assert platform_here(str(tmp_path)).name == "cpu"
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/beads").touch()
    assert system(str(tmp_path))["accelerator"] == "abacus"
    assert platform_here(str(tmp_path)).observe()["device_name"] == "BEAD-1"
    wide, odd = wish("counting", tensor_parallel_size=5), wish("counting", name="odd", port=9001, seed=1)
    unknown = wish("counting", name="top", port=9002, top_k=1)
    errors = vllm_plan([wide, odd, unknown], host_of("abacus"), host_name="g")["errors"]
    assert [(error["model"], error["key"]) for error in errors] == [
        ("top", "top_k"),
        ("odd", "seed"),
        ("m", "tensor_parallel_size"),
    ]
    assert "no group of four has so many" in errors[2]["message"] or "groups" in errors[2]["message"]


def test_an_unknown_engine_is_refused_with_all_that_are_known() -> None:
    (error,) = vllm_plan([wish("counted")], host_of("gaudi"), host_name="g")["errors"]
    assert error["allowed"] == f"must be one of {', '.join(ENGINES)}"


def test_every_engine_of_a_vendors_script_has_its_vectors() -> None:
    for engine in ENGINES:
        if engine in VECTORS:
            assert len(vectors(VECTORS[engine])) > 20
        else:
            page = (ROOT / "docs/guides/models.md").read_text(encoding="utf-8")
            assert engine == "counting" or f"`{engine}`" in page


def test_no_other_file_names_an_engine_or_a_platform() -> None:
    """An engine's or a platform's name in a comparison elsewhere would be a second place to touch."""
    own = ROOT / "lib/gaudi_serve"
    for path in [*own.rglob("*.py"), *(ROOT / "library").glob("*.py")]:
        if path.parent.name in ("engines", "platforms"):
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            code = line.partition("#")[0]
            for word in ("launch_profile", "accelerator"):
                compared = f'{word}"] ==' in code or f'{word}"] !=' in code or f'{word}") ==' in code
                assert not compared and f'{word}") !=' not in code, f"{path}: {line}"


def test_roles_ask_what_a_platform_needs_and_get_no_answer_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLATFORMS, "abacus", ABACUS)
    assert accelerator_needs("gaudi") == ["driver", "habana_runtime"]
    assert accelerator_needs("abacus") == accelerator_needs("cpu") == []
    with pytest.raises(InputError, match=f"accelerator: 'gpu' is not one of {', '.join(PLATFORMS)}"):
        accelerator_needs("gpu")


ALONE = {"GLOO_SOCKET_IFNAME": "lo", "VLLM_HOST_IP": "127.0.0.1"}
LISTENS = "its workers also listen on interface eth0, without a key; docs/explanation/security.md has the firewall rule"
LISTENS_OUTWARD = LISTENS.replace("interface eth0", "the host's outward address")


@pytest.mark.parametrize(
    ("engine", "more", "expected", "warning"),
    [
        ("plugin", {}, ALONE, None),
        ("plugin", {"host": "10.0.0.1"}, ALONE, None),
        ("plugin", {"env": {"GLOO_SOCKET_IFNAME": "eth0"}}, {**ALONE, "GLOO_SOCKET_IFNAME": "eth0"}, LISTENS),
        ("plugin", {"env": {"VLLM_HOST_IP": "10.0.0.1"}}, {**ALONE, "VLLM_HOST_IP": "10.0.0.1"}, LISTENS_OUTWARD),
        ("vllm", {}, ALONE, None),
        # What other hosts are to reach.
        ("vllm", {"kv_transfer_config": {"kv_connector": "MooncakeConnector"}}, {}, LISTENS_OUTWARD),
        # The vendor's exact launch sets where they listen.
        ("aice_1_21", {}, {"GLOO_SOCKET_IFNAME": "eth0", "VLLM_HOST_IP": "10.0.0.1"}, LISTENS),
        ("aice_1_21", {"env": ALONE}, ALONE, None),
        ("aice_1_22", {}, {"GLOO_SOCKET_IFNAME": "eth0", "VLLM_HOST_IP": "127.0.0.1"}, LISTENS),
        # Ray compares the address with its node's.
        ("deepseek_r1", {}, {}, LISTENS_OUTWARD),
    ],
)
def test_the_processes_of_a_server_meet_on_loopback_or_the_plan_reports_where(
    engine: str, more: dict[str, Any], expected: dict[str, str], warning: str | None
) -> None:
    wish = SERVING[engine][2]
    (found,) = planned(engine, {**wish, **more, "env": more.get("env", {})})["models"]
    assert {name: value for name, value in found["env"].items() if name in ALONE} == expected
    assert [text for text in found["warnings"] if "listen" in text] == ([warning] if warning else [])
