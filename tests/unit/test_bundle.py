"""What a site without internet must fetch: the list of each host, its manifest, and that no task is left out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from gaudi_serve.bundle import images, packages, weights
from gaudi_serve.bundle.access import host_access
from gaudi_serve.bundle.control import control_node
from gaudi_serve.bundle.host import BundleHost
from gaudi_serve.bundle.items import Item, Manifest, Need, joined, read_manifest
from gaudi_serve.bundle.listing import PARTS, host_items, unplanned_models
from gaudi_serve.bundle.offline import KINDS, missing_lines
from gaudi_serve.bundle.report import bundle_manifest, manifest_lines
from gaudi_serve.bundle.roles import ROOT, apt_names, pins
from gaudi_serve.core.errors import InputError
from gaudi_serve.core.templates import ROLES
from gaudi_serve.inventory.variables import inventory_refusal
from gaudi_serve.stages.registry import STAGES
from gaudi_serve.stages.weights import weights_sources
from helpers.plans import gaudi_host

SYSTEM = {
    **{"id": "ubuntu", "version_id": "22.04", "codename": "jammy", "kernel": "5.15.0-91-generic"},
    **{"accelerator": "gaudi", "architecture": "x86_64"},
}
COMMIT = "0123456789" * 4
DIGEST = f"sha256:{'a' * 64}"


MONITORED = {"monitors": [], "settings": {}, "watched": [], "this": {"host": "gaudi01", "address": "10.0.0.1"}}


def variables(**more: Any) -> dict[str, Any]:
    """Return the variables of a host with cards as the playbook has them, with the defaults of the roles."""
    defaults: dict[str, Any] = {}
    for role in ("preflight", *STAGES):
        text = (ROLES / role / "defaults/main.yml").read_text(encoding="utf-8")
        # Values of templates are the playbook's to give.
        defaults |= {key: value for key, value in (yaml.safe_load(text) or {}).items() if "{{" not in str(value)}
    own = {
        **{"gaudi_system": SYSTEM, "gaudi_host": gaudi_host(), "driver_release": "1.24.1", "driver_version": ""},
        **{"driver_packages": [], "driver_optional_packages": [], "driver_manage": True, "driver_repository": {}},
        **{
            "vllm_image_archives": "/nowhere",
            "driver_kernel_headers": True,
            "preflight_catalog": {},
            "preflight_models": [],
        },
        **{"preflight_model_defaults": {}, "link_validation_image": "vllm:1"},
        **{"monitoring_fleet": MONITORED, "groups": {"all": ["gaudi01"]}},
        "link_validation_hccl_repository": "https://git.example/hccl_demo.git",
        "link_validation_hccl_commit": "",
    }
    return {**defaults, **own, **more}


def host(*, models: Any = (), gives_images: bool = False, **more: Any) -> BundleHost:
    """Return a host with these variables."""
    return BundleHost("gaudi01", variables(**more), models, gives_images)


def texts(items: list[Item]) -> list[str]:
    """Return name and version of items."""
    return [f"{one.name}={one.version}" if one.version else one.name for one in items]


# ---- what fetching needs in addition


def test_what_fetching_needs_has_the_logins_that_the_list_hides() -> None:
    place = "https://bot:secret@mirror.example/debian"
    source = {"kind": "hub", "repo": "owner/model", "revision": COMMIT}
    one = host(
        driver_repository={"uris": [place], "suites": ["jammy"], "components": ["main"]},
        container_runtime_engine="vendor",
        container_runtime_vendor_uri="https://engine.example",
        container_runtime_habana_repository={"uris": ["https://other.example"], "suites": ["x"]},
        model_weights_models=[{"name": "m", "weights": "/data/m", "source": source}],
        model_weights_index_url="https://bot:secret@index.example/simple",
        model_weights_tokens={"hub": "token", "git": None},
        vllm_image_registries="{registry.example: {username: u, password: p}}",
    )
    items = [*packages.driver(one), *packages.container_runtime(one), *weights.weights(one)]
    found = host_access(one, items)
    assert found["origins"] == {"https://***@index.example/simple": "https://bot:secret@index.example/simple"}
    engine = {"uris": ["https://engine.example/ubuntu"], "suites": ["jammy"], "components": ["stable"]}
    assert found["repositories"]["ubuntu 22.04 amd64"] == [
        one.known["driver_repository"],
        one.known["container_runtime_habana_repository"],
        {**engine, "signed_by": "https://engine.example/ubuntu/gpg"},
    ]
    assert found["logins"] == {"registry.example": {"username": "u", "password": "p"}}
    assert found["tokens"] == {"hub": "token"} and found["systems"] == {"gaudi01": "ubuntu 22.04 amd64"}
    (told,) = found["weights"]
    assert (told["name"], told["version"], told["source"]) == ("owner/model", COMMIT, source)
    # Of a host that fetches nothing, nothing is wanted.
    assert host_access(one, [])["repositories"] == {"ubuntu 22.04 amd64": []}


# ---- packages


def test_the_driver_comes_with_headers_of_the_kernel_that_the_host_runs() -> None:
    found = packages.driver(host(driver_version="1.24.1-5", driver_optional_packages=["habanalabs-qual"]))
    assert texts(found)[:2] == ["linux-headers-5.15.0-91-generic", "habanalabs-dkms=1.24.1-5"]
    assert "habanalabs-rdma-core=1.24.1-5" in texts(found) and texts(found)[-1] == "habanalabs-qual"
    assert {one.system for one in found} == {"ubuntu 22.04 amd64"}
    assert found[0].origin == "ubuntu jammy" and found[0].need == Need(("gaudi01",), (), ("driver",))
    # Nobody but the host knows where its own source is.
    assert found[1].pinned and found[1].problem == (
        "no address is known, since the host's own sources have it: set driver_repository"
    )
    assert "no version: the newest of that day; set driver_version" in found[-1].problem
    assert packages.driver(host(driver_kernel_headers=False))[0].name == "habanalabs-dkms"
    assert packages.driver(host(driver_manage=False)) == []


def test_a_repository_is_listed_with_its_key_and_without_its_password() -> None:
    repository = {
        "uris": ["https://bot:s3cret@mirror.example/debian?token=s3cret"],
        **{"suites": ["jammy"], "components": ["main"], "signed_by": "/etc/apt/keyrings/vendor.asc"},
    }
    found = joined(packages.driver(host(driver_version="1.24.1-5", driver_repository=repository)))
    assert [(one.kind, one.name, one.version) for one in found][:3] == [
        ("repository", "https://mirror.example/debian", "jammy main"),
        ("key", "/etc/apt/keyrings/vendor.asc", ""),
        ("package", "habanalabs-dkms", "1.24.1-5"),
    ]
    assert {one.origin for one in found if one.name.startswith("habana")} == {"https://mirror.example/debian"}
    assert "python3-debian" in texts(list(found))
    assert "s3cret" not in Manifest(found).text and not any(one.problem for one in found)


def test_a_driver_of_a_host_that_was_read_has_the_version_that_apt_knows() -> None:
    offered = ["1.24.1-9", "1.23.0-695"]
    facts: dict[str, Any] = {"packages": {}, "driver_version": None, "available": offered, "modules": [], "ports": {}}
    found = packages.driver(host(gaudi_driver={**facts, "broken": ""}))
    assert "habanalabs-dkms=1.24.1-9" in texts(found)
    # One that no package installed is never fetched.
    assert packages.driver(host(gaudi_driver={**facts, "broken": "", "driver_version": "1.24.1-9"})) == []


def test_an_nvidia_driver_has_the_package_that_apt_offers_or_its_branch() -> None:
    system = {**SYSTEM, "accelerator": "cuda"}
    assert texts(packages.driver(host(gaudi_system=system)))[-1] == "nvidia-driver-580-server-open"
    facts: dict[str, Any] = {"packages": {}, "driver_version": None, "modules": [], "needs_companion": True}
    facts["offered"] = {"nvidia-open-580": ["580.95.05-1"], "nvidia-fabricmanager-580": ["580.95.05-1"]}
    found = packages.driver(host(gaudi_system=system, gaudi_driver=facts))
    assert texts(found)[-2:] == ["nvidia-open-580=580.95.05-1", "nvidia-fabricmanager-580=580.95.05-1"]
    assert packages.driver(host(gaudi_system={**SYSTEM, "accelerator": "cpu"})) == []


def test_the_governor_needs_tools_of_the_kernel_where_there_is_one() -> None:
    assert texts(packages.host_tuning(host())) == ["linux-tools-5.15.0-91-generic"]
    debian = {**SYSTEM, "id": "debian", "version_id": "12"}
    assert texts(packages.host_tuning(host(gaudi_system=debian))) == ["linux-cpupower"]
    assert packages.host_tuning(host(host_tuning_governor="")) == []
    assert packages.host_tuning(host(gaudi_tuning={"governor": {"values": {}}})) == []


def test_an_engine_of_its_vendor_comes_with_repository_and_checked_key() -> None:
    found = packages.container_runtime(host(container_runtime_engine="vendor", container_runtime_habana="never"))
    assert [one.kind for one in found] == ["repository", "key", *["package"] * 5]
    assert found[0].name == "https://download.docker.com/linux/ubuntu" and found[0].version == "jammy stable"
    assert found[1].pinned and found[1].version.startswith("sha256:")
    assert texts(found)[-3:] == ["docker-ce", "docker-ce-cli", "containerd.io"]
    own = packages.container_runtime(host(container_runtime_habana_version="1.24.1-5"))
    assert texts(own)[0] == "docker.io" and texts(own)[-1] == "habanalabs-container-runtime=1.24.1-5"
    trixie = {**SYSTEM, "id": "debian", "version_id": "13", "accelerator": "cuda"}
    assert {"docker-cli", "nvidia-container-toolkit"} <= {*texts(packages.container_runtime(host(gaudi_system=trixie)))}


def test_gateway_network_and_images_for_others_have_their_packages() -> None:
    assert texts(packages.gateway(host(gateway_settings={}))) == ["haproxy"]
    shared = host(gateway_settings={"virtual_address": "10.0.0.100/24"})
    assert texts(packages.gateway(shared)) == ["haproxy", "keepalived"]
    assert texts(packages.accelerator_network(host(accelerator_network_between="nics"))) == ["rdma-core"]
    assert packages.accelerator_network(host(accelerator_network_between="")) == []
    assert texts(packages.images(host(gives_images=True))) == ["docker-registry", "openssl"]
    assert packages.images(host()) == []


def test_monitoring_needs_what_the_host_is_to_run() -> None:
    assert packages.monitoring(host()) == []
    settings = {"state": "present"}
    monitors = [{"host": "gaudi01", "certificate": None}]
    fleet = {**MONITORED, "monitors": monitors, "settings": {"node_exporter_port": 9100}}
    watching = packages.monitoring(host(monitoring_fleet=fleet, monitoring_settings=settings))
    assert texts(watching) == ["prometheus", "prometheus-alertmanager", "prometheus-node-exporter"]
    # With other hosts come certificates, and what shows figures to the one that watches.
    two = {"groups": {"all": ["gaudi01", "gaudi02"]}, "monitoring_settings": settings}
    assert "openssl" in texts(packages.monitoring(host(monitoring_fleet=fleet, **two)))
    away = {**fleet, "monitors": [{"host": "gaudi02", "certificate": None}]}
    away["settings"] = {"node_exporter_port": 9100, "exporters_port": 9101, "cards_port": 0}
    watched = packages.monitoring(host(monitoring_fleet=away, **{**two, "monitoring_settings": None}))
    assert texts(watched) == ["prometheus-node-exporter", "haproxy", "openssl"]


# ---- images


def test_an_image_without_a_digest_is_a_problem() -> None:
    named = [{"name": "registry.example:5000/vllm:1.24"}, {"name": "vllm"}, {"name": f"quay.io/a/b@{DIGEST}"}]
    models = [{"name": "qwq", "image": "vllm"}]
    found = images.images(host(models=models, vllm_image_images=named))
    assert [(one.name, one.version, one.origin, one.pinned) for one in found] == [
        ("registry.example:5000/vllm", "1.24", "registry.example:5000", False),
        ("vllm", "latest", "docker.io", False),
        ("quay.io/a/b", DIGEST, "quay.io", True),
    ]
    assert [one.problem for one in found] == [images.NO_DIGEST, images.MOVES, ""]
    assert found[1].need.models == ("qwq",) and found[0].need.models == ()


def test_a_recipe_needs_its_base_its_sources_and_its_parts() -> None:
    recipe = {"vllm": {"commit": COMMIT}, "hccl_ofi_wrapper": {"commit": COMMIT}, "multimodal": True}
    entry = {"name": "gaudi-serve/vllm", "build": "gaudi", "recipe": {**recipe, "release": "1.21.3"}}
    found = images.images(host(vllm_image_images=[entry]))
    assert found[0].label == (
        "image vault.habana.ai/gaudi-docker/1.21.3/ubuntu22.04/habanalabs/pytorch-installer-2.6.0:latest"
    )
    assert found[0].problem == images.MOVES
    kinds = [(one.kind, one.name) for one in found[1:]]
    assert ("source", "vllm-fork") in kinds and ("source", "hccl_ofi_wrapper") in kinds
    assert ("python", "requirements of vllm-fork") in kinds and ("python", "pillow-simd") in kinds
    download = next(one for one in found if one.kind == "download")
    assert download.name == "libfabric-1.20.0.tar.bz2" and download.version.startswith("sha256:") and download.pinned
    assert all(one.version == COMMIT for one in found if one.kind == "source")


def test_the_image_for_processors_is_made_of_pinned_wheels() -> None:
    found = images.images(host(vllm_image_images=[{"name": "cpu:1", "build": "cpu", "archive": "/srv/cpu.tar"}]))
    assert found[0].label == "image debian:12"
    assert {"numactl", "python3"} <= {one.name for one in found if one.kind == "package"}
    wheels = [one for one in found if one.kind == "python"]
    assert len(wheels) == len(pins("roles/vllm_image/files/cpu-requirements.txt")) > 50
    assert all(one.pinned for one in wheels) and wheels[0].need == Need(why=("vllm_image",))
    archive = images.images(host(vllm_image_images=[{"name": "cpu:1", "archive": "/srv/cpu.tar"}]))
    assert archive[0].origin == "archive /srv/cpu.tar on the control node"


def test_what_was_built_outside_is_carried_as_an_image(tmp_path: Path) -> None:
    entry = {"name": "gaudi-serve/vllm", "build": "gaudi", "recipe": {"vllm": {"commit": COMMIT}, "release": "1.21.3"}}
    here: dict[str, Any] = {"vllm_image_images": [entry], "vllm_image_archives": str(tmp_path)}
    assert "python" in {one.kind for one in images.images(host(**here))}
    # In the site nothing is built, whether the archive is there or not.
    (wanted,) = images.images(host(**here, vllm_image_mirror="mirror.site:8443"))
    assert wanted.label.startswith("image gaudi-serve/vllm:1.21.3-")
    archive = tmp_path / f"{wanted.name}_{wanted.version}.tar".replace("/", "_")
    archive.touch()
    (carried,) = images.images(host(**here))
    assert carried.identity[:3] == wanted.identity[:3] and not carried.problem
    assert carried.origin == f"archive {archive} on the control node"
    own = {"name": "cpu:1", "build": "cpu", "archive": str(archive)}
    (cpu,) = images.images(host(vllm_image_images=[own]))
    assert cpu.origin == carried.origin


def test_hccl_demo_is_fetched_where_no_image_has_it() -> None:
    found = images.link_measurement(host())
    assert found[0].name == "hccl_demo" and not found[0].pinned
    assert "set link_validation_hccl_commit" in found[0].problem
    assert images.link_measurement(host(link_validation_hccl_commit=COMMIT))[0].problem == ""
    recipe = {"vllm": {"commit": COMMIT}, "hccl_demo": {"commit": COMMIT}}
    assert images.link_measurement(host(vllm_image_images=[{"name": "a", "build": "gaudi", "recipe": recipe}])) == []
    without = {**gaudi_host(), "modules": [], "driver_version": "1.24.1"}
    assert images.link_measurement(host(gaudi_host=without)) == []
    bare = {**gaudi_host(), "modules": [], "driver_version": ""}
    assert images.link_measurement(host(gaudi_host=bare)), "its cards are not seen yet"


def test_a_host_that_awaits_its_driver_needs_the_image_of_its_release() -> None:
    awaiting = {**gaudi_host(), "modules": [], "awaits_driver": True, "accelerator": "cuda"}
    model = {"name": "qwq", "weights": "/data/m"}
    found = unplanned_models(variables(gaudi_host=awaiting, preflight_models=[model], vllm_image_release="0.33.0"))
    assert found == [{"name": "qwq", "image": "vllm/vllm-openai:v0.33.0", "state": "started", "env": {}}]


# ---- weights


def weighted(**source: Any) -> list[dict[str, Any]]:
    """Return one model whose weights have a source."""
    return [{"name": "qwq", "weights": "/data/QwQ-32B", "image": None, "source": source}]


def test_weights_have_a_revision_a_size_and_the_programs_that_fetch_them() -> None:
    hub = weighted(kind="hub", repo="Qwen/QwQ-32B")
    found = weights.weights(host(model_weights_models=hub))
    assert (found[0].name, found[0].origin, found[0].bytes) == (
        "Qwen/QwQ-32B",
        "https://huggingface.co",
        65_000_000_000,
    )
    assert found[0].problem == weights.NO_REVISION and found[0].need.models == ("qwq",)
    assert found[1].name == "python3-venv" and "huggingface_hub" in {one.name.replace("-", "_") for one in found}
    moves = weights.weights(host(model_weights_models=weighted(kind="hub", repo="a/b", revision="main")))
    assert moves[0].problem == weights.MOVES.format("main")
    fixed = weighted(kind="git", url="https://bot:s3cret@git.example/m.git", revision=COMMIT)
    git = weights.weights(host(model_weights_models=fixed))
    assert git[0].pinned and texts(git)[1:] == ["git", "git-lfs"]
    assert "s3cret" not in Manifest(joined(git)).text
    assert weights.weights(host(model_weights_models=weighted(kind="path", path="/nfs/m"))) == []


def test_the_size_of_weights_that_are_nowhere_yet_is_that_of_the_catalog() -> None:
    known = {"preflight_catalog": {"big": {"weight_bytes": 7 * 10**9}}, "gaudi_host": {**gaudi_host(), "weights": {}}}
    model = {"name": "qwq", "model": "big", "weights": "/data/QwQ-32B"}
    hub = weighted(kind="modelscope", repo="a/b", revision=COMMIT)
    found = weights.weights(host(**known, preflight_models=[model], model_weights_models=hub))
    assert (found[0].bytes, found[0].origin) == (7 * 10**9, "ModelScope")


def test_who_gets_weights_from_another_host_needs_no_clients_and_calibration_fetches_texts() -> None:
    hub = weighted(kind="hub", repo="a/b", revision=COMMIT, calibrate=True)
    found = weights.weights(host(model_weights_models=hub, model_weights_from_host="gaudi02"))
    assert [one.name for one in found] == ["a/b", "texts for calibrating qwq"]
    assert found[1].problem == weights.TEXTS


# ---- the manifest


def items() -> list[Item]:
    """Return a thing that two hosts need, and another one."""
    need = [Need((name,), (model,), ("vllm_image",)) for name, model in (("b", "m"), ("a", "n"))]
    twice = [Item("image", "vllm", "1", "docker.io", need=one, problem=images.NO_DIGEST) for one in need]
    return [Item("weights", "a/b", COMMIT, bytes=3 * 10**9, pinned=True, need=need[0]), *twice]


def test_what_several_hosts_need_stands_once() -> None:
    found = joined(items())
    assert [one.kind for one in found] == ["image", "weights"]
    assert found[0].need == Need(("a", "b"), ("m", "n"), ("vllm_image",))
    assert joined(found) == found == joined(reversed(items()))
    assert tuple(Item.of(one) for one in json.loads(Manifest(found).text)["items"]) == found


def manifest(found: list[Item], folder: Path, now: float = 0) -> dict[str, Any]:
    """Return the report of a folder, and write its manifest."""
    report = bundle_manifest([one.as_dict() for one in found], [], str(folder), [], now=now)
    folder.mkdir(exist_ok=True)
    Path(report["path"]).write_text(report["text"], encoding="utf-8")
    return report


@pytest.mark.parametrize(("size", "text"), [(0, "0 min"), (1, "1 min"), (71 * 10**9, "119 min"), (10**12, "27.8 h")])
def test_long_times_are_in_hours(size: int, text: str) -> None:
    (line,) = manifest_lines(Manifest((Item("weights", "x", bytes=size),), "then"))[-1:]
    assert line.startswith(f"to fetch what is known takes {text} at 10 MB/s, ")


def test_a_second_list_changes_nothing_and_a_third_reports_what_is_new(tmp_path: Path) -> None:
    first = manifest(items(), tmp_path / "bundle")
    assert first["lines"][0].startswith("PROBLEMS (2)")
    assert f"  image vllm:1: {images.NO_DIGEST} (a, b)" in first["lines"]
    assert any(line.startswith("size: 3.0 GB; that of ") for line in first["lines"])
    assert first["lines"][-3] == "to fetch what is known takes 5 min at 10 MB/s, 1 min at 100 MB/s"
    second = manifest(items(), tmp_path / "bundle", 10**9)
    assert second["text"] == first["text"]
    assert second["lines"][-1] == "since the manifest of 1970-01-01T00:00:00Z: nothing changed"
    newer = [Item("image", "vllm", "2", "docker.io"), *items()[:1]]
    third = manifest(newer, tmp_path / "bundle", 10**9)
    assert third["lines"][-3:] == [
        "since the manifest of 1970-01-01T00:00:00Z: 1 added, 1 removed, 0 changed",
        "  added image vllm:2",
        "  removed image vllm:1",
    ]
    assert json.loads(third["text"])["made"] == "2001-09-09T01:46:40Z"


def test_everything_wrong_is_reported_at_once_and_nothing_is_listed(tmp_path: Path) -> None:
    report = bundle_manifest([], ["no facts of gaudi03"], "srv/bundle")
    assert report["errors"] == ["no facts of gaudi03", "bundle 'srv/bundle': must be a folder on the control node"]
    assert report["text"] == "" and report["lines"] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "schema null: must be 1"),
        ('{"schema": 2}', "schema 2: must be 1"),
        ('{"schema": 1, "made": "", "items": [{}]}', "is not a manifest of a bundle"),
        ('{"schema": 1, "made": "", "items": [{"kind": "car"}]}', "is not a manifest of a bundle"),
    ],
)
def test_a_file_that_is_no_manifest_is_left_alone(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "manifest.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(said)):
        read_manifest(str(tmp_path))


def test_a_bundle_is_neither_a_file_nor_in_the_inventory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="is a file, where a folder belongs"):
        read_manifest(str(tmp_path / "file"))
    with pytest.raises(InputError, match="the next run would read it as hosts"):
        read_manifest(str(tmp_path / "bundle"), [str(tmp_path)])
    assert read_manifest(str(tmp_path / "bundle")) is None


def test_the_control_node_needs_its_pinned_requirements() -> None:
    found = control_node()
    assert {"ansible-core", "community.docker"} <= {one.name for one in found if one.pinned}
    image = next(one for one in found if one.kind == "image")
    assert image.label == "image docker.io/library/debian:12" and image.problem == images.NO_DIGEST
    assert {"openssh-client", "sshpass", "python3-venv"} <= {one.name for one in found if one.kind == "package"}
    assert all(one.users == ["control node"] for one in found)


# ---- facts


def test_a_host_that_was_never_read_is_named() -> None:
    with pytest.raises(InputError, match=r"no facts of gaudi01: run playbooks/plan\.yml"):
        host_items(BundleHost("gaudi01", {}), ["gateway"])
    with pytest.raises(InputError, match="gaudi01: facts: gaudi_system has no kernel"):
        host_items(host(gaudi_system={**SYSTEM, "kernel": ""}), ["driver"])
    # One that no run has a part for needs nothing.
    assert host_items(BundleHost("gaudi01", {}), ["left_alone"]) == []


def test_each_stage_of_a_run_lists_its_own_things() -> None:
    found = host_items(host(), list(STAGES))
    assert {why for one in found for why in one.need.why} == {
        *("host_tuning", "driver", "container_runtime", "link_validation", "gateway")
    }
    assert {one.need.why for one in host_items(host(), ["host_tuning"])} == {("host_tuning",)}
    assert set(PARTS) <= {*STAGES, "site_mirror"}


# ---- what a mirror lacks


def test_what_a_run_needs_and_the_mirror_lacks_is_named_by_kind() -> None:
    own = host(vllm_image_images=[{"name": "vllm:1"}], gaudi_services={"images": {}})
    due = ["container_runtime", "vllm_image", "vllm_service"]
    has = [[one.kind, one.name, one.version, one.system] for one in host_items(own, due)]
    assert missing_lines(own, "https://m", has, due) == []
    others = [one for one in has if one[0] != "image"]
    (said,) = missing_lines(own, "https://m", others, due)
    assert said.startswith("gaudi01: the mirror https://m lacks image vllm:1; make the bundle again")
    # What the host has, nobody fetches; stages without work fetch nothing.
    there = host(vllm_image_images=[{"name": "vllm:1"}], gaudi_services={"images": {"vllm:1": "sha256:1"}})
    assert missing_lines(there, "https://m", others, due) == []
    assert missing_lines(own, "https://m", others, ["container_runtime"]) == []
    for one in others:
        lacking = [each for each in has if each != one]
        assert one[0] not in KINDS or one[1] in missing_lines(own, "https://m", lacking, due)[0], one


def test_an_adapter_that_the_mirror_lacks_is_refused_as_weights_are() -> None:
    source = {"kind": "hub", "repo": "team/sql", "revision": COMMIT}
    model = {"name": "q", "weights": "/data/q", "adapters": [{"name": "sql", "folder": "/data/sql", "source": source}]}
    own = host(model_weights_models=weights_sources([model], {}, {}, {"hub": "https://m/weights"}))
    items = host_items(own, ["model_weights"])
    has = [[one.kind, one.name, one.version, one.system] for one in items]
    assert missing_lines(own, "https://m", has, ["model_weights"]) == []
    others = [one for one in has if one[0] != "weights"]
    (refusal,) = missing_lines(own, "https://m", others, ["model_weights"])
    assert refusal.startswith("gaudi01: the mirror https://m lacks weights team/sql")


def test_any_version_does_where_none_is_asked_for_but_of_the_same_system() -> None:
    own = host(gateway_settings={"port": 8080})
    (item,) = host_items(own, ["gateway"])
    assert missing_lines(own, "u", [["package", item.name, "2.6", item.system]], ["gateway"]) == []
    assert missing_lines(own, "u", [["package", item.name, "2.6", "ubuntu 24.04 amd64"]], ["gateway"]) != []


# ---- no task that fetches is left out

MODULES = {
    *("apt", "apt_key", "apt_repository", "deb822_repository", "dnf", "docker_image", "docker_image_pull", "get_url"),
    *("git", "package", "pip", "rpm_key", "snap", "uri", "yum", "yum_repository"),
    *("image_pull", "image_registry", "measure_links"),
}
PROGRAMS = re.compile(
    r"apt-get|\bpip\b|docker'?,? '?(image'?,? '?)?(build|pull)|\bgit\b|curl|wget|fetch_weights|build_cpu_image"
)
# What installs packages again that dpkg was interrupted in, or that are broken.
REPAIRS = "the packages are those of another task here"
# Tasks that fetch, with the function that lists what they fetch; a text is the reason why a task fetches nothing.
FETCHES: dict[tuple[str, str, str], Callable[[BundleHost], list[Item]] | str] = {
    ("accelerator_network", "apply.yml", "Install | Install the packages"): packages.accelerator_network,
    ("container_runtime", "install.yml", "Install | Install Docker"): packages.container_runtime,
    **dict.fromkeys(
        (
            ("container_runtime", "repositories.yml", f"Repositories | {name}")
            for name in (
                *("Install the packages for adding repositories", "Fetch Docker's signing key"),
                "Write Docker's repository",
            )
        ),
        packages.container_runtime,
    ),
    **dict.fromkeys(
        (
            ("container_runtime", "runtime.yml", f"Runtime | {name}")
            for name in ("Install the packages for adding a repository", "Write the repository", "Install the package")
        ),
        packages.container_runtime,
    ),
    ("container_runtime", "runtime.yml", "Runtime | Install the missing programs again"): REPAIRS,
    ("driver", "apply.yml", "Apply | Install the packages together"): packages.driver,
    ("driver", "fetch.yml", "Apply | Update the package lists"): packages.driver,
    ("driver", "source.yml", "Apply | Install the packages for writing a repository"): packages.driver,
    ("driver", "source.yml", "Apply | Write the vendor's repository"): packages.driver,
    (
        "gateway",
        "apply.yml",
        "Install | Install HAProxy, and keepalived for an address that several gateways share",
    ): packages.gateway,
    ("host_tuning", "apply.yml", "Governor | Install cpupower"): packages.host_tuning,
    ("link_validation", "measure.yml", "Measure | Measure the links"): images.link_measurement,
    ("model_weights", "apply.yml", "Install | Install the packages for fetching"): weights.weights,
    ("model_weights", "clients.yml", "Clients | Create the environment"): "python3-venv has what it needs",
    ("model_weights", "clients.yml", "Clients | Install the packages"): weights.weights,
    ("model_weights", "step.yml", "Step | Run the step"): weights.weights,
    ("monitoring", "prepare.yml", "Install | Install the programs"): packages.monitoring,
    ("offline", "apply.yml", "Packages | Update the package lists from the mirror"): "from the site's mirror",
    ("site_mirror", "install.yml", "Install | Install the packages"): packages.site_mirror,
    ("vllm_image", "bring.yml", "Load | Pull the image"): images.images,
    ("vllm_image", "bring.yml", "Load | Pull the image from another host"): "from a host of the inventory",
    ("vllm_image", "bring.yml", "Load | Build the archive on the controller"): images.images,
    ("vllm_image", "build.yml", "Build | Pull the base image from a registry with a login"): images.images,
    ("vllm_image", "build.yml", "Build | Build the image"): images.images,
    ("vllm_image", "give.yml", "Serve | Install the package"): packages.images,
    ("vllm_image", "give.yml", "Serve | Copy the images to the registry"): "a registry of the host's own",
    ("vllm_image", "take.yml", "Serve | Stop the registry"): "a registry of the host's own",
}
# Files with programs that fetch, and the function or the reason as above.
PROGRAM_FILES: dict[str, Callable[[BundleHost], list[Item]] | str] = {
    "library/gaudi_dpkg.py": REPAIRS,
    "lib/gaudi_serve/host/links.py": images.link_measurement,
    "lib/gaudi_serve/host/observe_left.py": "simulates only",
    "lib/gaudi_serve/host/pull.py": images.images,
    "lib/gaudi_serve/host/registry.py": "from a host of the inventory",
    "roles/model_weights/files/weights_sources.py": weights.weights,
    "roles/vllm_image/files/build_cpu_image": images.images,
}
FETCHING_CODE = re.compile(r"apt-get|git clone|images/create|huggingface_hub|['\"](clone|pull|pip|curl|wget)['\"]")
LISTED = {part for parts in PARTS.values() for part in parts}


def files_of_tasks() -> Iterator[Path]:
    """Yield the files of tasks of roles and playbooks."""
    yield from ROLES.glob("*/tasks/*.yml")
    yield from ROLES.glob("*/handlers/*.yml")
    yield from ROOT.glob("playbooks/*.yml")
    yield from ROOT.glob("playbooks/tasks/*.yml")
    yield from ROOT.glob("playbooks/stages/*.yml")
    yield ROOT / "site.yml"


def fetching_tasks() -> set[tuple[str, str, str]]:
    """Return role (or playbooks), file and name of the tasks with a module or a program that fetches."""
    found = set()
    for path in files_of_tasks():
        role = path.parts[-3] if path.is_relative_to(ROLES) else "playbooks"
        for task in flat(yaml.safe_load(path.read_text(encoding="utf-8")) or []):
            if fetches(task):
                found.add((role, path.name, str(task.get("name"))))
    return found


def flat(tasks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield tasks, those in plays and blocks too."""
    for task in tasks:
        yield task
        for part in ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks", "handlers"):
            yield from flat(task.get(part) or [])


