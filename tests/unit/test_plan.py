"""The plan: what it makes of a request, and the exact sentence for everything that is wrong."""

from __future__ import annotations

import copy
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml
from gaudi_serve.awx.settings import awx_models
from gaudi_serve.catalog.files import model_catalog
from gaudi_serve.catalog.merge import model_weights
from gaudi_serve.model.distributed import host_models
from gaudi_serve.plan.cost import start_timeout
from gaudi_serve.plan.host import vllm_plan
from gaudi_serve.plan.launch import vllm_launch
from gaudi_serve.platforms import PLATFORMS
from gaudi_serve.stages.launch_view import differences, launch_view
from helpers.plans import gaudi_host, model, planned

BUCKETS = {"prompt": 94, "decode": 221, "omitted": 176}


def test_a_good_model_gets_everything_a_launch_needs() -> None:
    plan = planned(model(recipe_cache_path="/data/cache", env={"MY_FLAG": 1}, enable_auto_tool_choice=True))
    assert plan["errors"] == []
    (one,) = plan["models"]
    cache = "/data/cache/qwq/1.21.3-bfloat16-HL-225"
    assert one["module_ids"] == [0, 1]
    assert one["env"]["HABANA_VISIBLE_MODULES"] == "0,1"
    assert one["env"]["MY_FLAG"] == "1"
    assert one["env"]["OMPI_MCA_btl_vader_single_copy_mechanism"] == "none"
    assert one["env"]["PT_HPU_RECIPE_CACHE_CONFIG"] == f"{cache},false,16384"
    assert one["args"][-3:] == ["--enable-auto-tool-choice", "--served-model-name", "qwq"]
    assert one["numactl"] == ["-C", "0-9,10-19", "-p", "0"]
    assert {"source": "/data/QwQ-32B", "target": "/data/QwQ-32B", "read_only": True} in one["mounts"]
    assert {"source": cache, "target": cache, "read_only": False} in one["mounts"]
    assert (one["buckets"], one["graphs"]) == ({**BUCKETS, "approximate": False}, 315)
    # 64 layers on two cards.
    assert one["warmup_s"] == pytest.approx(315 * 0.68 * 2 * 1.15, rel=0.01)
    assert one["start_timeout_s"] == start_timeout(one["warmup_s"], 65_000_000_000)
    assert one["cpus"] == ["0-9", "10-19"]
    assert one["memory"] == {
        "device_gib": 96,
        "reserved_gib": 2.5,
        "weights_gib": 30.3,
        "graphs_gib": 11.4,
        "kv_cache_gib": 45.5,
        "left_gib": 6.3,
        "num_hpu_blocks": 2816,
        "kv_tokens": 360448,
        "sequences": 44,
        "fits": True,
        "short_by_gib": 0.0,
        "suggestions": [],
    }


def test_cpu_host_takes_plain_vllm() -> None:
    host = {"accelerator": "cpu", "modules": [], "services": {}, "ports": {}, "weights": {}}
    plan = vllm_plan([{"name": "tiny", "weights": "/m/tiny", "image": "i", "enforce_eager": True}], host)
    (one,) = plan["models"]
    assert one["launch_profile"] == "vllm"
    assert one["args"][0] == "/m/tiny"
    assert "--enforce-eager" in one["args"]
    assert one["args"][one["args"].index("--host") + 1] == "127.0.0.1"
    assert (one["runtime"], one["module_ids"], one["numactl"]) == (None, [], None)


def test_fp8_profile_takes_the_whole_box_with_the_manuals_limits() -> None:
    spec = {"name": "r1", "weights": "/data/R1-G2", "image": "i", "launch_profile": "deepseek_r1"}
    plan = vllm_plan([{**spec, "quantization": "inc"}], gaudi_host())
    assert plan["errors"] == []
    (one,) = plan["models"]
    assert one["module_ids"] == list(range(8))
    assert one["cap_add"] == ["DAC_OVERRIDE", "IPC_LOCK", "SYS_NICE", "SYS_PTRACE"]
    assert one["ulimits"] == ["memlock=-1:-1"]
    assert "--quantization" not in one["args"]
    assert (one["host"], one["port"]) == ("127.0.0.1", 8688)
    for wrong, message in (
        ({"max_model_len": 40000}, "max_model_len 40000: is above 32768, the most for one host"),
        ({"quantization": "awq"}, "quantization 'awq': is not inc, the only one allowed here"),
    ):
        errors = vllm_plan([{**spec, **wrong}], gaudi_host())["errors"]
        assert message in errors[0]["message"]
    # The supervisor gives the container its cards, once: the runtime takes the first of two and knows no ALL.
    assert "HABANA_VISIBLE_DEVICES" not in one["env"]
    assert vllm_launch({**spec, "tensor_parallel_size": 8}, gaudi_host())["env"]["HABANA_VISIBLE_DEVICES"] == "ALL"
    other = vllm_plan([spec], gaudi_host(device_name="HL-325L"))["errors"]
    assert "is made for HL-225*, HL-288*, and this host has HL-325L" in other[0]["message"]


