"""The digest that decides on restarts: its very value, and that no order of an inventory changes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.catalog.files import model_catalog
from gaudi_serve.engines import ENGINES
from gaudi_serve.plan.changes import vllm_plan_changes
from gaudi_serve.plan.host import vllm_plan
from gaudi_serve.plan.model import digest
from gaudi_serve.stages import service
from helpers.plans import gaudi_host, live_of, model
from helpers.services import TEMPLATE

CPU = {"accelerator": "cpu", "modules": [], "device_name": None, "ip": "10.0.0.9", "interface": "eth0"}
OF = {"aice_1_21": {}, "deepseek_r1": {}, "vllm": CPU}
REQUESTED: dict[str, dict[str, Any]] = {
    "aice_1_21": model(
        **{"port": 30001, "env": {"B": "1", "A": "2"}, "recipe_cache_path": "/data/cache"},
        **{
            "tool_call_parser": "hermes",
            "enable_auto_tool_choice": True,
            "override_generation_config": {"b": 1, "a": 2},
        },
    ),
    "deepseek_r1": {
        **{"name": "r1", "weights": "/data/DeepSeek-R1", "image": "vllm:1", "launch_profile": "deepseek_r1"},
        **{"tool_call_parser": "deepseek_v3", "enable_auto_tool_choice": True},
    },
    "vllm": {
        **{"name": "tiny", "weights": "/m/tiny", "image": "vllm:1", "port": 8001, "max_model_len": 2048},
        **{"dtype": "bfloat16", "enforce_eager": True, "env": {"Z": "1", "A": "2"}},
    },
}
# As versions before this one have written them on hosts: in the order above. (Of deepseek_r1 they had a variable more,
# with which no real runtime starts it; that one change restarts it. Of vllm they lacked the two variables by which the
# server's workers listen on loopback alone. See the changelog.)
OLD_DIGESTS = {"aice_1_21": "608be5ce65a98c36", "deepseek_r1": "1650b309970fabf0", "vllm": "5180049d5f15be9a"}
DIGESTS = {"aice_1_21": "3e29b416855111a3", "deepseek_r1": "ecb3b597e08b7131", "vllm": "cf77fac3b55f1018"}
OLD_ARGUMENTS = {
    "aice_1_21": [
        *("--tool-call-parser", "hermes", "--enable-auto-tool-choice"),
        *("--override-generation-config", '{"a":2,"b":1}', "--served-model-name", "qwq"),
    ],
    "deepseek_r1": ["--tool-call-parser", "deepseek_v3", "--enable-auto-tool-choice", "--served-model-name", "r1"],
    "vllm": [
        *("--served-model-name", "tiny", "--host", "127.0.0.1", "--port", "8001", "--tensor-parallel-size", "1"),
        *("--max-model-len", "2048", "--dtype", "bfloat16", "--enforce-eager"),
    ],
}


CATALOG = model_catalog([], builtin=True)
PINNED: dict[str, str] = json.loads((Path(__file__).parent / "golden/digests.json").read_text(encoding="utf-8"))


def of_catalog(entry: str) -> str:
    """Return the digest of a model that has no more than its catalog entry."""
    of_plugin = [engine for engine in ENGINES if engine in CATALOG[entry]] == ["plugin"]
    device, release = ("HL-325L", "1.24.1") if of_plugin else ("HL-225", "1.21.3")
    host = gaudi_host(device_name=device, weights={})
    requested = {"name": "m", "model": entry, "image": "vllm:1"}
    plan = vllm_plan([requested], host, CATALOG, host_name="g", release=release)
    assert plan["errors"] == []
    digest: str = plan["models"][0]["digest"]
    return digest


@pytest.mark.parametrize("entry", CATALOG)
def test_the_digest_of_every_catalog_model_is_this(entry: str) -> None:
    # A version that changes one restarts that model everywhere: it must be intended, and named in the changelog.
    assert of_catalog(entry) == PINNED[entry]


def only(profile: str, requested: dict[str, Any], **host: Any) -> dict[str, Any]:
    """Plan one model on a host of its profile."""
    plan = vllm_plan([requested], gaudi_host(**OF[profile], **host), host_name="g")
    assert plan["errors"] == []
    (one,) = plan["models"]
    result: dict[str, Any] = one
    return result


def in_order(requested: Any) -> Any:
    """Return a request as AWX gives it."""
    return (
        {key: in_order(value) for key, value in sorted(requested.items())} if isinstance(requested, dict) else requested
    )


def launched_before(profile: str) -> dict[str, Any]:
    """Return a model as a version before this one has launched it."""
    planned = only(profile, REQUESTED[profile])
    count = len(OLD_ARGUMENTS[profile])
    old = {**planned, "args": [*planned["args"][:-count], *OLD_ARGUMENTS[profile]]}
    return {**old, "digest": digest(old)}


@pytest.mark.parametrize("profile", REQUESTED)
def test_the_digest_of_every_profile_is_this(profile: str) -> None:
    assert only(profile, REQUESTED[profile])["digest"] == DIGESTS[profile]
    assert only(profile, in_order(REQUESTED[profile]))["digest"] == DIGESTS[profile]
    assert launched_before(profile)["digest"] == OLD_DIGESTS[profile]


@pytest.mark.parametrize("profile", REQUESTED)
def test_a_server_that_was_launched_in_another_order_is_left_alone(profile: str) -> None:
    old = launched_before(profile)
    services = live_of({"models": [old]})
    backwards = dict(reversed(REQUESTED[profile].items()))
    for requested in (REQUESTED[profile], in_order(REQUESTED[profile]), backwards):
        now = only(profile, requested, services=services)
        assert now["digest"] == OLD_DIGESTS[profile]
        assert service.vllm_service_files([now], TEMPLATE) == service.vllm_service_files([old], TEMPLATE)
        assert vllm_plan_changes([now], services) == []
    # Also where its launch file is lost, and no more is known of it than its digest.
    (alone,) = live_of({"models": [old]}).values()
    del alone["launch"]
    assert only(profile, REQUESTED[profile], services={old["name"]: alone})["digest"] == OLD_DIGESTS[profile]


@pytest.mark.parametrize("profile", REQUESTED)
def test_a_changed_option_restarts_once_and_then_stands_in_the_order_of_names(profile: str) -> None:
    services = live_of({"models": [launched_before(profile)]})
    changed = {**REQUESTED[profile], "seed": 7}
    now = only(profile, changed, services=services)
    assert now["digest"] == only(profile, in_order(changed))["digest"] != OLD_DIGESTS[profile]
    (first, *lines) = vllm_plan_changes([now], services)
    assert first.endswith(": restart")
    assert len(lines) == 1
    assert "--seed" in lines[0]


DEFAULTS: list[tuple[str, dict[str, Any]]] = [
    ("aice_1_21", {"gpu_memory_utilization": 0.9, "seed": 0}),
    ("aice_1_21", {"distributed_executor_backend": "mp", "pipeline_parallel_size": 1}),
    ("deepseek_r1", {"gpu_memory_utilization": 0.85, "enable_lora": False}),
    ("vllm", {"trust_remote_code": False, "kv_cache_dtype": "auto", "tensor_parallel_size": 1}),
    ("vllm", {"image": "vllm/vllm-openai-cpu:v0.19.0", "gpu_memory_utilization": 0.9}),
    ("vllm", {"image": "vllm/vllm-openai-cpu:v0.32.0", "gpu_memory_utilization": 0.92}),
]


@pytest.mark.parametrize(("profile", "written"), DEFAULTS)
def test_an_option_at_its_default_restarts_nothing(profile: str, written: dict[str, Any]) -> None:
    short = REQUESTED[profile] | ({"image": written["image"]} if "image" in written else {})
    for before, after in ((short, {**short, **written}), ({**short, **written}, short)):
        services = live_of({"models": [only(profile, before)]})
        now = only(profile, after, services=services)
        assert vllm_plan_changes([now], services) == []
        assert service.vllm_container(now) == services[now["name"]]["launch"]
    # The launch file is lost: no more is known of the server than its digest.
    services = live_of({"models": [only(profile, short)]})
    del services[now["name"]]["launch"]
    assert only(profile, {**short, **written}, services=services)["digest"] == services[now["name"]]["digest"]


@pytest.mark.parametrize(
    "written",
    [
        {"image": "vllm/vllm-openai-cpu:v0.19.0", "gpu_memory_utilization": 0.92},
        {"gpu_memory_utilization": 0.9},  # The version of this image is unknown.
        {"trust_remote_code": True},
    ],
)
def test_an_option_at_another_value_restarts(written: dict[str, Any]) -> None:
    short = REQUESTED["vllm"] | ({"image": written["image"]} if "image" in written else {})
    services = live_of({"models": [only("vllm", short)]})
    assert vllm_plan_changes([only("vllm", {**short, **written}, services=services)], services)[0].endswith("restart")
