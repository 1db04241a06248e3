"""Engine plugin by the vLLM of its image: what is written for each, what each would stop at, and which is assumed."""

from __future__ import annotations

from typing import Any

import pytest
from gaudi_serve.buckets.plugin import hpu_plugin_buckets
from gaudi_serve.buckets.plugin_server import hpu_plugin_padded_shape
from gaudi_serve.catalog.files import model_catalog
from gaudi_serve.core.errors import InputError
from gaudi_serve.plan.host import vllm_plan
from gaudi_serve.plan.launch import vllm_launch
from gaudi_serve.platforms.releases import vllm_of
from gaudi_serve.stages.image import vllm_images
from helpers.plans import gaudi_host

CATALOG = model_catalog([], builtin=True)
SERVER = {
    **{"max_num_seqs": 12, "max_num_prefill_seqs": 1, "block_size": 128, "max_num_batched_tokens": 2048},
    **{"max_model_len": 8192, "num_hpu_blocks": 300},
    "env": {"VLLM_CONTIGUOUS_PA": "false", "VLLM_PREFIX_CACHING": "true"},
}
SHAPES = [
    {"phase": "prompt", "batch": 2, "query": 2000, "ctx": 700},
    {"phase": "decode", "batch": 15, "blocks": 50},
    {"phase": "decode", "batch": 5, "blocks": 1300},
]
STOPS = "the server reads it at start, used or not, and stops"
SLICES = "strategy pad slices attention, and the server stops when the model is built"
OFF = "or set VLLM_HPU_FSDPA_SLICE_ENABLED to false"


def plan(release: str = "1.24.1", *, images: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    """Plan QwQ-32B with the plugin on a host of a release."""
    wish = {"name": "m", "model": "qwq-32b", "image": "vllm:1", "launch_profile": "plugin", **more}
    return vllm_plan([wish], gaudi_host(), CATALOG, host_name="g", release=release, images=images or [])


def one(release: str = "1.24.1", **more: Any) -> dict[str, Any]:
    """Return the planned model."""
    found = plan(release, **more)
    assert found["errors"] == []
    return dict(found["models"][0])


def refused(release: str = "1.24.1", **more: Any) -> str:
    """Return the one sentence by which a request is refused."""
    (error,) = plan(release, **more)["errors"]
    return str(error["message"]).removeprefix("g: model m: ")


def bucketing_env(model: dict[str, Any]) -> dict[str, str]:
    """Return the variables by which a strategy is chosen."""
    return {name: text for name, text in model["env"].items() if name.endswith(("_STRATEGY", "_BUCKETING"))}


# Graphs, and what the shapes are padded to, of the code of each version.
@pytest.mark.parametrize(
    ("version", "graphs", "padded"),
    [
        ("0.10.1", (35, 10), [[4, 2048, 300], [18, 1, 128], [8, 1, 300]]),
        ("0.11.2", (64, 23), [[4, 2048, 300], [18, 1, 128], [8, 1, 300]]),
        ("0.13.0", (64, 49), [[4, 2048, 300], [18, 1, 128], [8, 1, 300]]),
        ("0.14.1", (56, 49), [[4, 2048, 300], [12, 1, 128], [8, 1, 300]]),
        ("0.16.0", (56, 49), [[4, 2048, 300], [12, 1, 128], [8, 1, 300]]),
        ("0.17.1", (56, 52), [[4, 2048, 768], [12, 1, 128], [8, 1, 768]]),
        ("0.19.0", (72, 52), [[4, 2048, 64], [12, 1, 128], [12, 1, 768]]),
        ("0.21.0", (72, 53), [[4, 2048, 64], [12, 1, 128], [12, 1, 768]]),
        ("0.26.0", (72, 53), [[4, 2048, 64], [12, 1, 128], [12, 1, 768]]),
        (None, (72, 53), [[4, 2048, 64], [12, 1, 128], [12, 1, 768]]),
    ],
)
def test_shapes_without_a_bucket_are_made_up_as_each_version_does(
    version: str | None, graphs: tuple[int, int], padded: list[list[int]]
) -> None:
    chunks = {"mamba_chunk_size": 256} if version != "0.10.1" else {}
    given = {**SERVER, **chunks, "vllm_version": version}
    found = hpu_plugin_buckets(given)
    assert (len(found["prompt"]), len(found["decode"])) == graphs
    answers = hpu_plugin_padded_shape(given, SHAPES, remember=False)
    assert isinstance(answers, list)
    assert [answer["bucket"] for answer in answers] == padded


@pytest.mark.parametrize(("version", "graphs"), [("0.11.2", 32), ("0.13.0", 71), ("0.17.1", 72), ("0.24.0", 78)])
def test_decode_graphs_of_a_default_server_are_those_of_its_version(version: str, graphs: int) -> None:
    server = {**SERVER, "max_num_seqs": 128, "max_model_len": 16384, "max_num_batched_tokens": 8192}
    found = hpu_plugin_buckets({**server, "num_hpu_blocks": 4096, "vllm_version": version})
    assert len(found["decode"]) == graphs


def test_the_version_to_come_stops_at_three_times_the_blocks_of_the_device() -> None:
    server = {**SERVER, "max_num_seqs": 128}
    most = [max(bucket[2] for bucket in hpu_plugin_buckets({**server, **more})["decode"]) for more in VERSIONS]
    assert most == [8192, 900, 8192]


VERSIONS: list[dict[str, Any]] = [
    {"vllm_version": "0.26.0"},
    {"vllm_version": "0.27.0"},
    {"vllm_version": "0.27.0", "skip_decode_block_clamp": True},
]


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        (0.26, "vllm_version: 0.26 is not a version of vLLM, such as '0.26.0'"),
        ("0.9.2", "vllm_version: '0.9.2' is before 0.10.1, the first with the plugin's buckets"),
    ],
)
def test_a_version_that_is_none_is_refused(version: Any, sentence: str) -> None:
    with pytest.raises(InputError) as problem:
        hpu_plugin_buckets({**SERVER, "vllm_version": version})
    assert str(problem.value) == sentence