def test_digest_follows_what_a_server_depends_on_and_nothing_else() -> None:
    (one,), (same,), (other,) = (
        planned(item)["models"] for item in (model(), model(start_timeout_s=9), model(max_num_seqs=8))
    )
    assert one["digest"] == same["digest"] != other["digest"]


def test_a_running_model_keeps_its_cards_when_another_comes() -> None:
    services = {"qwq": {"module_ids": [2, 3], "port": 30001, "digest": "x", "active": True}}
    host = gaudi_host(services=services, ports={"30001": "python3 (pid 5)"})
    for number in (2, 3):
        host["modules"][number].update(in_use=True, held_by="python3 (pid 5)")
    plan = vllm_plan([model(name="new", port=30002), model()], host)
    assert plan["errors"] == []
    cards = {item["name"]: item["module_ids"] for item in plan["models"]}
    assert cards["qwq"] == [2, 3]
    assert not set(cards["new"]) & {2, 3}


def test_a_model_that_warms_up_holds_its_own_cards_and_port() -> None:
    services = {"qwq": {"module_ids": [2, 3], "port": 30001, "digest": "x", "active": False, "holds": True}}
    host = gaudi_host(services=services, ports={"30001": "python3 (pid 5)"})
    for number in (2, 3):
        host["modules"][number].update(in_use=True, held_by="python3 (pid 5)")
    plan = vllm_plan([model()], host)
    assert plan["errors"] == []
    assert plan["models"][0]["module_ids"] == [2, 3]
    # Stopped since, and another program there.
    services["qwq"]["holds"] = False
    assert {error["key"] for error in vllm_plan([model()], host)["errors"]} == {"port"}


def test_models_without_cards_fill_one_numa_node_where_they_fit() -> None:
    plan = planned(model(name="a", tensor_parallel_size=1), model(name="b", port=2, tensor_parallel_size=4))
    cards = {item["name"]: item["module_ids"] for item in plan["models"]}
    assert cards == {"a": [0], "b": [4, 5, 6, 7]}


