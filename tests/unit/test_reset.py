"""What a reset takes back, what it leaves, and what it knows from before."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gaudi_serve.core.run import Result
from gaudi_serve.host import baseline as found
from gaudi_serve.host import observe_left
from gaudi_serve.host.remove import remove_all
from gaudi_serve.platforms.gaudi import RUNTIME
from gaudi_serve.platforms.habana_config import habana_config
from gaudi_serve.stages import reset, reset_host
from gaudi_serve.stages.container_runtime import daemon_json
from helpers.leftovers import STATE, left, merged, runtime, services

OWNERS = '{\n    "log-opts": {"max-size": "10m"}\n}\n'
SYSCTL = "/etc/sysctl.d/zz-gaudi-serve.conf"


def box(name: str, kind: str = "") -> dict[str, Any]:
    """Return a container that runs; without a kind it is a user's."""
    return {"name": name, "running": True, "image": "i:1", "image_id": "i", "own": bool(kind), "kind": kind}


def of_runtime(before: str | None, **changes: Any) -> dict[str, Any]:
    """Return what is left where the engine had this daemon.json."""
    record = {"found": {"daemon_json": before, "daemon_json_mode": "0644", "habana_config": None, "enabled": True}}
    return left(records={"container_runtime": {**record, **changes}})


def tuning(**changes: Any) -> dict[str, Any]:
    """Return ``gaudi_tuning`` of a tuned host."""
    entries = [["root=/dev/sda1", "intel_idle.max_cstate=0"]]
    grub = {"present": True, "entries": entries, "cfg_mtime": 9.0, "dropin_folder_mtime": 8.0}
    return {
        **{"sysctl": {"vm.nr_hugepages": "64", "kernel.numa_balancing": "0"}, "grub": grub, "cmdline": []},
        "governor": {"values": {"cpu0": "performance", "cpu1": "performance"}},
        **changes,
    }


@pytest.mark.parametrize("before", [None, OWNERS, '{"features": {"cdi": false, "buildkit": true}}\n'])
def test_the_feature_of_cdi_that_the_toolkit_turned_on_goes_back(before: str | None) -> None:
    live = runtime(daemon_json(before, "nvidia", True, "", "h", cdi=True))
    plan = reset_host.container_runtime_reset(live, of_runtime(before, brought={"keys": {"cdi": True}}))
    written = [one["content"] for one in plan["write"]]
    assert (written, plan["paths"]) == (([before], []) if before else ([], ["/etc/docker/daemon.json"]))
    # One that nobody has turned on is a user's.
    kept = reset_host.container_runtime_reset(live, of_runtime(before))
    assert json.loads(kept["write"][0]["content"])["features"]["cdi"] is True


@pytest.mark.parametrize("before", [None, "{}\n", OWNERS, '{"live-restore": false, "runtimes": {"a": {"path": "/a"}}}'])
def test_daemon_json_goes_back_to_the_letter(before: str | None) -> None:
    plan = reset_host.container_runtime_reset(runtime(merged(before)), of_runtime(before))
    assert plan["due"]
    if before is None:
        assert plan["paths"] == ["/etc/docker/daemon.json"] and plan["write"] == []
    else:
        assert [(one["path"], one["content"], one["mode"]) for one in plan["write"]] == [
            ("/etc/docker/daemon.json", before, "0644")
        ]
    # A reload takes only what the file names.
    asked = json.loads(plan["reload"])
    assert asked["live-restore"] is False and "habana" not in asked["runtimes"]
    assert plan["told"] == "false" and plan["restart"] == []


def test_what_a_user_has_changed_since_is_kept() -> None:
    now = {**json.loads(merged(OWNERS)), "log-level": "debug"}
    plan = reset_host.container_runtime_reset(runtime(json.dumps(now)), of_runtime(OWNERS))
    assert json.loads(plan["write"][0]["content"]) == {**json.loads(OWNERS), "log-level": "debug"}
    assert plan["did"][0].endswith("without the toolkit's keys; what you have changed since stays")


def test_a_default_runtime_goes_with_the_runtime() -> None:
    now = json.dumps({**json.loads(merged(OWNERS)), "default-runtime": "habana"})
    plan = reset_host.container_runtime_reset(runtime(now), of_runtime(OWNERS))
    assert plan["write"][0]["content"] == OWNERS
    # An engine forgets no key that is merely gone, and does not start where its default runtime is.
    assert json.loads(plan["reload"])["default-runtime"] == "runc"
    assert plan["left"] == [
        "/etc/docker/daemon.json: your default-runtime habana is removed with the runtime of that name"
    ]
    before = '{"default-runtime": "kata", "runtimes": {"kata": {"path": "/kata"}}}\n'
    now = json.dumps({**json.loads(merged(before)), "default-runtime": "habana"})
    plan = reset_host.container_runtime_reset(runtime(now), of_runtime(before))
    assert plan["write"][0]["content"] == before
    assert json.loads(plan["reload"])["default-runtime"] == "kata"


