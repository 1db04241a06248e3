"""Several models on one card: the exact launch of their one server, every refusal, and who else knows their names."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.catalog.merge import client_names, model_weights
from gaudi_serve.catalog.merge import served_names as names_of
from gaudi_serve.core.errors import InputError
from gaudi_serve.core.served import served_names
from gaudi_serve.engines import ENGINES
from gaudi_serve.gateway.fleet import backends_of, fleet_entries, fleet_keys, server_key, server_secrets
from gaudi_serve.gateway.objects import Gateway
from gaudi_serve.host import smoke
from gaudi_serve.host.secret import BESIDE
from gaudi_serve.plan.changes import vllm_plan_changes
from gaudi_serve.plan.downtime import Down, downtimes
from gaudi_serve.plan.fleet import vllm_fleet_lines
from gaudi_serve.plan.host import vllm_plan
from gaudi_serve.plan.launch import vllm_launch
from gaudi_serve.rollout.waves import least, members, serving
from gaudi_serve.show.report import endpoint_table
from gaudi_serve.show.status import fleet_status, fleet_status_lines
from gaudi_serve.stages import service
from gaudi_serve.stages.weights import weights_sources
from gaudi_serve.tune.target import refused
from helpers.plans import gaudi_host, live_of
from helpers.services import live

EMBED = {
    **{"architectures": ["ModernBertModel"], "model_type": "modernbert", "hidden_size": 768, "num_hidden_layers": 22},
    **{"num_attention_heads": 12, "intermediate_size": 1152, "vocab_size": 50368, "max_position_embeddings": 8192},
}
RERANK = {**EMBED, "architectures": ["ModernBertForSequenceClassification"]}
SHORT = {**EMBED, "architectures": ["BertModel"], "model_type": "bert", "max_position_embeddings": 512}
TEXT = {**EMBED, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
CONFIGS = {"gte-modernbert-base": EMBED, "gte-reranker": RERANK, "bge-large-zh-v1.5": SHORT, "Qwen3-8B": TEXT}
FOLDERS = {f"/data/{name}": {"config": config, "bytes": 300_000_000} for name, config in CONFIGS.items()}
GTE = {"name": "gte", "weights": "/data/gte-modernbert-base", "image": "vllm:1"}
OTHER = {"name": "rerank", "weights": "/data/gte-reranker"}
BGE = {"name": "bge", "weights": "/data/bge-large-zh-v1.5"}


def host(**more: Any) -> dict[str, Any]:
    """Return a Gaudi host that has the folders."""
    return gaudi_host(**{"weights": FOLDERS, **more})


def plan(*others: Any, release: str = "1.22.0", machine: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Plan one entry, whose card these models share."""
    entry = {**GTE, "shares_card_with": list(others), **more}
    return vllm_plan([entry], machine or host(), host_name="g", release=release)


def planned(*others: Any, **more: Any) -> dict[str, Any]:
    """Return the one planned entry."""
    found = plan(*others, **more)
    assert found["errors"] == []
    (model,) = found["models"]
    return model


def test_the_launch_is_the_one_of_the_vendors_guide() -> None:
    model = planned(OTHER, port=8771, max_model_len=4096)
    container = service.vllm_container(model)
    assert container["command"][container["command"].index("env") :] == [
        *("env", "-C", "/models", "python3", "-m", "vllm.entrypoints.openai.mm_api_server"),
        *("--models", "gte", "rerank", "--host", "127.0.0.1", "--port", "8771", "--device", "hpu"),
        *("--dtype", "bfloat16", "--gpu-memory-utilization", "0.3", "--use-v2-block-manager"),
        *("--max-model-len", "4096"),
    ]
    assert model["env"] == {
        **{"GLOO_SOCKET_IFNAME": "lo", "VLLM_HOST_IP": "127.0.0.1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none"},
        **{"PT_HPU_LAZY_MODE": "0", "VLLM_CONTIGUOUS_PA": "false", "VLLM_EXPONENTIAL_BUCKETING": "false"},
        **{"VLLM_SKIP_WARMUP": "false", "HLS_MODULE_ID": "0"},
        **{f"VLLM_PROMPT_BS_BUCKET_{part}": value for part, value in (("MIN", "1"), ("STEP", "1"), ("MAX", "8"))},
        **{f"VLLM_PROMPT_SEQ_BUCKET_{part}": value for part, value in (("MIN", "1"), ("STEP", "512"), ("MAX", "4096"))},
        **{f"VLLM_DECODE_BS_BUCKET_{part}": value for part, value in (("MIN", "1"), ("STEP", "1"), ("MAX", "2"))},
        **{f"VLLM_DECODE_BLOCK_BUCKET_{part}": value for part, value in (("MIN", "1"), ("STEP", "1"), ("MAX", "2"))},
    }
    assert model["mounts"] == [
        {"source": "/data/gte-modernbert-base", "target": "/models/gte", "read_only": True},
        {"source": "/data/gte-reranker", "target": "/models/rerank", "read_only": True},
    ]
    assert (model["launch_profile"], model["module_ids"], model["digest"]) == ("aice_1_22_shared", [0], DIGEST)


