"""Models over several hosts: their parts, what keeps them from being served, and what other playbooks make of them."""

from __future__ import annotations

import copy
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.core.run import Result
from gaudi_serve.gateway.fleet import fleet_entries
from gaudi_serve.host import observe_host
from gaudi_serve.host.observe_host import clock
from gaudi_serve.model.distributed import answers, host_models
from gaudi_serve.model.spec import Spec
from gaudi_serve.plan.distributed import crossing
from gaudi_serve.plan.fleet import vllm_fleet_lines, vllm_fleet_plan
from gaudi_serve.plan.host import plan_models, with_peers
from gaudi_serve.plan.meeting import Reach
from gaudi_serve.plan.peers import Fleet, tied_models
from gaudi_serve.plan.wanted import Wanted
from gaudi_serve.platforms import platform_of
from gaudi_serve.rollout.waves import hosts_down_at_once, restarted_at_once, rollout_plan, unverified_hosts
from gaudi_serve.show.report import endpoint_table
from gaudi_serve.show.status import fleet_status, fleet_status_lines
from gaudi_serve.stages.base import Given
from gaudi_serve.stages.reset import vllm_service_reset
from gaudi_serve.stages.service import STAGE, vllm_container, vllm_service_changes, vllm_service_files
from helpers.catalogs import CATALOG
from helpers.leftovers import left
from helpers.over_hosts import ENTRY, GAUDI, HOSTS, LAUNCHES, environment, over_two_hosts, parts
from helpers.plans import QWQ, TINY, cluster, host_of, live_of


def hostvars(*entries: dict[str, Any], platform: str = "cpu", **more: Any) -> dict[str, Any]:
    """Return the variables of two hosts that serve models together; ``more`` by host changes their facts."""
    return cluster(HOSTS, list(entries), platform, more, accelerator=platform)


def planned(*entries: dict[str, Any], platform: str = "cpu", **more: Any) -> dict[str, Any]:
    """Plan two hosts."""
    return vllm_fleet_plan(hostvars(*entries, platform=platform, **more), HOSTS, [])


def options(model: dict[str, Any]) -> dict[str, str]:
    """Return the options of a launch by their names."""
    args = model["args"]
    return {one: args[place + 1] if place + 1 < len(args) else "" for place, one in enumerate(args) if one[:2] == "--"}


def errors(plan: dict[str, Any]) -> list[str]:
    """Return the errors of a plan, without the quotes around what was written."""
    return [one["message"].replace("'", "").replace('"', "") for one in plan["errors"]]


def test_processes_share_a_model_by_nodes_and_ranks() -> None:
    head, worker = parts(planned({**ENTRY, "tensor_parallel_size": 2}))
    common = {"--nnodes": "2", "--master-addr": "10.0.0.1", "--master-port": "29501", "--tensor-parallel-size": "2"}
    assert options(head).items() >= {**common, "--node-rank": "0"}.items()
    assert options(worker).items() >= {**common, "--node-rank": "1"}.items()
    assert "--headless" in worker["args"] and "--headless" not in head["args"]
    assert [one["env"]["VLLM_HOST_IP"] for one in (head, worker)] == ["10.0.0.1", "10.0.0.2"]
    assert "GLOO_SOCKET_IFNAME" not in head["env"]
    assert [one["group"]["interface"] for one in (head, worker)] == ["eth1", "eth2"]
    assert [one["placements"] for one in (head, worker)] == [
        [{"host": host, "module_ids": [], "rank": rank} for rank, host in enumerate(HOSTS)]
    ] * 2
    assert (head["smoke"], worker["smoke"]) == (["text"], [])


def test_layers_are_spread_over_hosts_and_cards_stay_together() -> None:
    head, worker = parts(planned({**ENTRY, "tensor_parallel_size": 2, "pipeline_parallel_size": 2}, platform="cuda"))
    assert head["module_ids"] == worker["module_ids"] == [0, 1]
    assert head["group"]["interface_variables"] == ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"]


def test_copies_find_the_head() -> None:
    head, worker = parts(planned({**ENTRY, "data_parallel_size": 4}))
    common = {"--data-parallel-size": "4", "--data-parallel-size-local": "2", "--data-parallel-address": "10.0.0.1"}
    assert options(head).items() >= {**common, "--data-parallel-rpc-port": "29502"}.items()
    assert options(worker).items() >= {**common, "--data-parallel-start-rank": "2"}.items()
    assert "--headless" in worker["args"] and "--data-parallel-start-rank" not in head["args"]
    assert head["env"]["VLLM_DP_MASTER_PORT"] == worker["env"]["VLLM_DP_MASTER_PORT"] == "29503"


def test_copies_that_share_no_endpoint_are_asked_on_every_host() -> None:
    entry = {**ENTRY, "data_parallel_size": 2, "data_parallel_hybrid_lb": True, "host": "0.0.0.0"}
    plan = planned(entry)
    head, worker = parts(plan)
    assert "--headless" not in worker["args"] and "--data-parallel-hybrid-lb" in worker["args"]
    assert worker["smoke"] == head["smoke"] == ["text"] and worker["group"]["answers"]
    entries = fleet_entries(serving(plan), HOSTS, "gateway", [])
    assert [(one["host"], one["port"]) for one in entries] == [("gaudi01", 8000), ("gaudi02", 8000)]


def test_ray_runs_in_the_container_of_each_host_with_a_secret() -> None:
    entry = {**ENTRY, "tensor_parallel_size": 4, "distributed_executor_backend": "ray", "cluster_port": 30000}
    head, worker = (vllm_container(one) for one in parts(planned(entry, platform="cuda")))
    for launch, role in ((head, "head"), (worker, "worker")):
        assert launch["command"][:2] == ["python3", "/usr/local/lib/gaudi-serve/ray-member"]
        assert f'"role": "{role}"' in launch["command"][2] and '"head": "10.0.0.1:30001"' in launch["command"][2]
        assert '"resource": "GPU"' in launch["command"][2] and '"devices": 2' in launch["command"][2]
        targets = [mount["target"] for mount in launch["mounts"]]
        assert "/usr/local/lib/gaudi-serve/ray-member" in targets and "/etc/gaudi-serve/big.token" in targets
    assert head["command"][3:6] == ["vllm", "serve", "/m"] and len(worker["command"]) == 3
    env = parts(planned(entry, platform="cuda"))[1]["env"]
    assert (env["RAY_AUTH_MODE"], env["RAY_AUTH_TOKEN_PATH"]) == ("token", "/etc/gaudi-serve/big.token")
    assert env["RAY_ADDRESS"] == "10.0.0.1:30001"