def test_a_habana_runtime_of_the_owners_stays() -> None:
    before = json.dumps({"runtimes": {"habana": RUNTIME.entry}, "live-restore": True}) + "\n"
    plan = reset_host.container_runtime_reset(runtime(merged(before)), of_runtime(before))
    assert not plan["due"] and plan["told"] == "true habana"


def test_an_engine_that_has_gone_back_is_left_alone() -> None:
    info = {"live_restore": False, "runtimes": {"runc": {}}, "containers_running": 1}
    assert not reset_host.container_runtime_reset(runtime(OWNERS, info=info), of_runtime(OWNERS))["due"]
    assert not reset_host.container_runtime_reset(runtime(merged(OWNERS)), left())["due"]


def test_a_reset_cut_off_at_its_own_file_is_finished() -> None:
    half = reset_host.container_runtime_reset(runtime(merged(OWNERS)), of_runtime(OWNERS))["reload"]
    plan = reset_host.container_runtime_reset(runtime(half), of_runtime(OWNERS))
    assert plan["write"][0]["content"] == OWNERS


def test_data_goes_back_where_no_container_runs_from_it() -> None:
    now = daemon_json(OWNERS, True, True, "/data/docker", "host")
    known = of_runtime(OWNERS, brought={"keys": {"data-root": True}})
    plan = reset_host.container_runtime_reset(runtime(now), known)
    assert json.loads(plan["write"][0]["content"])["data-root"] == "/data/docker"
    assert "1 containers run from there" in plan["left"][0] and not plan["moves"]
    idle = {"live_restore": True, "runtimes": {}, "containers_running": 0}
    plan = reset_host.container_runtime_reset(runtime(now, info=idle), known)
    assert plan["write"][0]["content"] == OWNERS and plan["moves"] and plan["restart"]
    before = '{"data-root": "/old"}\n'
    plan = reset_host.container_runtime_reset(
        runtime(daemon_json(before, True, True, "/data/docker", "host"), info=idle),
        of_runtime(before, brought={"keys": {"data-root": True}}),
    )
    assert plan["write"][0]["content"] == before


def test_a_daemon_json_that_is_none_stays() -> None:
    plan = reset_host.container_runtime_reset(runtime("{nonsense", info=None), of_runtime(OWNERS))
    assert plan["write"] == [] and "is not a JSON object; it stays" in plan["left"][0]


def test_a_site_from_before_the_records_goes_back_to_its_backup() -> None:
    late = {"container_runtime": {"found": {"late": True}}}
    plan = reset_host.container_runtime_reset(
        runtime(merged(OWNERS)), left(records=late, daemon_backup=OWNERS, traces=[SYSCTL])
    )
    assert plan["write"][0]["content"] == OWNERS
    # No backup: the toolkit wrote the whole file, or its owner did.
    plan = reset_host.container_runtime_reset(runtime(merged(None)), left(traces=[SYSCTL]))
    assert "/etc/docker/daemon.json" in plan["paths"]
    plan = reset_host.container_runtime_reset(runtime(merged(OWNERS)), left(records=late, traces=[SYSCTL]))
    assert plan["write"] == [] and "its content before the toolkit is not known" in plan["left"][0]


def test_a_model_that_has_lost_its_unit_is_taken_back_too() -> None:
    services = {"units": {}, "without_unit": {"qwq": {}}, "orphans": ["vllm-qwq"]}
    own = {"/etc/gaudi-serve": [], "/usr/local/lib/gaudi-serve": [], STATE: ["qwq"]}
    plan = reset.vllm_service_reset(services, left(own=own))
    assert (plan["units"], plan["containers"]) == ([], ["vllm-qwq"])
    assert {f"{STATE}/qwq", "/etc/gaudi-serve/qwq.json"} <= set(plan["paths"])


def test_the_habana_runtimes_settings_go_back() -> None:
    shipped = "[habana-container-runtime]\n#visible_devices_all_as_default = true\nmode = 1\n"
    known = of_runtime(None, brought={"engine": {"habana_config": shipped}})
    plan = reset_host.container_runtime_reset(runtime(merged(None), habana_config=habana_config(shipped)), known)
    assert plan["write"] == [{"path": "/etc/habana-container-runtime/config.toml", "content": shipped, "mode": "0644"}]
    users = habana_config(shipped).replace("mode = 1", "mode = 2")
    plan = reset_host.container_runtime_reset(runtime(merged(None), habana_config=users), known)
    assert plan["write"][0]["content"] == shipped.replace("mode = 1", "mode = 2")
    dotted = "habana-container-runtime.mode = 'oci'\nhabana-container-runtime.visible_devices_all_as_default = true\n"
    known = of_runtime(None, brought={"engine": {"habana_config": dotted}})
    users = habana_config(dotted).replace("oci", "legacy")
    plan = reset_host.container_runtime_reset(runtime(merged(None), habana_config=users), known)
    assert plan["write"][0]["content"] == dotted.replace("oci", "legacy")
    known = of_runtime(None, brought={"engine": {"habana_config": "no toml"}})
    assert reset_host.container_runtime_reset(runtime(merged(None), habana_config="no toml"), known)["write"] == []


