"""LoRA adapters: the options that a plan makes of them, what it refuses, their memory, and where their names appear."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.bundle.host import BundleHost
from gaudi_serve.bundle.weights import sources_of
from gaudi_serve.catalog.keys import findings
from gaudi_serve.catalog.merge import adapter_names, model_weights
from gaudi_serve.core.errors import InputError
from gaudi_serve.core.table import model_cell
from gaudi_serve.host.observe_host import weights_read
from gaudi_serve.host.observe_weights import observe
from gaudi_serve.host.smoke import Unhealthy, ask, health
from gaudi_serve.memory.adapters import adapters_gib
from gaudi_serve.model.adapters import ranks_of
from gaudi_serve.model.architecture import Architecture
from gaudi_serve.model.fetches import offline_problems
from gaudi_serve.model.spec import Spec
from gaudi_serve.plan.host import vllm_plan
from gaudi_serve.plan.launch import vllm_launch
from gaudi_serve.stages.weights import weights_refusal, weights_sources
from helpers.plans import gaudi_host, model

QWEN3_8B = {
    **{"model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 4096, "intermediate_size": 12288},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936},
    **{"max_position_embeddings": 40960, "torch_dtype": "bfloat16"},
}
CONFIG = {
    "peft_type": "LORA",
    "r": 20,
    "lora_alpha": 40,
    "target_modules": ["q_proj", "v_proj"],
    "base_model_name_or_path": "Qwen/q",
}
HUB = {"kind": "hub", "repo": "team/sql", "revision": "0123456789" * 4}
SQL, LAW = {"name": "sql", "folder": "/data/sql"}, {"name": "law", "folder": "/data/law"}


def here(**config: Any) -> dict[str, Any]:
    """Return the facts of an adapter's folder."""
    return {"config": {}, "bytes": 10**7, "damaged": [], "adapter": {**CONFIG, **config}}


def plan(*models: dict[str, Any], weights: dict[str, Any] | None = None, **host: Any) -> dict[str, Any]:
    """Return the plan of models of eight billion parameters on a machine with two H100."""
    card = {"name": "NVIDIA H100 80GB HBM3", "memory_mib": 81559, "capability": "9.0", "numa_node": 0, "cpus": ["0-15"]}
    cards = [{**card, "module_id": number, "index": number, "device_id": f"GPU-{number}"} for number in range(2)]
    facts = {"accelerator": "cuda", "device_name": card["name"], "driver_version": "580.95.05", "modules": cards}
    base = {"name": "q", "weights": "/data/q", "config": QWEN3_8B, "weight_bytes": 16_381_516_776, "port": 8000}
    found = {"/data/sql": here(), "/data/law": here(r=8)} if weights is None else weights
    image = {"image": "vllm/vllm-openai:v0.26.0"}
    return vllm_plan([{**base, **image, **one} for one in models], {**facts, "weights": found, **host}, host_name="g")


def said(result: dict[str, Any]) -> list[str]:
    """Return the messages of a plan's errors."""
    return [str(one["message"]) for one in result["errors"]]


def test_adapters_become_options_mounts_and_names() -> None:
    result = plan({"adapters": [SQL, LAW]})
    (one,) = result["models"]
    assert (result["errors"], result["warnings"]) == ([], [])
    args = " ".join(one["args"])
    assert (
        "--enable-lora " in args
        and "--lora-modules sql=/data/sql law=/data/law --max-lora-rank 32 --max-loras 2" in args
    )
    mounts = [{"source": path, "target": path, "read_only": True} for path in ("/data/sql", "/data/law")]
    assert [mount for mount in one["mounts"] if mount in mounts] == mounts
    assert one["adapters"] == ["sql", "law"] and model_cell(one) == "q, sql, law"
    assert [each["served_model_name"] for each in one["served"]] == ["q"]


def test_a_model_without_adapters_has_the_launch_that_it_had() -> None:
    (one,) = plan({})["models"]
    assert not any("lora" in word for word in one["args"]) and "adapters" not in one
    (other,) = plan({"adapters": [SQL]})["models"]
    assert one["digest"] != other["digest"]
    by_hand = {"enable_lora": True, "lora_modules": ["sql=/data/sql"], "max_loras": 1, "max_lora_rank": 32}
    (same,) = plan({**by_hand, "mounts": [{"source": "/data/sql", "target": "/data/sql"}]})["models"]
    assert (same["args"], same["adapters"]) == (other["args"], ["sql"])