DIGEST = "7e0571ec1dd71133"


def test_own_values_of_a_model_reach_it_alone() -> None:
    overrides = {"classifier_from_token": ["no", "yes"]}
    more = {"gpu_memory_utilization": 0.2, "task": "score", "hf_overrides": overrides}
    args = planned({**OTHER, **more}, BGE | {"max_model_len": 512}, max_model_len=8192, task="embed", seed=7)["args"]
    assert args[args.index("--gpu-memory-utilization") + 1] == "0.2"  # 7 // 3 / 10, and the second has the same
    assert [value for option, value in itertools.pairwise(args) if option == "--model-param"] == [
        "gte:task=embed",
        "rerank:task=score",
        'rerank:hf_overrides={"classifier_from_token":["no","yes"]}',
        "bge:max_model_len=512",
    ]
    assert args[-2:] == ["--seed", "7"]
    assert "--task" not in args
    assert "--served-model-name" not in args


@pytest.mark.parametrize(("models", "share"), [(2, "0.3"), (3, "0.2"), (4, "0.1"), (7, "0.1")])
def test_shares_follow_from_how_many_models_there_are(models: int, share: str) -> None:
    args = planned(*({**OTHER, "name": f"m{number}"} for number in range(1, models)))["args"]
    assert args[args.index("--gpu-memory-utilization") + 1] == share


def test_only_small_models_of_gte_and_bge_go_without_lazy_mode() -> None:
    machine = host(weights={**FOLDERS, "/data/gte-Qwen2-7B-instruct": {"config": EMBED, "bytes": 10**9}})
    large = {"name": "large", "weights": "/data/gte-Qwen2-7B-instruct"}
    model = planned(OTHER, large, machine=machine)
    assert model["env"]["PT_HPU_LAZY_MODE"] == "1"
    assert any("gte, rerank: small models of gte and bge are faster" in text for text in model["warnings"])
    assert planned(OTHER, large, machine=machine, env={"PT_HPU_LAZY_MODE": "0"})["env"]["PT_HPU_LAZY_MODE"] == "0"


def test_prompts_of_every_model_are_warmed_up_and_the_memory_of_all_is_counted() -> None:
    two, three = planned(OTHER), planned(OTHER, BGE)
    assert (two["buckets"]["prompt"], two["buckets"]["decode"]) == (160, 0)
    assert three["buckets"]["prompt"] == 240
    assert planned(OTHER, skip_warmup=True)["graphs"] == 0
    assert planned(OTHER, env={"VLLM_PROMPT_BS_BUCKET_MAX": "4"})["buckets"]["prompt"] == 80
    assert two["read_gib"] == 0.6
    memory = two["memory"]
    # The second gets its share of what the first leaves.
    left = memory["device_gib"] - memory["reserved_gib"] - memory["kv_cache_gib"] - memory["graphs_gib"]
    assert 0 < memory["left_gib"] < left
    assert memory["kv_cache_gib"] < 0.6 * 0.9 * 93.5