def test_deepseek_r1_on_two_hosts_is_the_launch_of_the_vendors_scripts() -> None:
    entry = {
        **{"name": "big", "hosts": HOSTS, "weights": "/m", "launch_profile": "deepseek_r1", "max_num_seqs": 16},
        **{"tensor_parallel_size": 16, "max_model_len": 4096, "port": 8688, "recipe_cache_path": "/cache"},
    }
    variables = hostvars(entry, platform="gaudi")
    config = {**TINY, "num_attention_heads": 128, "num_key_value_heads": 128}
    for one in variables.values():
        one["accelerator_release"] = "1.21.3"
        one["gaudi_host"]["weights"] = {"/m": {"config": config, "bytes": 6_000_000}}
    head, worker = parts(vllm_fleet_plan(variables, HOSTS, []))
    expected = {
        **{"PT_HPU_ENABLE_LAZY_COLLECTIVES": "true", "PT_HPUGRAPH_DISABLE_TENSOR_CACHE": "1"},
        **{"VLLM_DELAYED_SAMPLING": "true", "VLLM_MLA_PERFORM_MATRIX_ABSORPTION": "0", "PT_HPU_LAZY_MODE": "1"},
        **{"VLLM_MLA_DISABLE_REQUANTIZATION": "0", "VLLM_RAY_DISABLE_LOG_TO_DRIVER": "1", "PT_HPU_WEIGHT_SHARING": "0"},
        **{"RAY_IGNORE_UNHANDLED_ERRORS": "1", "HABANA_VISIBLE_MODULES": "0,1,2,3,4,5,6,7", "VLLM_EP_SIZE": "16"},
        **{"VLLM_GPU_MEMORY_UTILIZATION": "0.9", "VLLM_GRAPH_RESERVED_MEM": "0.2", "VLLM_GRAPH_PROMPT_RATIO": "0"},
    }
    for one, address in ((head, "10.0.0.1"), (worker, "10.0.0.2")):
        assert one["env"].items() >= {**expected, "VLLM_HOST_IP": address}.items()
        assert one["env"]["PT_HPU_RECIPE_CACHE_CONFIG"].endswith(",false,32768")
        assert one["module_ids"] == list(range(8))
        assert one["group"]["interface_variables"] == ["GLOO_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME"]
        assert one["group"]["ray"]["resource"] == "HPU" and one["group"]["ray"]["devices"] == 8
    same = {name: value for name, value in head["env"].items() if name != "VLLM_HOST_IP"}
    assert same == {name: value for name, value in worker["env"].items() if name != "VLLM_HOST_IP"}
    text = " ".join(head["args"])
    assert text.count("ray") == 1
    for option in (
        *("--tensor-parallel-size 16", "--distributed-executor-backend ray", "--block-size 128", "--dtype bfloat16"),
        *("--kv-cache-dtype auto", "--num-scheduler-steps 1", "--use-v2-block-manager", "--gpu-memory-utilization 0.9"),
        *("--trust-remote-code", "--enable-reasoning --reasoning-parser deepseek_r1", "--max-num-batched-tokens 4096"),
        "--disable-log-requests",
    ):
        assert option in text
    assert head["env"]["VLLM_MOE_N_SLICE"] == "8" and "QUANT_CONFIG" not in head["env"]


def of_catalog(**more: Any) -> dict[str, Any]:
    """Return the plan of the head of DeepSeek-R1 as the catalog has it, over two hosts, with the plan's warnings."""
    entry = {"name": "big", "model": "deepseek-r1", "launch_profile": "deepseek_r1", "hosts": HOSTS}
    entry |= {"tensor_parallel_size": 16, "max_num_seqs": 16, "max_model_len": 4096, **more}
    catalog = {"deepseek-r1": CATALOG["deepseek-r1"]}
    variables = cluster(HOSTS, [entry], "gaudi", {}, accelerator_release="1.21.3", preflight_catalog=catalog)
    plan = vllm_fleet_plan(variables, HOSTS, [])
    return parts(plan)[0] | {"warnings": plan["warnings"]}


@pytest.mark.parametrize(
    ("said", "cache", "config"),
    [
        ({}, "auto", "inc_quant_per_channel_bf16kv"),
        ({"kv_cache_dtype": "fp8_inc"}, "fp8_inc", "inc_quant_per_channel_with_fp8kv_config"),
    ],
)
def test_inc_over_two_hosts_takes_the_measurements_and_the_configuration_of_sixteen_cards(
    said: dict[str, Any], cache: str, config: str
) -> None:
    model = of_catalog(**said)
    assert options(model)["--kv-cache-dtype"] == cache and model["args"].count("--kv-cache-dtype") == 1
    assert model["env"]["QUANT_CONFIG"] == f"/opt/vllm-fork/scripts/quant_configs/{config}.json"
    assert model["env"]["VLLM_MOE_N_SLICE"] == "1" and model["env"]["VLLM_REQUANT_FP8_INC"] == "1"
    (mount,) = [one for one in model["mounts"] if one["target"].endswith("/scripts/nc_workspace_measure_kvcache")]
    assert mount["source"].endswith("/ds-r1-default-pile-g2-ep16-0610")


def test_inc_without_a_mount_of_its_measurements_is_warned_of() -> None:
    missing = "INC's measurements for 16 cards must be in the image: no mount provides them"
    parent = {"source": "/data/16", "target": "/opt/vllm-fork/scripts"}
    for more, warned in (({"mounts": []}, True), ({"mounts": [parent]}, False), ({}, False)):
        assert any(missing in one for one in of_catalog(**more)["warnings"]) == warned


@pytest.mark.parametrize(
    ("platform", "changed", "text"),
    [
        ("cpu", {"tensor_parallel_size": 2, "node_rank": 1}, "node_rank 1: is set by the plan; leave it out"),
        (
            "cpu",
            {"tensor_parallel_size": 3},
            "tensor_parallel_size 3: must be a multiple of 2, the number of its hosts",
        ),
        ("cpu", {"data_parallel_size": 3}, "data_parallel_size 3: must be a multiple of 2, the number of its hosts"),
        (
            *("cuda", {"tensor_parallel_size": 1, "pipeline_parallel_size": 3}),
            "tensor_parallel_size 1: must, times pipeline_parallel_size 3, be a multiple of 2, the number of its hosts",
        ),
        (
            *("cpu", {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}),
            "distributed_executor_backend ray: is refused by vLLM on processors",
        ),
        (
            "cpu",
            {"tensor_parallel_size": 2, "module_ids": [0]},
            "module_ids [0]: is not for a model over several hosts",
        ),
        (
            *("cpu", {"tensor_parallel_size": 2, "port": 29510}),
            "cluster_port 29500 (default): needs ports 29500 to 29599, and 29510 is the port of big",
        ),
        (
            *("cuda", {"tensor_parallel_size": 2, "distributed_executor_backend": "uni"}),
            "distributed_executor_backend uni: must be mp or ray for a model over several hosts in profile vllm",
        ),
        (
            "cpu",
            {"tensor_parallel_size": 2, "member_timeout_s": 1},
            "member_timeout_s 1: must be",
        ),
    ],
)
def test_what_cannot_be_spread_is_refused_on_every_host(platform: str, changed: dict[str, Any], text: str) -> None:
    found = errors(planned({**ENTRY, **changed}, platform=platform))
    # The port of the server matters on the head alone.
    for host in HOSTS[:1] if "port of" in text else HOSTS:
        assert any(one.startswith(f"{host}: model big: {text}") for one in found), found


def test_an_entry_that_fits_on_no_host_may_fit_on_two() -> None:
    large = {**QWQ, "hidden_size": 8192, "num_attention_heads": 64, "intermediate_size": 28672}
    entry = {"weights": "/large", "config": large, "weight_bytes": 60 * 10**9, "max_model_len": 2048, "image": "v:1"}
    variables = hostvars(platform="cuda")
    for known in variables.values():
        known |= {"plan_try": "large", "preflight_catalog": {"large": entry}}
    warnings = vllm_fleet_plan(variables, HOSTS, [])["warnings"]
    assert any("model large-tried:" in one for one in warnings)
    answer = (
        "large fits on 2 hosts together, such as gaudi01, gaudi02: tensor_parallel_size 2, pipeline_parallel_size 2"
    )
    assert any(answer in one for one in warnings), warnings
    entry["weight_bytes"] = 600 * 10**9
    assert not any("together" in one for one in vllm_fleet_plan(variables, HOSTS, [])["warnings"])