CASES = yaml.safe_load((Path(__file__).parent / "errors.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["messages"][0][:60])
def test_bad_input_is_refused_with_this_sentence(case: dict[str, Any]) -> None:
    models = [item["raw"] if "raw" in item else model(**item) for item in case["models"]]
    host, release = gaudi_host(**case.get("host", {})), case.get("release", "1.21.3")
    plan = vllm_plan(copy.deepcopy(models), host, host_name="gaudi01", release=release)
    assert [error["message"] for error in plan["errors"]] == case["messages"]
    assert "s3cret" not in str(plan)
    assert "hf_123" not in str(plan)
    for error in plan["errors"]:
        assert set(error) == {"host", "model", "key", "value", "allowed", "message"}


def test_card_held_by_a_foreign_program_is_named() -> None:
    host = gaudi_host()
    host["modules"][1].update(in_use=True, held_by="python3 (pid 4711)")
    plan = vllm_plan([model(module_ids=[0, 1])], host, host_name="gaudi01")
    assert plan["errors"][0]["message"] == (
        "gaudi01: model qwq: module_ids [0, 1]: card 1 is used by python3 (pid 4711); end it or choose another card"
    )


def test_all_mistakes_of_all_models_come_at_once() -> None:
    plan = planned(model(port=0, dtype="int8"), model(name="b", foo=1))
    assert len(plan["errors"]) == 3
    assert plan["models"] == []


def test_catalog_entry_is_taken_and_overridden() -> None:
    catalog = {"qwq-32b": model(max_num_seqs=16)}
    (one,) = vllm_plan([{"name": "mine", "model": "qwq-32b", "port": 9}], gaudi_host(), catalog)["models"]
    assert (one["name"], one["port"]) == ("mine", 9)
    assert one["args"][one["args"].index("--max-num-seqs") + 1] == "16"


def test_a_model_without_a_name_has_that_of_its_catalog_entry() -> None:
    catalog = {"qwq-32b": {key: value for key, value in model().items() if key != "name"}}
    (one,) = vllm_plan([{"model": "qwq-32b"}], gaudi_host(), catalog)["models"]
    assert (one["name"], one["served_model_name"]) == ("qwq-32b", "qwq-32b")
    assert host_models([{"model": "x"}], [], "a") == [{"model": "x", "name": "x"}]
    (part,) = host_models(None, [{"model": "x", "hosts": ["a", "b"]}], "a", {"x": ["b", "a"]})
    assert (part["name"], part["hosts"]) == ("x", {"names": ["b", "a"], "rank": 1})
    assert awx_models([[{"model": "x"}, {"name": "y", "model": "x"}]]) == ["x", "y"]
    (error,) = vllm_plan([{"model": "QWQ"}], gaudi_host(), catalog, host_name="a")["errors"]
    assert error["message"].startswith("a: model QWQ: model 'QWQ': is not in the catalog")


def test_a_time_limit_below_the_estimated_start_is_warned_of() -> None:
    usual = planned(model())["models"][0]
    seconds = round(65e9 / 1.5e9) + usual["warmup_s"]
    text = (
        f"gaudi01: model qwq: start_timeout_s 60 is below the estimated start of {seconds} s, which reads 60 GiB of "
        "weights and warms up: systemd ends the server before it answers"
    )
    assert text in planned(model(start_timeout_s=60))["warnings"]
    for limit in ({}, {"start_timeout_s": seconds + 1}):
        assert not [one for one in planned(model(**limit))["warnings"] if "start_timeout_s" in one]


def test_of_a_hybrid_the_plan_reports_what_it_does_not_know() -> None:
    host = gaudi_host(device_name="HL-325L", weights={})
    wish = {"name": "m", "model": "qwen3-0.6b", "image": "vllm:1"}
    catalog = model_catalog([], builtin=True)
    hybrid = {**catalog["qwen3-0.6b"]["config"], "full_attention_interval": 4}
    sentence = "21 of its 28 layers store a state instead of a KV cache; memory is estimated as if all had a cache"
    for config, told in ((hybrid, True), (catalog["qwen3-0.6b"]["config"], False)):
        plan = vllm_plan([{**wish, "config": config}], host, catalog, host_name="g", release="1.24.1")
        assert plan["errors"] == []
        assert any(sentence in text for text in plan["warnings"]) is told


def test_graphs_of_a_hybrid_that_need_more_memory_than_is_kept_are_warned_of() -> None:
    host = gaudi_host(device_name="HL-325L", weights={})
    entry = {"name": "m", "model": "qwen3.6-35b-a3b", "image": "vllm:1", "tensor_parallel_size": 4}
    catalog, keep = model_catalog([], builtin=True), "VLLM_GRAPH_RESERVED_MEM"

    def warning(**more: Any) -> str:
        plan = vllm_plan([{**entry, **more}], host, catalog, release="1.24.1")
        assert plan["errors"] == []
        return " ".join(one for one in plan["models"][0]["warnings"] if keep in one)

    long = {"max_model_len": 262144, "max_num_seqs": 256, "warmup_budget_minutes": 600}
    said = re.search(r"warm-up of (\d+) graphs .* can need (\d+) to (\d+) GiB .* set it to ([\d.]+)", warning(**long))
    assert said
    assert (int(said[2]), int(said[3])) == (round(int(said[1]) / 15), round(int(said[1]) / 10))
    assert not warning(**long, env={keep: said[4]})
    assert not warning(max_model_len=4096, max_num_seqs=8)


def test_environments_are_merged_variable_by_variable() -> None:
    catalog = {"x": model(env={"A": "1", "B": "2"})}
    wish = {"name": "mine", "model": "x", "env": {"B": "3"}}
    (one,) = vllm_plan([wish], gaudi_host(), catalog, defaults={"env": {"C": "4"}})["models"]
    assert {name: one["env"][name] for name in "ABC"} == {"A": "1", "B": "3", "C": "4"}


def test_weights_are_listed_whatever_else_is_wrong() -> None:
    models = [{"model": "x"}, {"weights": "/b"}, 7, {"model": ["x"]}]
    assert model_weights(models, {"x": {"weights": "/a"}}, {}) == ["/a", "/b"]
    assert model_weights("nonsense", {}, {}) == []


def test_models_that_are_no_list() -> None:
    plan = vllm_plan({"name": "a"}, gaudi_host(), host_name="gaudi01")
    assert plan["errors"][0]["message"] == 'gaudi01: model ?: vllm_models {"name": "a"}: must be a list of models'


def test_weights_with_a_source_need_only_be_there_where_no_stage_fetches_them() -> None:
    host = gaudi_host(weights={"/data/QwQ-32B": None})
    wish = model(source={"kind": "path", "path": "/mnt/QwQ-32B"})
    assert vllm_plan([wish], host)["errors"] == []
    (error,) = vllm_plan([wish], host, weights_come=False)["errors"]
    assert error["message"].endswith("on this host; playbooks/weights.yml fetches it from its source")


@pytest.mark.parametrize(
    ("given", "profile", "had", "used"),
    [
        ({"seed": 7}, "aice_1_21", "'0'", "'7'"),
        ({"seed": 0}, "aice_1_21", "", ""),
        ({"distributed_executor_backend": "ray"}, "aice_1_21", "'mp'", "'ray'"),
        ({"trust_remote_code": False}, "aice_1_21", "'true'", "'false'"),
        ({"disable_log_requests": True}, "aice_1_21", "", ""),
    ],
)
def test_an_option_that_profile_and_model_set_is_warned_of_with_the_one_in_force(
    given: dict[str, Any], profile: str, had: str, used: str
) -> None:
    plan = planned(model(launch_profile=profile, **given))
    assert plan["errors"] == []
    name = f"--{next(iter(given)).replace('_', '-')}"
    told = f"{name} is passed twice: the launch of profile {profile} has {had}, the model {used}; vLLM takes the last, "
    found = [text for text in plan["warnings"] if "passed twice" in text]
    assert [text for text in found if f"{told}{used}" in text] == found and len(found) == bool(had), plan["warnings"]


def test_options_are_those_of_the_release() -> None:
    wish = model(all2all_backend="naive")
    (error,) = vllm_plan([wish], gaudi_host(), host_name="g")["errors"]
    assert error["message"] == ("g: model qwq: all2all_backend 'naive': is not an option of the vLLM of release 1.21.3")
    assert vllm_plan([wish], gaudi_host(), release="1.23.0")["errors"] == []
    assert vllm_plan([model(override_pooler_config={"pooling_type": "MEAN"})], gaudi_host())["errors"] == []


def test_an_option_that_came_after_the_fork_is_none_of_its_releases() -> None:
    # The fork's parser stops at it, minutes after its model was taken down for the change.
    fork, current = PLATFORMS["gaudi"].options("1.21.3"), PLATFORMS["gaudi"].options("1.24.1")
    assert not {"async_scheduling", "kv_cache_memory_bytes", "runner", "stream_interval"} & fork
    assert {"async_scheduling", "runner", "stream_interval"} <= current
    assert {"enable_lora_bias", "split_qkv"} <= fork


def test_the_servers_stand_in_takes_the_options_of_its_release() -> None:
    folder = Path(__file__).parents[2] / "molecule/shared/standins/serving/vllm/standin/options.py"
    values = runpy.run_path(str(folder))
    groups = ("FLAGS", "INTEGERS", "NUMBERS", "TEXTS", "DOCUMENTS")
    taken = {word.replace("-", "_") for name in groups for word in values[name].split()}
    assert taken - {"model", "config", "api_key", "hf_token"} == PLATFORMS["gaudi"].options("1.21.3")


@pytest.mark.parametrize(
    "own",
    [
        {"ssl_keyfile_password": "s3cret"},
        {"apikey": "s3cret"},
        {"Api-Key": ["s3cret"]},
        {"my_tokens": {"a": "s3cret"}},
        {"env": {"HTTPS_PROXY": "http://ops:s3cret@proxy.example:3128"}},
        {"env": {"INDEX": "https://s3cret@pip.example/simple"}},
        {"env": {"INDEX": "https://ops:s3/cret@pip.example/simple"}},
    ],
)
def test_what_looks_like_a_secret_is_refused_unseen(own: dict[str, Any]) -> None:
    (error,) = planned(model(**own))["errors"]
    assert "(hidden): " in error["message"]
    assert "s3cret" not in str(error)


def test_addresses_without_a_password_are_good_in_an_environment() -> None:
    env = {
        "HTTPS_PROXY": "http://proxy.example:3128",
        "A": "ops@example.net",
        "B": "https://a.example:80/x@1",
        "C": "a:b",
    }
    assert planned(model(env=env))["errors"] == []


def test_an_option_that_stands_twice_reports_which_value_counts() -> None:
    once = {"image": "x", "command": ["vllm", "serve", "/m", "--seed", "0"]}
    twice = {**once, "command": [*once["command"], "--seed", "7"]}
    assert differences(launch_view(once, {}), launch_view(twice, {})) == ["~ --seed: 0 -> 0, then 7 (the last counts)"]
