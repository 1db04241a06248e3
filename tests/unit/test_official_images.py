"""The official images by platform and release: which one a model gets that names none, and what is installed."""

from __future__ import annotations

from typing import Any

import pytest
from gaudi_serve.catalog.files import model_catalog
from gaudi_serve.core.versions import comparable
from gaudi_serve.plan.fleet import vllm_fleet_plan
from gaudi_serve.plan.host import vllm_plan
from gaudi_serve.platforms.releases import DEFAULT, RELEASES, VLLM_DEFAULT, is_official, official_image
from gaudi_serve.stages.image import with_official_images
from helpers.plans import DEBIAN, DEVICES, gaudi_host, host_of, live_of

READY = "vault.habana.ai/gaudi-docker/1.24.1/ubuntu24.04/habanalabs/vllm-0.26.0-ptupstream-2.11.0:latest"


def planned(host: dict[str, Any], release: str = "", **model: Any) -> dict[str, Any]:
    """Plan one model that names no image."""
    return vllm_plan([{"name": "m", "weights": "/data/m", **model}], host, host_name="g", release=release)


@pytest.mark.parametrize(
    ("platform", "release", "image"),
    [
        ("cuda", "", "vllm/vllm-openai:v0.33.0"),
        ("cuda", "0.32.1", "vllm/vllm-openai:v0.32.1"),
        # What a fleet sets for its Gaudi hosts is not a release of vLLM.
        ("cuda", "1.24.1", "vllm/vllm-openai:v0.33.0"),
        ("rocm", "", "vllm/vllm-openai-rocm:v0.33.0-rocm72"),
        ("rocm", "0.32.0", "vllm/vllm-openai-rocm:v0.32.0"),
        ("xpu", "", "vllm/vllm-openai-xpu:v0.33.0"),
        ("xpu", "0.26.0", "vllm/vllm-openai-xpu:v0.26.0"),
        ("cpu", "", "vllm/vllm-openai-cpu:v0.33.0"),
    ],
)
def test_a_model_without_an_image_gets_the_official_one(platform: str, release: str, image: str) -> None:
    plan = planned(host_of(platform), release)
    assert plan["errors"] == []
    assert plan["models"][0]["image"] == image


def test_a_model_on_gaudi_gets_the_vendors_ready_image_where_there_is_one() -> None:
    plan = planned(gaudi_host(driver_version="1.24.1-12"), "1.24.1")
    assert plan["models"][0]["image"] == READY
    (error,) = [one for one in planned(gaudi_host(), "1.21.3")["errors"] if one["key"] == "image"]
    assert error["message"].endswith("is required: the serving image, here or as vllm_model_defaults.image")


@pytest.mark.parametrize(
    ("host", "release"),
    [
        (host_of("xpu"), "0.25.0"),
        (host_of("cpu", cpu={"architecture": "s390x", "features": ["vxe2"]}), ""),
        (host_of("cpu", cpu={"architecture": "riscv64", "features": []}), ""),
    ],
)
def test_where_there_is_no_official_image_one_is_required(host: dict[str, Any], release: str) -> None:
    errors = planned(host, release)["errors"]
    assert [one["key"] for one in errors] == ["image"]


def test_a_model_keeps_the_official_image_that_serves_it_until_a_release_is_reported() -> None:
    host = host_of("cuda")
    older = planned(host, image="vllm/vllm-openai:v0.32.0")
    serving = {**host, "services": live_of(older)}
    kept = planned(serving)
    assert kept["models"][0]["image"] == "vllm/vllm-openai:v0.32.0"
    assert kept["models"][0]["digest"] == older["models"][0]["digest"]
    assert planned(serving, "0.33.0")["models"][0]["image"] == "vllm/vllm-openai:v0.33.0"
    # One of its user's own, or of another platform, is not taken for it.
    for image in ("mine/vllm:7", "vllm/vllm-openai-rocm:v0.32.0"):
        serving["services"]["m"]["launch"]["image"] = image
        assert planned(serving)["models"][0]["image"] == f"vllm/vllm-openai:v{VLLM_DEFAULT}"


def test_what_a_user_reports_of_the_image_wins() -> None:
    said = planned(host_of("cuda"), "0.33.0", image="mine/vllm:7")
    assert said["models"][0]["image"] == "mine/vllm:7"
    plan = vllm_plan(
        [{"name": "m", "weights": "/data/m"}], host_of("cuda"), host_name="g", defaults={"image": "mine/vllm:8"}
    )
    assert plan["models"][0]["image"] == "mine/vllm:8"