@pytest.mark.parametrize(
    ("rank", "image", "least"),
    [(1, "v0.26.0", 1), (1, "v0.11.0", 8), (1, "nightly", 8), (65, "v0.26.0", 128), (257, "v0.26.0", 320)],
)
def test_the_rank_is_the_smallest_that_the_release_allows(rank: int, image: str, least: int) -> None:
    result = plan({"adapters": [SQL], "image": f"vllm/vllm-openai:{image}"}, weights={"/data/sql": here(r=rank)})
    assert result["errors"] == []
    assert f"--max-lora-rank {least}" in " ".join(result["models"][0]["args"])


def test_a_rank_of_some_layers_counts_too_and_what_a_user_sets_stays() -> None:
    facts = {"/data/sql": here(r=8, rank_pattern={"down_proj": 64})}
    (one,) = plan({"adapters": [SQL]}, weights=facts)["models"]
    assert "--max-lora-rank 64" in " ".join(one["args"])
    (one,) = plan({"adapters": [SQL, LAW], "max_lora_rank": 128, "max_loras": 1})["models"]
    assert "--max-lora-rank 128 --max-loras 1" in " ".join(one["args"])


def test_ranks_are_those_of_each_release() -> None:
    assert [max(ranks_of(one)) for one in ("0.7.3", "0.8.2", None)] == [256, 512, 512]
    assert [min(ranks_of(one)) for one in ("0.11.0", "0.11.1")] == [8, 1]


@pytest.mark.parametrize(
    ("config", "keys", "message"),
    [
        ({"use_dora": True}, {}, "adapters 'sql': its adapter_config.json has use_dora true, which vLLM does not load"),
        ({"modules_to_save": ["lm_head"]}, {}, 'has modules_to_save ["lm_head"], which vLLM does not load'),
        ({"bias": "all"}, {}, "has bias 'all', which vLLM does not load; train it without"),
        ({"peft_type": "IA3"}, {}, "has peft_type 'IA3', which vLLM does not load"),
        ({"lora_bias": True}, {}, "has lora_bias true, which vLLM does not load; train it without"),
        ({"use_qalora": True}, {}, "has use_qalora true, which vLLM does not load"),
        (
            {"layer_replication": [[0, 16], [8, 24]]},
            {},
            "has layer_replication [[0, 16], [8, 24]], which vLLM does not",
        ),
        ({"trainable_token_indices": {"embed_tokens": [7]}}, {}, "has trainable_token_indices {"),
        ({"r": 1024}, {}, "has rank r 1024, and this vLLM takes an integer up to 512"),
        ({"r": "16"}, {}, "has rank r '16', and this vLLM takes an integer up to 512"),
        (
            {},
            {"max_lora_rank": 16},
            "max_lora_rank 16: is below the rank of sql (20); leave it out, or set a larger one",
        ),
        ({}, {"max_lora_rank": 20}, "max_lora_rank 20: must be one of 1, 8, 16, 32, 64, 128, 256, 320, 512"),
        ({}, {"max_loras": 0}, "max_loras 0: must be an integer from 1: the adapters that a batch can use"),
        ({}, {"max_loras": 4, "max_cpu_loras": 2}, "max_cpu_loras 2: must be at least max_loras, which is 4"),
        ({}, {"lora_target_modules": ["q_proj"]}, "changes v_proj, which lora_target_modules leaves out"),
        ({}, {"enable_lora": False}, "enable_lora false: contradicts adapters, which needs it; leave it out"),
        ({}, {"lora_modules": ["a=/b"]}, "is set by adapters; write each of them there, with its folder"),
        (
            {},
            {"mounts": [{"source": "/x", "target": "/data/sql"}]},
            "is where the plan mounts the weights or an adapter",
        ),
    ],
)
def test_what_vllm_would_refuse_at_its_start_is_refused_before(
    config: dict[str, Any], keys: dict[str, Any], message: str
) -> None:
    errors = said(plan({"adapters": [SQL], **keys}, weights={"/data/sql": here(**config)}, files={"/x": True}))
    assert len(errors) == 1 and errors[0].startswith("g: model q: ") and message in errors[0]