def test_seeds_are_nothing_without_speculation_and_chunks_nothing_without_bucketing() -> None:
    first = hpu_plugin_padded_shape(SERVER, [{"phase": "decode", "batch": 20, "blocks": 40}] * 2)
    assert isinstance(first, list)
    again = hpu_plugin_padded_shape(SERVER, [{"phase": "decode", "batch": 20, "blocks": 40, "seed_buckets": True}] * 2)
    assert first == again
    off = {**SERVER, "env": {"VLLM_ENABLE_BUCKETING": "false"}, "mamba_chunk_size": 300}
    assert hpu_plugin_buckets(off) == {"use_contiguous_pa": False, "prompt": [], "decode": []}


@pytest.mark.parametrize(
    ("release", "more", "written"),
    [
        ("1.22.1", {}, {}),
        ("1.22.2", {}, {}),
        ("1.23.0", {}, {}),
        ("1.23.0", {"vllm_version": "0.16.0"}, {}),
        ("1.24.0", {}, {}),
        ("1.24.0", {"vllm_version": "0.19.1"}, {}),
        ("1.24.0", {"vllm_version": "0.21.0"}, {"VLLM_BUCKETING_STRATEGY": "exp"}),
        ("1.24.0", {"image": "reg:5000/vllm-gaudi:v0.21.0"}, {"VLLM_BUCKETING_STRATEGY": "exp"}),
        ("1.24.1", {}, {"VLLM_BUCKETING_STRATEGY": "exp"}),
        ("1.22.1", {"bucketing": {"strategy": "lin"}}, {"VLLM_EXPONENTIAL_BUCKETING": "false"}),
        ("1.24.0", {"bucketing": {"strategy": "lin"}}, {"VLLM_EXPONENTIAL_BUCKETING": "false"}),
        ("1.24.1", {"bucketing": {"strategy": "lin"}}, {"VLLM_BUCKETING_STRATEGY": "lin"}),
        ("1.24.0", {"vllm_version": "0.21.0", "bucketing": {"strategy": "pad"}}, {"VLLM_BUCKETING_STRATEGY": "pad"}),
    ],
)
def test_a_strategy_is_written_as_the_version_reads_it(
    release: str, more: dict[str, Any], written: dict[str, str]
) -> None:
    model = one(release, warmup_budget_minutes=10_000, **more)
    assert bucketing_env(model) == written


def test_graphs_are_those_of_the_images_version() -> None:
    by_image = [one("1.23.0", image=f"r/vllm-gaudi-{number}:1")["buckets"] for number in ("0.11.2", "0.16.0")]
    assert [(found["prompt"], found["decode"]) for found in by_image] == [(78, 40), (23, 98)]
    # The filter of a launch alone reads the image's name too.
    wish = {"weights": "/m", "launch_profile": "plugin"}
    assert "VLLM_BUCKETING_STRATEGY" not in vllm_launch({**wish, "image": "vllm-0.19.1:1"}, gaudi_host())["env"]
    assert vllm_launch(wish, gaudi_host())["env"]["VLLM_BUCKETING_STRATEGY"] == "exp"