def fetches(task: Mapping[str, Any]) -> bool:
    """Return whether a task may fetch something from outside."""
    names = {key.rpartition(".")[2]: value for key, value in task.items()}
    if MODULES & set(names):
        return not any(isinstance(value, dict) and value.get("state") == "absent" for value in names.values())
    program = names.get("command") or names.get("shell")
    # What the arguments are made of may stand in the task's own variables.
    return program is not None and PROGRAMS.search(f"{program} {names.get('vars')}") is not None


def test_every_task_that_fetches_is_listed() -> None:
    found = fetching_tasks()
    assert found - set(FETCHES) == set(), "name the function of lib/gaudi_serve/bundle that lists what it fetches"
    assert set(FETCHES) - found == set(), "these tasks fetch nothing any more"
    for (role, _, name), part in FETCHES.items():
        assert isinstance(part, str) or part in PARTS[role], name


def test_every_program_that_fetches_is_listed() -> None:
    paths = [*ROOT.glob("library/*.py"), *ROOT.glob("lib/gaudi_serve/host/*.py"), *ROLES.glob("*/files/*")]
    code = [path for path in paths if path.is_file() and path.suffix in ("", ".py")]
    found = {str(path.relative_to(ROOT)) for path in code if FETCHING_CODE.search(path.read_text(encoding="utf-8"))}
    assert found == set(PROGRAM_FILES)
    assert all(isinstance(part, str) or part in LISTED for part in PROGRAM_FILES.values())