def test_the_plugin_needs_a_word_and_profiles_of_one_host_report_so() -> None:
    entry = {**ENTRY, "tensor_parallel_size": 16}
    variables = hostvars(entry, platform="gaudi")
    (first, *_) = [one for one in errors(vllm_fleet_plan(variables, HOSTS, [])) if "experimental" in one]
    allowed = "must be true for a model over several hosts in profile plugin"
    assert first.startswith(f"gaudi01: model big: distributed_experimental false (default): {allowed}")


def test_ports_between_hosts_belong_to_one_model() -> None:
    two = [{**ENTRY, "tensor_parallel_size": 2}, {**ENTRY, "name": "other", "tensor_parallel_size": 2, "port": 8001}]
    assert (
        "gaudi01: model other: cluster_port 29500 (default): shares its 100 ports with model big; 29600 is free"
        in errors(planned(*two))
    )
    busy = {"gaudi02": {"ports": {"29503": "nginx (pid 3)"}}}
    taken = "needs ports 29500 to 29599, and 29503 is taken by nginx (pid 3); end it or choose another cluster_port"
    found = errors(planned({**ENTRY, "tensor_parallel_size": 2}, **busy))
    assert f"gaudi02: model big: cluster_port 29500 (default): {taken}" in found


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"ip": "0.0.0.0", "networks": []}, "vllm_cluster_address 0.0.0.0: cannot be reached from other hosts"),
        ({"ip": "fe80::1", "networks": []}, "vllm_cluster_address fe80::1: cannot be reached from other hosts"),
        (
            {"ip": "127.0.0.1"},
            "vllm_cluster_address 127.0.0.1: cannot be reached from other hosts; set vllm_cluster_address",
        ),
        ({"ip": "10.0.0.1"}, "vllm_cluster_address 10.0.0.1: is not an address of this host; set vllm_cluster_address"),
        (
            {"ip": "10.0.0.1", "networks": []},
            "vllm_cluster_address 10.0.0.1: is the address of gaudi01 too; set vllm_cluster_address for this host",
        ),
        ({"weights": {"/m": {"config": TINY, "bytes": 7}}}, "weights /m: differs between the hosts of the model"),
        (
            {"weights": {"/m": {"config": {**TINY, "a": 1}, "bytes": 6_000_000}}},
            "weights /m: differs between the hosts",
        ),
    ],
)
def test_hosts_that_cannot_serve_together_are_named(facts: dict[str, Any], text: str) -> None:
    found = errors(planned({**ENTRY, "tensor_parallel_size": 2}, gaudi02=facts))
    assert any(f"gaudi02: model big: {text}" in one for one in found), found


def test_hosts_of_a_model_have_the_same_adapters() -> None:
    adapter = {"name": "sql", "folder": "/a", "source": {"kind": "hub", "repo": "team/sql"}}
    variables = hostvars({**ENTRY, "tensor_parallel_size": 2, "adapters": [adapter]})
    here = {"config": {}, "bytes": 7, "adapter": {"r": 64, "lora_alpha": 128, "target_modules": ["q_proj"]}}
    weights = [{**variables[name]["gaudi_host"]["weights"], "/a": here} for name in HOSTS]
    for other, text in (
        (here, ""),
        (None, ""),  # The run fetches it.
        (
            {**here, "bytes": 8},
            "adapters /a: differs between the hosts of the model: gaudi02 has 8 bytes, not 7",
        ),
        (
            {**here, "adapter": {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}},
            "adapters /a: differs between the hosts of the model: gaudi02 has another adapter",
        ),
    ):
        for name, folders in zip(HOSTS, (weights[0], {**weights[1], "/a": other}), strict=True):
            variables[name]["gaudi_host"] = {**variables[name]["gaudi_host"], "weights": folders}
        found = errors(vllm_fleet_plan(variables, HOSTS, []))
        assert any(text in one for one in found) if text else found == [], found


@pytest.mark.parametrize(("mine", "theirs", "differ"), [("a", "b", True), ("a", "a", False), ("a", None, False)])
def test_weights_have_the_same_checksums_on_all_hosts(mine: str, theirs: str | None, differ: bool) -> None:
    variables = hostvars({**ENTRY, "tensor_parallel_size": 2})
    for name, content in (("gaudi01", mine), ("gaudi02", theirs)):
        facts = variables[name]["gaudi_host"]
        weights = {path: {**one, "content": content} for path, one in facts["weights"].items()}
        variables[name]["gaudi_host"] = {**facts, "weights": weights}
    found = errors(vllm_fleet_plan(variables, HOSTS, []))
    assert any("gaudi02 has files with other checksums" in one for one in found) is differ
    assert differ or found == []


def test_hosts_of_one_model_have_one_kind_of_cards() -> None:
    entry = {**ENTRY, "tensor_parallel_size": 4}
    found = errors(planned(entry, platform="cuda", gaudi02={"device_name": "NVIDIA H200"}))
    text = "has gaudi01 with NVIDIA L4 and gaudi02 with NVIDIA H200; all must have one device"
    assert found == [f"{host}: model big: hosts [gaudi01, gaudi02]: {text}" for host in HOSTS]
    variables = hostvars(entry, platform="cuda")
    variables["gaudi02"] = hostvars(entry)["gaudi02"]
    found = errors(vllm_fleet_plan(variables, HOSTS, []))
    assert any("has gaudi01 with cuda and gaudi02 with cpu; all must have one kind" in one for one in found), found


def test_images_and_releases_are_the_same_on_all_hosts() -> None:
    variables = hostvars({**ENTRY, "tensor_parallel_size": 2})
    variables["gaudi02"]["gaudi_services"] = {"images": {"v:1": "y"}}
    found = errors(vllm_fleet_plan(variables, HOSTS, []))
    assert (
        "gaudi01: model big: image v:1: is another image on gaudi02 than on gaudi01; provide the same on both, as "
        in (" ".join(found))
    )
    for one in variables.values():
        one["vllm_images"] = [{"name": "v:1"}]
    assert errors(vllm_fleet_plan(variables, HOSTS, [])) == []
    variables["gaudi02"]["accelerator_release"] = "1.21.3"
    found = errors(vllm_fleet_plan(variables, HOSTS, []))
    assert any(
        "has gaudi01 of release 1.24.1 and gaudi02 of 1.21.3; all must be of one release" in one for one in found
    )


def test_an_error_of_one_host_is_one_of_all() -> None:
    found = errors(planned({**ENTRY, "tensor_parallel_size": 2}, gaudi02={"weights": {"/m": None}}))
    assert any(one.startswith("gaudi02: model big: weights /m") for one in found)
    assert (
        "gaudi01: model big: hosts [gaudi01, gaudi02]: has gaudi02, and its part cannot be planned there; weights /m: "
        "has no readable config.json on this host" in (" ".join(one.replace("'", "").replace('"', "") for one in found))
    )


def test_a_part_that_cannot_be_planned_is_never_explained_with_its_own_host() -> None:
    spec = vllm_fleet_plan(hostvars({**ENTRY, "tensor_parallel_size": 2}), HOSTS, [])["hosts"]["gaudi01"]["models"][0]
    named = {"gaudi01": Reach(ip="10.0.0.1"), "gaudi02": Reach(ip="10.0.0.2")}
    wanted = Wanted(models=host_models(None, [{**ENTRY, "tensor_parallel_size": 2}], "gaudi01"), release="1.24.1")
    facts = hostvars(ENTRY)["gaudi01"]["gaudi_host"]
    mine = plan_models("gaudi01", replace(wanted, defaults={"image": spec["image"]}), facts, (), named)
    # Without what the stages before the models change, the same host cannot have its part.
    lacking = plan_models(
        "gaudi01", replace(wanted, defaults={"image": spec["image"]}), {**facts, "weights": {"/m": None}}, (), named
    )
    (one,) = with_peers(mine, {"gaudi01": lacking}, named, {}).findings
    assert "has gaudi01, and its part cannot be planned there; weights '/m': has no readable" in one.message