def test_a_version_is_reported_with_the_image_too() -> None:
    images = vllm_images([{"name": "own/vllm:7", "vllm_version": "0.21.0"}], "1.24.0")
    assert bucketing_env(plan("1.24.0", image="own/vllm:7", images=images)["models"][0])
    recipe = {"vllm": {"branch": "v0.21.0"}, "plugin": {"branch": "v0.21.0"}}
    pinned = {name: {**part, "commit": "0" * 40} for name, part in recipe.items()}
    entry = {"name": "own/built", "build": "gaudi", "recipe": {**pinned, "base": "b:1"}}
    images = vllm_images([entry], "1.24.0")
    assert images[0]["vllm_version"] == "0.21.0"
    assert bucketing_env(plan("1.24.0", image="own/built", images=images)["models"][0])
    # A model's own word wins.
    own = plan("1.24.0", image="own/built", images=images, vllm_version="0.19.1")
    assert not bucketing_env(own["models"][0])
    with pytest.raises(InputError, match="must be a quoted version of vLLM, such as"):
        vllm_images([{"name": "own/vllm:7", "vllm_version": 0.26}], "1.24.0")


def test_a_version_that_must_be_assumed_is_reported() -> None:
    (warning,) = [text for text in plan("1.24.0")["warnings"] if "assumes" in text]
    assert warning == (
        "g: model m: the plan assumes 0.17.1, the oldest vLLM of release 1.24.0 that serves it, which has 0.17.1 and "
        "0.19.0 to 0.21.0; set vllm_version in the model, because the buckets depend on it"
    )
    for release, more in (("1.22.1", {}), ("1.24.1", {}), ("1.24.0", {"vllm_version": "0.19.0"})):
        assert not any("assumes" in text for text in plan(release, **more)["warnings"])
    needs = [text for text in plan("1.24.0", least_vllm="0.20.0")["warnings"] if "assumes 0.20.0" in text]
    assert len(needs) == 1


@pytest.mark.parametrize(
    ("release", "more", "sentence"),
    [
        (
            "1.24.1",
            {"vllm_version": "0.21.0"},
            "vllm_version '0.21.0': belongs to release 1.24.0; accelerator_release is 1.24.1, which has 0.24.0 or "
            "0.26.0; use an image of this release, or, if the image has another vLLM, set vllm_version in the model",
        ),
        (
            "1.24.0",
            {"image": "r/vllm-0.26.0-ptupstream:1"},
            "vllm_version '0.26.0': belongs to release 1.24.1 (from the name of image r/vllm-0.26.0-ptupstream:1); "
            "accelerator_release is 1.24.0, which has 0.17.1 or 0.19.0 to 0.21.0; use an image of this release, or, "
            "if the image has another vLLM, set vllm_version in the model",
        ),
        (
            "1.22.1",
            {"vllm_version": "0.11.2"},
            "vllm_version '0.11.2': belongs to release 1.22.2 or 1.23; accelerator_",
        ),
        (
            "1.22.2",
            {"vllm_version": "0.10.1"},
            "vllm_version '0.10.1': belongs to release 1.22.1; accelerator_release is ",
        ),
        ("1.24.1", {"vllm_version": "0.27.0"}, "vllm_version '0.27.0': belongs to no release that is known; accelera"),
        ("1.22.0", {}, "launch_profile 'plugin': belongs to release 1.22.1 (the fork's aice/v1.22.0 and vLLM 0.10.1 "),
        (
            "1.23.0",
            {"vllm_version": "0.13.0", "least_vllm": "0.16.0"},
            "vllm_version '0.13.0': is too old for this model, whose least_vllm is 0.16.0; use a newer image",
        ),
        (
            "1.24.0",
            {"bucketing": {"strategy": "pad"}},
            "bucketing.strategy 'pad': needs vLLM 0.21.0 or newer, and this one has the buckets of 0.17.1: use exp or "
            "lin, or set vllm_version for a newer image",
        ),
        (
            "1.22.1",
            {"bucketing": {"strategy": "file", "file": "(1, 256, 0)\n(1, 1, 1)\n"}},
            "bucketing.strategy 'file': needs vLLM 0.11.2 or newer, and this one has the buckets of 0.10.1: use exp "
            "or lin, or set vllm_version for a newer image",
        ),
        (
            "1.23.0",
            {"env": {"VLLM_BUCKETING_STRATEGY": "exp"}},
            "env: VLLM_BUCKETING_STRATEGY 'exp': stops every server before vLLM 0.21; leave it out, which is exp, or "
            "set VLLM_EXPONENTIAL_BUCKETING to false, which is lin",
        ),
    ],
)
def test_what_a_release_or_its_vllm_does_not_have_is_refused(release: str, more: dict[str, Any], sentence: str) -> None:
    assert refused(release, **more).startswith(sentence)