@pytest.mark.parametrize(
    "task",
    [
        {"ansible.builtin.apt": {"name": "jq"}},
        {"block": [{"ansible.builtin.get_url": {"url": "https://example/x"}}]},
        {"ansible.builtin.command": {"argv": ["docker", "pull", "x"]}},
        {"ansible.builtin.command": {"argv": "{{ own }}"}, "vars": {"own": ["git", "clone", "x"]}},
        {"ansible.builtin.shell": "curl -fsSL https://example/x"},
        {"ansible.builtin.pip": {"name": "x"}},
    ],
)
def test_a_new_task_that_fetches_is_seen(task: dict[str, Any]) -> None:
    assert any(map(fetches, flat([task])))
    assert not fetches({"ansible.builtin.command": {"argv": ["systemctl", "restart", "docker"]}})
    assert not fetches({"ansible.builtin.apt": {"name": "jq", "state": "absent"}})


def test_names_of_packages_are_read_from_the_tasks_that_install_them() -> None:
    assert apt_names("driver", "source.yml", "Apply | Install the packages for writing a repository") == [
        "python3-debian"
    ]
    with pytest.raises(InputError, match="no such task installs packages"):
        apt_names("driver", "source.yml", "Apply | Install nothing")
    with pytest.raises(InputError, match="'gaudi_system' is undefined"):
        apt_names("host_tuning", "apply.yml", "Governor | Install cpupower")