def test_the_engines_proxies_packages_source_and_boot() -> None:
    proxy = "/etc/systemd/system/docker.service.d/gaudi-serve-proxy.conf"
    sources = "/etc/apt/sources.list.d/docker.sources"
    record = {
        "found": {"daemon_json": OWNERS, "habana_config": None, "enabled": False},
        "brought": {
            "paths": {sources: sources, "/etc/systemd/system/docker.service.d": "/etc/systemd/system/docker.service.d"}
        },
        "installed": ["docker.io"],
    }
    here = left(
        records={"container_runtime": record},
        traces=[proxy],
        files=["/etc/gaudi-serve/docker-proxy.env", sources],
        installed=["docker.io", "python3-debian"],
    )
    live = runtime(merged(OWNERS), proxies_running="abc")
    plan = reset_host.container_runtime_reset(live, here, ["docker.io", "python3-debian"])
    assert plan["first"] == [proxy, "/etc/gaudi-serve/docker-proxy.env"] and len(plan["restart"]) == 1
    assert plan["disable"] and plan["packages"] == ["python3-debian"]
    assert plan["left"] == [f"package source {sources}: goes with its packages (reset_packages)"]
    assert sources in reset_host.container_runtime_reset(live, here, remove=True)["paths"]
    assert plan["empty"] == ["/etc/systemd/system/docker.service.d"]
    assert reset_host.container_runtime_found(live) == {
        **{"daemon_json": live["daemon_json"], "daemon_json_mode": "0600"},
        **{"habana_config": None, "enabled": True},
    }


def test_the_kernel_gets_its_values_back() -> None:
    record = {
        "found": {
            "sysctl": {"vm.nr_hugepages": "3", "kernel.numa_balancing": "0", "gone": None},
            "governors": {"cpu0": "powersave", "cpu1": "schedutil"},
            **{"cmdline": ["iommu=pt"], "args": ["quiet=1"]},
        },
        "installed": ["bash"],
    }
    here = left(
        records={"host_tuning": record},
        traces=["/etc/default/grub.d/zz-gaudi-serve.cfg", SYSCTL],
        took_over=["/etc/sysctl.conf"],
        installed=["bash", "linux-cpupower"],
    )
    plan = reset_host.host_tuning_reset(tuning(), here, ["linux-cpupower"])
    assert plan["due"] and plan["grub"] and plan["lines"] == ["/etc/sysctl.conf"]
    assert plan["sysctl"] == {"vm.nr_hugepages": "3"}
    assert plan["governors"] == {"powersave": "0", "schedutil": "1"}
    assert plan["packages"] == ["linux-cpupower"] and plan["left"] == []
    # Of what still runs, only the toolkit's arguments call for a reboot.
    running = ["root=/dev/sda1", "iommu=pt", "intel_idle.max_cstate=0", "mine=1", "quiet=1"]
    menu = {**tuning()["grub"], "entries": [["root=/dev/sda1"]], "dropin_folder_mtime": 10.0}
    plan = reset_host.host_tuning_reset(tuning(cmdline=running, grub=menu), left(records={"host_tuning": record}))
    assert plan["reboot"] == [
        "reboot required: the running kernel still has intel_idle.max_cstate=0",
        "reboot required: the running kernel still has quiet=1",
    ]
    assert plan["grub"], "a run was cut off between the drop-in and the menu"


def test_a_host_that_the_toolkit_never_saw_is_left_alone() -> None:
    menu = {**tuning()["grub"], "dropin_folder_mtime": 10.0}
    for plan in (
        reset_host.host_tuning_reset(tuning(grub=menu, cmdline=["intel_idle.max_cstate=0"]), left()),
        reset_host.container_runtime_reset(runtime(merged(None)), left()),
        reset.driver_reset(
            {"modules": ["habanalabs"]}, left(held=["habanalabs-dkms"]), ["habanalabs-dkms"], ["habanalabs"], True
        ),
        reset.vllm_service_reset(services(), left()),
        reset.vllm_image_reset(services(images={"a:1": "x"}), left(), "/var/lib/gaudi-serve/images", True),
        reset.model_weights_reset(left(), weights=True),
        reset.link_validation_reset(left()),
        reset.packages_reset(left(unneeded=["old"]), [], True),
        reset.rest_reset(left(), {}),
    ):
        assert not plan["due"] and plan["did"] == [] and plan["left"] == []


def test_values_that_nobody_wrote_down_are_reported() -> None:
    late = {"host_tuning": {"found": {"late": True}}}
    plan = reset_host.host_tuning_reset(tuning(), left(records=late, traces=[SYSCTL]))
    assert plan["paths"] == [SYSCTL] and plan["sysctl"] == {}
    assert plan["left"] == [
        "live sysctl values and governor: what they were is not known; they stay until the next boot"
    ]