def test_ranges_that_an_old_version_does_not_read_are_reported() -> None:
    said = {"strategy": "lin", "prompt_query": {"max": 512}, "decode_bs": {"step": 4}}
    warnings = plan("1.22.1", bucketing=said)["warnings"]
    assert "g: model m: bucketing.strategy lin ignores prompt_query.max" in warnings


def padded(**more: Any) -> dict[str, Any]:
    """Return a model with strategy pad; ``query`` are its ranges of tokens."""
    query = more.pop("query", None)
    return {"bucketing": {"strategy": "pad", **({"prompt_query": query} if query else {})}, **more}


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            padded(max_num_batched_tokens=512, max_model_len=512),
            f"max_num_batched_tokens 512: is below 1024: {SLICES}; raise it, {OFF}",
        ),
        (
            padded(query={"pad_max": 0}),
            f"bucketing.prompt_query.pad_max 0: is below the block size, which is 128: {SLICES}; raise it, {OFF}",
        ),
        (
            padded(env={"VLLM_EXPONENTIAL_BUCKETING": "true"}),
            f"env: VLLM_EXPONENTIAL_BUCKETING 'true': replaces strategy pad: {SLICES}; leave it out",
        ),
        (
            padded(env={"VLLM_HPU_FSDPA_SLICE_SEQ_LEN_THLD": 512}),
            f"env: VLLM_HPU_FSDPA_SLICE_SEQ_LEN_THLD '512': is below 1024: {SLICES}; raise it, {OFF}",
        ),
        (
            padded(env={"VLLM_HPU_FSDPA_SLICE_CHUNK_SIZE": 16384}),
            "env: VLLM_HPU_FSDPA_SLICE_CHUNK_SIZE '16384': is not above 0 and up to 8192: "
            f"{SLICES}; leave it out, {OFF}",
        ),
        # The blocks of this model are larger.
        (
            padded(model="granite-4.0-h-small", max_num_batched_tokens=2048),
            f"max_num_batched_tokens 2048: is below four blocks of 528 tokens: {SLICES}; raise it, {OFF}",
        ),
    ],
)
def test_settings_with_which_a_model_of_strategy_pad_is_not_built_are_refused(
    more: dict[str, Any], sentence: str
) -> None:
    assert refused(**more) == sentence


@pytest.mark.parametrize("off", [{"VLLM_HPU_FSDPA_SLICE_ENABLED": "false"}, {"VLLM_MERGED_PREFILL": "true"}])
def test_without_sliced_attention_they_are_taken(off: dict[str, str]) -> None:
    assert one(**padded(query={"pad_max": 0}, env=off, max_num_seqs=4))["graphs"]