def test_a_host_that_was_not_read_is_named_with_the_limit_to_give() -> None:
    variables = hostvars({**ENTRY, "tensor_parallel_size": 2})
    del variables["gaudi02"]["gaudi_host"]
    found = errors(vllm_fleet_plan(variables, ["gaudi01"], []))
    assert len(found) == 1 and "has gaudi02, of which this run has read no facts" in found[0]
    assert "add it to --limit (gaudi01,gaudi02)" in found[0]


@pytest.mark.parametrize("only_reads", [True, False])
def test_a_run_that_only_reads_needs_one_host_of_a_model(only_reads: bool) -> None:
    variables = hostvars({**ENTRY, "tensor_parallel_size": 2})
    del variables["gaudi02"]["gaudi_host"]
    tied = tied_models("gaudi01", Fleet(variables, [], ["gaudi01"], only_reads=only_reads))
    text = "it is shown as it runs, because this run does not read gaudi02"
    assert tied.left == ({"big": text} if only_reads else {})
    # A host of the run that does not answer is another matter.
    tied = tied_models("gaudi01", Fleet(variables, [], HOSTS, only_reads=only_reads))
    assert "no facts could be read of gaudi02" in tied.left["big"]


def test_an_entry_of_one_host_has_no_hosts_and_bad_ones_are_refused() -> None:
    variables = hostvars()
    variables["gaudi01"]["vllm_models"] = [{**ENTRY, "image": "v:1"}]
    (found,) = [one for one in errors(vllm_fleet_plan(variables, ["gaudi01"], [])) if "hosts" in one]
    assert "is only for entries of vllm_distributed_models" in found
    for hosts in (["gaudi01"], "gaudi01", ["gaudi01", "gaudi01"], None, 1, 17, True):
        (first, *_) = errors(planned({**ENTRY, "hosts": hosts}))
        assert "vllm_distributed_models[0] (big): hosts" in first
        assert "must be a list of 2 to 16 different hosts" in first


def test_hosts_that_the_inventory_lacks_are_named() -> None:
    found = errors(planned({**ENTRY, "hosts": ["gaudi01", "gaudi3"]}))
    text = "vllm_distributed_models[0] (big): hosts: gaudi3 is not a host of the inventory"
    assert any(one.startswith(f"gaudi01: {text}") for one in found), found
    assert not any(one.startswith("gaudi02") for one in found)
    # An entry of nobody is everybody's.
    found = errors(planned({**ENTRY, "hosts": ["x", "y"]}))
    assert len([one for one in found if "is not a host of the inventory" in one]) == 4


@pytest.mark.parametrize(
    "changed",
    [
        {"max_model_len": 1024},
        {"tensor_parallel_size": 4},
        {"member_timeout_s": 60},
        {"cluster_port": 29700},
        {"state": "stopped"},
        {"image": "v:2"},
        {"weights": "/other"},
        {"hosts": HOSTS[::-1]},
        {"port": 8001},
    ],
)
def test_an_entry_that_two_hosts_see_differently_is_refused(changed: dict[str, Any]) -> None:
    entry = {**ENTRY, "tensor_parallel_size": 2}
    weights = {"/m": {"config": TINY, "bytes": 6_000_000}, "/other": {"config": TINY, "bytes": 6_000_000}}
    variables = hostvars(entry, **{host: {"weights": weights} for host in HOSTS})
    variables["gaudi02"]["vllm_distributed_models"] = [{**entry, **changed}]
    for known in variables.values():
        known["gaudi_services"]["images"]["v:2"] = "z"
    found = errors(vllm_fleet_plan(variables, HOSTS, []))
    (key,) = changed
    for host in HOSTS:
        assert any(f"{host}: model big: {key}" in one and "differs between the hosts" in one for one in found), found


def test_a_host_that_does_not_see_the_entry_is_named() -> None:
    variables = hostvars({**ENTRY, "tensor_parallel_size": 2})
    variables["gaudi02"]["vllm_distributed_models"] = []
    (found,) = errors(vllm_fleet_plan(variables, HOSTS, []))
    assert "gaudi02 does not have this entry; write it in a file for all its hosts" in found


@pytest.mark.parametrize("name", ["VLLM_HOST_IP", "RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"])
def test_nobody_changes_where_processes_meet_or_their_secret(name: str) -> None:
    entry = {**ENTRY, "tensor_parallel_size": 2, "distributed_executor_backend": "ray", "env": {name: "x"}}
    refused = errors(planned(entry, platform="cuda"))
    assert any(f"model big: env: {name}" in one or f"{name} belongs in vllm_secrets" in one for one in refused), refused


@pytest.mark.parametrize(
    ("profile", "release"), [("aice_1_21", "1.21.3"), ("aice_1_22", "1.22.0"), ("plugin", "1.24.1")]
)
def test_every_profile_of_the_page_is_planned_on_two_hosts(profile: str, release: str) -> None:
    config = {**TINY, "num_attention_heads": 128, "num_key_value_heads": 16}
    entry = {
        **{"name": "big", "hosts": HOSTS, "weights": "/m", "launch_profile": profile, "tensor_parallel_size": 16},
        **{"max_model_len": 4096, "input_range": [128, 1024], "output_range": [128, 1024], "port": 30001},
        "distributed_experimental": True,
    }
    variables = hostvars(entry, platform="gaudi")
    for one in variables.values():
        one["accelerator_release"] = release
        one["gaudi_host"]["weights"] = {"/m": {"config": config, "bytes": 6_000_000}}
    for part in parts(vllm_fleet_plan(variables, HOSTS, [])):
        assert part["module_ids"] == list(range(8))
        assert part["group"]["ray"]["devices"] == 8
        assert " ".join(part["args"]).count(" ray") == 1


