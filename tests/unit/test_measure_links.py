"""Measurements of links outside Gaudi: which there are, what must be reached, and what runs in the container."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.host import all_reduce, links
from gaudi_serve.inventory.variables import inventory_refusal
from gaudi_serve.model.host import Card, Host
from gaudi_serve.platforms import PLATFORMS
from gaudi_serve.platforms.links import slowest_link
from gaudi_serve.platforms.pci import pci_devices
from gaudi_serve.stages.base import Given
from gaudi_serve.stages.links import STAGE, link_runs, nothing_to_measure
from helpers.plans import gaudi_host

H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100 80GB PCIe"
GIVEN = {"nodes": 1, "node": 0, "ranks": 2, "address": "127.0.0.1", "port": 5555, "timeout": 60, "size": 4096}


def host(count: int, name: str = H100, link: str = "NV18", groups: int = 0, **more: Any) -> dict[str, Any]:
    """Return the facts of a host on which cards of one group have a kind of link, and others the way over sockets."""
    size = groups or count
    modules = [
        {"module_id": one, "index": one, "device_id": f"GPU-{one}", "bus_id": f"0000:1{one}:00.0", "name": name}
        | {"links": {str(to): link if to // size == one // size else "SYS" for to in range(count) if to != one}}
        for one in range(count)
    ]
    return {"accelerator": "cuda", "device_name": name, "driver_version": "580", "modules": modules, **more}


def rows(facts: dict[str, Any], **more: Any) -> list[tuple[str, list[int], float | None]]:
    """Return names, cards and thresholds of the measurements of a host."""
    return [(run["name"], run["module_ids"], run["threshold"]) for run in link_runs(facts, {}, **more)]


EIGHT = list(range(8))


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (host(8), [("all", EIGHT, 185.0)]),
        (host(8, "NVIDIA H200"), [("all", EIGHT, 185.0)]),
        (host(8, "NVIDIA B200"), [("all", EIGHT, 330.0)]),
        (host(8, "NVIDIA A100-SXM4-80GB", "NV12"), [("all", EIGHT, 115.0)]),
        # What is published is of eight cards, or of pairs with a bridge.
        (host(4), [("all", [0, 1, 2, 3], None)]),
        (host(2, A100, "NV12"), [("all", [0, 1], 100.0)]),
        (host(2, "NVIDIA H100 PCIe", "NV12"), [("all", [0, 1], 57.0)]),
        (host(2, A100, "PIX"), [("all", [0, 1], None)]),
        (
            host(4, A100, "NV12", 2),
            [("group-0", [0, 1], 100.0), ("group-1", [2, 3], 100.0), ("all", [0, 1, 2, 3], None)],
        ),
        (
            host(8, "NVIDIA L40S", "PIX", 4),
            [("group-0", EIGHT[:4], None), ("group-1", EIGHT[4:], None), ("all", EIGHT, None)],
        ),
        (host(8, "AMD Instinct MI300X", "XGMI", accelerator="rocm"), [("all", EIGHT, 150.0)]),
        (host(8, "AMD Instinct MI250", "XGMI", accelerator="rocm"), [("all", EIGHT, 25.0)]),
        (
            host(4, "AMD Instinct MI210", "XGMI", 2, accelerator="rocm"),
            [("group-0", [0, 1], 12.5), ("group-1", [2, 3], 12.5), ("all", [0, 1, 2, 3], None)],
        ),
        (host(2, "Intel(R) Arc(TM) Pro B60 Graphics", "PHB", accelerator="xpu"), [("all", [0, 1], None)]),
        (host(1), []),
    ],
)
def test_all_cards_are_measured_and_before_each_group_that_is_linked(
    facts: dict[str, Any], expected: list[tuple[str, list[int], float | None]]
) -> None:
    assert rows(facts) == expected


L40S, RADEON, B60 = "NVIDIA L40S", "AMD Radeon RX 7900 XTX", "Intel(R) Arc(TM) Pro B60 Graphics"


@pytest.mark.parametrize(
    ("facts", "rates", "expected"),
    [
        (host(2, L40S, "PIX"), [31.5, 31.5], 7.9),
        (host(2, L40S, "SYS"), [31.5, 15.8], 4.0),
        (host(2, RADEON, "PCIE", accelerator="rocm"), [31.5, 31.5], 3.9),
        (host(2, B60, "PHB", accelerator="xpu"), [31.5, 31.5], 3.9),
        # Where one is not known, and where there is a better link of which nobody has a figure.
        (host(2, L40S, "PIX"), [31.5, 0], None),
        (host(2, "NVIDIA RTX A6000", "NV4"), [31.5, 31.5], None),
        (host(2, A100, "NV12"), [31.5, 31.5], 100.0),
        # More share a board's ways.
        (host(4, L40S, "PIX"), [31.5] * 4, None),
    ],
)
def test_a_pair_over_pci_express_must_reach_a_part_of_its_rate(
    facts: dict[str, Any], rates: list[float], expected: float | None
) -> None:
    for module, rate in zip(facts["modules"], rates, strict=True):
        module["pcie_gb_s"] = rate
    assert rows(facts)[-1][2] == expected
    (both,) = link_runs(facts, {}, nodes=2)
    assert both["threshold"] is None


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        # From the slot to the card: what it can have, as GT/s and lanes.
        ([("16.0 GT/s PCIe", "16")], 31.5),
        ([("32.0 GT/s PCIe", "16"), ("16.0 GT/s PCIe", "16")], 31.5),
        ([("8.0 GT/s PCIe", "4"), ("16.0 GT/s PCIe", "16"), ("16.0 GT/s PCIe", "16")], 3.9),
        ([("2.5 GT/s PCIe", "1"), ("16.0 GT/s PCIe", "16")], 0.2),
        ([("Unknown", "255"), ("16.0 GT/s PCIe", "8")], 15.8),
        ([("Unknown", "0")], 0.0),
    ],
)
def test_the_slowest_link_to_a_card_decides_on_its_rate(
    links: list[tuple[str, str]], expected: float, tmp_path: Path
) -> None:
    folder = tmp_path / "sys/devices/pci0000:00"
    for place, (speed, width) in enumerate(links):
        folder /= f"0000:0{place}:00.0"
        folder.mkdir(parents=True)
        (folder / "max_link_speed").write_text(f"{speed}\n")
        (folder / "max_link_width").write_text(f"{width}\n")
    for name, text in (("vendor", "0x10de"), ("device", "0x26b9"), ("class", "0x030200")):
        (folder / name).write_text(f"{text}\n")
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices" / folder.name).symlink_to(folder)
    (device,) = pci_devices(str(tmp_path), "0x10de", ("0x03",)).values()
    assert device.gb_s == expected


def test_thresholds_of_a_user_come_before_the_published_ones() -> None:
    runs = link_runs(host(4, A100, "NV12", 2), {"group": 150, "group-1": 160, "all": 10})
    assert [run["threshold"] for run in runs] == [150.0, 160.0, 10.0]
    (both,) = link_runs(host(8), {"all": 10}, nodes=2)
    assert (both["name"], both["threshold"]) == ("all-2-hosts", None)


def test_cards_of_two_kinds_have_no_published_figure() -> None:
    facts = host(8)
    facts["modules"][3]["name"] = "NVIDIA H200"
    assert rows(facts) == [("all", EIGHT, None)]


def test_the_slowest_link_decides_and_an_unknown_one_reports_nothing() -> None:
    def cards(kind: str) -> list[Card]:
        return [
            Card(0, links={1: "NV4", 2: "NV4"}),
            Card(1, links={0: "NV4", 2: kind}),
            Card(2, links={0: "NV4", 1: kind}),
        ]

    assert [slowest_link(cards(kind)) for kind in ("NV4", "PHB", "SYS", "X?", "")] == ["NV4", "PHB", "SYS", "", ""]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (host(1), "it has 1 card, so that there are no links to measure"),
        ({"accelerator": "cpu", "modules": []}, "CPU hosts have no devices whose links are measured"),
    ],
)
def test_where_there_is_nothing_to_measure_the_reason_is_reported(facts: dict[str, Any], reason: str) -> None:
    assert link_runs(facts, {}) == []
    assert nothing_to_measure(Host.of(facts)) == reason.replace("CPU", PLATFORMS["cpu"].title)


def test_parts_of_divided_cards_are_left_out() -> None:
    facts = host(4)
    for module in facts["modules"][2:]:
        module.update(alone=True, links={}, in_use=True, held_by="python3 (pid 7)")
    # Who holds a part is in nobody's way.
    assert rows(facts) == [("all", [0, 1], None)]
    assert pending(facts)["busy"] == []
    for module in facts["modules"]:
        module.update(alone=True)
    assert rows(facts) == []
    assert pending(facts)["nothing"].startswith("parts of divided cards do not work together")


def pending(facts: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return what the stage would do on a host, with the variables of playbooks/validate.yml."""
    known = {
        **{"gaudi_host": {**gaudi_host(), **facts}, "gaudi_hccl": {}, "gaudi_services": {"images": {}}},
        **{"link_validation_image": "vllm:1", "link_validation_nodes": [], "link_validation_drain": False},
        **{"link_validation_max_age_days": 90, "link_validation_thresholds": {}, "link_validation_asked": True},
        **{"link_validation_hccl_options": {"measure": "latency"}, "link_validation_env": {}},
        **more,
    }
    found = STAGE.pending(Given("g", known))
    return {**found.changes, "notes_": list(found.notes or ())}