def test_what_the_models_before_leave_may_be_too_little() -> None:
    whole = {**EMBED, "num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64}
    machine = host(weights={**FOLDERS, "/data/big": {"config": whole, "bytes": 60 * 2**30}})
    found = plan({"name": "big", "weights": "/data/big", "max_model_len": 8192}, machine=machine)
    (error,) = found["errors"]
    assert error["key"] == "shares_card_with[0].max_model_len"
    assert "needs more KV cache than the" in error["message"]
    assert "; gte before it: " in error["message"]


@pytest.mark.parametrize(
    ("others", "more", "sentence"),
    [
        ([], {}, "g: model gte: shares_card_with (hidden): must be a list of 1 to 6 mappings"),
        (["rerank"], {}, "must be a list of 1 to 6 mappings, one for each further model on the card, such as [{name:"),
        ([OTHER] * 7, {}, "must be a list of 1 to 6 mappings"),
        ([{"name": "rerank"}], {}, "g: model gte: shares_card_with[0].weights: is required; must be an absolute path"),
        ([{**OTHER, "port": 1}], {}, "shares_card_with[0].port 1: applies to the server and belongs in the entry"),
        (
            [{**OTHER, "wieghts": 1}],
            {},
            "shares_card_with[0].wieghts 1: is neither a key of this toolkit nor an option",
        ),
        (
            [{**OTHER, "shares_card_with": []}],
            {},
            "shares_card_with[0].shares_card_with (hidden): applies to the server",
        ),
        ([{**OTHER, "model": "none"}], {}, "shares_card_with[0].model 'none': is not in the catalog"),
        ([{**OTHER, "max_model_len": 0}], {}, "shares_card_with[0].max_model_len 0: must be an integer from 1"),
        ([OTHER], {"tensor_parallel_size": 2}, "tensor_parallel_size 2: must be 1: models that share a card have one"),
        (
            [OTHER],
            {"module_ids": [2, 3]},
            "module_ids [2, 3]: must be one card: models that share a card have one card",
        ),
        ([OTHER], {"dtype": "awq"}, "dtype 'awq': must be one of bfloat16, float32 if models share a card"),
        (
            [OTHER],
            {"tokenizer": "/x"},
            "tokenizer '/x': must be left out if models share a card: this server uses each model's own",
        ),
        ([OTHER], {"served_model_name": "x"}, "served_model_name 'x': must be left out: this server names its models"),
        (
            [{**OTHER, "served_model_name": "x"}],
            {},
            "shares_card_with[0].served_model_name 'x': applies to the server",
        ),
        (
            [{**OTHER, "gpu_memory_utilization": 0.7}],
            {},
            "shares_card_with[0].gpu_memory_utilization 0.7: makes 1 of the card's memory for all models (gte 0.3, "
            "rerank 0.7), and at most 0.9 is allowed; lower it, or leave it out everywhere, and each gets 0.3",
        ),
        ([OTHER], {"gpu_memory_utilization": 0.5}, "gpu_memory_utilization 0.5: makes 1 of the card's memory"),
        ([{**OTHER, "name": "gte"}], {}, "shares_card_with[0].name 'gte': already belongs to model gte; clients find"),
        ([OTHER, OTHER], {}, "shares_card_with[1].name 'rerank': already belongs to a model on the card of gte"),
        (
            [{**OTHER, "weights": "/data/none"}],
            {"_": None},
            "shares_card_with[0].weights '/data/none': has no readable",
        ),
        (
            [{"name": "q", "weights": "/data/Qwen3-8B"}],
            {},
            "shares_card_with[0].weights '/data/Qwen3-8B': its config.json has 'Qwen3ForCausalLM', which generates "
            "text; models that share a card return vectors or scores; give it its own entry and card, or set task: "
            "embed or task: score if it returns those",
        ),
        (
            [{"name": "q", "weights": "/data/unknown"}],
            {},
            "shares_card_with[0].task: is required because its config.json is unknown",
        ),
        ([{**OTHER, "smoke": ["text"]}], {}, "shares_card_with[0].smoke"),
    ],
)
def test_what_cannot_share_is_refused_in_one_sentence(others: list[Any], more: dict[str, Any], sentence: str) -> None:
    absent = {"/data/none": None} if more.pop("_", 1) is None else {}
    found = plan(*others, machine=host(weights={**FOLDERS, **absent}), **more)
    assert [sentence in error["message"] for error in found["errors"]] == [True], found["errors"]


def test_a_generative_model_that_is_reported_to_give_vectors_is_served() -> None:
    found = planned({"name": "q", "weights": "/data/Qwen3-8B", "task": "embed"})
    assert found["served"][1]["smoke"] == ["embedding"]


APART = "give each model its own entry and card"
SEVERAL = "serves one model, and a card serves one process at a time; aice_1_22_shared of release 1.22 serves several"


@pytest.mark.parametrize(
    ("release", "engine", "sentence"),
    [
        ("1.21.3", None, f"aice_1_21 {SEVERAL}, and accelerator_release is 1.21.3: {APART}"),
        ("1.21.3", "aice_1_21", f"aice_1_21 {SEVERAL}, and accelerator_release is 1.21.3: {APART}"),
        ("1.21.3", "deepseek_r1", f"deepseek_r1 {SEVERAL}, and accelerator_release is 1.21.3: {APART}"),
        ("1.21.3", "vllm", f"vllm {SEVERAL}, and accelerator_release is 1.21.3: {APART}"),
        ("1.22.0", "aice_1_22", f"aice_1_22 {SEVERAL}: leave launch_profile out, or set it to aice_1_22_shared"),
        ("1.22.2", "plugin", f"plugin {SEVERAL}: leave launch_profile out, or set it to aice_1_22_shared"),
        ("1.22.0", "vllm", f"vllm {SEVERAL}: leave launch_profile out, or set it to aice_1_22_shared"),
        ("1.23.0", None, f"plugin {SEVERAL}, and accelerator_release is 1.23.0: {APART}"),
        ("1.24.1", None, f"plugin {SEVERAL}, and accelerator_release is 1.24.1: {APART}"),
        ("1.24.1", "aice_1_22_shared", "launch_profile 'aice_1_22_shared': belongs to release 1.22 ("),
    ],
)
def test_engines_and_releases_that_serve_one_model_a_card_report_who_serves_several(
    release: str, engine: str | None, sentence: str
) -> None:
    more = {"launch_profile": engine} if engine else {}
    found = plan(OTHER, release=release, machine=host(driver_version=f"{release}-1"), **more)
    messages = [error["message"] for error in found["errors"] if error["key"] in ("shares_card_with", "launch_profile")]
    assert [sentence in text for text in messages] == [True], found["errors"]


def test_a_cpu_host_needs_no_sharing() -> None:
    machine = host(accelerator="cpu", modules=[], device_name=None)
    (error,) = plan(OTHER, release="1.24.1", machine=machine)["errors"]
    assert error["message"] == (
        'g: model gte: shares_card_with ["rerank"]: is for models on one card of a Gaudi host; here models need no '
        "cards: give each its own entry"
    )


def test_the_engine_for_several_models_is_refused_for_one_and_nobodys_default() -> None:
    alone = vllm_plan([{**GTE, "launch_profile": "aice_1_22_shared"}], host(), host_name="g", release="1.22.0")
    assert "serves several models on one card; list the others in shares_card_with" in alone["errors"][0]["message"]
    one = {**GTE, "max_model_len": 512}
    (model,) = vllm_plan([one], host(), host_name="g", release="1.22.0")["models"]
    assert model["launch_profile"] == "aice_1_22"
    # An entry that no longer shares goes back to it, and restarts.
    services = live_of({"models": [planned(OTHER)]})
    (after,) = vllm_plan([one], host(services=services), host_name="g", release="1.22.0")["models"]
    assert after["launch_profile"] == "aice_1_22"
    assert vllm_plan_changes([after], services)[0].startswith("~ gte (with rerank")


def test_a_name_of_another_entry_is_refused() -> None:
    other = {"name": "other", "weights": "/data/Qwen3-8B", "image": "vllm:1", "port": 30002, "max_model_len": 512}
    for key, name in (("name", "rerank"), ("served_model_name", "rerank")):
        entries_of_host = [{**GTE, "shares_card_with": [OTHER]}, {**other, key: name}]
        (error,) = vllm_plan(entries_of_host, host(), host_name="g", release="1.22.0")["errors"]
        assert "shares_card_with[0].name 'rerank': already belongs to model " in error["message"]


def test_the_catalog_serves_every_model_of_an_entry() -> None:
    catalog = {
        "reranker": {"weights": "/data/gte-reranker", "weight_bytes": 10**9, "max_num_seqs": 4, "max_model_len": 256}
    }
    entry = {**GTE, "shares_card_with": [{"name": "rerank", "model": "reranker"}]}
    (model,) = vllm_plan([entry], host(), catalog, host_name="g", release="1.22.0")["models"]
    assert model["mounts"][1]["source"] == "/data/gte-reranker"
    assert "rerank:max_model_len=256" in model["args"]
    assert "--max-num-seqs" not in model["args"]
    assert model_weights([entry], catalog, {}) == ["/data/gte-modernbert-base", "/data/gte-reranker"]
    assert client_names([entry], catalog, {}) == {"gte", "rerank"}


def test_weights_of_every_model_are_fetched() -> None:
    source = {"kind": "hub", "repo": "a/b"}
    entry = {**GTE, "shares_card_with": [{**OTHER, "source": source}]}
    (found,) = weights_sources([entry], {}, {})
    assert (found["name"], found["weights"], found["source"]) == ("rerank", "/data/gte-reranker", source)


def test_changed_weights_in_the_second_folder_restart_the_server() -> None:
    model = planned(OTHER)
    units = live([model])
    units["units"]["gte"]["container"] |= {"command": service.vllm_container(model)["command"], "stale": []}
    files = service.vllm_service_files([model], "{{ model.name }}")
    assert service.vllm_service_changes([model], units, files, "")["restart"] == []
    units["units"]["gte"]["container"]["stale"] = ["/data/gte-reranker"]
    assert service.vllm_service_changes([model], units, files, "")["restart"] == ["gte"]


def test_a_gateway_finds_each_model_and_fetches_the_one_key_of_their_server() -> None:
    model = planned(OTHER, host="0.0.0.0")
    hosts = {"g": {"preflight_plan": {"models": [model], "errors": []}, "gaudi_host": {"ip": "10.0.0.1"}}}
    entries = fleet_entries(hosts, ["g"], "gw")
    assert [(one["model"], one["unit"], one["port"]) for one in entries] == [
        ("gte", "gte", 30001),
        ("rerank", "gte", 30001),
    ]
    secret = "s" * 40
    key = server_key(secret, "gte")
    assert fleet_keys(hosts, entries, ["gw"], secret) == {"gte": key, "rerank": key}
    # A key that may use one of them must not name the other in the same body.
    gateway = Gateway(backends=backends_of(entries, {}))
    assert gateway.beside("gte") == gateway.beside("rerank") == {"gte", "rerank"}
    assert Gateway(backends=backends_of(entries[:1], {})).beside("gte") == {"gte"}
    names = names_of([{**GTE, "shares_card_with": [OTHER]}], {}, {})
    assert server_secrets({}, names, ["gw"], "g", secret) == {"gte": {"VLLM_API_KEY": key, BESIDE: True}}


def test_each_model_is_asked_in_its_own_way_after_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    model = planned(OTHER)
    asked: list[tuple[str, str]] = []

    def listed(server: smoke.Server, method: str, path: str) -> dict[str, Any]:
        assert (method, path) == ("GET", "/v1/models")
        asked.append((server.name, "listed"))
        return {"data": [{"id": server.name}]}

    monkeypatch.setattr(smoke.Server, "json", listed)
    kinds = {kind: lambda server, kind=kind: asked.append((server.name, kind)) for kind in smoke.KINDS}
    monkeypatch.setattr(smoke, "KINDS", kinds)
    answer = smoke.ask(model, model["smoke"], 5)
    assert asked == [("gte", "listed"), ("gte", "embedding"), ("rerank", "listed"), ("rerank", "rerank")]
    assert (answer["kinds"], answer["served"]) == (["embedding", "rerank"], model["served"])
    probe = service.vllm_container(model)["probe"]
    assert probe == {"path": "/v1/embeddings", "body": {"model": "gte", "input": "a"}}


def test_everybody_who_shows_or_counts_models_knows_all_names() -> None:
    model = planned(OTHER, min_available=0)
    command = service.vllm_container(model)["command"]
    assert served_names("gte", command) == ("gte", "rerank")
    assert served_names("a", ["x", "--served-model-name", "b"]) == ("b",)
    assert served_names("a", ["x"]) == ("a",)
    known: dict[str, Any] = {
        "preflight_plan": {"models": [model], "errors": []},
        "gaudi_host": {"ip": "10.0.0.1", "services": live_of({"models": [model]}), "weights": FOLDERS, "modules": []},
        "gaudi_services": live([model]),
        "vllm_service_status": [],
        "vllm_service_health": {"gte": ""},
    }
    assert serving(known) == {"gte": ("gte", "rerank")}
    assert least({"g": known}, ["g"]) == {"gte": 0, "rerank": 0}
    going = {**known, "vllm_service_due": ["models"], "vllm_service_stops": {"restart": ["gte"]}}
    (down,) = downtimes(going)
    assert (down.model, list(down.others)) == ("gte", ["rerank"])
    assert down.line.startswith("gte (with rerank) is down from stage models on for about ")
    assert Down("a", "models", "it restarts", 1).line.startswith("a is down")
    (member,) = members({"g": going}, ["g"])
    assert member.away(drains=False) == {"gte", "rerank"}
    assert "gte, rerank" in endpoint_table({"g": known}, ["g"])[2]
    assert "gte, rerank" in fleet_status_lines(fleet_status({"g": known}, ["g"]))[2]
    fleet = {"hosts": {"g": {"facts": "", "models": [model], "changes": []}}, "warnings": [], "errors": []}
    assert any("gte, rerank" in line for line in vllm_fleet_lines(fleet))
    for name in ("gte", "rerank"):
        (sentence,) = refused(fleet, name)
        assert "g: model gte: shares its card with other models" in sentence
    live_units = {"g": {"gaudi_services": {"units": {"gte": {"launch": {"command": command}}}}}}
    (hint,) = service.model_refusal("rerank", live_units, ["g"])
    assert hint == "model 'rerank': is served by gte on g; write -e model=gte"


def test_the_filter_for_launches_takes_several_models() -> None:
    spec = {key: value for key, value in GTE.items() if key != "image"}
    found = vllm_launch({**spec, "shares_card_with": [OTHER], "launch_profile": "aice_1_22_shared"}, host())
    assert found["args"][:3] == ["--models", "gte", "rerank"]


def test_no_other_engine_mounts_a_folder_elsewhere() -> None:
    assert [name for name, engine in ENGINES.items() if engine.folder or engine.share] == ["aice_1_22_shared"]
    assert Path(ENGINES["aice_1_22_shared"].folder or "").is_absolute()


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "other"},
        {"weights": "/data/bge-large-zh-v1.5"},
        {"max_model_len": 256},
        {"gpu_memory_utilization": 0.2},
        {"task": "score"},
        {"hf_overrides": {"a": 1}},
    ],
)
def test_every_key_of_a_further_model_that_reaches_the_server_restarts_it(changed: dict[str, Any]) -> None:
    services = live_of({"models": [planned(OTHER)]})
    after = planned({**OTHER, **changed}, machine=host(services=services))
    assert vllm_plan_changes([after], services)[0].startswith("~ gte (with rerank")
    beside = {"smoke": ["rerank"], "weight_bytes": 10**9, "config": RERANK, "source": {"kind": "hub", "repo": "a/b"}}
    same = planned({**OTHER, **beside}, machine=host(services=services))
    assert not any("restart" in line for line in vllm_plan_changes([same], services))