def test_units_and_what_belongs_to_them() -> None:
    cache = "/data/recipes/a/1.21"
    known = {"vllm_service": {"found": {}, "brought": {"caches": {cache: "/data/recipes"}}}}
    own = {
        "/etc/gaudi-serve": ["a.env", "b.secret"],
        "/usr/local/lib/gaudi-serve": ["vllm-supervisor"],
        STATE: ["a", "old", "notes"],
    }
    here = left(
        records=known,
        own=own,
        states=["old"],
        brought={cache: {"exists": True}},
        dropins=["/etc/systemd/system/vllm-a.service.d"],
    )
    live = services(units={"a": {"container": {}}, "c": {"container": {"running": True}}}, orphans=["vllm-x"])
    plan = reset.vllm_service_reset(live, here)
    assert plan["units"] == ["a", "c"] and plan["containers"] == ["vllm-c", "vllm-x"]
    assert plan["paths"][:3] == [f"{STATE}/a", f"{STATE}/old", "/etc/gaudi-serve/b.secret"]
    assert f"{STATE}/notes" not in plan["paths"] and cache not in plan["paths"]
    assert plan["left"] == [f"recipe cache {cache}: kept (reset_caches)", "/etc/systemd/system/vllm-a.service.d: yours"]
    plan = reset.vllm_service_reset(live, here, caches=True)
    assert cache in plan["paths"] and plan["empty"] == ["/data/recipes/a", "/data/recipes"]


@pytest.mark.parametrize("name", ["found", "weights", "images", "images-build"])
def test_no_model_takes_the_toolkits_own_folders_with_it(name: str) -> None:
    unit = {"container": None}
    here = left(own={**left()["own"], STATE: [name, "a"]}, states=[name])
    plan = reset.vllm_service_reset(services(units={name: unit, "a": unit}), here)
    assert f"{STATE}/a" in plan["paths"] and f"{STATE}/{name}" not in plan["paths"]


def test_only_weights_that_were_fetched_go() -> None:
    brought = {"/w/a": "/w", "/w/mine": "/w/mine", "/w/half": "/w"}
    here = left(
        records={
            "model_weights": {
                "found": {},
                "brought": {"weights": brought, "venv": {"/opt/g/v": "/opt/g"}},
                "installed": ["git"],
            }
        },
        own={**left()["own"], "/usr/local/lib/gaudi-serve": ["weights"], STATE: ["weights", "found"]},
        brought={
            "/w/a": {"exists": True, "source": "hub", "beside": []},
            "/w/mine": {"exists": True, "source": None, "beside": []},
            "/w/half": {"exists": False, "source": None, "beside": ["/w/half.partial"]},
            "/opt/g/v": {"exists": True, "source": None, "beside": []},
        },
        installed=["git", "git-lfs"],
        containers=[box("gaudi-weights-a", "weights"), box("gaudi-weights-exporter"), box("gaudi-serve-hccl", "hccl")],
    )
    plan = reset.model_weights_reset(here, ["git", "git-lfs"])
    assert plan["weights"] == [] and plan["packages"] == ["git-lfs"] and plan["containers"] == ["gaudi-weights-a"]
    assert plan["did"][0] == "container gaudi-weights-a"
    assert plan["paths"] == ["/usr/local/lib/gaudi-serve/weights", f"{STATE}/weights", "/opt/g/v"]
    assert "weights /w/mine: not those that the toolkit provided" in plan["left"]
    plan = reset.model_weights_reset(here, weights=True)
    assert plan["weights"] == ["/w/a"] and "/w/half.partial" in plan["paths"]
    assert "/w" in plan["empty"] and "/opt/g" in plan["empty"] and "/" not in plan["empty"]


def test_a_users_containers_stay_whatever_their_names() -> None:
    here = left(containers=[box("gaudi-weights-exporter"), box("gaudi-serve-hccl")])
    for plan in (reset.model_weights_reset(here), reset.link_validation_reset(here)):
        assert not plan["due"] and plan["containers"] == [] and plan["did"] == []
    ours = left(containers=[box("gaudi-weights-a", "weights"), box("gaudi-serve-hccl", "hccl")])
    for plan, name in (
        (reset.model_weights_reset(ours), "gaudi-weights-a"),
        (reset.link_validation_reset(ours), "gaudi-serve-hccl"),
    ):
        assert plan["due"] and plan["containers"] == [name] and plan["did"] == [f"container {name}"]


def test_containers_are_known_by_their_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(name: str, labels: dict[str, str] | None, state: str = "running") -> str:
        return json.dumps([f"/{name}", state, "i:1", "sha256:1", labels])

    told = [
        row("a", {"gaudi-serve.model": "a"}),
        row("b", {"gaudi-serve.weights": "b"}, "exited"),
        row("c", {"gaudi-serve.hccl": "1"}),
        row("gaudi-weights-exporter", None),
        row("gaudi-serve-hccl", {"mine": "\t"}),
    ]

    def docker(argv: list[str]) -> Result:
        if argv[1] == "ps":
            return Result(0, "1\n2\n3\n4\n5\n6\n", "")
        # One has gone meanwhile.
        assert argv[-6:] == ["1", "2", "3", "4", "5", "6"]
        return Result(1, "\n".join(["", *told, ""]), "Error: No such container: 6")

    monkeypatch.setattr(observe_left, "run", docker)
    seen = observe_left.containers()
    assert [(one["name"], one["kind"], one["own"], one["running"]) for one in seen] == [
        ("a", "model", True, True),
        ("b", "weights", True, False),
        ("c", "hccl", True, True),
        ("gaudi-weights-exporter", "", False, True),
        ("gaudi-serve-hccl", "", False, True),
    ]
    assert {(one["image"], one["image_id"]) for one in seen} == {("i:1", "sha256:1")}
    monkeypatch.setattr(observe_left, "run", lambda argv: Result(127, "", "docker: not found"))
    assert observe_left.containers() == []


