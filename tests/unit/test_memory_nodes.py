"""The memory of models on processors, by NUMA node: a default that starts, and what is refused before a start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.inventory.facts import checked_host
from gaudi_serve.plan.fleet import vllm_fleet_lines, vllm_fleet_plan
from gaudi_serve.plan.host import vllm_plan
from gaudi_serve.platforms.processors import memory_nodes
from gaudi_serve.stages.registry import expected_host
from helpers.gpu_hosts import put
from helpers.plans import SYSTEM, live_of

QWEN = {
    **{"hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 32768, "num_attention_heads": 14},
    **{"num_hidden_layers": 24, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True},
}
EIGHT_B = {
    **{"hidden_size": 4096, "intermediate_size": 12288, "max_position_embeddings": 40960, "num_attention_heads": 32},
    **{"num_hidden_layers": 36, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936},
}
WEIGHTS = {
    "/m/small": {"config": QWEN, "bytes": 988_097_824},
    "/m/large": {"config": EIGHT_B, "bytes": 16_381_470_720},
}
# The total and the available MiB of the machine in the report: 23.54 and 17.45 GiB.
TOTAL, FREE = 24105, 17869
CACHE = "--kv-cache-memory-bytes"


def node(number: int = 0, **more: int) -> dict[str, int]:
    return {"node": number, "memory_mib": TOTAL, "hugepages_mib": 0, **more}


def host(*nodes: dict[str, int], **more: Any) -> dict[str, Any]:
    cpu = {"architecture": "x86_64", "features": ["avx512f"], "nodes": list(nodes or (node(),))}
    return {"accelerator": "cpu", "modules": [], "services": {}, "weights": WEIGHTS, "cpu": cpu, **more}


def model(**more: Any) -> dict[str, Any]:
    base = {"name": "small", "weights": "/m/small", "image": "vllm-cpu:0.32.0", "port": 8000, "max_model_len": 4096}
    return {**base, **more}


def planned(*models: dict[str, Any], on: dict[str, Any] | None = None) -> dict[str, Any]:
    return vllm_plan(list(models), checked_host(on or host())[0], host_name="c")


def errors(*models: dict[str, Any], on: dict[str, Any] | None = None) -> list[str]:
    return [one["message"] for one in planned(*models, on=on)["errors"]]


def cache(found: dict[str, Any], number: int = 0) -> int:
    args = found["models"][number]["args"]
    return int(args[args.index(CACHE) + 1]) if CACHE in args else 0


def test_the_memory_of_nodes_is_read_as_vllm_reads_it(tmp_path: Path) -> None:
    folder = "sys/devices/system/node/node"
    sizes = {
        "MemTotal": 2**23,
        "MemFree": 2**20,
        **dict.fromkeys(("Active(file)", "Inactive(file)", "SReclaimable"), 1024),
    }
    for number in (0, 1):
        lines = [f"Node {number} {name}:  {size} kB" for name, size in sizes.items()]
        lines.append(f"Node {number} HugePages_Total:   100")
        put(tmp_path, f"{folder}{number}/meminfo", "\n".join(lines) + "\n")
    put(tmp_path, f"{folder}1/hugepages/hugepages-2048kB/nr_hugepages", "100\n")
    put(tmp_path, f"{folder}1/hugepages/hugepages-1048576kB/nr_hugepages", "2\n")
    # A node of processors alone has no memory, and no worker of vLLM.
    put(tmp_path, f"{folder}2/meminfo", "Node 2 MemTotal: 0 kB\n")
    assert memory_nodes(str(tmp_path)) == [
        {"node": 0, "memory_mib": 8192, "hugepages_mib": 0, "available_mib": 1027},
        {"node": 1, "memory_mib": 8192, "hugepages_mib": 2248, "available_mib": 1027},
    ]


def test_a_kernel_without_nodes_has_one(tmp_path: Path) -> None:
    assert memory_nodes(str(tmp_path)) == []
    put(tmp_path, "proc/meminfo", "MemTotal: 2097152 kB\nMemAvailable: 1048576 kB\nHugetlb: 524288 kB\n")
    assert memory_nodes(str(tmp_path)) == [
        {"node": 0, "memory_mib": 2048, "hugepages_mib": 512, "available_mib": 1024},
    ]


@pytest.mark.parametrize("nodes", [3, [3], [{"node": 0}], [{"node": 0, "memory_mib": "much"}]])
def test_nodes_that_cannot_be_are_one_sentence(nodes: Any) -> None:
    _, problems = checked_host(host() | {"cpu": {"architecture": "x86_64", "nodes": nodes}})
    assert [problem[0] for problem in problems] == ["gaudi_host.cpu"]


@pytest.mark.parametrize("nodes", [(node(),), (node(available_mib=FREE),), (node(memory_mib=4096),)])
def test_without_keys_of_memory_a_model_starts(nodes: tuple[dict[str, int], ...]) -> None:
    found = planned(model(), on=host(*nodes))
    assert found["errors"] == []
    memory = found["models"][0]["memory"]
    assert cache(found) == memory["kv_cache_gib"] * 2**30 > 0
    assert memory["requested_gib"] < (nodes[0].get("available_mib") or nodes[0]["memory_mib"] * 0.75) / 1024


def test_the_default_depends_on_the_host_and_the_model_alone() -> None:
    alone = planned(model())["models"][0]
    beside = planned(model(), model(name="other", port=8001))["models"]
    busy = planned(model(), on=host(node(available_mib=8000)))["models"][0]
    assert alone["digest"] == beside[0]["digest"] == busy["digest"]
    fewer = planned(model(), on=host(node(hugepages_mib=8192)))
    assert 0 < cache(fewer) < cache({"models": [alone]})


def test_large_weights_leave_less_for_the_cache_and_still_start() -> None:
    found = planned(model(weights="/m/large", max_model_len=2048))
    assert found["errors"] == [] and 0 < cache(found) < cache(planned(model()))


def test_a_users_size_is_never_replaced() -> None:
    sizes: list[dict[str, Any]] = [
        {"gpu_memory_utilization": 0.5},
        {"num_gpu_blocks_override": 100},
        {"env": {"VLLM_CPU_KVCACHE_SPACE": "2"}},
    ]
    for size in sizes:
        assert CACHE not in planned(model(**size))["models"][0]["args"]
    assert cache(planned(model(kv_cache_memory_bytes=2**30))) == 2**30


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"gpu_memory_utilization": 0.92},
            "c: model small: gpu_memory_utilization 0.92: needs 21.7 GiB of NUMA node 0 (0.9 GiB of weights, 1.1 GiB "
            "for the process and a batch, the rest for the KV cache), and 17.5 of 23.5 GiB are available; what fits: "
            "gpu_memory_utilization 0.74 or kv_cache_memory_bytes 16374562816",
        ),
        (
            {"kv_cache_memory_bytes": 2**35},
            "c: model small: kv_cache_memory_bytes 34359738368: needs 34.0 GiB of NUMA node 0 (0.9 GiB of weights, 1.1 "
            "GiB for the process and a batch, the rest for the KV cache), and 17.5 of 23.5 GiB are available; what "
            "fits: kv_cache_memory_bytes 16374562816",
        ),
        (
            {"env": {"VLLM_CPU_KVCACHE_SPACE": "40"}},
            "c: model small: env: VLLM_CPU_KVCACHE_SPACE '40': needs 42.0 GiB of NUMA node 0 (0.9 GiB of weights, 1.1 "
            "GiB for the process and a batch, the rest for the KV cache), and 17.5 of 23.5 GiB are available; what "
            "fits: env: {VLLM_CPU_KVCACHE_SPACE: '15'}",
        ),
        (
            {"weights": "/m/large", "kv_cache_memory_bytes": 2**28, "max_model_len": 8192},
            "c: model small: weights '/m/large': need more than NUMA node 0 has: 15.3 GiB of weights, 1.2 GiB for the "
            "process and a batch, and 3.9 of 23.5 GiB are available, 13.7 GiB are hugepages; nothing that this host "
            "has left fits",
        ),
        (
            {"kv_cache_memory_bytes": 2**28, "max_model_len": 32768},
            "c: model small: max_model_len 32768: needs more KV cache than 0.25 GiB (21760 tokens) of NUMA node 0 (0.9 "
            "GiB of weights, 1.1 GiB for the process and a batch); 0.13 GiB are missing; 17.5 of 23.5 GiB are "
            "available; what fits: max_model_len 21504 or kv_cache_memory_bytes 16374562816",
        ),
    ],
)
def test_what_cannot_start_is_refused_with_what_is_available(keys: dict[str, Any], message: str) -> None:
    pages = {"hugepages_mib": 14000, "available_mib": 4000} if "weights" in keys else {"available_mib": FREE}
    assert errors(model(**keys), on=host(node(**pages))) == [message]


def test_a_cache_that_is_too_large_is_reported_beside_other_mistakes() -> None:
    first, second = errors(model(env={"VLLM_CPU_KVCACHE_SPACE": "4000"}, ulimits=["x=1"]))
    assert "model small: ulimits " in first and "model small: env: VLLM_CPU_KVCACHE_SPACE '4000': " in second


def test_models_of_one_host_add_up() -> None:
    half = {"gpu_memory_utilization": 0.5}
    (message,) = errors(model(**half), model(name="other", port=8001, **half))
    assert message.startswith("c: model other: gpu_memory_utilization 0.5: needs 11.8 GiB of NUMA node 0")
    assert "and 7.7 of 23.5 GiB are available, 11.8 GiB belong to model small; what fits: gpu_memory_utiliz" in message
    assert errors(model(**half), model(name="other", port=8001, gpu_memory_utilization=0.3)) == []
    # A stopped model keeps its memory, as it keeps cards.
    assert errors(model(state="stopped", **half), model(name="other", port=8001, **half)) == [message]


def test_each_worker_has_its_own_node() -> None:
    two = host(node(), node(1))
    spread = planned(model(tensor_parallel_size=2), on=two)["models"][0]["memory"]
    assert spread["nodes"] == [0, 1] and spread["weights_gib"] == 0.5
    unbound = planned(model(tensor_parallel_size=2, env={"VLLM_CPU_OMP_THREADS_BIND": "nobind"}), on=two)
    assert unbound["models"][0]["memory"]["nodes"] == [0]
    second = planned(model(env={"CPU_VISIBLE_MEMORY_NODES": "1"}), on=two)["models"][0]["memory"]
    assert second["nodes"] == [1]
    bound = planned(model(env={"VLLM_CPU_OMP_THREADS_BIND": "0-7"}), on=two)
    assert bound["models"][0]["memory"] is None
    assert "memory is not checked: env sets the processors or NUMA nodes of its workers" in bound["warnings"][0]


def test_the_order_of_visible_nodes_is_that_of_the_workers() -> None:
    nodes = host(node(), node(1, memory_mib=4096), node(2))
    first = planned(model(env={"CPU_VISIBLE_MEMORY_NODES": "2,1, 0"}), on=nodes)["models"][0]["memory"]
    assert first["nodes"] == [2]


@pytest.mark.parametrize(
    ("keys", "numbers", "message"),
    [
        ({"tensor_parallel_size": 2}, [0, 1], ""),
        (
            {"tensor_parallel_size": 2},
            [0],
            "c: model small: tensor_parallel_size 2: makes 2 workers on this host, and vLLM binds each to its own NUMA "
            "node, of which it has 1; take at most 1 worker, or set env: VLLM_CPU_OMP_THREADS_BIND to the processors "
            "of each worker, such as '0-15|16-31'",
        ),
        (
            {"tensor_parallel_size": 2, "env": {"CPU_VISIBLE_MEMORY_NODES": "1"}},
            [0, 1],
            "c: model small: tensor_parallel_size 2: makes 2 workers on this host, and vLLM binds each",
        ),
        (
            {"pipeline_parallel_size": 3},
            [0, 1],
            "c: model small: pipeline_parallel_size 3: makes 3 workers on this host",
        ),
        ({"tensor_parallel_size": 2, "env": {"VLLM_CPU_OMP_THREADS_BIND": "0-7|8-15"}}, [0], ""),
        ({"tensor_parallel_size": 2, "env": {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}}, [0], ""),
        ({"tensor_parallel_size": 2, "env": {"VLLM_CPU_SIM_MULTI_NUMA": "1"}}, [0], ""),
        ({"tensor_parallel_size": 2, "image": "vllm-cpu:0.12.0"}, [0], ""),
    ],
)
def test_each_worker_of_a_copy_needs_a_node(keys: dict[str, Any], numbers: list[int], message: str) -> None:
    found = errors(model(**keys), on=host(*(node(number, memory_mib=64000) for number in numbers)))
    assert len(found) == bool(message)
    assert all(one.startswith(message) for one in found)


def test_a_model_that_serves_with_too_few_nodes_is_left_alone() -> None:
    wanted = model(tensor_parallel_size=2, kv_cache_memory_bytes=2**30)
    services = live_of(planned(wanted, on=host(node(), node(1))))
    assert errors(wanted, on=host(services=services)) == []


@pytest.mark.parametrize(("release", "size", "fits"), [("0.12.0", 4.0, 1), ("0.13.0", 11.77, 1), ("0.19.1", 11.77, 2)])
def test_older_releases_have_their_own_default(release: str, size: float, fits: int) -> None:
    found = planned(model(image=f"vllm-cpu:{release}"))["models"][0]
    assert CACHE not in found["args"] and found["memory"]["kv_cache_gib"] == size
    (message,) = errors(model(image=f"vllm-cpu:{release}"), on=host(node(hugepages_mib=15400)))
    assert message.startswith("c: model small: env: VLLM_CPU_KVCACHE_SPACE: needs")
    assert message.endswith(f"what fits: env: {{VLLM_CPU_KVCACHE_SPACE: '{fits}'}}")


def test_what_serves_with_vllms_own_default_is_neither_refused_nor_restarted() -> None:
    before = planned(model(gpu_memory_utilization=0.92), on=host(node(memory_mib=10**6)))
    args = before["models"][0]["args"]
    place = args.index("--gpu-memory-utilization")
    before["models"][0]["args"] = [*args[:place], *args[place + 2 :]]
    bare = planned(model(), on=host() | {"cpu": {"architecture": "x86_64", "features": ["avx512f"]}})
    services = live_of(bare)
    again = planned(model(), on=host(services=services))
    assert again["errors"] == [] and again["models"][0]["digest"] == bare["models"][0]["digest"]
    # One that does not get to serve gets the default that starts.
    failed = {"small": {**services["small"], "active": False}}
    assert cache(planned(model(), on=host(services=failed))) > 0


def test_a_little_more_or_less_memory_after_a_boot_restarts_nothing() -> None:
    first = planned(model())
    services = live_of(first)
    for size in (TOTAL - 700, TOTAL + 700):
        again = planned(model(), on=host(node(memory_mib=size), services=services))
        assert again["models"][0]["digest"] == first["models"][0]["digest"]
    grown = planned(model(), on=host(node(memory_mib=2 * TOTAL), services=services))
    assert cache(grown) > cache(first)


def test_unknown_memory_is_a_note_and_the_plan_as_before() -> None:
    found = planned(model(), on=host() | {"cpu": {"architecture": "x86_64", "features": ["avx512f"]}})
    assert found["errors"] == [] and CACHE not in found["models"][0]["args"]
    (warning,) = found["warnings"]
    assert warning.endswith("memory is not checked: the facts do not have the memory of this host's NUMA nodes")


def test_what_other_programs_use_counts_while_no_model_runs() -> None:
    busy = host(node(available_mib=5000))
    (message,) = errors(model(), on=busy)
    assert "and 4.9 of 23.5 GiB are available; what fits: kv_cache_memory_bytes" in message
    assert errors(model(), on={**busy, "services": live_of(planned(model()))}) == []


@pytest.mark.parametrize(("wanted", "pages", "free"), [(0, 0, 12192), (1000, 1000, 11192), (None, 2000, 10192)])
def test_hugepages_are_counted_as_the_run_leaves_them(wanted: int | None, pages: int, free: int) -> None:
    sysctl = {"vm.nr_hugepages": "2000", "kernel.numa_balancing": "0"}
    tuning = {"sysctl": sysctl, "hugepage_kib": 2048, "mem_total_kib": 2 * TOTAL * 1024}
    now = host(*(node(number, hugepages_mib=2000, available_mib=10192) for number in (0, 1)))
    given = {"host_tuning_hugepages": wanted, "host_tuning_hugepages_max_fraction": 0.5}
    system = {**SYSTEM, "accelerator": "cuda"}
    known = {"gaudi_host": now, "gaudi_tuning": tuning, "gaudi_system": system, **given}
    found = expected_host("c", known, ("host_tuning",), plans_again=True)
    nodes = {**now, **found}["cpu"]["nodes"]
    assert [(one["hugepages_mib"], one["available_mib"]) for one in nodes] == [(pages, free)] * 2


def test_the_table_shows_what_a_model_takes_of_a_node_and_its_limit() -> None:
    known = {"gaudi_host": host(), "gaudi_system": SYSTEM, "vllm_models": [model()]}
    lines = vllm_fleet_lines(vllm_fleet_plan({"c": known}, ["c"], []))
    head, row = (line.split() for line in (lines[1], lines[3]))
    assert "GIB/NODE" in head and "GIB/CARD" not in head and "6.8/19.5" in row
