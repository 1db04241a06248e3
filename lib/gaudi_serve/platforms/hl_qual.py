"""hl_qual, the vendor's acceptance test of Gaudi2 and Gaudi3: its suites, and a reader of its report.

Arguments and times are those of the vendor's guide and of fleets that use the tool (omnia, Intel's cloud); if the tool
takes no time as an argument, minutes are an estimate. Only the header, the verdict and one line a card are published as
text. All other lines of a report are therefore not a result, and the raw log is saved.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core.words import counted
from .acceptance import (
    FAILED,
    LONG,
    NO_RESULT,
    PASSED,
    Acceptance,
    AcceptanceTest,
    Card,
    KnownFailure,
    Report,
    Unlocked,
)
from .hl_smi import ANSI, BUS_ID, GENERATION, family_of

FOLDERS = {"GAUDI2": "/opt/habanalabs/qual/gaudi2/bin", "GAUDI3": "/opt/habanalabs/qual/gaudi3/bin"}
RDMA = "/opt/habanalabs/rdma-core/src"
LOGS = "/var/log/habana_logs"
ENV = {
    **{"__python_cmd": "python3", "HABANA_LOGS": LOGS, "RDMA_CORE_ROOT": RDMA, "RDMA_CORE_LIB": f"{RDMA}/build/lib"},
    "GC_KERNEL_PATH": "/usr/lib/habanalabs/libtpc_kernels.so",
    "HABANA_SCAL_BIN_PATH": "/opt/habanalabs/engines_fw",
    "HABANA_PLUGINS_LIB_PATH": "/opt/habanalabs/habana_plugins",
    "DATA_LOADER_AEON_LIB_PATH": "/usr/lib/habanalabs/libaeon.so",
}
# First load the packages' settings for login shells, as the vendor does; the tool runs in its own folder.
SHELL = """for file in /etc/profile.d/habanalabs.sh /etc/profile.d/habanalabs-rdma-core.sh; do
  [ ! -r "$file" ] || . "$file" >/dev/null 2>&1
