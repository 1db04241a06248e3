"""What must hold whatever the input: hypothesis looks for the counterexample."""

from __future__ import annotations

import re
from typing import Any

from gaudi_serve.buckets.linear import hpu_buckets, hpu_padded_shape
from gaudi_serve.core.errors import InputError
from gaudi_serve.engines.aice_1_21 import LAUNCH_DEFAULTS
from gaudi_serve.host.hccl import hccl_benchmark
from gaudi_serve.memory.autocalc import hpu_memory
from gaudi_serve.plan.changes import vllm_plan_changes
from gaudi_serve.plan.host import vllm_plan
from gaudi_serve.plan.launch import vllm_launch
from gaudi_serve.platforms.hl_smi import hl_smi_links, hl_smi_modules, hl_smi_topology
from helpers.placing import disjoint_cores, machine, place, request, running
from helpers.plans import LLAMA, gaudi_host, model
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

QUICK = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))

DEVICES = st.sampled_from(["HL-225", "HL-288"])
SIZES = st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from([1, 1, 2, 3, 4, 8]), max_size=6)
NODES = st.integers(1, 16).flatmap(lambda count: st.tuples(*[st.integers(0, 1)] * count))


def wishes(sizes: dict[str, int]) -> list[dict[str, Any]]:
    """Return models by name and number of cards."""
    return [request(name, cards) for name, cards in sizes.items()]


