"""The plan: what it makes of a wish, and the exact sentence for everything that is wrong."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from gaudi_serve.plan import model_weights, start_timeout, vllm_plan, warmup_seconds

QWQ = {"num_attention_heads": 40, "num_key_value_heads": 8, "max_position_embeddings": 40960}


def gaudi_host(**more: Any) -> dict[str, Any]:
    """Return eight idle cards on two NUMA nodes, with the weights of one model."""
    modules = [
        {
            "module_id": number,
            "index": 7 - number,
            "in_use": False,
            "cpus": ["0-39", "80-119"] if number < 4 else ["40-79", "120-159"],
            "numa_node": number // 4,
        }
        for number in range(8)
    ]
    host = {"accelerator": "gaudi", "device_name": "HL-225", "ip": "10.0.0.1", "interface": "eth0", "modules": modules}
    weights = {"/data/QwQ-32B": {"config": QWQ, "bytes": 65_000_000_000}}
    return {**host, "services": {}, "ports": {}, "weights": weights, **more}


def model(**more: Any) -> dict[str, Any]:
    """Return a model that fits the host above."""
    base = {"name": "qwq", "weights": "/data/QwQ-32B", "image": "vllm:1", "tensor_parallel_size": 2}
    lengths = {"input_range": [800, 4096], "output_range": [800, 2048], "max_model_len": 8192}
    return {**base, **lengths, "max_num_batched_tokens": 8192, **more}


def planned(*models: Any, **host: Any) -> dict[str, Any]:
    """Plan models on the host above."""
    return vllm_plan(list(models), gaudi_host(**host), host_name="gaudi01")


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
    assert (one["buckets"], one["graphs"]) == ({"prompt": 94, "decode": 221, "omitted": 176}, 315)
    assert one["warmup_s"] == pytest.approx(315 * 0.68 * (32.5 / 8) ** 0.54, abs=1)


def test_warmup_meets_the_two_measured_ones() -> None:
    assert warmup_seconds(72, 16_000_000_000) == 49
    assert warmup_seconds(271, 144_000_000_000) == pytest.approx(600, rel=0.02)
    assert start_timeout(600, 144_000_000_000) == 600 + 2400 + 720


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
    assert one["cap_add"] == ["SYS_NICE", "SYS_PTRACE", "IPC_LOCK"]
    assert one["ulimits"] == ["memlock=-1:-1"]
    assert "--quantization" not in one["args"]
    assert (one["host"], one["port"]) == ("127.0.0.1", 8688)
    for wrong, message in (
        ({"max_model_len": 40000}, "max_model_len: 40000 is above 32768, the most of one host"),
        ({"quantization": "awq"}, "quantization: 'awq' is not inc, the only one here"),
    ):
        errors = vllm_plan([{**spec, **wrong}], gaudi_host())["errors"]
        assert message in errors[0]["message"]
    other = vllm_plan([spec], gaudi_host(device_name="HL-325L"))["errors"]
    assert "deepseek_r1 knows HL-225*, HL-288*, not HL-325L" in other[0]["message"]


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


BAD: list[tuple[list[Any], dict[str, Any], list[str]]] = [
    (
        [model(max_num_seq=8)],
        {},
        [
            "gaudi01: model qwq: max_num_seq 8: is neither a key of this toolkit nor an option of vLLM; "
            "did you mean max_num_seqs or max_num_active_seqs or max_num_prefill_seqs?"
        ],
    ),
    (
        [model(), model(port=2)],
        {},
        ["gaudi01: model qwq: name 'qwq': belongs to model qwq already"],
    ),
    (
        [model(), model(name="b")],
        {},
        ["gaudi01: model b: port 30001: belongs to model qwq already; 30002 is free"],
    ),
    (
        [model(module_ids=[0, 1]), model(name="b", port=2, module_ids=[1, 2])],
        {},
        ["gaudi01: model b: module_ids [1, 2]: card 1 belongs to model qwq already"],
    ),
    (
        [model(tensor_parallel_size=8), model(name="b", port=2)],
        {},
        [
            "gaudi01: model b: tensor_parallel_size 2: this host has 8 cards, 0 of them free (held: 0: qwq, "
            "1: qwq, 2: qwq, 3: qwq, 4: qwq, 5: qwq, 6: qwq, 7: qwq)"
        ],
    ),
    (
        [model(module_ids=[6, 9])],
        {},
        ["gaudi01: model qwq: module_ids [9]: not on this host, which has [0, 1, 2, 3, 4, 5, 6, 7]"],
    ),
    (
        [model(module_ids=[0], tensor_parallel_size=2)],
        {},
        ["gaudi01: model qwq: module_ids [0]: are 1 cards, but tensor_parallel_size is 2"],
    ),
    (
        [model()],
        {"weights": {"/data/QwQ-32B": None}},
        [
            "gaudi01: model qwq: weights '/data/QwQ-32B': holds no readable config.json on this host; "
            "put the model there first"
        ],
    ),
    (
        [model()],
        {"ports": {"30001": "nginx (pid 12)"}},
        ["gaudi01: model qwq: port 30001: is taken on this host by nginx (pid 12); end it or choose another port"],
    ),
    (
        [model(tensor_parallel_size=3)],
        {},
        [
            "gaudi01: model qwq: tensor_parallel_size 3: does not divide the 40 attention heads; "
            "possible: [1, 2, 4, 5, 8]"
        ],
    ),
    (
        [model(tensor_parallel_size=10)],
        {},
        ["gaudi01: model qwq: tensor_parallel_size 10: is above the model's 8 key-value heads"],
    ),
    (
        [model(max_model_len=65536)],
        {},
        ["gaudi01: model qwq: max_model_len 65536: is above 40960, the model's max_position_embeddings"],
    ),
    (
        [model(port="30001")],
        {},
        ["gaudi01: model qwq: port '30001': a whole number from 1 to 65535"],
    ),
    (
        [model(name="Bad Name;rm -rf /")],
        {},
        [
            "gaudi01: model Bad Name;rm -rf /: name 'Bad Name;rm -rf /': 1 to 63 small letters, digits, dots, "
            "dashes and underscores, a letter or digit first"
        ],
    ),
    (
        [model(env={"HF_TOKEN": "hf_123"})],
        {},
        [
            "gaudi01: model qwq: env (hidden): no secrets: HF_TOKEN belongs in vllm_secrets, "
            "which is kept out of files others can read"
        ],
    ),
    (
        [model(api_key="s3cret")],
        {},
        ["gaudi01: model qwq: api_key (hidden): not here: a secret belongs in vllm_secrets as VLLM_API_KEY"],
    ),
    (
        [model(skip_warmup="no"), "qwq"],
        {},
        [
            "gaudi01: model qwq: skip_warmup 'no': true or false",
            "gaudi01: model ?: vllm_models 'qwq': a mapping a model, such as {name: qwq-32b, weights: /data/QwQ-32B}",
        ],
    ),
    (
        [model(hf_token="s3cret")],
        {},
        ["gaudi01: model qwq: hf_token (hidden): not here: a secret belongs in vllm_secrets as HF_TOKEN"],
    ),
    (
        [model(enforce_eager="false")],
        {},
        ["gaudi01: model qwq: enforce_eager 'false': true or false without quotes"],
    ),
    (
        [model(name="docker-proxy")],
        {},
        [
            "gaudi01: model docker-proxy: name 'docker-proxy': another name: docker-proxy and images are "
            "the toolkit's own"
        ],
    ),
    (
        [model(mounts=[{"source": "/a", "target": "/b", "read_only": "false"}])],
        {},
        [
            "gaudi01: model qwq: mounts [{'source': '/a', 'target': '/b', 'read_only': 'false'}]: "
            "a list of {source: /path, target: /path, read_only: true}"
        ],
    ),
    (
        [model(module_ids=[0, 1])],
        {"accelerator": "cpu"},
        [
            "gaudi01: model qwq: module_ids [0, 1]: are Gaudi cards, of which this CPU host has none",
        ],
    ),
    (
        [model(launch_profile="aice_1_21")],
        {"accelerator": "cpu"},
        ["gaudi01: model qwq: launch_profile 'aice_1_21': needs Gaudi cards; a CPU host takes vllm"],
    ),
    (
        [model()],
        {"weights": {"/data/QwQ-32B": {"config": QWQ, "bytes": 0}}},
        [
            "gaudi01: model qwq: weights '/data/QwQ-32B': holds no *.safetensors files on this host; "
            "is the download complete?"
        ],
    ),
    (
        [model(model=["qwq"])],
        {},
        ["gaudi01: model qwq: model ['qwq']: is not in the catalog, which has nothing"],
    ),
    (
        [model(port=65535), model(name="b", port=65535)],
        {},
        ["gaudi01: model b: port 65535: belongs to model qwq already; 30001 is free"],
    ),
    (
        [model(model="qwen9")],
        {},
        ["gaudi01: model qwq: model 'qwen9': is not in the catalog, which has nothing"],
    ),
    (
        [{"image": "i"}],
        {},
        [
            "gaudi01: model ?: name: is required; 1 to 63 small letters, digits, dots, dashes and underscores, "
            "a letter or digit first",
            "gaudi01: model ?: weights: is required; an absolute path of letters, digits and . _ - / @ +",
        ],
    ),
    (
        [{key: value for key, value in model().items() if key != "image"}],
        {},
        ["gaudi01: model qwq: image: is required: the serving image, here or as vllm_model_defaults.image"],
    ),
]


@pytest.mark.parametrize(("models", "host", "messages"), BAD)
def test_bad_input_is_refused_with_this_sentence(models: Any, host: Any, messages: list[str]) -> None:
    plan = planned(*copy.deepcopy(models), **host)
    assert [error["message"] for error in plan["errors"]] == messages
    assert "s3cret" not in str(plan)
    assert "hf_123" not in str(plan)
    for error in plan["errors"]:
        assert set(error) == {"host", "model", "key", "value", "allowed", "message"}


def test_card_held_by_a_stranger_is_named() -> None:
    host = gaudi_host()
    host["modules"][1].update(in_use=True, held_by="python3 (pid 4711)")
    plan = vllm_plan([model(module_ids=[0, 1])], host, host_name="gaudi01")
    assert plan["errors"][0]["message"] == (
        "gaudi01: model qwq: module_ids [0, 1]: card 1 is held by python3 (pid 4711); end it or take another card"
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


def test_weights_are_listed_whatever_else_is_wrong() -> None:
    models = [{"model": "x"}, {"weights": "/b"}, 7, {"model": ["x"]}]
    assert model_weights(models, {"x": {"weights": "/a"}}, {}) == ["/a", "/b"]
    assert model_weights("nonsense", {}, {}) == []


def test_models_that_are_no_list() -> None:
    plan = vllm_plan({"name": "a"}, gaudi_host(), host_name="gaudi01")
    assert plan["errors"][0]["message"] == "gaudi01: model ?: vllm_models {'name': 'a'}: must be a list of models"