QWEN = {"name": "q", "weights": "/data/Qwen3-8B"}


@pytest.mark.parametrize(
    ("others", "more", "sentence"),
    [
        ([{**QWEN, "smoke": ["embedding"]}], {}, "shares_card_with[0].weights '/data/Qwen3-8B': its config.json has"),
        (
            [{**OTHER, "smoke": ["embedding"], "task": "score"}],
            {},
            'shares_card_with[0].smoke ["embedding"]: must be rerank, because',
        ),
        ([{**OTHER, "task": "generate"}], {}, "shares_card_with[0].task 'generate': must be embed or score"),
        ([{**OTHER, "task": ["embed"]}], {}, 'shares_card_with[0].task ["embed"]: must be embed or score'),
        ([{**OTHER, "hf_overrides": "x"}], {}, "shares_card_with[0].hf_overrides 'x': must be a mapping"),
        ([OTHER], {"quantization": "inc"}, "quantization 'inc': must be left out"),
        ([OTHER], {"kv_cache_dtype": "fp8_inc"}, "kv_cache_dtype 'fp8_inc': must be left out"),
        ([OTHER], {"convert": "embed"}, "convert 'embed': must be left out"),
        ([OTHER], {"runner": "pooling"}, "runner 'pooling': must be left out"),
        ([OTHER], {"speculative_config": {"model": "/d"}}, "speculative_config {"),
        # A value of the entry is named where it stands.
        ([BGE], {"max_model_len": 4096}, "model gte: max_model_len 4096: of bge: is above 512"),
    ],
)
def test_what_the_server_for_several_does_not_take_is_refused(others: list[Any], more: Any, sentence: str) -> None:
    found = plan(*others, **more)
    assert [sentence in error["message"] for error in found["errors"]] == [True], found["errors"]