def test_what_is_reported_to_hccl_demo_is_reported_to_it_alone() -> None:
    cuda, gaudi = pending(host(2)), pending({})
    assert (cuda["options"], cuda["aside"]) == ({}, "")
    assert (gaudi["options"], gaudi["aside"]) == ({"measure": "latency"}, "latency")
    assert cuda["notes_"] == ["NCCL validation pending (never measured): playbooks/validate.yml"]


def test_hosts_measure_together_by_the_interface_of_their_route_unless_a_model_has_another() -> None:
    both: dict[str, Any] = {"link_validation_nodes": ["g", "h"]}
    assert pending(host(2, interface="eth0"), **both)["env"] == {"NCCL_SOCKET_IFNAME": "eth0"}
    own = {"NCCL_SOCKET_IFNAME": "eth1", "NCCL_P2P_DISABLE": 1}
    assert pending(host(2, interface="eth0"), **both, link_validation_env=own)["env"] == {
        "NCCL_SOCKET_IFNAME": "eth1",
        "NCCL_P2P_DISABLE": "1",
    }
    xpu = pending(host(2, "Intel(R) Arc(TM) B580 Graphics", "PHB", accelerator="xpu"), **both)
    assert xpu["refusal"] == ['g: link_validation_nodes ["g", "h"]: oneCCL is measured host by host']