@pytest.mark.parametrize(
    ("model", "more", "sentence"),
    [
        (
            "granite-4.0-h-small",
            {"bucketing": {"prompt_bs": {"max": 2}}},
            "bucketing.prompt_bs.max 2: puts several prompts into one step, at which vLLM 0.24.0 stops with "
            "granitemoehybrid; leave it out, which means 1",
        ),
        (
            "granite-4.0-h-small",
            {"env": {"VLLM_MERGED_PREFILL": "true"}, "vllm_version": "0.26.0"},
            "env: VLLM_MERGED_PREFILL 'true': puts several prompts into one step, at which vLLM 0.26.0 stops with "
            "granitemoehybrid; leave it out",
        ),
        (
            "qwen3.5-35b-a3b",
            {"env": {"VLLM_PROMPT_BS_BUCKET_MAX": 4}, "enable_prefix_caching": True, "max_num_seqs": 16},
            "env: VLLM_PROMPT_BS_BUCKET_MAX 4: puts several prompts into one step, at which vLLM 0.24.0 stops with a "
            "hybrid model and prefix caching; leave it out, which means 1",
        ),
    ],
)
def test_several_prompts_a_step_are_refused_where_a_hybrid_stops_at_them(
    model: str, more: dict[str, Any], sentence: str
) -> None:
    assert refused(model=model, **more) == sentence
    assert one(model="qwen3.5-35b-a3b", bucketing={"prompt_bs": {"max": 2}})["graphs"]


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("VLLM_DEFRAG_THRESHOLD", "", f"is not an integer: {STOPS}"),
        ("VLLM_PROFILE_STEPS", "1,", f"is not integers with commas between them: {STOPS}"),
        ("VLLM_ROW_PARALLEL_CHUNKS", "two", f"is not an integer: {STOPS}"),
        ("VLLM_HPU_FSDPA_SLICE_CHUNK_SIZE", "4k", f"is not an integer: {STOPS}"),
        ("VLLM_HPU_FSDPA_SLICE_SEQ_LEN_THLD", "", f"is not an integer: {STOPS}"),
        ("PT_HPU_SDPA_BC_FACTOR", "", f"is not an integer: {STOPS}"),
        ("VLLM_MOE_CHUNK", "", f"is not integers with commas between them: {STOPS}"),
        ("VLLM_DEBUG", "step", f"is not of steps, defrag, fwd, with commas between: {STOPS}; did you mean steps?"),
        ("VLLM_PROMPT_ATTN_IMPL", "fsdpa", "is not one of flex_impl, fsdpa_impl, naive_impl"),
    ],
)
def test_variables_that_the_server_reads_at_start_are_refused_with_a_text_that_stops_it(
    name: str, value: str, sentence: str
) -> None:
    for more in ({}, {"bucketing": {"strategy": "pad"}}):
        assert refused(env={name: value}, **more).startswith(f"env: {name} {value!r}: {sentence}")


def test_variables_are_refused_only_where_the_version_reads_them() -> None:
    assert one("1.22.1", env={"VLLM_MOE_CHUNK": "", "VLLM_DEBUG": "all"})
    good = {"VLLM_DEBUG": "steps,fwd", "VLLM_MOE_CHUNK": "64,128", "VLLM_DEFRAG_THRESHOLD": 32}
    assert one(env=good)["env"]["VLLM_DEBUG"] == "steps,fwd"


def test_blocks_of_granites_hybrids_are_those_of_the_server() -> None:
    granite = one(model="granite-4.0-h-small", max_num_seqs=128, max_model_len=16384, max_num_batched_tokens=8192)
    memory = granite["memory"]
    assert granite["bucket_limits"]["block_size"] == 528
    assert memory["kv_tokens"] == memory["num_hpu_blocks"] * 528
    server = {**SERVER, "max_num_seqs": 128, "max_model_len": 16384, "max_num_batched_tokens": 8192}
    server |= {"env": {"VLLM_CONTIGUOUS_PA": "true"}, "mamba_chunk_size": 256, "mamba_chunk_size_is_explicit": True}
    found = hpu_plugin_buckets({**server, "block_size": 528, "num_hpu_blocks": 10 * memory["num_hpu_blocks"]})
    assert (granite["buckets"]["prompt"], granite["buckets"]["decode"]) == (60, len(found["decode"]))
    caching = one(model="granite-4.0-h-small", enable_prefix_caching=True, max_num_seqs=16)
    assert caching["bucket_limits"]["block_size"] == 768
    # Of a model that has too little about itself.
    bare = {**CATALOG["granite-4.0-h-small"]["config"], "mamba_n_heads": None}
    assert one(model="granite-4.0-h-small", config=bare)["bucket_limits"]["block_size"] == 528


def test_sliding_windows_with_contiguous_pa_are_warned_of() -> None:
    wish = {"model": "gemma-4-31b-it", "vllm_version": "0.26.0", "tensor_parallel_size": 4}
    slow = "vLLM 0.26.0 reads the blocks of sliding windows wrongly with contiguous PA"
    assert any(slow in text for text in plan(**wish)["warnings"])
    assert not any(slow in text for text in plan(**wish, enable_prefix_caching=True)["warnings"])


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("registry.example:5000/vllm-plugin:1.24.1-0.26.0", "0.26.0"),
        ("vllm-ubuntu22.04-0.17.1", "0.17.1"),
        ("vllm-pt2.9-0.17.1:7", "0.17.1"),
        ("vllm-gaudi:1.24.1", None),
        ("vllm:latest", None),
    ],
)
def test_the_version_is_found_in_the_names_that_people_give_images(image: str, version: str | None) -> None:
    assert vllm_of(image) == version