def test_the_default_releases_have_images() -> None:
    assert [row.ready(row.name) for row in RELEASES if row.name == DEFAULT] == [READY]
    assert comparable(VLLM_DEFAULT) >= comparable("0.33.0")
    assert all(official_image(platform, "") for platform in ("cuda", "rocm", "xpu", "cpu"))
    assert official_image("gaudi", "") is None


@pytest.mark.parametrize(
    ("image", "official"),
    [
        (READY, True),
        ("vllm/vllm-openai:v0.33.0", True),
        ("mirror.example:5000/vllm/vllm-openai-rocm:v0.33.0-rocm72", True),
        ("vllm/vllm-openai@sha256:" + "0" * 64, True),
        ("vllm/vllm-openai-mine:v0.33.0", False),
        ("mine/vllm-openai:v0.33.0", False),
        ("vault.habana.ai/gaudi-docker/1.24.1/ubuntu24.04/habanalabs/other:latest", False),
    ],
)
def test_only_official_images_need_no_entry(image: str, official: bool) -> None:
    models = [{"name": "m", "image": image, "state": "started"}]
    assert is_official(image) is official
    assert with_official_images([], models) == ([{"name": image}] if official else [])


def test_an_entry_reports_where_an_official_image_comes_from_and_a_stopped_model_needs_none() -> None:
    image = "vllm/vllm-openai:v0.33.0"
    entry = {"name": f"docker.io/{image}", "archive": "/srv/vllm.tar"}
    model = {"name": "m", "image": image, "state": "started"}
    assert with_official_images([entry], [model]) == [entry]
    assert with_official_images([], [{**model, "state": "stopped"}]) == []
    assert with_official_images([], [model, {**model, "name": "n"}]) == [{"name": image}]


def known(image: str | None = None, **more: Any) -> dict[str, Any]:
    """Return the variables of a CUDA host with an engine that has no image."""
    facts = {"gaudi_host": host_of("cuda"), "gaudi_system": DEBIAN, "gaudi_services": {"images": {}}}
    model = {"name": "m", "weights": "/data/m", **({"image": image} if image else {})}
    return {"vllm_models": [model], **facts, **more}


def test_an_official_image_is_fetched_and_any_other_is_refused() -> None:
    fleet = vllm_fleet_plan({"g": known()}, ["g"], [])
    assert fleet["errors"] == []
    fleet = vllm_fleet_plan({"g": known("mine/vllm:7")}, ["g"], [])
    assert [error["key"] for error in fleet["errors"]] == ["image"]
    assert "neither on this host nor in vllm_images" in fleet["errors"][0]["message"]


def test_an_option_of_a_newer_vllm_is_refused_for_an_older_image() -> None:
    plan = planned(host_of("cuda"), image="vllm/vllm-openai:v0.32.0", monokernel=True)
    assert [one["message"] for one in plan["errors"]] == [
        "g: model m: monokernel true: is not an option of vLLM for CUDA 0.32.0"
    ]
    assert planned(host_of("cuda"), monokernel=True)["errors"] == []


def test_the_unit_of_the_seed_is_an_entry_on_two_cards() -> None:
    """vllm serve Qwen2.5-14B-Instruct on two cards, as the page with a unit for it has it."""
    catalog = model_catalog([], builtin=True)
    keys = {"tensor_parallel_size": 2, "max_model_len": 32768, "enable_auto_tool_choice": True, "port": 8000}
    given = {"name": "qwen2.5-14b-instruct", "model": "qwen2.5-14b-instruct", "tool_call_parser": "hermes", **keys}
    plan = vllm_plan([given], host_of("cuda"), catalog, host_name="g", release="")
    assert plan["errors"] == []
    (model,) = plan["models"]
    text = " ".join(model["args"])
    for part in (
        *("--tensor-parallel-size 2", "--max-model-len 32768", "--enable-auto-tool-choice", "--port 8000"),
        *("--tool-call-parser hermes", "--served-model-name qwen2.5-14b-instruct"),
    ):
        assert part in text
    assert model["module_ids"] == [0, 1]


@pytest.mark.parametrize("platform", [*DEVICES, "cpu"])
def test_every_entry_of_the_catalog_is_planned_or_refused_with_a_reason(platform: str) -> None:
    catalog = model_catalog([], builtin=True)
    for name in catalog:
        plan = vllm_plan([{"name": "m", "model": name}], host_of(platform), catalog, host_name="g", release="")
        reasons = {one["key"] for one in plan["errors"]}
        assert reasons <= {"tensor_parallel_size", "max_model_len", "config", "dtype", "quantization"}, (name, plan)
        assert len(plan["models"]) == 1 or reasons