@dataclass
class Tensor:
    """A tensor of one value."""

    value: float

    def __eq__(self, other: object) -> Any:
        """Compare it as torch does: the result is a tensor too."""
        return types.SimpleNamespace(all=lambda: self.value == other)

    __hash__ = None  # type: ignore[assignment]

    def zero_(self) -> None:
        """Set it to zero."""
        self.value = 0


@dataclass
class Torch:
    """Takes the place of torch with some devices: a rank of its own, and the others that do the same."""

    devices: int
    right: bool = True
    calls: list[str] = field(default_factory=list)
    clock: float = 0.0
    float32: str = "float32"

    def __post_init__(self) -> None:
        """Make the parts that are asked for by their names."""
        self.cuda = types.SimpleNamespace(
            device_count=lambda: self.devices,
            set_device=lambda device: self.calls.append(f"device {device}"),
            synchronize=lambda: None,
        )

    def device(self, *kind: Any) -> str:
        """Return the name of a device."""
        return ":".join(map(str, kind))

    def ones(self, size: int, *, dtype: str, device: str) -> Tensor:
        """Return ones on a device."""
        self.calls.append(f"{size} {dtype} on {device}")
        return Tensor(1)

    def init_process_group(self, backend: str, timeout: Any) -> None:
        """Meet the other ranks."""
        assert int(timeout.total_seconds()) == GIVEN["timeout"]
        self.calls.append(f"meet by {backend}")

    def all_reduce(self, data: Tensor) -> None:
        """Add up over all ranks, which takes a millisecond; the first ones take longer."""
        self.calls.append("reduce")
        self.clock += 0.001 if self.calls.count("reduce") > 6 else 1.0
        data.value = data.value * 2 if self.right else data.value

    def destroy_process_group(self) -> None:
        """Part."""
        self.calls.append("part")