@pytest.mark.parametrize("more", [{"env": {"VLLM_API_KEY": "canary"}}, {"extra_args": ["--api-key", "canary"]}])
@pytest.mark.parametrize("whole", [False, True])
def test_no_secret_of_a_further_model_is_in_an_error(more: Any, whole: bool) -> None:
    entry = {**GTE, "shares_card_with": {**OTHER, **more} if whole else [{**OTHER, **more}]}
    found = vllm_plan([entry], host(), host_name="g", release="1.22.0")
    assert found["errors"] and "canary" not in str(found)
    (error,) = vllm_plan([{**GTE, "shares_card_with": [{**OTHER, "api_key": "canary"}]}], host())["errors"]
    assert "a secret belongs in vllm_secrets as VLLM_API_KEY" in error["message"] and "canary" not in str(error)


def test_an_empty_key_of_a_further_model_is_no_key() -> None:
    empty = dict.fromkeys(("max_model_len", "gpu_memory_utilization", "task", "hf_overrides", "smoke"))
    assert planned({**OTHER, **empty})["digest"] == planned(OTHER)["digest"]
    # Nor one that an entry of the catalog leaves empty.
    catalog = {"r": {"weights": OTHER["weights"], "max_model_len": None}}
    entry = {**GTE, "shares_card_with": [{"name": "rerank", "model": "r"}]}
    assert vllm_plan([entry], host(), catalog, host_name="g", release="1.22.0")["errors"] == []