def test_a_config_json_without_what_vllm_requires_is_refused() -> None:
    """Such as those of other libraries than PEFT."""
    config = {"peft_type": "LORA", "r": 8, "fine_tune_type": "lora"}
    (error,) = said(plan({"adapters": [SQL]}, weights={"/data/sql": {**here(), "adapter": config}}))
    assert error.endswith("its adapter_config.json has no lora_alpha and no target_modules, which vLLM requires")


@pytest.mark.parametrize(
    ("config", "note"),
    [
        ({"rank_pattern": {"down_proj": 64}}, "has rank_pattern, and vLLM scales all its layers by lora_alpha and r"),
        ({"alpha_pattern": {"q_proj": 64}}, "has alpha_pattern, and vLLM scales all its layers by lora_alpha and r"),
        ({"target_parameters": ["mlp.experts.down_proj"]}, "and vLLM ignores or refuses them for most models with"),
        ({"target_modules": ["lm_head", "q_proj"]}, "it changes lm_head: vLLM stops if its file also has the table"),
        ({"rank_pattern": {}, "alpha_pattern": {}, "target_parameters": None, "trainable_token_indices": None}, ""),
        ({"use_rslora": True, "layers_to_transform": [0, 1], "target_modules": "all-linear"}, ""),
        ({"target_modules": r"(?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:q_proj|v_proj).*?)"}, ""),
    ],
)
def test_what_vllm_computes_otherwise_is_a_warning(config: dict[str, Any], note: str) -> None:
    result = plan({"adapters": [SQL]}, weights={"/data/sql": here(**config)})
    assert result["errors"] == [] and len(result["warnings"]) == bool(note)
    assert all(note in text and "adapter sql: it" in text for text in result["warnings"])


@pytest.mark.parametrize(
    ("base", "weights", "warned"),
    [
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "/data/Llama-3.1-8B-Instruct", False),
        ("unsloth/qwen3-8b-unsloth-bnb-4bit", "/data/Qwen3-8B", False),
        ("/root/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/b968826d9c46", "/data/Qwen3-8B", False),
        ("unsloth/Qwen3-8B-unsloth-bnb-4bit", "/data/Qwen3-8B-AWQ", False),
        ("Qwen/Qwen3-8B", "/data/Qwen3-8B-AWQ", False),
        ("Qwen/Qwen3-14B-AWQ", "/data/Qwen3-8B-AWQ", True),
    ],
)
def test_a_quantised_copy_or_another_path_is_the_same_base(base: str, weights: str, warned: bool) -> None:
    facts = {"/data/sql": here(base_model_name_or_path=base)}
    result = plan({"adapters": [SQL], "weights": weights}, weights=facts)
    assert result["errors"] == [] and bool(result["warnings"]) == warned


def test_a_folder_that_is_not_there_is_fetched_or_refused() -> None:
    assert (
        "its folder /data/sql has no readable adapter_config.json on this host; put the adapter there first"
        in (said(plan({"adapters": [SQL]}, weights={"/data/sql": None}))[0])
    )
    fetched = plan({"adapters": [{**SQL, "source": HUB}]}, weights={"/data/sql": None})
    assert fetched["errors"] == []
    assert (
        "its rank is unknown until its folder is on the host; the plan uses max_lora_rank 16" in fetched["warnings"][0]
    )
    empty = plan({"adapters": [SQL]}, weights={"/data/sql": {**here(), "bytes": 0}})
    assert "has no adapter_model.safetensors on this host" in said(empty)[0]
    part = plan(
        {"adapters": [SQL]}, weights={"/data/sql": {**here(), "damaged": ["adapter_model.safetensors is empty"]}}
    )
    assert "is damaged: adapter_model.safetensors is empty. Copy these files again" in said(part)[0]


def test_an_adapter_of_another_model_is_a_warning_and_weights_that_are_one_are_refused() -> None:
    other = plan({"adapters": [SQL]}, weights={"/data/sql": here(base_model_name_or_path="meta/Llama-3-8B")})
    assert "adapter sql was trained on meta/Llama-3-8B" in other["warnings"][0]
    wrong = plan({}, weights={"/data/q": here()})
    assert "weights '/data/q': is a LoRA adapter, not a model; name it in adapters of its base model" in said(wrong)[0]