@pytest.mark.parametrize(("platform", "release", "keys"), LAUNCHES)
def test_every_engine_and_executor_uses_the_interface_of_the_cluster_address(
    platform: str, release: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    for mine in (None, "bond0"):
        more = {"env": {"GLOO_SOCKET_IFNAME": mine}} if mine else {}
        plan = over_two_hosts(platform, release, {**keys, **more}, ["10.77.0.1", "10.77.0.2"])
        for number, part in enumerate(parts(plan), 1):
            env = environment(part, tmp_path)
            assert env["VLLM_HOST_IP"] == f"10.77.0.{number}"
            names = platform_of(platform).socket_variables
            assert [env[name] for name in names] == [mine or f"fast{number}", *[f"fast{number}"] * len(names[1:])]


LLAMA_405B = {
    **{"num_hidden_layers": 126, "hidden_size": 16384, "intermediate_size": 53248, "num_attention_heads": 128},
    **{"num_key_value_heads": 8, "max_position_embeddings": 131072},
}
PROFILES = [("aice_1_21", "1.21.3"), ("aice_1_22", "1.22.0"), ("plugin", "1.24.1"), ("deepseek_r1", "1.21.3")]


def of_405b(profile: str, release: str, **more: Any) -> dict[str, Any]:
    """Return the plan of the model of the vendor's guide over two hosts of Gaudi3, or Gaudi2 for deepseek_r1."""
    variables = hostvars({**ENTRY, **GAUDI, "launch_profile": profile, **more}, platform="gaudi")
    for one in variables.values():
        one["accelerator_release"] = release
        one["gaudi_host"]["device_name"] = "HL-225" if profile == "deepseek_r1" else "HL-325L"
        one["gaudi_host"]["weights"] = {"/m": {"config": LLAMA_405B, "bytes": 811_706_613_760}}
    return vllm_fleet_plan(variables, HOSTS, [])


@pytest.mark.parametrize(("profile", "release"), PROFILES[:3])
def test_more_cards_than_key_value_heads_get_copies_of_them_over_hosts(profile: str, release: str) -> None:
    """The vendor's example for several hosts is Llama-3.1-405B, with 8 key-value heads, on 16 cards."""
    head, _ = parts(of_405b(profile, release))
    assert options(head)["--tensor-parallel-size"] == "16"


@pytest.mark.parametrize(("profile", "release"), PROFILES)
def test_stages_over_hosts_are_for_the_fork(profile: str, release: str) -> None:
    plan = of_405b(profile, release, tensor_parallel_size=8, pipeline_parallel_size=2)
    if profile in ("plugin", "deepseek_r1"):
        assert any(
            f"pipeline_parallel_size 2: must be 1: profile {profile} has no stages" in one for one in errors(plan)
        )
        return
    head, worker = parts(plan)
    for part in (head, worker):
        assert part["module_ids"] == list(range(8)) and part["group"]["ray"]["devices"] == 8
        assert options(part)["--pipeline-parallel-size"] == "2" and options(part)["--tensor-parallel-size"] == "8"
        assert [one for one in part["args"] if one in ("ray", "mp")] == ["ray"]
        assert part["env"]["PT_HPUGRAPH_DISABLE_TENSOR_CACHE"] == "0"
    # 756 GiB of weights over 16 cards.
    assert head["memory"]["weights_gib"] == pytest.approx(756 / 16, abs=0.1) and head["memory"]["fits"]


def test_a_part_has_the_same_network_in_the_plan_of_each_host() -> None:
    """HL-288 have no ports to other hosts, so RDMA network cards carry their traffic."""
    entry = {**ENTRY, "tensor_parallel_size": 16, "launch_profile": "plugin", "distributed_experimental": True}
    card = {"device_name": "HL-288", "host_nics": False, "verbs": ["mlx5_0"]}
    variables = cluster(HOSTS, [entry], "gaudi", dict.fromkeys(HOSTS, card), accelerator_release="1.24.1")
    config = {**TINY, "num_attention_heads": 16, "num_key_value_heads": 16}
    for one in variables.values():
        one |= {"accelerator_network_between": "nics", "accelerator_network_devices": ["mlx5_0"]}
        one["gaudi_host"]["weights"] = {"/m": {"config": config, "bytes": 6_000_000}}
    head, worker = parts(vllm_fleet_plan(variables, HOSTS, []))
    assert head["group"]["id"] == worker["group"]["id"]


def test_slow_networks_and_different_ones_are_warned_of() -> None:
    other = [{"interface": "eth0", "address": "10.0.9.2", "prefix": 24, "mtu": 9000}]
    variables = hostvars({**ENTRY, "tensor_parallel_size": 2}, gaudi02={"ip": "10.0.9.2", "networks": other})
    # The addresses are the user's, who knows the routes between these networks.
    for one in variables.values():
        one["vllm_cluster_address"] = one["gaudi_host"]["ip"]
    text = "\n".join(vllm_fleet_plan(variables, HOSTS, [])["warnings"])
    assert "gaudi01 is in 10.0.0.0/24 and gaudi02 in 10.0.9.0/24: each must route to the other" in text
    assert "the MTU of gaudi01 is 1500 on eth1, that of gaudi02 is 9000 on eth0" in text
    assert "tensor_parallel_size 2 crosses hosts" in text
    assert "communicate on ports 29500 to 29599" in text


def network(interface: str, address: str, prefix: int = 24) -> dict[str, Any]:
    """Return a network of a host."""
    return {"interface": interface, "address": address, "prefix": prefix, "mtu": 1500}


BRIDGE = network("docker0", "172.17.0.1", 16)
# Two hosts with default routes on different networks.
FIRST, SECOND = [network("eth0", "10.0.0.1"), BRIDGE], [network("eth0", "10.0.9.2"), BRIDGE]


def on_networks(first: list[Any], second: list[Any], said: tuple[str, str] = ("", ""), **live: Any) -> dict[str, Any]:
    """Return the plan of a model on two hosts with these networks; the first is that of the default route."""
    variables = hostvars({**ENTRY, "tensor_parallel_size": 2})
    for one, networks, address in zip(variables.values(), (first, second), said, strict=True):
        one["gaudi_host"] |= {"ip": networks[0]["address"], "networks": networks}
        one["gaudi_host"]["services"] = live.get("services", {})
        one["vllm_cluster_address"] = address
    return vllm_fleet_plan(variables, HOSTS, [])


@pytest.mark.parametrize("said", [("", ""), ("192.168.0.1", ""), ("192.168.0.1", "192.168.0.2")])
def test_hosts_meet_in_the_network_that_all_share(said: tuple[str, str]) -> None:
    plan = on_networks([*FIRST, network("fast0", "192.168.0.1")], [*SECOND, network("fast1", "192.168.0.2")], said=said)
    head, worker = parts(plan)
    assert head["group"]["addresses"] == worker["group"]["addresses"] == ["192.168.0.1", "192.168.0.2"]
    assert [one["group"]["interface"] for one in (head, worker)] == ["fast0", "fast1"]
    assert options(worker)["--master-addr"] == "192.168.0.1" and worker["env"]["VLLM_HOST_IP"] == "192.168.0.2"


CABLE = [[*FIRST, network("cx0", "169.254.28.198", 16)], [*SECOND, network("cx0", "169.254.7.2", 16)]]


def test_hosts_on_one_cable_meet_at_link_local_addresses_that_are_set() -> None:
    """NVIDIA's guide gives two DGX Spark such addresses; many servers have others of the kind, to their BMC."""
    head, worker = parts(on_networks(*CABLE, said=("169.254.28.198", "169.254.7.2")))
    assert head["group"]["addresses"] == worker["group"]["addresses"] == ["169.254.28.198", "169.254.7.2"]
    assert [one["group"]["interface"] for one in (head, worker)] == ["cx0", "cx0"]
    assert any("must be set on each host: the hosts have no network" in one for one in errors(on_networks(*CABLE)))


def test_link_local_addresses_are_those_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [("10.0.0.1", "inet", "global"), ("169.254.7.2", "inet", "link"), ("fe80::1", "inet6", "link")]
    kinds += [("127.0.0.1", "inet", "host"), ("fd00::1", "inet6", "global")]
    found = [{"local": text, "family": family, "scope": scope, "prefixlen": 16} for text, family, scope in kinds]
    answer = Result(0, json.dumps([{"ifname": "cx0", "mtu": 9000, "addr_info": found}]), "")
    monkeypatch.setattr(observe_host, "run", lambda _: answer)
    assert [one["address"] for one in observe_host.networks()] == ["10.0.0.1", "169.254.7.2", "fd00::1"]


def test_hosts_on_one_network_stay_there() -> None:
    plan = on_networks(
        [network("eth0", "10.0.0.1"), network("fast0", "192.168.0.1")],
        [network("eth0", "10.0.0.2"), network("fast1", "192.168.0.2")],
    )
    assert parts(plan)[0]["group"]["addresses"] == ["10.0.0.1", "10.0.0.2"]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (FIRST, SECOND, ("", "")),
        (FIRST, SECOND, ("10.0.0.1", "")),
        (
            [*FIRST, network("a0", "192.168.0.1"), network("b0", "192.168.1.1")],
            [*SECOND, network("a0", "192.168.0.2"), network("b0", "192.168.1.2")],
            ("", ""),
        ),
    ],
)
def test_hosts_without_one_common_network_need_their_addresses(
    first: list[Any], second: list[Any], said: tuple[str, str]
) -> None:
    found = errors(on_networks(first, second, said))
    text = "must be set on each host: the hosts have no network in common, or several"
    for host, address in zip(HOSTS, ("10.0.0.1", "10.0.9.2"), strict=True):
        where = "(gaudi01 in 10.0.0.0/24, gaudi02 in 10.0.9.0/24)"
        assert any(f"{host}: model big: vllm_cluster_address {address}: {text} {where}" in one for one in found), found
    assert errors(on_networks(first, second, ("10.0.0.1", "10.0.9.2"))) == []