def test_an_engine_for_one_model_reports_nothing_of_the_others_keys() -> None:
    keys = [error["key"] for error in plan(OTHER, launch_profile="deepseek_r1")["errors"]]
    assert "shares_card_with" in keys and not [key for key in keys if key.startswith("shares_card_with[")]


def test_changes_name_all_models_of_a_server() -> None:
    model = planned(OTHER)
    running = live_of({"models": [model]})["gte"]
    changed = planned({**OTHER, "max_model_len": 256})
    lines = vllm_plan_changes([changed], {"gte": running})
    assert lines[0] == "~ gte (with rerank): restart"
    assert vllm_plan_changes([model], {})[0].startswith("+ gte (with rerank): start on cards")
    assert vllm_plan_changes([], {"gte": running})[0].startswith("- gte (with rerank): stop and remove")


def test_a_secret_of_a_further_model_is_sent_to_its_entry() -> None:
    models = [{**GTE, "shares_card_with": [OTHER]}]
    (line,) = service.nobodys_secrets({"rerank": {"VLLM_API_KEY": "canary"}}, "g", models, [])
    assert line == "g: vllm_secrets: rerank shares a server with gte; write its secrets under gte"
    assert service.nobodys_secrets({"gte": {}}, "g", models, []) == []


def test_a_model_that_is_shared_on_one_host_alone_needs_one_key_everywhere() -> None:
    shared, alone = planned(OTHER, host="0.0.0.0"), {"state": "started", "host": "10.0.0.2", "max_num_seqs": 4}
    both = [
        {**alone, "name": name, "served_model_name": name, "port": port} for name, port in (("gte", 1), ("rerank", 2))
    ]
    hosts: dict[str, Any] = {
        "g1": {"preflight_plan": {"models": [shared], "errors": []}, "gaudi_host": {"ip": "10.0.0.1"}},
        "g2": {"preflight_plan": {"models": both, "errors": []}, "gaudi_host": {"ip": "10.0.0.2"}},
    }
    entries = fleet_entries(hosts, hosts, "gw")
    with pytest.raises(InputError) as problem:
        fleet_keys(hosts, entries, ["gw"], "s" * 40)
    text = str(problem.value)
    assert "give gte of g1, gte of g2, rerank of g2 the same VLLM_API_KEY in vllm_secrets" in text
    key = {"VLLM_API_KEY": "k" * 20}
    hosts["g1"]["vllm_secrets"], hosts["g2"]["vllm_secrets"] = {"gte": key}, {"gte": key, "rerank": key}
    assert fleet_keys(hosts, entries, ["gw"], "s" * 40) == {"gte": "k" * 20, "rerank": "k" * 20}