@QUICK
@given(DEVICES, NODES, SIZES)
def test_placements_never_overlap_and_keep_the_groups(
    device: str, nodes: tuple[int, ...], sizes: dict[str, int]
) -> None:
    placed, errors, _ = place(wishes(sizes), machine(device, nodes))
    cards = [card for numbers in placed.values() for card in numbers]
    assert len(set(cards)) == len(cards)
    assert set(cards) <= set(range(len(nodes)))
    assert {error["model"] for error in errors} == set(sizes) - set(placed)
    for name, numbers in placed.items():
        assert len(numbers) == sizes[name]
        if device == "HL-288":
            assert len({number // 4 for number in numbers}) == 1


@QUICK
@given(DEVICES, SIZES, SIZES)
def test_placements_are_stable_when_models_come_and_go(
    device: str, before: dict[str, int], after: dict[str, int]
) -> None:
    old, _, _ = place(wishes(before), machine(device))
    same = {name: after.get(name, cards) for name, cards in before.items()}
    stayed = {name: old[name] for name in old if name in after and same[name] == before[name]}
    host = machine(device, services=running(**old))
    placed, errors, moved = place(wishes(after), host)
    for name, cards in stayed.items():
        assert placed[name] == cards or moved[name] == cards
    if device == "HL-225":
        assert not moved
    if errors:
        assert not moved
    again, _, moved_again = place(wishes(after), machine(device, services=running(**placed)))
    assert (again, moved_again) == (placed, {})


@QUICK
@given(NODES)
def test_cores_of_two_cards_are_disjoint_and_of_their_node(nodes: tuple[int, ...]) -> None:
    host = machine(nodes=nodes)
    cores = disjoint_cores(host)
    seen: set[int] = set()
    for number, text in cores.items():
        first, last = map(int, text.split("-"))
        own = set(range(first, last + 1))
        assert own and not own & seen
        assert own <= set(range(nodes[number] * 40, nodes[number] * 40 + 40))
        seen |= own


@st.composite
def specs(draw: Any) -> dict[str, Any]:
    """Return the lengths of a model."""
    low = draw(st.integers(1, 3000))
    high = draw(st.integers(low, low + 3000))
    spec = {
        "input_range": [low, high],
        "output_range": [1, draw(st.integers(1, 2000))],
        "max_num_seqs": draw(st.integers(1, 260)),
        "max_num_batched_tokens": draw(st.integers(low, 12000)),
        "max_model_len": draw(st.integers(high + 1, 8192)),
    }
    if draw(st.booleans()):
        spec["reduce_warmup"] = {"max_num_seqs": draw(st.integers(1, 64)), "max_seq_len": draw(st.integers(128, 4000))}
    return spec


@QUICK
@given(specs(), st.data())
def test_every_request_in_range_is_warm_or_warned_about(spec: dict[str, Any], data: Any) -> None:
    full = {**LAUNCH_DEFAULTS, "weights": "/m", **spec}
    try:
        launch = vllm_launch(full, gaudi_host())
    except InputError:
        assume(False)
    env, warnings = launch["env"], " ".join(launch["warnings"])
    tokens, blocks = full["max_num_batched_tokens"], int(env["VLLM_DECODE_BLOCK_BUCKET_MAX"])
    warm = hpu_buckets(env, tokens, blocks)
    length = data.draw(st.integers(*full["input_range"]))
    batch = data.draw(st.integers(1, full["max_num_seqs"]))
    prompt = hpu_padded_shape(env, "prompt", 1, length, blocks)
    if prompt not in warm["prompt"]:
        assert "prompts of" in warnings
    reached = min(length + full["output_range"][1], full["max_model_len"])
    for total in (length + 1, reached):
        decode = hpu_padded_shape(env, "decode", batch, batch * -(-total // 128), 10**9)
        if decode not in warm["decode"]:
            assert " at a time" in warnings or "decode steps above" in warnings, (decode, warnings)


@QUICK
@given(st.integers(1, 600), st.integers(1, 600), st.integers(128, 65536), st.sampled_from([1, 2, 4, 8]))
def test_more_sequences_never_need_less_memory(one: int, two: int, length: int, cards: int) -> None:
    base = {**LLAMA, "MAX_MODEL_LEN": length, "TENSOR_PARALLEL_SIZE": cards}
    few, many = (hpu_memory({**base, "MAX_NUM_SEQS": count}) for count in sorted((one, two)))
    assert many["VLLM_DECODE_BLOCK_BUCKET_MAX"] >= few["VLLM_DECODE_BLOCK_BUCKET_MAX"]
    assert many["fit"]["short_by_gib"] >= few["fit"]["short_by_gib"]
    assert few["fit"]["fits"] or not many["fit"]["fits"]


SPACES = st.sampled_from([" ", "  ", "     ", "\t"])
COLOURS = st.sampled_from([("", ""), ("\x1b[32m", "\x1b[0m"), ("\x1b[1;31m", "\x1b[m")])


@QUICK
@given(st.permutations(range(16)), st.integers(1, 16), SPACES, COLOURS, st.booleans(), st.booleans())
def test_parsers_read_back_what_was_written(
    order: list[int], count: int, space: str, colour: tuple[str, str], threads: bool, header: bool
) -> None:
    on, off = colour
    pairs = list(enumerate(order[:count]))
    head = f"index,{space}module_id\n" if header else ""
    text = head + "".join(f"{on}{index},{space}{module}{off}\n" for index, module in pairs)
    assert [(card["index"], card["module_id"]) for card in hl_smi_modules(text)] == pairs
    topology = {
        module: {"cpus": ["0-39", "80-119"] if threads else ["0-39"], "numa_node": index % 2} for index, module in pairs
    }
    rows = [f"{module}{space}{', '.join(row['cpus'])}{space}{row['numa_node']}" for module, row in topology.items()]
    assert hl_smi_topology(f"modID{space}CPU Affinity{space}NUMA Affinity\n-----\n" + "\n".join(rows)) == topology
    links = {index: "UP" if module % 3 else "DOWN" for index, module in pairs}
    text = "\n".join(f"{on}port{space}{number}:{space}{state}{off}" for number, state in links.items())
    assert hl_smi_links(text) == links


@QUICK
@given(
    st.lists(st.tuples(st.integers(10, 30), st.floats(0.001, 999)), min_size=1, max_size=8, unique_by=lambda x: x[0])
)
def test_hccl_tables_are_read_back(rows: list[tuple[int, float]]) -> None:
    text = "[SUMMARY REPORT]\n(src!=dst, collective=all_reduce, iterations=10)\n"
    text += "size  count  type  redop  time  algoBW  nw_bw\n"
    text += "".join(
        f"{2**power} {2**power // 4} float sum 1 ms {speed:.6f} GB/s {speed:.6f} GB/s\n" for power, speed in rows
    )
    found = hccl_benchmark(text)["results"]
    assert [(row["size_bytes"], row["nw_gb_s"]) for row in found] == sorted(
        (2**power, float(f"{speed:.6f}")) for power, speed in rows
    )


@QUICK
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
        max_leaves=5,
    ),
    st.sampled_from(sorted([*model(), "env", "mounts", "reduce_warmup", "module_ids", "config", "dtype", "state"])),
)
def test_a_plan_never_raises_and_names_the_key(value: Any, key: str) -> None:
    plan = vllm_plan([model(**{key: value})], gaudi_host(), host_name="g")
    assert plan["models"] or plan["errors"]
    for error in plan["errors"]:
        assert error["host"] == "g" and error["key"] and error["message"].startswith("g: ")


@QUICK
@given(st.integers(1, 4), st.integers(1, 64))
def test_a_plan_that_is_carried_out_has_nothing_left_to_change(cards: int, count: int) -> None:
    from gaudi_serve.stages.service import vllm_container

    host = gaudi_host()
    plan = vllm_plan([model(tensor_parallel_size=2 ** (cards - 1), max_num_seqs=count)], host)
    (one,) = plan["models"]
    live = {"launch": vllm_container(one), "env": one["env"], "digest": one["digest"], "active": True}
    services = {one["name"]: {**live, "module_ids": one["module_ids"], "port": one["port"]}}
    again = vllm_plan(
        [model(tensor_parallel_size=2 ** (cards - 1), max_num_seqs=count)], {**host, "services": services}
    )
    assert vllm_plan_changes(again["models"], services) == []


@QUICK
@given(
    DEVICES,
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 40960),
    st.integers(1, 500),
    st.sampled_from([1, 8, 40]),
)
def test_what_is_reported_to_fit_fits(device: str, cards: int, length: int, gigabytes: int, kv_heads: int) -> None:
    assume(cards <= kv_heads)
    config = {"num_hidden_layers": 64, "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": kv_heads}
    weights = {"/data/QwQ-32B": {"config": config, "bytes": gigabytes * 10**9}}
    planned = {"tensor_parallel_size": cards, "max_model_len": length, "max_num_batched_tokens": 40960}
    host = gaudi_host(device_name=device, weights=weights, host_nics=device == "HL-288" and cards == 8)
    base = model(**planned, input_range=[1, 4096])
    assume(length > 1)

    def problems(change: dict[str, int]) -> list[dict[str, Any]]:
        errors: list[dict[str, Any]] = vllm_plan([{**base, **change}], host)["errors"]
        return errors

    for error in problems({}):
        assert not re.search(r"(?<!\d)0\.0 GiB a card", error["message"])
        assert "; 0 GiB" not in error["message"]
        _, _, remedy = error["message"].partition("what fits: ")
        for way in filter(None, remedy.split(" or ")):
            change = {key: int(value) for key, value in (part.split(" ") for part in way.split(" with "))}
            assert problems(change) == []