def test_images_that_are_used_or_changed_stay() -> None:
    brought = {"a:1": "x", "b:1": "old", "c:1": None, "library/d": "z", "e:1": "e", "f:1": "f"}
    known = {"vllm_image": {"found": {}, "brought": {"images": brought}}}
    # Started by name, by ID, and one of the toolkit's own.
    owners = [{**box("owners"), "image": "c:1"}, {**box("byid"), "image": "e", "image_id": "e"}]
    owners.append({**box("ours", "model"), "image": "f:1", "image_id": "f"})
    here = left(records=known, containers=owners, own={**left()["own"], STATE: ["images", "images-build"]})
    live = services(images={"a:1": "x", "b:1": "y", "c:1": "w", "d:latest": "z", "e:1": "e", "f:1": "f"})
    plan = reset.vllm_image_reset(live, here, f"{STATE}/images", True)
    assert plan["images"] == ["a:1", "d:latest", "f:1"] and len(plan["paths"]) == 2
    assert plan["left"] == [
        "image b:1: not the one that the toolkit provided",
        "image c:1: container owners uses it",
        "image e:1: container byid uses it",
    ]
    assert "image a:1: kept (reset_images)" in reset.vllm_image_reset(live, here, f"{STATE}/images")["left"]


def test_the_registry_goes_and_its_mask_with_its_package() -> None:
    mask = "/etc/systemd/system/docker-registry.service"
    known = {"vllm_image": {"found": {}, "installed": ["openssl"], "brought": {"paths": {mask: mask}}}}
    here = left(
        records=known,
        own={**left()["own"], STATE: ["registry"]},
        installed=["docker-registry", "openssl"],
        brought={mask: {"exists": True}},
    )
    names = ["docker-registry", "openssl"]
    kept = reset.vllm_image_reset(services(), here, "/srv/spool", packages=names)
    # A package that stays would start its service at the next boot, for everyone to reach.
    assert kept["paths"] == [f"{STATE}/registry"]
    gone = reset.vllm_image_reset(services(), here, "/srv/spool", packages=names, remove=True)
    assert gone["paths"] == [f"{STATE}/registry", mask] and gone["packages"] == ["docker-registry"]


def test_holds_go_and_the_driver_with_its_packages() -> None:
    names, modules = ["habanalabs-dkms", "habanalabs-graph"], ["habanalabs_cn", "habanalabs"]
    record = {"found": {"held": ["habanalabs-graph"], "modules": []}, "installed": ["habanalabs-graph"]}
    ours = "/etc/apt/sources.list.d/gaudi-serve-driver.sources"
    key = "/etc/apt/keyrings/gaudi-serve-driver.asc"
    here = left(records={"gaudi_driver": record}, held=names, installed=names, traces=[ours], files=[key])
    unload = modules[::-1]
    plan = reset.driver_reset({"modules": modules}, here, names, unload)
    assert plan["holds"] == ["habanalabs-dkms"] and plan["paths"] == [key, ours] and plan["unload"] == []
    assert plan["packages"] == ["habanalabs-dkms"]
    plan = reset.driver_reset({"modules": modules}, here, names, unload, True)
    assert plan["unload"] == ["habanalabs", "habanalabs_cn"]
    # A host without cards has no such fact.
    assert not reset.driver_reset({}, left(), names, unload, True)["due"]


def test_services_of_a_driver_are_as_before() -> None:
    service = {"there": True, "runs": True, "enabled": True}
    driver = {"modules": ["nvidia"], "services": {"nvidia-persistenced": service, "nvidia-fabricmanager": service}}
    record = {"found": {"held": [], "modules": [], "services": ["nvidia-fabricmanager"]}}
    plan = reset.driver_reset(driver, left(records={"gaudi_driver": record}), [], [])
    assert plan["stop"] == ["nvidia-persistenced"] and plan["due"]
    assert "service nvidia-persistenced" in plan["did"]
    # A baseline of before knows none, and a host that the role never changed keeps all.
    for records in ({"gaudi_driver": {"found": {"held": [], "modules": []}}}, {}):
        assert reset.driver_reset(driver, left(records=records), [], [])["stop"] == []


