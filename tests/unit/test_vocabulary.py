"""The vocabulary of gpt-oss on hosts without internet: planned, listed in the bundle, fetched, and mounted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gaudi_serve.bundle.fetch.sources import place_of
from gaudi_serve.bundle.host import BundleHost
from gaudi_serve.bundle.offline import missing_lines
from gaudi_serve.bundle.weights import weights
from gaudi_serve.catalog.files import model_catalog
from gaudi_serve.host.observe_host import weights_read
from gaudi_serve.model.vocabulary import SOURCE
from gaudi_serve.plan.host import plan_models
from gaudi_serve.plan.wanted import Wanted
from gaudi_serve.stages.weights import weights_refusal, weights_sources
from helpers.plans import SYSTEM, TINY, gaudi_host, host_of

GPT_OSS = {**TINY, "model_type": "gpt_oss"}
MODEL = {"name": "m", "weights": "/m"}
FOLDER = {"source": "/m-vocabulary", "target": "/m-vocabulary", "read_only": True}
NAME = "o200k_base.tiktoken"


def planned(come: bool = True, offline: bool = True, facts: dict[str, Any] | None = None, **more: Any) -> Any:
    """Return the errors and the model of a host's plan."""
    folder = {"config": GPT_OSS, "bytes": 6_000_000, **(facts or {})}
    image = {"image": "vllm/vllm-openai:v0.26.0"}
    wanted = Wanted([{**MODEL, **image, **more}], {}, weights_come=come, offline=offline)
    found = plan_models("a", wanted, host_of("cuda", weights={"/m": folder}), ()).as_dict()
    return [one["message"] for one in found["errors"]], next(iter(found["models"]), None)


def host(sources: list[dict[str, Any]]) -> BundleHost:
    """Return a host of a bundle with these sources."""
    known = {
        "gaudi_host": gaudi_host(),
        "preflight_models": [],
        "preflight_catalog": {},
        "model_weights_models": sources,
    }
    defaults = {
        "preflight_model_defaults": {},
        "vllm_image_release": "1.24.1",
        "model_weights_from_host": "",
        "model_weights_index_url": "",
    }
    return BundleHost("a", {**known, **defaults, "gaudi_system": {**SYSTEM, "kernel": "6.1", "accelerator": "cuda"}})


def test_a_server_without_internet_finds_the_vocabulary_beside_its_weights() -> None:
    errors, model = planned()
    assert not errors
    assert model["env"]["TIKTOKEN_ENCODINGS_BASE"] == "/m-vocabulary" and FOLDER in model["mounts"]
    assert not [text for text in model["warnings"] if "internet" in text]
    with_internet = planned(offline=False)[1]
    assert "TIKTOKEN_ENCODINGS_BASE" not in with_internet["env"] and FOLDER not in with_internet["mounts"]
    assert planned(offline=False, facts={"config": TINY})[1]["digest"] == planned(facts={"config": TINY})[1]["digest"]


def test_a_folder_that_the_user_names_stays() -> None:
    mounts = [{"source": "/v", "target": "/v"}]
    for variable in ("TIKTOKEN_ENCODINGS_BASE", "TIKTOKEN_RS_CACHE_DIR"):
        errors, model = planned(env={variable: "/v"}, mounts=mounts)
        assert not errors and model["env"][variable] == "/v" and FOLDER not in model["mounts"]
        assert weights_sources([{**MODEL, "config": GPT_OSS, "env": {variable: "/v"}}], {}, {}, downloads="") == []


def test_a_run_that_fetches_nothing_refuses_a_missing_vocabulary() -> None:
    assert not planned(come=True, facts={"vocabulary": False})[0]
    assert not planned(come=False, facts={"vocabulary": True})[0]
    (error,) = planned(come=False, facts={"vocabulary": False})[0]
    assert error == (
        "a: model m: env: TIKTOKEN_ENCODINGS_BASE '/m-vocabulary': has no o200k_base.tiktoken on this host; "
        "playbooks/weights.yml fetches it"
    )


def test_a_host_reports_whether_the_vocabulary_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    for kind, seen in (("gpt_oss", {"vocabulary": False}), ("qwen3", {})):
        (folder / "config.json").write_text(f'{{"model_type": "{kind}"}}')
        facts = weights_read([str(folder)])[0][str(folder)]
        assert {key: value for key, value in facts.items() if key == "vocabulary"} == seen
    (folder / "config.json").write_text('{"model_type": "gpt_oss"}')
    (tmp_path / "m-vocabulary").mkdir()
    (tmp_path / "m-vocabulary" / NAME).touch()
    assert weights_read([str(folder)])[0][str(folder)]["vocabulary"] is True


def test_every_gpt_oss_of_the_catalog_has_its_vocabulary_in_the_bundle() -> None:
    catalog = model_catalog([], builtin=True)
    names = [name for name in catalog if name.startswith("gpt-oss")]
    assert len(names) == 4
    for name in names:
        found = weights_sources([{"name": "m", "model": name}], catalog, {}, downloads="")
        assert [one["weights"] for one in found if one["source"] == SOURCE] == [
            f"{catalog[name]['weights']}-vocabulary"
        ]
        plain = weights_sources([{"name": "m", "model": name}], catalog, {})
        assert plain == [one for one in found if one["source"] != SOURCE]


def test_the_bundle_has_the_vocabulary_with_its_checksum_and_the_mirror_serves_it() -> None:
    models = [{**MODEL, "config": GPT_OSS}, {**MODEL, "name": "n"}]
    here = {"/m": {"config": GPT_OSS}}
    (outside,) = weights_sources(models, {}, {}, here=here, downloads="")
    (item,) = weights(host([outside]))
    assert (item.kind, item.name, item.version) == ("download", NAME, f"sha256:{SOURCE['sha256']}")
    assert item.pinned and item.origin == SOURCE["url"] and item.need.models == ("m",)
    (inside,) = weights_sources(models, {}, {}, here=here, downloads="https://m/downloads")
    assert inside["source"] == {**SOURCE, "endpoint": "https://m/downloads"}
    assert weights_refusal([inside], {"folders": {}}, "a") == []
    # The mirror serves the folder of the bundle.
    assert place_of(item.origin) == SOURCE["url"].removeprefix("https://")
    has = [item.kind, item.name, item.version, item.system]
    assert missing_lines(host([inside]), "https://m", [has], ["model_weights"]) == []
    assert (
        "the mirror https://m lacks download o200k_base.tiktoken"
        in (missing_lines(host([inside]), "https://m", [], ["model_weights"])[0])
    )


def test_a_user_cannot_name_a_single_file_as_weights() -> None:
    other = [{"name": "m", "weights": "/m", "image": None, "source": {**SOURCE, "url": "https://other/x"}}]
    assert "a kind of hub" in weights_refusal(other, {"folders": {}}, "a")[0]