@pytest.fixture
def torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Torch:
    """Let the program find this torch, and its clock."""
    found = Torch(**getattr(request, "param", {"devices": 2}))
    monkeypatch.setitem(sys.modules, "torch", found)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "torch.distributed", found)  # type: ignore[arg-type]
    monkeypatch.setattr(all_reduce.time, "perf_counter", lambda: found.clock)
    monkeypatch.setattr(all_reduce.os, "environ", {})
    return found


CUDA = {**GIVEN, "backend": "nccl", "devices": "cuda"}


def test_a_rank_measures_the_middle_of_its_tries_as_nccl_tests_count(torch: Torch) -> None:
    found = all_reduce.measure({**CUDA, "ranks": 2}, 1)
    assert torch.calls[:3] == ["device cuda:1", "meet by nccl", "1024 float32 on cuda:1"]
    assert torch.calls.count("reduce") == 1 + all_reduce.WARM_UP + all_reduce.ITERATIONS
    assert (found["size_bytes"], found["iterations"]) == (4096, all_reduce.ITERATIONS)
    # 4096 bytes in a millisecond; of two ranks each link carries as much.
    assert (found["time_ms"], found["nw_gb_s"], found["algo_gb_s"]) == pytest.approx((1.0, 4.096e-3, 4.096e-3))
    assert all_reduce.bus_gb_s(8 * 10**9, 1.0, 8) == 14.0


def test_ranks_of_two_hosts_are_counted_on(torch: Torch) -> None:
    env = all_reduce.environment({**CUDA, "nodes": 2, "node": 1, "ranks": 4}, 3)
    assert env == {
        **{"RANK": "7", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "5555"},
    }