@pytest.mark.parametrize("said", [("10.0.0.1", "10.0.9.2"), ("192.168.1.0", "192.168.1.1")])
def test_a_running_model_keeps_its_addresses(said: tuple[str, str]) -> None:
    running = live_of({"models": parts(on_networks(FIRST, SECOND, ("10.0.0.1", "10.0.9.2")))[:1]})
    for one in running.values():
        one["launch"]["group"]["addresses"] = list(said)
    variables = hostvars({**ENTRY, "tensor_parallel_size": 2})
    for rank, (one, networks) in enumerate(zip(variables.values(), (FIRST, SECOND), strict=True)):
        shared = [network(f"f{number}", f"192.168.{number}.{rank}") for number in (0, 1)]
        one["gaudi_host"] |= {"ip": networks[0]["address"], "networks": [*networks, *shared]}
        one["gaudi_host"]["services"] = copy.deepcopy(running)
        one["gaudi_host"]["services"]["big"]["launch"]["group"]["rank"] = rank
    head, _ = parts(vllm_fleet_plan(variables, HOSTS, []))
    assert head["group"]["addresses"] == list(said)


def test_hosts_have_addresses_of_one_family() -> None:
    found = errors(on_networks([network("eth0", "10.0.0.1")], [network("eth0", "fd00::2", 64)]))
    text = "is IPv4 on gaudi01 and IPv6 on gaudi02: use one family on all hosts"
    assert f"gaudi02: model big: vllm_cluster_address fd00::2: {text}" in found


def test_an_address_of_ray_has_brackets_if_it_is_of_ipv6() -> None:
    entry = {**ENTRY, "tensor_parallel_size": 4, "distributed_executor_backend": "ray"}
    six = {
        host: {"ip": f"fd00::{number}", "networks": [network("eth0", f"fd00::{number}", 64)]}
        for number, host in enumerate(HOSTS, 1)
    }
    head, worker = parts(planned(entry, platform="cuda", **six))
    assert head["env"]["RAY_ADDRESS"] == worker["group"]["ray"]["head"] == "[fd00::1]:29501"


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({"VLLM_PORT": 5000}, "env: VLLM_PORT 5000: lets processes of several hosts take the same port; leave it out"),
        ({"NCCL_SOCKET_IFNAME": "ib9"}, "env: NCCL_SOCKET_IFNAME ib9: must be an interface of this host"),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, "env: NCCL_SOCKET_IFNAME =eth: must be an interface of this host"),
        ({"GLOO_SOCKET_IFNAME": "eth"}, "env: GLOO_SOCKET_IFNAME eth: must be an interface of this host"),
        ({"GLOO_SOCKET_IFNAME": "^lo,docker"}, "env: GLOO_SOCKET_IFNAME ^lo,docker: must be an interface of this"),
        ({"NCCL_SOCKET_IFNAME": "eth"}, ""),
        ({"NCCL_SOCKET_IFNAME": "^docker"}, ""),
    ],
)
def test_variables_that_keep_hosts_apart_are_refused(env: dict[str, Any], text: str) -> None:
    found = errors(planned({**ENTRY, "tensor_parallel_size": 4, "env": env}, platform="cuda"))
    assert any(f"gaudi02: model big: {text}" in one for one in found) if text else found == []


@pytest.mark.parametrize(
    ("ranges", "port", "warned"),
    [
        ([[32768, 60999]], 40000, True),
        ([[1024, 29500]], 29500, True),
        ([[32768, 60999]], 29500, False),
        ([[1024, 29499], [29600, 65535]], 29500, False),
    ],
)
def test_a_block_of_ports_that_the_kernel_gives_away_is_warned_of(
    ranges: list[list[int]], port: int, warned: bool
) -> None:
    facts = {host: {"ephemeral_ports": ranges} for host in HOSTS}
    plan = planned({**ENTRY, "tensor_parallel_size": 2, "cluster_port": port}, **facts)
    text = f"cluster_port {port}: the kernel gives ports"
    assert parts(plan) and any(text in one for one in plan["warnings"]) == warned


def test_ports_that_the_kernel_keeps_are_not_given_away(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"ip_local_port_range": "1024\t65535\n", "ip_local_reserved_ports": "29500-29599,1024,8080\n"}
    monkeypatch.setattr(observe_host, "read_text", lambda path: texts.get(path.rpartition("/")[2]))
    ranges = [[1025, 8079], [8081, 29499], [29600, 65535]]
    assert observe_host.ephemeral_ports() == ranges
    texts.clear()
    assert observe_host.ephemeral_ports() == []


@pytest.mark.parametrize(
    ("image", "keys", "text"),
    [
        ("vllm/vllm-openai:v0.9.2", {"tensor_parallel_size": 4}, ""),
        (
            *("vllm/vllm-openai:v0.9.2", {"tensor_parallel_size": 4, "distributed_executor_backend": "mp"}),
            "distributed_executor_backend mp: must be ray for a model over several hosts in profile vllm",
        ),
        ("vllm/vllm-openai:v0.9.2", {"data_parallel_size": 4}, ""),
        (
            *("vllm/vllm-openai:v0.6.3", {"data_parallel_size": 4}),
            "data_parallel_size 4: is not for profile vllm of this release, or for a vLLM before 0.9.0",
        ),
    ],
)
def test_an_image_gets_only_options_that_its_vllm_has(image: str, keys: dict[str, Any], text: str) -> None:
    plan = planned({**ENTRY, **keys, "image": image}, platform="cuda")
    found = [one for one in errors(plan) if "big: image" not in one]
    if text:
        assert any(f"gaudi01: model big: {text}" in one for one in found), found
        return
    assert found == []
    for part in parts(plan):
        assert ("--nnodes" in part["args"], "ray" in part["group"]) == (False, "tensor_parallel_size" in keys)


def test_every_change_of_one_part_restarts_all() -> None:
    """Whatever a part depends on is seen by the digests of all parts."""
    entry = {**ENTRY, "tensor_parallel_size": 2}
    before = [one["digest"] for one in parts(planned(entry))]
    assert len(set(before)) == 2
    assert [one["digest"] for one in parts(planned(entry))] == before
    for changed, facts in (
        ({"max_num_seqs": 5}, {}),
        ({"env": {"A": "1"}}, {}),
        ({"cluster_port": 29700}, {}),
        ({"member_timeout_s": 40}, {}),
        ({"hosts": HOSTS[::-1]}, {}),
        ({}, {"gaudi02": {"ip": "10.0.0.3", "networks": []}}),
    ):
        after = [one["digest"] for one in parts(planned({**entry, **changed}, **facts))]
        assert not set(before) & set(after), changed
    # What has nothing about the launch restarts nothing.
    facts = {"gaudi02": {"networks": [{"interface": "eth9", "address": "10.0.0.2", "prefix": 24, "mtu": 1500}]}}
    assert [one["digest"] for one in parts(planned(entry, **facts))] == before
    assert [one["digest"] for one in parts(planned({**entry, "start_timeout_s": 99}))] == before