def test_packages_go_that_nothing_else_needs() -> None:
    records = {"a": {"installed": ["bash", "kept"]}, "b": {"installed": ["bash", "kept", "new"]}, "c": {}}
    here = left(records=records, asked_for=["bash", "new"], unneeded=["kept", "lib:amd64"], installed=["new"])
    assert reset.packages_reset(here, ["new"])["left"] == ["packages new: kept (reset_packages)"]
    plan = reset.packages_reset(here, ["new"], True)
    assert plan["release"] == ["new"] and plan["purge"] == ["lib:amd64"] and plan["due"]
    needed = reset.packages_reset({**here, "asked_for": ["bash"], "unneeded": []}, ["new"], True)
    assert needed["left"] == ["packages new: others need them"] and not needed["due"]


def test_what_nothing_needs_for_other_reasons_is_not_the_toolkits(monkeypatch: pytest.MonkeyPatch) -> None:
    def apt(argv: list[str], *_: Any) -> Any:
        if argv[0] != "apt-get":
            return SimpleNamespace(out="")
        kept = "APT::NeverAutoRemove::=^docker\\.io$" in argv
        names = ["linux-image-6.1.0-40-amd64"] + ([] if kept else ["docker.io", "containerd"])
        return SimpleNamespace(out="".join(f"Remv {name} [1]\n" for name in names))

    monkeypatch.setattr(observe_left, "run", apt)
    monkeypatch.setattr(observe_left, "package_states", dict)
    assert observe_left.packages(["docker.io"])["unneeded"] == ["containerd", "docker.io"]
    assert observe_left.packages([])["unneeded"] == []


def test_why_a_task_failed() -> None:
    items = [
        {"item": "a", "rc": 0, "msg": ""},
        {"item": "b", "failed": True, "msg": "non-zero return code", "stderr": "in use\n"},
    ]
    assert reset.reset_failure({"msg": "One or more items failed", "results": items}) == "b: in use"
    assert reset.reset_failure({"msg": "", "rc": 0, "stdout": "true habana"}) == "true habana"
    assert reset.reset_failure({"msg": "non-zero return code"}) == "non-zero return code"
    broke = "the connection to the host broke during this task"
    broken = {"msg": "Module result deserialization failed.\nNo start of json char found", "module_stdout": ""}
    assert reset.reset_failure(broken) == reset.reset_failure({"msg": "Shared connection to g1 closed."}) == broke
    # A module that fails by itself has a traceback.
    assert reset.reset_failure({**broken, "module_stderr": "Traceback (most recent call last): x"}) != broke
    assert reset.reset_failure({"msg": ["In the way:", "a: x", "a: y"]}) == "In the way: a: x; a: y"
    assert reset.reset_failure({}) == "it has no message"


def test_an_engine_with_containers_of_the_owners_stays() -> None:
    owners = [box("owners")]
    here = left(
        records={"a": {"installed": []}}, containers=owners, asked_for=["docker.io"], unneeded=["containerd", "x"]
    )
    plan = reset.packages_reset(here, ["docker.io"], True)
    assert plan["release"] == [] and plan["purge"] == ["x"]
    assert plan["left"] == ["packages docker.io: your containers are still there (owners)"]


def test_records_go_last_and_what_stays_is_remembered() -> None:
    records = {
        "host_tuning": {"found": {"sysctl": {}}, "installed": []},
        "vllm_image": {"found": {}, "brought": {"images": {"a:1": "x", "b:1": "gone"}}},
        "model_weights": {"brought": {"weights": {"/w/a": "/w"}}},
        "gaudi_driver": {"found": {}, "brought": {"paths": {"/p": "/p"}}, "installed": ["bash"]},
    }
    own = {"/etc/gaudi-serve": ["mine"], "/usr/local/lib/gaudi-serve": [], STATE: ["found"]}
    here = left(records=records, own=own, brought={"/w/a": {"exists": True}})
    plan = reset.rest_reset(here, {"a:1": "x"}, ["dkms"])
    assert plan["absent"] == [f"{STATE}/found/host_tuning.json"] or len(plan["files"]) == 3
    written = {Path(one["path"]).stem: json.loads(one["content"]) for one in plan["files"]}
    assert written["vllm_image"] == {"brought": {"images": {"a:1": "x"}}}
    assert written["gaudi_driver"] == {"brought": {"paths": {"/p": "/p"}}, "installed": ["bash"]}
    assert "model_weights" not in written, "it has no more than what stays"
    assert plan["left"][0] == "/etc/gaudi-serve/mine: not the toolkit's"
    assert plan["did"] == ["folder /usr/local/lib/gaudi-serve"]
    plan = reset.rest_reset(left(own={**own, "/etc/gaudi-serve": []}), {})
    assert plan["left"] == [] and len(plan["did"]) == 3


def test_a_reset_is_refused_without_the_word_and_for_odd_requests() -> None:
    assert reset.reset_refusal({"reset_weights": "yes", "reset_images": False}, "reset") == []
    assert reset.reset_refusal({}, "", check=True) == []
    assert "type reset, or set" in reset.reset_refusal({}, "Reset")[0]
    assert reset.reset_refusal({"reset_weights": "maybe", "reset_images": 2}, "reset") == [
        "reset_weights: 'maybe' is neither true nor false",
        "reset_images: 2 is neither true nor false",
    ]