@pytest.mark.parametrize(
    ("torch", "sentence"),
    [
        ({"devices": 1}, "rank 0: RuntimeError: the container has 1 devices instead of 2\n"),
        ({"devices": 3}, "rank 0: RuntimeError: the container has 3 devices instead of 2\n"),
        (
            {"devices": 2, "right": False},
            "rank 0: RuntimeError: the sum over 2 ranks is wrong: a link or a device corrupts data\n",
        ),
    ],
    indirect=["torch"],
)
def test_other_devices_inside_and_wrong_sums_are_failures(
    torch: Torch, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert all_reduce.run_rank(CUDA, 0) == 1
    assert capsys.readouterr().out == sentence


def test_the_first_rank_alone_prints_one_line(torch: Torch, capsys: pytest.CaptureFixture[str]) -> None:
    assert all_reduce.run_rank(CUDA, 1) == 0
    assert capsys.readouterr().out == ""
    assert all_reduce.run_rank(CUDA, 0) == 0
    printed = capsys.readouterr().out
    assert links.all_reduce_figures(f"NCCL version 2.28\n{printed}a warning of the end\n")["time_ms"] == pytest.approx(
        1
    )


def ended(program: str, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    """Run the program as a container does, with a torch that is so little."""
    text = links.inspect.getsource(all_reduce).replace(
        "def run_rank(", f"def run_rank(given, local):\n    {program}\n\n\ndef _("
    )
    return subprocess.run(
        [sys.executable, "-c", text, json.dumps({**CUDA, "ranks": ranks})],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


def test_when_one_rank_fails_the_others_do_not_wait_for_it() -> None:
    begin = all_reduce.time.monotonic()
    assert ended("return 1 if local else time.sleep(60)").returncode == 1
    killed = ended("os.kill(os.getpid(), signal.SIGSEGV) if local else time.sleep(60)")
    assert (killed.returncode, killed.stdout) == (1, "a rank was ended by signal 11\n")
    assert ended("return 0", 3).returncode == 0
    assert all_reduce.time.monotonic() - begin < 20


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("", "all: no figure in the output, which ends with: ''"),
        ("rank 1: hello\n", "all: no figure in the output, which ends with: 'rank 1: hello'"),
        ('{"collective": "all_red', "all: no figure in the output, which ends with: "),
    ],
)
def test_an_output_without_a_figure_is_a_failure(output: str, why: str) -> None:
    run = {"name": "all", "threshold": None, "last_good": None}
    found = links.judged(run, output)
    assert not found["passed"]
    assert found["problem"].startswith(why)


class Docker:
    """Takes the place of the Docker client; what it reports of a container is one of the outcomes."""

    def __init__(self, outcome: subprocess.CompletedProcess[str] | None) -> None:
        """Take how a container ends; None for one that hangs."""
        self.outcome, self.calls = outcome, list[str]()

    def __call__(self, words: Sequence[str], **more: Any) -> subprocess.CompletedProcess[str]:
        """Answer one call."""
        self.calls.append(" ".join(words[1:3]))
        if words[1] == "run" and self.outcome is None:
            raise subprocess.TimeoutExpired(list(words), more["timeout"])
        return self.outcome or subprocess.CompletedProcess([], 0, "", "")


@pytest.mark.parametrize(
    ("outcome", "calls", "problem"),
    [
        (None, ["rm --force", "run --rm", "rm --force"], "all: it did not end within 60 s"),
        (
            subprocess.CompletedProcess([], 125, "docker: no such image\n", ""),
            ["rm --force", "run --rm"],
            "all: all_reduce ended with 125: docker: no such image",
        ),
        (
            subprocess.CompletedProcess([], 0, '{"collective": "all_reduce", "nw_gb_s": 90.0}\n', ""),
            ["rm --force", "run --rm"],
            "all: 90.0 GB/s is below 185 GB/s",
        ),
        (
            subprocess.CompletedProcess([], 0, '{"collective": "all_reduce", "nw_gb_s": 400.0}\n', ""),
            ["rm --force", "run --rm"],
            None,
        ),
    ],
)
def test_a_measurement_ends_within_its_limit_and_is_judged(
    outcome: subprocess.CompletedProcess[str] | None,
    calls: list[str],
    problem: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    docker, facts = Docker(outcome), host(8)
    monkeypatch.setattr(links.subprocess, "run", docker)
    monkeypatch.setattr(links, "missing_nodes", lambda *_: "")
    (run,) = link_runs(facts, {})
    found = links.measured({**GIVEN, "image": "i", "env": {}, "options": {}}, Host.of(facts), run)
    assert (found["problem"], docker.calls) == (problem, calls)
    kept = links.kept({"fingerprint": {"device": H100}, "options": {}, "aside": ""}, {}, [found])
    assert kept["last_good"] == ({} if problem else {"all": 400.0})
    assert kept["passed"] is (problem is None)


class NcclTests:
    """Takes the place of Docker and of all_reduce_perf in an image, which refuses other arguments and prints its table.

    The program of the vendor prints so with -g: one process, a rank a device. ranks: those that it finds; wrong: sums.
    """

    def __init__(self, ranks: int, wrong: str = "0", busbw: str = "318.52") -> None:
        """Take what it finds and measures."""
        self.ranks, self.wrong, self.busbw = ranks, wrong, busbw

    def __call__(self, words: Sequence[str], **more: Any) -> subprocess.CompletedProcess[str]:
        """Answer one call of Docker."""
        if words[1] != "run":
            return subprocess.CompletedProcess([], 0, "", "")
        place = words.index("--entrypoint")
        program, image, *arguments = words[place + 1 :]
        assert (program, image) == (PERF, "i")
        given = dict(zip(arguments[::2], arguments[1::2], strict=True))
        if set(given) - {"-b", "-e", "-f", "-g", "-t", "-n", "-w", "-c", "-d", "-o"}:
            return subprocess.CompletedProcess([], 1, "invalid option\n", "")
        if int(given["-g"]) > self.ranks:
            text = f"Test NCCL failure common.cu: invalid usage\n {self.ranks} devices\n"
            return subprocess.CompletedProcess([], 3, text, "")
        size = int(given["-b"])
        assert (given["-e"], size % 4, given["-c"]) == (given["-b"], 0, "1")
        head = f"# nThread 1 nGpus {given['-g']} minBytes {size} maxBytes {size} step: 1048576(bytes) validation: 1"
        ranks = [
            f"#  Rank {rank:2} Group  0 Pid   6899 on gpu01 device {rank:2} [0000:04:00] {H100}"
            for rank in range(self.ranks)
        ]
        wide = f"{'':60} out-of-place {'':20} in-place"
        names = "#  size  count  type  redop  root     time   algbw   busbw #wrong     time   algbw   "
        row = f"{size} {size // 4} float sum -1 12646 169.81 318.40 0 12641 169.88 {self.busbw} {self.wrong}"
        tail = ["# Out of bounds values : 0 OK", f"# Avg bus bandwidth    : {self.busbw}", "#"]
        lines = ["NCCL version 2.28", head, "#", "# Using devices", *ranks, "#", f"#{wide}", f"{names}busbw #wrong"]
        return subprocess.CompletedProcess([], 0, "\n".join([*lines, f"   {row}", *tail, ""]), "")


PERF = "/opt/nccl-tests/build/all_reduce_perf"


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        (NcclTests(8), None),
        (NcclTests(8, busbw="90.00"), "all: 90.0 GB/s is below 185 GB/s"),
        (NcclTests(9), "all: all_reduce_perf shows 9 ranks instead of 8"),
        (NcclTests(7), f"all: {PERF} ended with 3: Test NCCL failure common.cu: invalid usage |  7 devices"),
        (NcclTests(8, wrong="4"), "all: a sum over 8 ranks is wrong (4): a link or a device corrupts data"),
        (NcclTests(8, busbw="-"), "all: all_reduce_perf has no figure: "),
        (NcclTests(8, busbw="nan"), "all: all_reduce_perf has no figure: "),
        (NcclTests(8, busbw="inf"), "all: all_reduce_perf has no figure: "),
        (NcclTests(8, busbw="-318.52"), "all: all_reduce_perf has no figure: "),
        (NcclTests(0), f"all: {PERF} ended with 3: "),
        (NcclTests(8, busbw="1 2"), "all: all_reduce_perf has no figure, and ends with: '#'"),
    ],
)
def test_nccl_tests_of_an_image_measure_in_place_of_torch_where_they_are_named(
    program: NcclTests, problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links.subprocess, "run", program)
    monkeypatch.setattr(links, "missing_nodes", lambda *_: "")
    facts = host(8)
    changes = pending(facts, link_validation_nccl_tests=PERF)
    given = {**GIVEN, "image": "i", "env": {}, "options": {}, "nccl_tests": changes["nccl_tests"]}
    found = links.measured(given, Host.of(facts), changes["runs"][0])
    assert (found["problem"] or "").startswith(problem or "") and found["passed"] is (problem is None)
    if problem is None:
        assert (found["nw_gb_s"], found["algo_gb_s"], found["time_ms"]) == (318.52, 169.88, 12.641)