@pytest.mark.parametrize(
    ("head", "worker", "due"),
    [
        (None, None, [True, True]),
        ("a", None, [False, True]),
        # The head has lost its own and makes another.
        (None, "a", [True, True]),
        ("a", "b", [False, True]),
        ("a", "a", [False, False]),
    ],
)
def test_the_secret_is_due_until_all_hosts_have_the_heads(head: Any, worker: Any, due: list[bool]) -> None:
    tokens = dict(zip(HOSTS, (head, worker), strict=True))
    facts = {host: {"services": {"big": {"token_sha256": token}}} for host, token in tokens.items()}
    plan = parts(planned({**ENTRY, "tensor_parallel_size": 2}, **facts))
    assert [bool(secrets_due(one, token)) for one, token in zip(plan, tokens.values(), strict=True)] == due
    wanted = {"model": "big", "head": "gaudi01", "path": "/etc/gaudi-serve/big.token"}
    assert all(one in ([], [wanted]) for one in (secrets_due(part, None) for part in plan))
    # The same plan, after the run has written them.
    assert [secrets_due(one, "a" if head else "new") for one in plan] == [[], []]
    assert "tokens" not in vllm_container(plan[0])["group"]


def secrets_due(model: dict[str, Any], now: str | None) -> Any:
    """Return what a host would do about the secret of a part, with the one that it has now."""
    live = {"units": {"big": {"token_sha256": now}}, "supervisor_sha256": None}
    return vllm_service_changes([model], live, vllm_service_files([model], ""), "program")["tokens"]


def test_a_host_without_a_part_keeps_its_models_as_they_are() -> None:
    assert host_models(None, [ENTRY], "other") is None
    assert host_models([{"name": "a"}], [ENTRY], "other") == [{"name": "a"}]
    assert host_models("nonsense", [ENTRY], "gaudi01") == "nonsense"
    (part,) = host_models(None, [ENTRY], "gaudi02")
    assert part["hosts"] == {"names": HOSTS, "rank": 1}


def test_people_read_one_model_with_its_hosts() -> None:
    plan = planned({**ENTRY, "tensor_parallel_size": 2})
    text = "\n".join(vllm_fleet_lines(plan))
    assert "+ big: start on the CPU, with parts on gaudi02, port 8000" in text
    assert "+ big: start a part of it on the CPU; gaudi01 answers" in text
    variables = serving(plan)
    rows = endpoint_table(variables, HOSTS)
    assert [row for row in rows if "big" in row] == [
        "gaudi01, gaudi02  big    cpu    active  http://127.0.0.1:8000/v1  -"
    ], rows


def test_a_change_on_another_host_reports_it() -> None:
    entry = {**ENTRY, "tensor_parallel_size": 2}
    live = {host: {"services": live_of(planned(entry)["hosts"][host])} for host in HOSTS}
    assert [planned(entry, **live)["hosts"][host]["changes"] for host in HOSTS] == [[], []]
    cache = {**live["gaudi02"], "device_name": None, "ip": "10.0.0.3", "networks": []}
    changes = planned(entry, gaudi01=live["gaudi01"], gaudi02=cache)["hosts"]
    assert changes["gaudi01"]["changes"] == [
        "~ big: restart",
        "    all its parts restart: another part changes, or a setting that its hosts share",
    ]
    assert any("VLLM_HOST_IP: 10.0.0.2 -> 10.0.0.3" in one for one in changes["gaudi02"]["changes"])


def test_status_has_a_row_for_each_part_and_asks_the_head_alone() -> None:
    variables = serving(planned({**ENTRY, "tensor_parallel_size": 2}))
    for known in variables.values():
        known |= {"vllm_service_status": [], "vllm_service_health": {"big": ""}}
    del variables["gaudi02"]["vllm_service_health"]["big"]
    status = fleet_status(variables, HOSTS)
    assert [status["hosts"][host]["models"][0]["answers"] for host in HOSTS] == [True, None]
    rows = [" ".join(row.split()) for row in fleet_status_lines(status) if "big" in row]
    assert rows == ["gaudi01 big cpu active yes http://127.0.0.1:8000/v1", "gaudi02 big cpu active - at gaudi01"]
    assert status["drifted"] == []


def serving(plan: dict[str, Any], due: Any = ()) -> dict[str, Any]:
    """Return the variables of hosts on which a plan has been carried out, and of which some have something due."""
    found: dict[str, Any] = {}
    for host in HOSTS:
        models = plan["hosts"][host]["models"]
        live = {"models": models}
        services = live_of(live)
        units = {name: {"active": True, "state": "active", "launch": one["launch"]} for name, one in services.items()}
        found[host] = {
            "gaudi_host": host_of("cpu", services=services),
            "gaudi_services": {"units": units},
            "preflight_plan": {**live, "errors": []},
            "preflight_gateways": [],
            **(
                {"vllm_service_due": ["restart big"], "vllm_service_stops": {"restart": ["big"]}} if host in due else {}
            ),
        }
    return found


def test_a_gateway_asks_the_head_alone() -> None:
    variables = serving(planned({**ENTRY, "tensor_parallel_size": 2, "host": "0.0.0.0"}))
    entries = fleet_entries(variables, HOSTS, "gateway", [])
    assert [(one["host"], one["port"]) for one in entries] == [("gaudi01", 8000)]


def test_hosts_of_one_model_change_as_one() -> None:
    variables = serving(planned({**ENTRY, "tensor_parallel_size": 2}), due=HOSTS)
    assert hosts_down_at_once(variables, HOSTS) == []
    assert restarted_at_once(variables, HOSTS, "big") == []
    refused = rollout_plan(variables, HOSTS, {"preflight_gateways": []})["refusal"]
    assert len(refused) == 1 and "has one server on the hosts of this run" in refused[0]
    allowed = {"preflight_gateways": [], "rollout_downtime_allowed": True}
    assert rollout_plan(variables, HOSTS, allowed)["waves"] == [HOSTS]
    # A host on which nothing is due goes with the one that takes its model away.
    one = serving(planned({**ENTRY, "tensor_parallel_size": 2}), due=HOSTS[1:])
    assert rollout_plan(one, HOSTS, allowed)["waves"] == [HOSTS]
    alone = copy.deepcopy(variables)
    for known in alone.values():
        known["preflight_plan"]["models"][0].pop("group")
        known["gaudi_host"]["services"]["big"]["launch"].pop("group")
        known["gaudi_services"]["units"]["big"]["launch"].pop("group", None)
    assert hosts_down_at_once(alone, HOSTS) == HOSTS
    assert restarted_at_once(alone, HOSTS, "big") == HOSTS


def test_all_hosts_of_a_model_are_accepted_or_none() -> None:
    variables = serving(planned({**ENTRY, "tensor_parallel_size": 2}))
    for host in HOSTS:
        variables[host]["rollout_host"] = {"state": "verified"}
    assert unverified_hosts(variables, "gaudi01") == []
    variables["gaudi02"]["rollout_host"] = {"state": "changing"}
    assert unverified_hosts(variables, "gaudi01") == ["gaudi02"]