def test_the_end_is_reported_host_by_host() -> None:
    done = {"vllm_service_reset": {"did": ["model a"], "left": ["b: yours"]}, "reset_done": True}
    broken = {"reset_problem": "it\nbroke", "preflight_rest_reset": {"did": ["x"], "left": []}}
    hosts = {"one": done, "two": broken, "three": {}}
    lines = reset.reset_lines(hosts, list(hosts))
    assert [line.split() for line in lines[2:5]] == [
        ["one", "1", "1", "done"],
        ["two", "1", "0", "failed"],
        ["three", "0", "0", "cannot", "be", "reached"],
    ]
    assert lines[5:] == ["one: undone: model a", "one: stays: b: yours", "two: begun: x", "two: it broke"]
    checked = reset.reset_lines(
        {"one": {**done, "preflight_rest_reset": {"did": ["x"], "left": []}}}, ["one"], check=True
    )
    assert checked[2].endswith("nothing changed") and checked[3] == "one: would undo: model a" and len(checked) == 5


def test_recipes_are_where_the_mounts_report() -> None:
    mounts = [
        {"source": "/host", "target": "/cache", "read_only": False},
        {"source": "/w", "target": "/w", "read_only": True},
    ]
    model = {"env": {"PT_HPU_RECIPE_CACHE_CONFIG": "/cache,false,16384"}, "mounts": mounts}
    assert reset.recipe_caches([model, {"env": {}, "mounts": mounts}]) == ["/host"]


def kept(folder: Path, role: str, **given: Any) -> dict[str, Any]:
    """Keep a record, and return it."""
    text = found.keep(role, given.pop("found", None), folder=folder, **given)
    if text is not None:
        found.write_record(folder / f"{role}.json", text)
    record: dict[str, Any] = json.loads((folder / f"{role}.json").read_text(encoding="utf-8"))
    return record


def test_what_was_found_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found, "TRACES", {})
    monkeypatch.setattr(found, "package_states", lambda: {"bash": "installed"})
    folder = tmp_path / "state" / "found"
    new = tmp_path / "new" / "inner"
    assert kept(folder, "a", found={"x": 1}, packages=True, paths={"paths": [str(new), str(tmp_path)]}) == {
        "found": {"x": 1},
        "installed": ["bash"],
        "brought": {"paths": {str(new): str(tmp_path / "new")}},
    }
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "a.json").stat().st_mode & 0o777 == 0o600
    assert found.keep("a", {"x": 2}, folder=folder, packages=True) is None
    # What is installed is added, and its details are filled in once.
    assert kept(folder, "a", brought={"images": {"i": None}})["brought"]["images"] == {"i": None}
    assert kept(folder, "a", brought={"images": {"i": "id"}})["brought"]["images"] == {"i": "id"}
    assert kept(folder, "a", brought={"images": {"i": "other"}})["found"] == {"x": 1}
    assert [path.name for path in folder.iterdir()] == ["a.json"]


def test_a_site_from_before_the_records_is_known_by_its_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tmp_path / "trace"
    monkeypatch.setattr(found, "TRACES", {str(trace): "b"})
    folder = tmp_path / "found"
    assert kept(folder, "a", found={"x": 1})["found"] == {"x": 1}
    trace.touch()
    assert kept(folder, "c", found={"x": 1}, packages=True) == {"found": {"late": True}, "brought": {}}
    # The trace's own role has noted what was there before it: no other is late for that.
    trace.unlink()
    kept(tmp_path / "other", "b", found={})
    trace.touch()
    assert kept(tmp_path / "other", "c", found={})["found"] == {}
    (folder / "d.json").write_text("nonsense", encoding="utf-8")
    assert found.records(folder)["d"] == {"broken": True}
    with pytest.raises(ValueError, match="cannot be read"):
        kept(folder, "d", found={"x": 1})


def test_an_empty_folder_of_the_owners_stays(tmp_path: Path) -> None:
    here = str(tmp_path / "w")
    Path(here).mkdir()
    brought = found.absent({"weights": [here], "caches": [here], "paths": [here]})
    assert brought == {"weights": {here: ""}, "caches": {here: ""}, "paths": {}}
    records = {"model_weights": {"brought": brought}, "vllm_service": {"brought": brought}}
    full = left(records=records, brought={here: {"exists": True, "source": "hub", "empty": False, "beside": []}})
    weights = reset.model_weights_reset(full, weights=True)
    caches = reset.vllm_service_reset(services(), full, caches=True)
    assert (weights["weights"], weights["stay"], weights["empty"]) == ([here], [here], [])
    assert (caches["paths"], caches["stay"], caches["empty"]) == ([here], [here], [])
    gone = left(records=records, brought={here: {"exists": True, "source": None, "empty": True, "beside": []}})
    assert not reset.model_weights_reset(gone, weights=True)["due"]
    assert not reset.vllm_service_reset(services(), gone, caches=True)["due"]
    assert reset.rest_reset(gone, {})["files"] == []
    (tmp_path / "w" / "a").touch()
    (tmp_path / "w" / "sub").mkdir()
    assert remove_all([tmp_path / "w"], stay=[tmp_path / "w"]) == [tmp_path / "w" / "a", tmp_path / "w" / "sub"]
    assert list((tmp_path / "w").iterdir()) == []
    (tmp_path / "w" / ".gaudi-serve-weights.json").write_text('{"files": {}}', encoding="utf-8")
    remove_all(weights=[tmp_path / "w"], stay=[tmp_path / "w"])
    assert list((tmp_path / "w").iterdir()) == []