@pytest.mark.parametrize(
    ("value", "allowed"),
    [
        ([], "must be a list of {name: sql, folder: /data/adapters/sql, source: {...}}; source may be left out"),
        ([{"name": "sql"}], "must be a list of {name: sql"),
        ([{**SQL, "rank": 8}], "must be a list of {name: sql"),
        ([{**SQL, "name": "a=b"}], "must have names of letters, digits and ./:@+_-"),
        ([{**SQL, "folder": "sql"}], "must have a folder for sql, which must be an absolute path"),
        ([{**SQL, "source": {**HUB, "convert": "g2"}}], "must have a source for sql with only the keys"),
        ([SQL, {**LAW, "name": "sql"}], "has two adapters with the name sql"),
        ([SQL, {**LAW, "folder": "/data//sql"}], "has two adapters with the folder /data/sql"),
    ],
)
def test_the_key_is_checked(value: Any, allowed: str) -> None:
    (found,) = findings({"name": "q", "weights": "/data/q", "adapters": value})
    assert found[0] == "adapters" and found[2].startswith(allowed)


def test_no_adapter_has_the_name_of_a_model_or_of_another_models_adapter() -> None:
    two = {"name": "p", "port": 8001}
    assert (
        "adapters 'q': already belongs to model q; clients find a model by its name"
        in (said(plan({}, {**two, "adapters": [{**SQL, "name": "q"}]}))[0])
    )
    same = plan({"adapters": [SQL]}, {**two, "adapters": [{**LAW, "name": "sql"}]})
    assert "adapters 'sql': already belongs to an adapter of q" in said(same)[0]
    copies = plan({"adapters": [SQL]}, {**two, "served_model_name": "q", "adapters": [SQL]})
    assert copies["errors"] == []


def test_a_folder_is_read_with_its_rank_and_size(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(CONFIG), encoding="ascii")
    (tmp_path / "adapter_model.bin").write_bytes(b"12345")
    (found,) = weights_read([str(tmp_path)])[0].values()
    assert (found["config"], found["bytes"], found["adapter"]) == ({}, 5, CONFIG)
    assert observe([str(tmp_path)], "/nowhere")["folders"][str(tmp_path)]["config"] is True
    (tmp_path / "config.json").write_text("{}", encoding="ascii")
    assert weights_read([str(tmp_path)])[0][str(tmp_path)]["adapter"] == CONFIG
    (tmp_path / "adapter_config.json").write_text("{", encoding="ascii")
    assert weights_read([str(tmp_path)])[1][str(tmp_path)].startswith("adapter_config.json: line 1, column 2")


# ---- memory


def spec(**keys: Any) -> Spec:
    """Return a model with sixteen adapters at once."""
    given = {"enable_lora": True, "max_loras": 16, "max_lora_rank": 256, "tensor_parallel_size": 1}
    return Spec({"name": "q", "weights": "/w", **given, **keys})


def test_memory_of_adapters_is_counted_where_only_vllms_options_are_set() -> None:
    image, options = {"image": "vllm/vllm-openai:v0.11.0"}, {"max_loras": 16, "max_lora_rank": 256}
    (before,), (after,) = (plan({**image, **more})["models"] for more in ({}, {"enable_lora": True, **options}))
    assert after["memory"]["adapters_gib"] == 20.8
    assert after["memory"]["weights_gib"] - before["memory"]["weights_gib"] == pytest.approx(20.8, abs=0.1)
    assert before["memory"]["kv_cache_gib"] - after["memory"]["kv_cache_gib"] == pytest.approx(20.81, abs=0.1)
    assert "adapters_gib" not in before["memory"]
    # New releases count graphs, and capture them with and without adapters.
    (plain,), (lora,) = (plan(more)["models"] for more in ({}, {"enable_lora": True}))
    assert plain["memory"]["graphs_gib"] < lora["memory"]["graphs_gib"] <= 2 * plain["memory"]["graphs_gib"]