def test_who_has_no_endpoint_is_asked_by_nobody() -> None:
    head, worker = parts(planned({**ENTRY, "tensor_parallel_size": 2}))
    for one, wanted in ((head, True), (worker, False), (vllm_container(worker), False), ({"answers": False}, False)):
        assert answers(one) is wanted
    assert answers({"name": "of one host"})


def test_a_model_whose_plan_is_wrong_is_not_taken_for_one_that_nobody_wants() -> None:
    unit = {"state": "active", "active": True}
    services = {"units": {"big": unit, "old": unit}, "supervisor_sha256": None, "images": {}}
    plan = {"models": [], "errors": [{"model": "big"}], "warnings": []}
    known = {"gaudi_services": services, "vllm_service_secrets": {}, "vllm_service_plan": plan}
    found = STAGE.pending(Given("gaudi01", known))
    assert found.changes["remove"] == ["old"]
    assert not any("model big: exists, but is not planned" in one for one in found.drift)
    assert any("model old: exists, but is not planned" in one for one in found.drift)


def test_a_reset_of_one_host_reports_that_the_model_ends_on_all() -> None:
    head, _ = parts(planned({**ENTRY, "tensor_parallel_size": 2}))
    launch = live_of({"models": [head]})["big"]["launch"]
    units = {"big": {"container": None, "launch": launch}, "own": {"container": None, "launch": {}}}
    did = vllm_service_reset({"units": units, "orphans": []}, left())["did"]
    assert "it serves on gaudi01, gaudi02 together, and ends on all" in next(one for one in did if "model big" in one)
    assert "together" not in next(one for one in did if "model own" in one)


def test_hosts_that_a_model_leaves_are_named() -> None:
    entry = {**ENTRY, "tensor_parallel_size": 2}
    live = {"services": live_of({"models": planned(entry)["hosts"]["gaudi01"]["models"]})}
    variables = hostvars(gaudi01=live)
    variables["gaudi01"]["vllm_models"] = []
    warnings = vllm_fleet_plan(variables, ["gaudi01"], [])["warnings"]
    assert any("model big also runs on gaudi02; its part stays there until a run" in one for one in warnings)


@pytest.mark.parametrize("port", [29500, 29511, 29550, 29599])
def test_every_port_of_the_block_must_be_free_on_every_host(port: int) -> None:
    busy = {"gaudi02": {"ports": {str(port): "nginx (pid 3)", "29599": "nginx (pid 3)"}}}
    found = errors(planned({**ENTRY, "tensor_parallel_size": 2}, **busy))
    needs = f"needs ports 29500 to 29599, and {port} is taken by nginx (pid 3)"
    text = f"gaudi02: model big: cluster_port 29500 (default): {needs}"
    assert any(one.startswith(text) for one in found), found
    assert any("(and 1 more are)" in one for one in found) is (port != 29599)
    assert errors(planned({**ENTRY, "tensor_parallel_size": 2}, gaudi02={"ports": {"29600": "nginx (pid 3)"}})) == []


@pytest.mark.parametrize(
    ("tensors", "stages", "text"),
    [
        # Three cards a host: the second stage has one of each.
        (2, 3, "tensor_parallel_size 2 on hosts with 3 cards each: 2 (gaudi01, gaudi02) of the 3 stages cross hosts"),
        (2, 3, "tensor_parallel_size 1 with pipeline_parallel_size 6 keeps each on one host"),
        (4, 1, "tensor_parallel_size 4 crosses hosts: every layer waits for the network between them"),
        (2, 2, ""),
        (1, 4, ""),
    ],
)
def test_stages_that_cross_hosts_are_named(tensors: int, stages: int, text: str) -> None:
    cards = [
        {**host_of("cuda")["modules"][0], "module_id": number, "device_id": f"GPU-{number}"} for number in range(4)
    ]
    for number, card in enumerate(cards):
        card["index"] = number
    facts = {host: {"modules": copy.deepcopy(cards)} for host in HOSTS}
    entry = {**ENTRY, "tensor_parallel_size": tensors, "pipeline_parallel_size": stages}
    config = {**TINY, "num_hidden_layers": 12}
    for one in facts.values():
        one["weights"] = {"/m": {"config": config, "bytes": 6_000_000}}
    plan = planned(entry, platform="cuda", **facts)
    assert plan["errors"] == []
    found = [one for one in plan["warnings"] if "cross" in one]
    assert [text in one for one in found] == ([True] * len(HOSTS) if text else []), plan["warnings"]


def test_a_stage_that_spans_whole_hosts_is_named_too() -> None:
    spec = parts(planned({**ENTRY, "tensor_parallel_size": 4}, platform="cuda"))[0]
    assert spec["module_ids"] == [0, 1]
    four = Spec(
        {"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "hosts": {"names": ["a", "b", "c", "d"], "rank": 0}}
    )
    text = crossing(four, ["a", "b", "c", "d"])
    assert "1 (a, b), 2 (c, d) of the 2 stages cross hosts" in text
    assert "tensor_parallel_size 2 with pipeline_parallel_size 4 keeps each on one host" in text


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (
            {"offset_s": 0.4},
            {"offset_s": 12.6},
            "the clock of gaudi02 is 12 s ahead of that of gaudi01, more than 10 s",
        ),
        (
            {"offset_s": 9.0},
            {"offset_s": -3.0},
            "the clock of gaudi01 is 12 s ahead of that of gaudi02, more than 10 s",
        ),
        ({"offset_s": 300.0}, {"offset_s": 302.0}, ""),
        ({"offset_s": 300.0}, {"offset_s": None}, ""),
        ({"synchronized": True}, {"synchronized": False}, "the clock of gaudi02 is not synchronized (timedatectl)"),
        ({}, {"synchronized": None}, ""),
    ],
)
def test_clocks_that_differ_are_warned_of(first: dict[str, Any], second: dict[str, Any], text: str) -> None:
    plan = planned({**ENTRY, "tensor_parallel_size": 2}, gaudi01={"clock": first}, gaudi02={"clock": second})
    assert plan["errors"] == []
    found = [one for one in plan["warnings"] if "clock" in one]
    assert [text in one for one in found] == ([True] * len(HOSTS) if text else []), found


def test_a_host_knows_how_far_its_clock_is_from_the_controllers() -> None:
    now = time.time()
    found = clock(now - 100)
    assert 100 <= found["offset_s"] < 160 and found["synchronized"] in (True, False)
    assert clock(None)["offset_s"] is None


def test_status_counts_the_restarts_of_a_group_at_its_head() -> None:
    variables = serving(planned({**ENTRY, "tensor_parallel_size": 2}))
    for host, restarts in (("gaudi01", 2), ("gaudi02", 5)):
        variables[host] |= {"vllm_service_status": [], "vllm_service_health": {"big": ""}}
        ended = {"reason": "group", "text": f"{host}: the server ended with status 137", "at": 1_700_000_000}
        variables[host]["gaudi_services"]["units"]["big"] |= {"restarts": restarts, "ended": ended}
    status = fleet_status(variables, HOSTS)
    assert [status["hosts"][host]["models"][0]["restarts"] for host in HOSTS] == [2, 2]
    notes = [one for one in fleet_status_lines(status) if "restart" in one]
    assert notes == [
        "gaudi01: model big: 2 restarts since its unit was started; last at 2023-11-14 22:13 UTC: gaudi01: the server "
        "ended with status 137"
    ]
    # Its head was not read: each host reports its own.
    alone = fleet_status(variables, HOSTS[1:])
    assert alone["hosts"]["gaudi02"]["models"][0]["restarts"] == 5