def test_weights_behind_a_link_are_not_removed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "w" / "sub").mkdir(parents=True)
    for name in ("mine/vocab.txt", "w/sub/a", "w/b"):
        (tmp_path / name).touch()
    (tmp_path / "w" / "link").symlink_to(tmp_path / "mine")
    listed = {"files": {"link/vocab.txt": {}, "sub/a": {}, "b": {}, str(tmp_path / "mine" / "vocab.txt"): {}}}
    (tmp_path / "w" / ".gaudi-serve-weights.json").write_text(json.dumps(listed), encoding="utf-8")
    (tmp_path / "disk").symlink_to(tmp_path / "w")
    remove_all(weights=[tmp_path / "disk"])
    assert (tmp_path / "mine" / "vocab.txt").exists()
    assert [path.name for path in (tmp_path / "w").iterdir()] == ["link"]


def test_removing_keeps_what_is_not_listed(tmp_path: Path) -> None:
    weights = tmp_path / "w"
    (weights / "sub").mkdir(parents=True)
    for name in ("a", "sub/b", "mine"):
        (weights / name).touch()
    listed = {"files": {"a": {}, "sub/b": {}, "../tree": {}, "lost": {}}, "source": {"kind": "hub"}}
    (weights / ".gaudi-serve-weights.json").write_text(json.dumps(listed), encoding="utf-8")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "inner").touch()
    link = tmp_path / "link"
    link.symlink_to(weights)
    everything = {
        "paths": [tree, tree / "inner", link, tmp_path / "none"],
        "weights": [weights],
        "empty": [weights, tree],
    }
    assert remove_all(**everything, dry=True) == [tree, tree / "inner", link, weights]
    assert tree.exists() and link.is_symlink()
    assert remove_all(**everything) == [tree, tree / "inner", link, weights]
    assert [path.name for path in weights.iterdir()] == ["mine"]
    (weights / "mine").unlink()
    assert remove_all(empty=[weights, tmp_path / "none"]) == [weights]
    assert remove_all(weights=[tmp_path]) == []


def test_a_mounted_folder_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gaudi_serve.host import remove

    monkeypatch.setattr(remove, "mounts", lambda: [tmp_path / "a" / "nfs"])
    (tmp_path / "a" / "nfs").mkdir(parents=True)
    with pytest.raises(OSError, match="a file system is mounted there"):
        remove_all([tmp_path / "a"])
    assert (tmp_path / "a" / "nfs").exists()


def test_what_is_left_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    etc = tmp_path / "etc"
    (etc / "sysctl.d").mkdir(parents=True)
    (etc / "sysctl.conf").write_text("# gaudi-serve took this over: a = 1\n", encoding="utf-8")
    (etc / "sysctl.d" / "b.conf").write_text("a = 1\n", encoding="utf-8")
    assert observe_left.took_over(str(tmp_path)) == [str((etc / "sysctl.conf").resolve())]
    (tmp_path / "w").mkdir()
    (tmp_path / "w.partial").mkdir()
    (tmp_path / "w.old").mkdir()
    (tmp_path / "w.gaudi-serve-old").mkdir()
    beside = [str(tmp_path / "w.partial"), str(tmp_path / "w.gaudi-serve-old")]
    assert observe_left.folder(tmp_path / "w") == {"exists": True, "empty": True, "source": None, "beside": beside}
    # What holds something without the toolkit's mark is a user's.
    (tmp_path / "w.partial" / "mine").touch()
    assert observe_left.folder(tmp_path / "w")["beside"] == beside[1:]
    (tmp_path / "w.partial" / ".gaudi-serve-work").mkdir()
    assert observe_left.folder(tmp_path / "w")["beside"] == beside
    (tmp_path / "w" / ".gaudi-serve-weights.json").write_text('{"source": {"kind": "path"}}', encoding="utf-8")
    assert observe_left.folder(tmp_path / "w")["source"] == "path"
    known = {"a": {"brought": {"weights": {"/w": "/"}}}, "b": {"broken": True}}
    assert observe_left.brought_paths(known) == ["/w"]
    (tmp_path / "state" / "m").mkdir(parents=True)
    with (tmp_path / "state" / "m" / "lock").open("w", encoding="ascii") as handle:
        assert observe_left.busy(tmp_path / "state") == []
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert observe_left.busy(tmp_path / "state") == ["m"]
    assert observe_left.names(tmp_path / "none") is None
    seen = observe_left.observe()
    assert set(left()) == set(seen)