def test_nccl_tests_measure_one_host_of_nvidia_or_amd_and_another_program_measures_again() -> None:
    perf: dict[str, Any] = {"link_validation_nccl_tests": PERF}
    amd = host(8, "AMD Instinct MI300X", "XGMI", accelerator="rocm")
    xpu = host(2, "Intel(R) Arc(TM) B580 Graphics", "PHB", accelerator="xpu")
    for facts, program in ((host(8), PERF), (amd, PERF), (xpu, ""), ({}, "")):
        assert pending(facts, **perf)["nccl_tests"] == program
    assert pending(host(2), **perf, link_validation_nodes=["g", "h"])["nccl_tests"] == ""
    assert pending(host(2))["nccl_tests"] == ""
    before = pending(host(8), **perf)["fingerprint"]
    kept = {"gaudi_hccl": {"runs": [{"name": "all"}], "passed": True, "fingerprint": before, "time": 10**11}}
    assert pending(host(8), **perf, **kept)["due"] == []
    assert pending(host(8), **kept)["due"] == [f"program was {PERF}, is not set"]
    (wrong,) = inventory_refusal({"link_validation_nccl_tests": "all_reduce_perf; rm"}, "g")
    assert "must be a path in the image, such as /opt/nccl-tests/build/all_reduce_perf" in wrong
