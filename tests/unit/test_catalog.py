"""The catalog: every model of the manual, with what planning needs, and the manual's own commands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.catalog.files import catalog_folder, model_catalog
from gaudi_serve.catalog.merge import merged, model_weights
from gaudi_serve.core.errors import InputError
from gaudi_serve.engines.base import option_arguments
from gaudi_serve.memory.shape import memory_names
from gaudi_serve.model.architecture import Architecture
from gaudi_serve.model.host import Host
from gaudi_serve.plan.host import vllm_plan
from gaudi_serve.plan.launch import vllm_launch
from gaudi_serve.platforms.releases import release_of
from helpers.catalogs import CATALOG, FOLDER, only_plugin
from helpers.golden import vectors
from helpers.plans import gaudi_host

MANUAL = {
    "section 2.2, Qwen2-72B-Instruct, 4 cards": "qwen2-72b-instruct",
    "section 2.2, QwQ-32B, 8 cards, reduced warm-up": "qwq-32b-reduced-warmup",
    "section 3.2, DeepSeek-R1-Distill-Llama-70B, 4 cards": "deepseek-r1-distill-llama-70b",
    "section 3.2, DeepSeek-R1-Distill-Qwen-32B, 2 cards": "deepseek-r1-distill-qwen-32b",
    "section 3.2, DeepSeek-R1-Distill-Llama-8B, 1 card": "deepseek-r1-distill-llama-8b",
    "section 3.3, Qwen2.5-7B-Instruct, 1 card": "qwen2.5-7b-instruct",
    "section 3.3, QwQ-32B, 2 cards": "qwq-32b",
    "section 3.3, Qwen3-8B, 2 cards": "qwen3-8b",
    "section 3.1.2, DeepSeek-R1-0528, 8 cards": "deepseek-r1-0528",
    "section 3.3.2, Qwen3-Coder-480B-A35B-Instruct-FP8, 8 cards (the script's defaults as the manual prints them)": (
        "qwen3-coder-480b-a35b-instruct-fp8"
    ),
}
# What the manual's multimodal commands have next to the model and its address.
MULTIMODAL = {
    "qwen2-vl-7b-instruct": '{"image":5,"video":5}',
    "qwen2-audio-7b-instruct": '{"audio":5}',
    "qwen2.5-vl-7b-instruct": '{"image":5,"video":5}',
    "qwen2.5-omni-7b": '{"audio":5,"image":5,"video":5}',
}


# GiB of weights that each of eight cards would have, where Gaudi2's are too small.
FOR_GAUDI3 = {"llama-3.1-405b-instruct": 94.5, "minimax-m3": 99.4}


def test_every_model_of_the_manual_is_there() -> None:
    assert {name for name in CATALOG if not only_plugin(name)} == {*MANUAL.values(), *MULTIMODAL, "deepseek-r1"}


@pytest.mark.parametrize("row", vectors("manual_commands"), ids=lambda row: row["manual"])
def test_an_entry_launches_as_the_manual_does(row: dict[str, Any]) -> None:
    entry = merged({"model": MANUAL[row["manual"]]}, CATALOG, {}, Host.of(gaudi_host()), "1.21.3")
    del entry["model"]
    # Where the models lie, where the caches go, the address, and which cards: a site's own choice.
    site = {key: row["spec"].get(key) for key in ("weights", "recipe_cache_path", "host", "port", "module_ids")}
    spec = {**entry, **{key: value for key, value in site.items() if value is not None}}
    if "recipe_cache_path" not in row["spec"]:
        del spec["recipe_cache_path"]
    launch = vllm_launch(spec, row["host"])
    assert (launch["env"], launch["args"], launch["numactl"]) == (
        *(row["expect"]["env"], row["expect"]["args"], row["expect"]["numactl"]),
    )


@pytest.mark.parametrize("name", MULTIMODAL)
def test_multimodal_entries_are_the_manuals_option_by_option(name: str) -> None:
    (one,) = vllm_plan([{"name": "m", "model": name, "image": "i"}], gaudi_host(weights={}), CATALOG)["models"]
    pairs = dict(zip(one["args"][1::2], one["args"][2::2], strict=True))
    assert one["args"][0] == CATALOG[name]["weights"]
    assert {key: pairs[key] for key in ("--port", "--host", "--dtype", "--limit-mm-per-prompt")} == {
        **{"--port": "8000", "--host": "127.0.0.1", "--dtype": "bfloat16"},
        "--limit-mm-per-prompt": MULTIMODAL[name],
    }
    # Beside the manual's: its one card, and the name it is asked by.
    assert set(pairs) - {"--port", "--host", "--dtype", "--limit-mm-per-prompt"} == {
        *("--tensor-parallel-size", "--served-model-name"),
    }
    assert one["env"]["PT_HPU_LAZY_MODE"] == "1"
    assert option_arguments("limit_mm_per_prompt", CATALOG[name]["limit_mm_per_prompt"])[1] == MULTIMODAL[name]


@pytest.mark.parametrize("release", ["1.21.3", "1.22.2", "1.24.1"])
@pytest.mark.parametrize("device", ["HL-225", "HL-325L"])
@pytest.mark.parametrize("name", CATALOG)
def test_an_entry_has_what_planning_needs_and_plans(name: str, device: str, release: str) -> None:
    assert memory_names(Architecture.of(CATALOG[name]["config"])), name
    host = gaudi_host(weights={}, device_name=device)
    plan = vllm_plan([{"name": "m", "model": name, "image": "i"}], host, CATALOG, host_nics=True, release=release)
    if only_plugin(name) and release == "1.21.3":
        (error,) = plan["errors"]
        assert "launch_profile 'plugin': belongs to release 1.22" in error["message"]
        return
    least, row = CATALOG[name].get("least_vllm"), release_of(release)
    if least and row and not row.has(least):
        told = f"least_vllm {least!r}: is the first vLLM with this model, of release 1.2"
        assert any(told in error["message"] for error in plan["errors"])
        return
    if name in FOR_GAUDI3 and device == "HL-225":
        (error,) = plan["errors"]
        assert f"gives each card {FOR_GAUDI3[name]} GiB of weights, of 96 GiB" in error["message"]
        return
    if "deepseek_r1" in CATALOG[name] and device == "HL-325L" and release != "1.24.1":
        (error,) = plan["errors"]
        assert "is made for HL-225*, HL-288*" in error["message"]
        return
    assert plan["errors"] == []
    (model,) = plan["models"]
    assert model["memory"]["fits"] and model["memory"]["weights_gib"] > 0
    assert not any("takes no notice" in text for text in plan["warnings"])
    if release == "1.24.1":
        assert model["launch_profile"] == "plugin"


def test_an_entry_of_the_plugin_alone_asks_for_a_release_that_has_it() -> None:
    wish = {"name": "m", "model": "llama-3.1-8b-instruct", "image": "i"}
    (error,) = vllm_plan([wish], gaudi_host(), CATALOG, host_name="g", release="1.21.3")["errors"]
    assert error["message"].startswith("g: model m: launch_profile 'plugin': belongs to release 1.22.1 (the fork's")
    own = {**wish, "launch_profile": "aice_1_21", "max_num_batched_tokens": 16384}
    assert vllm_plan([own], gaudi_host(), CATALOG, release="1.21.3")["errors"] == []


R1 = {"name": "m", "model": "deepseek-r1"}


def test_an_entry_has_what_differs_under_the_names_of_the_engines() -> None:
    plans = {
        release: vllm_plan(
            [{"name": "m", "model": "deepseek-r1", "image": "i"}], gaudi_host(), CATALOG, release=release
        )
        for release in ("1.21.3", "1.24.1")
    }
    old, new = (plan["models"][0] for plan in plans.values())
    assert (old["launch_profile"], old["weights"]) == ("deepseek_r1", "/data/hf_models/DeepSeek-R1-G2")
    assert (new["launch_profile"], new["weights"]) == ("plugin", "/data/hf_models/DeepSeek-R1")
    assert "--enable-expert-parallel" in new["args"]
    assert "quantization" not in " ".join(new["args"])
    # What a user sets wins over both, and both folders are looked at before there is a plan.
    mine = {**R1, "image": "i", "weights": "/mine", "max_num_seqs": 8}
    (model,) = vllm_plan([mine], gaudi_host(), CATALOG, release="1.24.1")["models"]
    assert (model["weights"], model["max_num_seqs"]) == ("/mine", 8)
    both = model_weights([R1], CATALOG, {})
    assert both == ["/data/hf_models/DeepSeek-R1", "/data/hf_models/DeepSeek-R1-G2"]


def test_a_mistake_under_an_engines_name_is_reported_with_it(tmp_path: Path) -> None:
    (tmp_path / "x.yml").write_text("weights: /x\nplugin: {max_num_seq: 3}\nvllm: 7\n", encoding="utf-8")
    with pytest.raises(InputError) as raised:
        model_catalog([str(tmp_path)])
    first, second = str(raised.value).replace(f"{tmp_path}/x.yml: ", "").split("\n")
    assert first.startswith("plugin: max_num_seq 3: is neither a key of this toolkit nor an option of vLLM")
    assert second == "vllm: is 7; must be a mapping of keys for that engine, such as {}"


def test_measurement_files_go_where_the_vendors_checkout_looks() -> None:
    for name, cards, folder in (
        ("deepseek-r1-0528", 8, "ds-r1-0528-default-pile-g2-0529"),
        ("deepseek-r1-0528", "16", "ds-r1-0528-default-pile-g2-ep16-0610"),
        ("deepseek-r1", 8, "inc-woq-2282samples-514-g2"),
        ("deepseek-r1", 16, "ds-r1-default-pile-g2-ep16-0610"),
    ):
        # AWX stores a catalog as JSON, whose keys are texts.
        stored = json.loads(json.dumps(CATALOG))
        sized = merged({"name": "m", "model": name, "tensor_parallel_size": cards}, stored, {})
        (mount,) = sized["mounts"]
        assert mount["source"] == sized["source"]["measurement"]["folder"]
        assert mount["source"].endswith(folder)
        assert mount["target"] == "/opt/vllm-fork/scripts/nc_workspace_measure_kvcache"
        assert "by_tensor_parallel_size" not in sized


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ("[8]", "by_tensor_parallel_size: is [8]; must be a mapping of numbers of cards to mappings of keys, such as"),
        ("{many: {}}", 'by_tensor_parallel_size: is {"many": {}}; must be a mapping of numbers of cards'),
        ("{8: 3}", 'by_tensor_parallel_size: is {"8": 3}; must be a mapping of numbers of cards'),
        ("{8: {max_num_seq: 3}}", "by_tensor_parallel_size: 8: max_num_seq 3: is neither a key of this toolkit"),
    ],
)
def test_a_mistake_under_a_number_of_cards_is_reported_with_it(tmp_path: Path, sizes: str, message: str) -> None:
    (tmp_path / "x.yml").write_text(f"weights: /x\nby_tensor_parallel_size: {sizes}\n", encoding="utf-8")
    with pytest.raises(InputError) as raised:
        model_catalog([str(tmp_path)])
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "bad.yml: is [1]; a catalog entry must be a mapping with the keys of a model"),
        ("", "bad.yml: is empty; a catalog entry must be a mapping with the keys of a model"),
        ("a: [", "bad.yml: line 1, column 5: not YAML: expected the node content"),
        ("port: 1\nport: 2", "bad.yml: line 2, column 1: not YAML: a key that is there twice"),
        ("name: x\nweights: /w", "name and model belong to the models that use the entry"),
        ("weights: /w\nmax_num_seq: 8", "max_num_seq 8: is neither a key"),
        ("max_num_seqs: 8", "weights: is required"),
    ],
)
def test_a_bad_entry_is_named_with_its_file(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.yml").write_text(text)
    with pytest.raises(InputError, match=r"bad\.yml: ") as raised:
        model_catalog([str(FOLDER), str(tmp_path)])
    assert message in str(raised.value)


def test_everything_wrong_with_a_catalog_is_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("weights: w\nmax_num_seqs: many\nname: a")
    (tmp_path / "b.yml").write_text("a: [")
    (tmp_path / "c.yml").write_bytes(b"weights: /\xe9")
    (tmp_path / "d.yml").write_text("weights: /d\nseed: 2020-02-30")
    (tmp_path / "e.yml").mkdir()
    (tmp_path / "good.yml").write_text("weights: /good")
    with pytest.raises(InputError) as raised:
        model_catalog(["/nowhere", str(tmp_path), 5])  # type: ignore[list-item]
    lines = str(raised.value).replace(str(tmp_path), "FOLDER").split("\n")
    assert [line.partition(": must")[0].partition(": expected")[0] for line in lines] == [
        "vllm_catalog_dirs: /nowhere: no such folder",
        "FOLDER/a.yml: name and model belong to the models that use the entry",
        "FOLDER/a.yml: weights 'w'",
        "FOLDER/a.yml: max_num_seqs 'many'",
        "FOLDER/b.yml: line 1, column 5: not YAML",
        "FOLDER/c.yml: not UTF-8; it must be a YAML text file",
        "FOLDER/d.yml: not YAML: day is out of range for month",
        "FOLDER/e.yml: cannot be read: Is a directory",
        "vllm_catalog_dirs: 5: no such folder",
    ]
    with pytest.raises(InputError, match="vllm_catalog_dirs: '/srv': must be a list of folders"):
        model_catalog("/srv")
    assert model_catalog(["/nowhere", str(tmp_path), "x" * 300], strict=False) == {"good": {"weights": "/good"}}


def test_a_secret_in_an_entry_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "x.yml").write_text("weights: /w\nmy_password: s3cret\n")
    (problem,) = catalog_folder(str(tmp_path))[1]
    assert "x.yml: my_password (hidden): is neither" in problem


def test_a_later_folder_wins(tmp_path: Path) -> None:
    (tmp_path / "qwq-32b.yml").write_text("weights: /mine")
    assert model_catalog([str(FOLDER), str(tmp_path)])["qwq-32b"] == {"weights": "/mine"}
    with pytest.raises(InputError, match="vllm_catalog_dirs: /nowhere: no such folder"):
        model_catalog(["/nowhere"])


def test_the_page_of_migration_reports_what_plans_report() -> None:
    page = (Path(__file__).parents[2] / "docs/guides/migrating.md").read_text(encoding="utf-8")
    rows = [line.strip("|").split("|") for line in page.partition("## Model by model")[2].splitlines() if "|" in line]
    told = {name.strip(): cells[1:3] for cells in rows[2:] for name in cells[0].split(",")}
    assert set(told) == {name for name in CATALOG if not only_plugin(name)}
    for name, cells in told.items():
        for release, cell in zip(("1.21.3", "1.24.1"), cells, strict=True):
            wish = {"name": "m", "model": name, "image": "i"}
            (model,) = vllm_plan([wish], gaudi_host(weights={}), CATALOG, release=release, host_nics=True)["models"]
            if model["graphs"] is None:
                assert cell.strip() == "the server's own buckets"
                continue
            assert int(re.findall(r"\d+", cell)[0]) == model["graphs"], name
            minutes = float(re.findall(r"([\d.]+) min", cell)[0])
            assert minutes == pytest.approx(model["warmup_s"] / 60, abs=0.5), name
            fit = re.findall(r"(\d+) of (\d+)", cell)
            assert not fit or fit[0] == (str(model["memory"]["sequences"]), str(model["max_num_seqs"])), name


def test_an_entry_that_the_catalog_lacks_is_answered_with_the_nearest_and_not_with_all() -> None:
    catalog = model_catalog([], builtin=True)
    for name, sentence in (
        ("qwen3-80b", "is not in the catalog; did you mean qwen3-8b"),
        ("llama", f"is not in the catalog; docs/guides/models.md lists its {len(catalog)} entries"),
    ):
        plan = vllm_plan([{"name": "m", "model": name, "image": "i:1"}], gaudi_host(), catalog, host_name="g")
        (error,) = [one for one in plan["errors"] if one["key"] == "model"]
        assert error["allowed"].startswith(sentence)
        assert len(error["allowed"]) < 120