def test_an_execution_environment_that_is_built_takes_the_place_of_its_parts() -> None:
    parts = {one.name for one in control_node() if "execution environment" in one.need.why}
    assert {"docker.io/library/debian", "openssh-client"} <= parts
    found = control_node({"name": "gaudi-serve-ee:1", "archive": "/srv/ee.tar"})
    (image,) = [one for one in found if "execution environment" in one.need.why]
    assert (image.kind, image.label) == ("image", "image gaudi-serve-ee:1")
    assert image.origin == "archive /srv/ee.tar on the control node" and not image.problem
    (pulled,) = [one for one in control_node({"name": "r.example/ee:1"}) if one.kind == "image"]
    assert (pulled.origin, pulled.problem) == ("r.example", images.NO_DIGEST)
    (said,) = inventory_refusal({"bundle_execution_environment": {"image": "x"}, "vllm_models": []}, "h")
    assert said.startswith("h: bundle_execution_environment ")


def test_weights_that_no_mirror_stands_for_are_refused_with_what_helps() -> None:
    for kind, place in (("hub", "https://m/weights"), ("modelscope", ""), ("hub", "https://hub.example")):
        source = {"kind": kind, "repo": "o/m", "revision": "c" * 40, **({"endpoint": place} if place else {})}
        model = {"name": "m", "weights": "/data/m", "source": source}
        own = host(model_weights_models=[model])
        has = [[one.kind, one.name, one.version, one.system] for one in host_items(own, ["model_weights"])]
        said = missing_lines(own, "https://m", has, ["model_weights"])
        assert bool(said) == (place != "https://m/weights"), said
        assert not said or "source: {kind: path, path: FOLDER}" in said[0]