def test_matrices_are_split_as_vllm_splits_them() -> None:
    dense = Architecture.of(QWEN3_8B)
    one, two = (adapters_gib(spec(tensor_parallel_size=cards), dense, "0.11.0", 0, 36) for cards in (1, 2))
    assert one == pytest.approx(20.8125) and two == pytest.approx(14.34375)
    assert adapters_gib(spec(tensor_parallel_size=2, fully_sharded_loras=True), dense, "0.11.0", 0, 36) == one / 2
    assert adapters_gib(spec(max_loras=1, max_lora_rank=16), dense, "0.11.0", 0, 18) == one / 16 / 16 / 2
    attention = adapters_gib(spec(lora_target_modules=["q_proj"]), dense, "0.11.0", 0, 36)
    assert attention == pytest.approx(36 * 16 * 256 * 2 * (3 * 4096 + 4096 + 2048) / 2**30)
    # The embeddings of Qwen3 have adapters since 0.13, split over no cards.
    rows = 16 * 256 * 2 * 2 * (4096 + 151936) / 2**30
    assert adapters_gib(spec(), dense, "0.13.0", 0, 36) == pytest.approx(one + rows)


def test_experts_have_adapters_of_their_own_in_new_releases() -> None:
    config = {**QWEN3_8B, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
    old, new = (adapters_gib(spec(), Architecture.of(config), release, 0, 36) for release in ("0.11.0", "0.11.1"))
    assert new - old == pytest.approx(36 * 16 * 256 * 2 * 128 * 3 * (4096 + 768) / 2**30)


def test_too_many_adapters_are_refused_with_how_many_fit() -> None:
    keys = {"image": "vllm/vllm-openai:v0.11.0", "enable_lora": True, "max_loras": 64, "max_lora_rank": 256}
    (error,) = said(plan(keys))
    assert "of them for adapters)" in error and "max_loras 3" in error


def test_memory_of_adapters_counts_on_gaudi_and_unknown_shapes_are_reported() -> None:
    facts = gaudi_host()["weights"] | {"/data/sql": here(r=256, base_model_name_or_path="QwQ-32B")}
    before, after = (
        vllm_plan([model(**keys)], gaudi_host(weights=facts))["models"][0]["memory"]
        for keys in ({}, {"adapters": [SQL]})
    )
    assert after["weights_gib"] - before["weights_gib"] == pytest.approx(after["adapters_gib"], abs=0.1)
    assert after["adapters_gib"] > 1
    latent = {**QWEN3_8B, "model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    found = plan({"adapters": [SQL], "config": latent})
    assert any("the estimate leaves out its adapters" in text for text in found["warnings"])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"launch_profile": "deepseek_r1", "weights": "/data/R1-G2"}, "adapters 'sql': is not possible here"),
        ({"fully_sharded_loras": True}, "fully_sharded_loras true: is not implemented on Gaudi, and the server stops"),
    ],
)
def test_servers_that_take_no_adapters_refuse_them(keys: dict[str, Any], message: str) -> None:
    facts = gaudi_host()["weights"] | {"/data/sql": here()}
    spec = model(adapters=[SQL], **keys) if "weights" not in keys else {"name": "r1", "image": "i", **keys}
    found = vllm_plan([{**spec, "adapters": [SQL]}], gaudi_host(weights=facts), host_name="g")
    assert any(message in text for text in said(found))


@pytest.mark.parametrize(("config", "warned"), [({}, False), ({"num_experts": 128}, True)])
def test_a_mixture_of_experts_with_adapters_is_a_warning_on_gaudi(config: dict[str, Any], warned: bool) -> None:
    facts = {"/data/QwQ-32B": {"config": {**QWEN3_8B, **config}, "bytes": 10**10}, "/data/sql": here()}
    for keys in ({"adapters": [SQL]}, {}):
        found = vllm_plan([model(weights="/data/QwQ-32B", **keys)], gaudi_host(weights=facts), host_name="g")
        assert any("linear layers only" in one for one in found["warnings"]) is (warned and bool(keys))
    on_cuda = plan({"adapters": [SQL], "config": {**QWEN3_8B, **config}})
    assert not any("linear layers only" in one for one in on_cuda["warnings"])


@pytest.mark.parametrize("profile", ["aice_1_22", "plugin", "vllm"])
def test_a_launch_outside_a_plan_has_the_options_of_adapters(profile: str) -> None:
    spec = {"weights": "/data/q", "port": 8000, "launch_profile": profile, "adapters": [SQL, LAW]}
    args = vllm_launch(spec, gaudi_host(weights={"/data/sql": here(r=20), "/data/law": here()}))["args"]
    place = args.index("--lora-modules")
    assert args[place + 1 : place + 3] == ["sql=/data/sql", "law=/data/law"] and "--enable-lora" in args
    assert (args[args.index("--max-lora-rank") + 1], args[args.index("--max-loras") + 1]) == ("32", "2")
    with pytest.raises(InputError, match="adapters: 'sql' is not possible here"):
        vllm_launch({**spec, "launch_profile": "deepseek_r1"}, gaudi_host())