done
cd "$1" || exit 1
shift
exec ./hl_qual "$@"
"""
HEADER, SUMMARY = " hl qual report ", "Test result summary"
WORDS = {"PASSED": PASSED, "FAILED": FAILED}
PARALLEL, SERIAL = ("-rmod", "parallel"), ("-rmod", "serial")
FUNCTIONAL = "all engines under load"
PCIE = AcceptanceTest("pcie-bandwidth", "PCIe, both directions", (*SERIAL, "-mb", "-b", "-pciOnly"), 4)
MEMORY = AcceptanceTest("memory-bandwidth", "bandwidth of the memory", (*PARALLEL, "-mb", "-memOnly"), 3)
PAIRS = (*PARALLEL, "-i", "50", "-nic_base", "-test_type", "pairs")
SERDES = AcceptanceTest("serdes-pairs", "ports between the cards, in pairs", PAIRS, 3)
ALL_REDUCE = (*PARALLEL, "-i", "50", "-ep", "100", "-nic_base", "-test_type", "allreduce")
EDP = (*PARALLEL, "-e", "-t", "40", "-Tw", "3", "-Ts", "1")
# Ports 8, 22 and 23 lead out of the machine.
E2E = (*PARALLEL, "-t", "30", "-e2e_concurrency", "-disable_ports", "8,22,23")
SOURCE = (
    "lists of Intel's cloud for Gaudi3 have it commented out as failing, and known issues of omnia expect a fix in the "
    "firmware (early 2025)"
)


def _functional(seconds: int, *more: str) -> tuple[str, ...]:
    return (*PARALLEL, "-f2", "-l", "extreme", "-t", str(seconds), *more)


def _tests(suite: str, device: str) -> tuple[AcceptanceTest, ...]:
    """Return the tests of a suite."""
    gaudi2 = _generation(device) == "GAUDI2"
    quick = (AcceptanceTest("functional", FUNCTIONAL, _functional(60), 2), MEMORY, PCIE, SERDES)
    if suite != LONG:
        return quick
    serdes = AcceptanceTest("functional-serdes", f"{FUNCTIONAL}, ports too", _functional(420, "-serdes", "int"), 8)
    load = AcceptanceTest("pcie-load", "PCIe under load", (*SERIAL, "-p", "-t", "5", "-gen", "gen4"), 2)

    def memory(name: str, about: str, minutes: int, *words: str) -> AcceptanceTest:
        return AcceptanceTest(name, about, (*PARALLEL, *words), minutes, unlocked=gaudi2)

    return (
        *(AcceptanceTest("functional", FUNCTIONAL, _functional(240), 5), MEMORY, PCIE),
        *((serdes,) if gaudi2 else (load,)),
        *(SERDES, AcceptanceTest("serdes-allreduce", "ports between the cards, all together", ALL_REDUCE, 5)),
        AcceptanceTest("e2e-concurrency", "engines, memory, PCIe and ports together", E2E, 3),
        AcceptanceTest("serial-errors", "errors of serial links", (*PARALLEL, "-ser"), 2),
        memory("hbm-dma", "memory by DMA", 5, "-i", "1", "-hbm_dma_stress"),
        memory("hbm-tpc", "memory by the cores", 5, "-i", "1", "-hbm_tpc_stress"),
        memory("hbm-data", "memory, all of its data", 30, "-i", "1", "-full_hbm_data_check_test"),
        memory("power", "power draw", 3, "-s", "-t", "120"),
        AcceptanceTest("edp", "peaks of current", EDP, 2, unlocked=gaudi2),
    )


def _generation(device: str) -> str:
    return GENERATION.get(family_of(device) or "", "")


def _program(device: str) -> str:
    folder = FOLDERS.get(_generation(device))
    return f"{folder}/hl_qual" if folder else ""


def _command(test: AcceptanceTest, device: str, cards: Sequence[Card] | None) -> list[str]:
    """Return the command of a test, without the text screen, which needs a terminal."""
    chosen = "all" if cards is None else ",".join(str(card["bus_id"]) for card in cards if card["bus_id"])
    generation, folder = _generation(device).lower(), FOLDERS[_generation(device)]
    return ["bash", "-c", SHELL, "hl_qual", folder, f"-{generation}", "-c", chosen, *test.arguments, "-dis_mon"]


def read_report(status: int, output: str, cards: Sequence[Card], _test: AcceptanceTest | None = None) -> Report:
    """Return the result of a report, whose form is the same for all tests.

    A pass is an exit status of 0, the header, PASSED in the line below it, and PASSED of each card. A failure is FAILED
    below the header. Everything else is not a result.

    Args:
        status: the tool's exit status.
        output: its output.
        cards: the tested cards in their order.
    """
    lines = ANSI.sub("", output).splitlines()
    places = [place for place, line in enumerate(lines) if HEADER in line]
    below = (*lines[places[-1] + 1 : places[-1] + 2], "")[0].split() if places else []
    verdict = WORDS.get(below[0].strip(":.") if below else "")
    if len({line for place in places for line in lines[place + 1 : place + 2]}) > 1:
        return Report(NO_RESULT, "its report has several verdicts")
    rows = _rows(lines)
    failed = _failed(rows, cards)
    if verdict == FAILED:
        count = sum(word == FAILED for _, word in rows)
        unnamed = f"{count} of {counted(len(rows), 'card')} failed, and its report does not name them"
        return Report(FAILED, unnamed if count and not failed else "its report shows FAILED", failed)
    if verdict is None:
        what = f"no {HEADER.strip()}" if not places else "no verdict below the header of its report"
        return Report(NO_RESULT, f"{what}; exit status {status}")
    if status:
        return Report(NO_RESULT, f"its report shows PASSED, and its exit status is {status}")
    if len(rows) != len(cards):
        return Report(NO_RESULT, f"its report has {counted(len(rows), 'card')}, and {len(cards)} were tested")
    bad = sum(word != PASSED for _, word in rows)
    return Report(NO_RESULT, f"its report shows PASSED, and {bad} of its cards did not pass") if bad else Report(PASSED)


def _rows(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Return the lines of the cards below the last summary, each with its verdict."""
    places = [place for place, line in enumerate(lines) if SUMMARY in line]
    rows = []
    for line in lines[places[-1] + 1 :] if places else ():
        fields = line.split(": ")
        if len(fields) > 2 and (word := fields[2].strip()) in WORDS:
            rows.append((line, WORDS[word]))
    return rows


def _failed(rows: Sequence[tuple[str, str]], cards: Sequence[Card]) -> tuple[int, ...]:
    """Return the indices of the cards that failed, by the bus_id in their line; empty if one cannot be identified."""
    places = {str(card["bus_id"]).lower(): place for place, card in enumerate(cards)}
    found = []
    for line, word in rows:
        match = BUS_ID.search(line)
        if word == FAILED:
            if match is None or match[0].lower() not in places:
                return ()
            found.append(places[match[0].lower()])
    return tuple(sorted(set(found)))


ACCEPTANCE = Acceptance(
    tool="hl_qual",
    program=_program,
    packages=("habanalabs-qual", "habanalabs-qual-workloads"),
    tests=_tests,
    command=_command,
    read=read_report,
    env=ENV,
    folders=(LOGS,),
    known=tuple(KnownFailure(test, "HL-3", SOURCE) for test in ("power", "edp", "functional-serdes")),
    unlocked=Unlocked(
        ("habanalabs_compat", "habanalabs_cn", "habanalabs_ib", "habanalabs_en", "habanalabs"),
        "timeout_locked=0",
        "manage_network_ifs.sh",
    ),
)