# ---- where they come from, and their names


def test_adapters_are_fetched_like_weights_and_are_in_the_bundle() -> None:
    given = [{"name": "q", "weights": "/data/q", "adapters": [{**SQL, "source": HUB}, LAW]}]
    assert model_weights(given, {}, {}) == ["/data/law", "/data/q", "/data/sql"]
    (found,) = weights_sources(given, {}, {}, {"hub": "https://mirror"})
    assert found == {
        "name": "q",
        "weights": "/data/sql",
        "image": None,
        "source": {**HUB, "endpoint": "https://mirror"},
    }
    known = {"gaudi_host": {**gaudi_host(), "weights": {"/data/sql": here()}}, "preflight_models": given}
    defaults = {"preflight_catalog": {}, "preflight_model_defaults": {}, "vllm_image_release": "1.24.1"}
    host = BundleHost("g", {**known, **defaults, "model_weights_models": [found]}, (), False)
    ((item, _),) = sources_of(host)
    assert (item.name, item.version, item.pinned, item.bytes) == ("team/sql", HUB["revision"], True, 10**7)
    inside = weights_sources(
        [{**given[0], "source": HUB, "adapters": [{"name": "s", "folder": "/data/q/s", "source": HUB}]}], {}, {}
    )
    assert "overlaps" in weights_refusal(inside, {"folders": {}}, "g")[0]


def test_adapters_that_a_server_would_fetch_itself_are_named() -> None:
    modules = ["a=team/a", {"name": "b", "path": "team/b"}, "c=/data/c"]
    found = plan({"enable_lora": True, "lora_modules": modules})["warnings"]
    fetches = [
        text for text in found if "the server fetches it from the internet at its start; name it in adapters" in text
    ]
    assert len(fetches) == 2 and "lora_modules team/a" in fetches[0] and "lora_modules team/b" in fetches[1]
    assert len(offline_problems({"lora_modules": modules}, Architecture())) == 2


def test_clients_may_use_the_names_of_adapters() -> None:
    given = [{"name": "q", "weights": "/w", "adapters": [SQL]}, {"name": "p", "weights": "/w", "lora_modules": "a=/b"}]
    assert adapter_names(given, {}, {}) == {"sql", "a"}


class Answers(BaseHTTPRequestHandler):
    """A server that lists its models and answers requests of those in ``works``."""

    listed: tuple[str, ...] = ("q", "sql")
    works: tuple[str, ...] = ("q", "sql")

    def do_GET(self) -> None:
        """List the models."""
        self.answer({"data": [{"id": name, "max_model_len": 4096} for name in self.listed]})

    def do_POST(self) -> None:
        """Answer with one vector, or with status 500."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer({"data": [{"embedding": [0.5]}]}, 200 if body["model"] in self.works else 500)

    def answer(self, found: Any, status: int = 200) -> None:
        """Send JSON."""
        text = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[Any]:
    """Return a function that gives what vllm_smoke needs of a server with these names."""
    started: list[ThreadingHTTPServer] = []

    def begin(**names: tuple[str, ...]) -> dict[str, Any]:
        found = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Answers,), names))
        threading.Thread(target=found.serve_forever, daemon=True).start()
        started.append(found)
        where = {"name": "q", "host": "127.0.0.1", "port": found.server_port, "served_model_name": "q"}
        return {**where, "smoke": ["embedding"], "adapters": ["sql"]}

    yield begin
    for one in started:
        one.shutdown()
        one.server_close()


def test_every_adapter_is_asked_after_a_start(server: Any) -> None:
    assert ask(server(), ["embedding"], 20)["kinds"] == ["embedding"]
    with pytest.raises(Unhealthy, match=r"/v1/models lists \['q'\], not sql"):
        ask(server(listed=("q",)), ["embedding"], 20)
    assert health(server(listed=("q",)), 20) == "/v1/models lists ['q'], not sql"
    with pytest.raises(Unhealthy, match="adapter sql: POST /v1/embeddings answered status 500"):
        ask(server(works=("q",)), ["embedding"], 20)
