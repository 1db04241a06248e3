"""Acceptance tests of cards: their reports, their runs on a simulated host, what is kept, and what a stage refuses."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.core.errors import InputError
from gaudi_serve.host import qualification
from gaudi_serve.platforms import PLATFORMS, dcgm, hl_qual
from gaudi_serve.platforms.acceptance import FAILED, LONG, NO_RESULT, NOT_TESTED, PASSED, QUICK, SUITES, Report
from gaudi_serve.stages.base import Given, Pending
from gaudi_serve.stages.qualification import ALL_EXCLUDED, REPAIR, STAGE, UNLOCKED
from helpers.plans import gaudi_host

ROOT = Path(__file__).parents[2]
STANDINS = ROOT / "molecule/shared/standins"
CARDS = [
    {"module_id": number, "index": number, "bus_id": f"0000:{0x19 + number:02x}:00.0", "serial": f"S{number}"}
    | {"firmware": "1.21.3-fw-59"}
    for number in range(2)
]
QUICK_TESTS = ["functional", "memory-bandwidth", "pcie-bandwidth", "serdes-pairs"]


def report(verdict: str, *cards: str, header: str = "=== gaudi2 hl qual report ===") -> str:
    rows = [f"Device {place}: {CARDS[place]['bus_id']}: {word}" for place, word in enumerate(cards)]
    return "\n".join(["noise: FAILED: PASSED", header, verdict, "Test result summary", *rows, "the end"])


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [
        (0, report("PASSED", "PASSED", "PASSED"), Report(PASSED)),
        (1, report("FAILED", "PASSED", "FAILED"), Report(FAILED, "its report shows FAILED", (1,))),
        # Nothing shows which: no card is called good or bad.
        (
            1,
            report("FAILED", "PASSED", "FAILED").replace("0000:1a", "card 1a"),
            Report(FAILED, "1 of 2 cards failed, and its report does not name them"),
        ),
        (1, report("FAILED"), Report(FAILED, "its report shows FAILED")),
        (3, report("PASSED", "PASSED", "PASSED"), "its report shows PASSED, and its exit status is 3"),
        (0, report("PASSED", "PASSED"), "its report has 1 card, and 2 were tested"),
        (0, report("PASSED", "PASSED", "FAILED"), "its report shows PASSED, and 1 of its cards did not pass"),
        (0, report("ABORTED", "PASSED", "PASSED"), "no verdict below the header of its report; exit status 0"),
        (0, report("PASSED", "PASSED", "PASSED", header="--"), "no hl qual report; exit status 0"),
        (139, "Segmentation fault", "no hl qual report; exit status 139"),
        (0, "", "no hl qual report; exit status 0"),
        (0, report("PASSED", "PASSED", "PASSED") + "\n" + report("FAILED"), "its report has several verdicts"),
    ],
)
def test_a_report_of_hl_qual_is_a_pass_only_where_everything_reports_it(status: int, text: str, expected: Any) -> None:
    found = hl_qual.read_report(status, text, CARDS)
    assert found == (expected if isinstance(expected, Report) else Report(NO_RESULT, expected))


def diag(*results: dict[str, Any], name: str = "memory") -> str:
    tests = [{"name": name, "results": list(results)}]
    return "warning\n" + json.dumps({"DCGM Diagnostic": {"test_categories": [{"category": "x", "tests": tests}]}})


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [
        (0, diag({"gpu_ids": "0,1", "status": "PASS"}), Report(PASSED)),
        (
            0,
            diag(*({"entity_group": "GPU", "entity_id": one, "status": "Pass"} for one in range(2))),
            Report(PASSED),
        ),
        (
            226,
            diag({"gpu_id": "1", "status": "Fail", "info": "page fault"}),
            # No result of the other card is in the report.
            Report(FAILED, "memory: page fault", (1,), (0,)),
        ),
        (
            0,
            diag({"gpu_ids": "0", "status": "PASS"}),
            Report(NO_RESULT, "its report does not name cards [1]; exit status 0"),
        ),
        (0, diag({"gpu_ids": "0,1", "status": "WARN"}), Report(NO_RESULT, "memory shows warn; exit status 0")),
        (
            0,
            diag({"gpu_ids": "0,1", "status": "Skip"}),
            Report(NOT_TESTED, "no test of memory ran on cards [0, 1]; memory: skip", untested=(0, 1)),
        ),
        (
            255,
            "Error: unable to establish a connection",
            Report(NO_RESULT, "no results in its report; exit status 255: Error: unable to establish a connection"),
        ),
    ],
)
def test_reports_of_dcgm(status: int, text: str, expected: Report) -> None:
    assert dcgm.read_report(status, text, CARDS) == expected


PERSISTENCE = {"error_id": 29, "error_category": 8, "error_severity": 5}
NO_MEMORY = {"error_id": 56, "error_category": 8, "error_severity": 4}
NOT_ALLOCATED = "Couldn't allocate at least 75.0% of GPU memory on GPU {}"
OFF = "persistence mode is off, a setting of the host"
OLD = {"Memory": "GPU Memory", "Pcie": "PCIe", "Software": "Denylist"}
HARDWARE = ("memory", "diagnostic", "pcie", "targeted_power", "targeted_stress")


def of_test(name: str, new: bool, *words: str, warnings: Any = None, card: int | None = None) -> dict[str, Any]:
    """Return a test of two cards in the form of DCGM 4 or of 3; one word stands for both cards."""
    results: list[dict[str, Any]] = []
    for number, word in enumerate(words * 2 if len(words) == 1 else words):
        where = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": number} if new else {"gpu_id": str(number)}
        found = {**where, "status": word} if new or name != "software" else {"status": word}
        text = warnings.format(number) if isinstance(warnings, str) else warnings
        results.append({**found, "warnings": text} if text and card in (None, number) else found)
    shown = name if new else OLD.get(name.title(), name.replace("_", " ").title())
    summary = {"test_summary": {"status": words[0], "info": ["checking was skipped."]}} if new else {}
    return {"name": shown, "results": results, **summary}


def level_3(new: bool, *tests: dict[str, Any], without: tuple[str, ...] = (), **root: Any) -> str:
    """Return a report of level 3 in which everything has passed but these tests; EUD is never a part of it."""
    given = {one["name"] for one in tests}
    usual = [of_test(name, new, "Pass") for name in ("software", *HARDWARE) if name not in without]
    listed = [*(one for one in usual if one["name"] not in given), *tests, of_test("eud", new, "Skip")]
    name = "DCGM Diagnostic" if new else "DCGM GPU Diagnostic"
    return json.dumps({name: {"test_categories": [{"category": "x", "tests": listed}], **root}, "metadata": {}})


@pytest.mark.parametrize("new", [True, False], ids=["dcgm-4", "dcgm-3"])
@pytest.mark.parametrize(
    ("tests", "expected"),
    [
        ([], Report(PASSED)),
        (
            [(name, "Skip") for name in HARDWARE],
            Report(NOT_TESTED, "no test of memory, PCIe, power, load ran on cards [0, 1]", untested=(0, 1)),
        ),
        # DCGM lists tests that did not run without a result.
        (
            [(name,) for name in HARDWARE],
            Report(NOT_TESTED, "no test of memory, PCIe, power, load ran on cards [0, 1]", untested=(0, 1)),
        ),
        ([("targeted_stress", "Skip")], Report(PASSED)),
        ([("pcie", "Skip")], Report(NOT_TESTED, "no test of PCIe ran on cards [0, 1]", untested=(0, 1))),
        ([("memory", "Pass", "Skip")], Report(NOT_TESTED, "no test of memory ran on cards [1]", untested=(1,))),
        # What failed is named, and what was not tested has not passed.
        ([("memory", "Skip", "Fail")], Report(FAILED, "emory: fail", (1,), (0,))),
    ],
)
def test_level_3_passes_only_where_the_hardware_was_tested(new: bool, tests: list[Any], expected: Report) -> None:
    text = level_3(new, *(of_test(name, new, *words) for name, *words in tests if words), without=bare(tests))
    found = dcgm.read_report(0 if expected.verdict == PASSED else 226, text, CARDS, dcgm.TESTS["diag-3"])
    assert (found.verdict, found.failed, found.untested) == (expected.verdict, expected.failed, expected.untested)
    assert expected.why in found.why


def bare(tests: list[Any]) -> tuple[str, ...]:
    """Return the names of the tests."""
    return tuple(one[0] for one in tests)


@pytest.mark.parametrize("word", ["Pass", "Fail", "Skip"])
@pytest.mark.parametrize("new", [True, False], ids=["dcgm-4", "dcgm-3"])
def test_memory_that_could_not_be_allocated_was_not_tested(new: bool, word: str) -> None:
    for warnings in ([{"warning": NOT_ALLOCATED, **NO_MEMORY}], NOT_ALLOCATED):
        one = of_test("memory", new, word, warnings=warnings, card=1)
        if word == "Fail":
            one["results"][0]["status"] = "Pass"
        found = dcgm.read_report(0, level_3(new, one, without=("memory",)), CARDS, dcgm.TESTS["diag-3"])
        assert found.verdict == NOT_TESTED and "Couldn't allocate" in found.why and 1 in found.untested
    # What the same test allocates in a pass is no such message.
    fine = of_test("memory", new, "Pass")
    fine["results"][0]["info"] = "GPU 0 Allocated 15206918958 bytes (97.3%)"
    assert dcgm.read_report(0, level_3(new, fine, without=("memory",)), CARDS).verdict == PASSED


@pytest.mark.parametrize("place", ["root", "inside", "alone"])
def test_a_run_that_ended_with_an_error_has_not_tested(place: str) -> None:
    text = "Unable to complete diagnostic: (-29) Diagnostic already running"
    report = json.loads(level_3(True, runtime_error=text if place == "inside" else ""))
    report |= {"runtime_error": text} if place == "root" else {}
    report = {"DCGM Diagnostic": {"version": "4.6.0", "runtime_error": text}} if place == "alone" else report
    found = dcgm.read_report(0, json.dumps(report), CARDS, dcgm.TESTS["diag-3"])
    assert found == Report(NOT_TESTED, f"dcgmi could not test: {text}")
    assert {found.of_card(0), found.of_card(1)} == {NOT_TESTED}


def software(*results: dict[str, Any], name: str = "Persistence Mode") -> str:
    """Return a report of level 1, in the form of DCGM 3 that names no cards for passes."""
    tests = [{"name": "Denylist", "results": [{"status": "Pass"}]}, {"name": name, "results": list(results)}]
    return json.dumps({"DCGM GPU Diagnostic": {"test_categories": [{"category": "Deployment", "tests": tests}]}})


PERSISTENT = "Persistence mode for GPU {} is disabled."


@pytest.mark.parametrize(
    "report",
    [
        diag(
            *(
                {"entity_group": "GPU", "entity_id": one, "status": "Fail"}
                | {"warnings": [{"warning": PERSISTENT.format(one), **PERSISTENCE}]}
                for one in range(2)
            ),
            name="software",
        ),
        software({"status": "Fail", "warnings": PERSISTENT.format(0)}),
        # DCGM 3.3 shows the number of the last card alone.
        software(
            {"status": "Fail", "gpu_id": 1}
            | {"warnings": [{"warnings": PERSISTENT.format(one), **PERSISTENCE} for one in range(2)]}
        ),
        software({"status": "Warn"}),
    ],
    ids=["4", "3.1", "3.3", "bare"],
)
def test_persistence_mode_that_is_off_is_no_sick_card(report: str) -> None:
    assert dcgm.read_report(226, report, CARDS, dcgm.TESTS["diag-1"]) == Report(PASSED, OFF)
    # It hides no other finding.
    worse = report.replace('"status": "Pass"', '"status": "Fail"') if "Denylist" in report else report
    worse = worse.replace('"error_id": 29', '"error_id": 80', 1).replace("Denylist", "Inforom")
    assert dcgm.read_report(226, worse, CARDS, dcgm.TESTS["diag-1"]).verdict == FAILED


def test_a_finding_that_no_setting_excuses_fails_the_card() -> None:
    warnings = [{"warning": PERSISTENT.format(0), **PERSISTENCE}, {"warning": "GPU 0 fell off the bus", "error_id": 84}]
    result = {"entity_group": "GPU", "entity_id": 0, "status": "Fail", "warnings": warnings}
    assert dcgm.read_report(226, diag(result, name="software"), CARDS, dcgm.TESTS["diag-1"]).failed == (0,)


def test_checks_of_the_software_name_all_failed_cards_or_none() -> None:
    warnings = [{"warnings": f"GPU {one} had uncorrectable memory errors", "error_id": 84} for one in range(2)]
    report = software({"status": "Fail", "gpu_id": 1, "warnings": warnings}, name="Page Retirement/Row Remap")
    assert dcgm.read_report(226, report, CARDS).failed == (0, 1)
    # A library that is missing is a fault of the host.
    report = software({"status": "Fail", "warnings": "Cannot open library libcuda.so"}, name="CUDA Main Library")
    found = dcgm.read_report(226, report, CARDS, dcgm.TESTS["diag-1"])
    assert found.verdict == NOT_TESTED and "libcuda.so" in found.why


@pytest.mark.parametrize("name", [name for name, one in PLATFORMS.items() if one.acceptance])
def test_every_platform_with_acceptance_tests_has_both_suites(name: str) -> None:
    acceptance = PLATFORMS[name].acceptance
    assert acceptance
    for device in ("HL-225", "HL-288E", "HL-325L", "HL-338"):
        names = {suite: [test.name for test in acceptance.tests(suite, device)] for suite in SUITES}
        assert names[QUICK] and len(set(names[LONG])) == len(names[LONG])
        minutes = {suite: sum(test.minutes for test in acceptance.tests(suite, device)) for suite in SUITES}
        assert minutes[QUICK] <= 15 < minutes[LONG]
        assert acceptance.program(device).startswith("/")
        for test in acceptance.tests(LONG, device):
            some = acceptance.command(test, device, CARDS)
            assert acceptance.command(test, device, None) != some
        # A run without any output is never a pass.
        assert acceptance.read(0, "", CARDS, acceptance.tests(LONG, device)[0]).verdict == NO_RESULT


def test_known_failures_are_of_gaudi3_alone_and_have_a_source() -> None:
    known = hl_qual.ACCEPTANCE.known_failure
    assert known("power", "HL-325L", "1.24.1") and "Intel's cloud" in str(known("edp", "HL-325L", "1.24.1"))
    assert known("power", "HL-225", "1.21.3") is None and known("functional", "HL-325L", "1.24.1") is None


# ---- a run on a simulated host


class Machine:
    """A folder that is a host with two Gaudi2 cards for the stand-ins."""

    def __init__(self, root: Path) -> None:
        self.root, self.state = root, root / "state"
        self.set(driver_loaded=True, device_name="HL-225", cards=CARDS)
        for path in ("dev/accel", "run/gaudi-sim", "sys/module/habanalabs", "sys/module/habanalabs_cn", "logs", "bin"):
            (root / path).mkdir(parents=True)
        self.folder = root / "opt/gaudi2"
        self.folder.mkdir(parents=True)
        for name in ("hl_qual", "manage_network_ifs.sh"):
            shutil.copy(STANDINS / name, self.folder)
        # Modules of the folder, as the kernel would have them.
        modprobe = root / "bin/modprobe"
        modprobe.write_text(
            f'#!/bin/sh\ncd {root}/sys/module; echo "$*" >>{root}/modprobe.log\n'
            'if [ "$1" = -r ]; then rm -r "$2"; exit; fi\nmkdir -p "$1/parameters"\n'
            f'[ "$1" != habanalabs ] || {{ echo "${{2#*=}}" >$1/parameters/timeout_locked; '
            f"echo down >{root}/run/gaudi-sim/ports; }}\n"
        )
        modprobe.chmod(0o755)

    def set(self, **state: Any) -> None:
        """Change the state."""
        path = self.root / "etc/gaudi-sim/state.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**before, **state}))

    @property
    def modprobes(self) -> list[str]:
        path = self.root / "modprobe.log"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def unlocked(self) -> bool:
        path = self.root / "sys/module/habanalabs/parameters/timeout_locked"
        return path.exists() and path.read_text().strip() == "0"

    def run(self, suite: str = QUICK, tests: list[str] | None = None, **more: Any) -> dict[str, Any]:
        """Run tests as the module does."""
        acceptance = replace(
            hl_qual.ACCEPTANCE, env={**hl_qual.ENV, "HABANA_LOGS": str(self.root / "logs")}, folders=()
        )
        names = QUICK_TESTS if tests is None else tests
        given = {"suite": suite, "tests": names, "device": "HL-225", "release": "1.21.3", "cards": CARDS, "all": True}
        return qualification.qualify(acceptance, {**given, **more}, self.state, str(self.root))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(tmp_path)
    monkeypatch.setitem(hl_qual.FOLDERS, "GAUDI2", str(found.folder))
    monkeypatch.setenv("GAUDI_SIM_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return found


def test_a_suite_passes_and_is_kept_by_serial_number_and_firmware(machine: Machine) -> None:
    found = machine.run()
    assert found["verdict"] == PASSED
    assert [line.split()[:3] for line in found["lines"][2:6]] == [[name, "passed", "all"] for name in QUICK_TESTS]
    assert found["lines"][-1] == "hl_qual, suite quick: passed (2 cards)"
    kept = qualification.observe(hl_qual.ACCEPTANCE, machine.state, "/")
    assert set(kept["cards"]) == {"S0", "S1"} and kept["programs"] == [str(machine.folder / "hl_qual")]
    assert qualification.not_passed(kept["cards"], CARDS, QUICK, QUICK_TESTS) == []
    exchanged = [{**CARDS[0], "serial": "S9"}, {**CARDS[1], "firmware": "1.22.0-fw-61"}]
    assert qualification.not_passed(kept["cards"], exchanged, QUICK, QUICK_TESTS) == exchanged
    assert qualification.not_passed(kept["cards"], CARDS, QUICK, [*QUICK_TESTS, "new"]) == CARDS
    log = next(machine.state.glob("logs/*-quick/functional.log"))
    assert " hl qual report " in log.read_text() and oct(log.stat().st_mode & 0o777) == "0o640"


def test_ports_that_are_down_are_activated_before(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine.root / "run/gaudi-sim/ports").write_text("down\n")
    assert machine.run(tests=["serdes-pairs"])["verdict"] == PASSED
    # One without a cable stays down; what it means for a test, the test decides.
    monkeypatch.setattr(qualification, "PORTS_S", 0)
    (machine.root / "run/gaudi-sim/ports").write_text("down\n")
    found = machine.run(tests=["memory-bandwidth"])
    assert "ports are down 0 s after they were activated" in found["lines"][-2] and found["verdict"] == PASSED


def test_a_failure_names_the_card_and_is_compared_with_the_run_before(machine: Machine) -> None:
    assert machine.run()["tests"][0]["before"] == "-"
    machine.set(qual={"-f2": {"fail": [1]}, "-nic_base": {"answer": [0, "done"]}})
    found = machine.run()
    assert found["verdict"] == FAILED
    test = found["tests"][0]
    assert (test["verdict"], test["failed"], test["cards"]) == (FAILED, ["S1"], {"S0": PASSED, "S1": FAILED})
    assert test["before"].startswith("passed 20")
    text = "\n".join(found["lines"])
    assert "functional: failed: its report shows FAILED; log " in text and "1 (S1)" in text
    assert "serdes-pairs: no result: no hl qual report; exit status 0; log " in text
    last = qualification.results(machine.state)["last"]
    assert (last["verdict"], last["failed"]) == (FAILED, {"S1": ["functional"]})
    again = machine.run(cards=[{**CARDS[0], "firmware": "new"}, CARDS[1]], tests=["functional"])
    assert again["tests"][0]["before"].startswith("failed 20") and "other firmware" in again["tests"][0]["before"]


def test_what_was_not_tested_is_shown_and_kept_as_that(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.run()["verdict"] == PASSED
    report = Report(NOT_TESTED, "no test of memory ran on cards [1]", untested=(1,))
    monkeypatch.setattr(hl_qual, "ACCEPTANCE", replace(hl_qual.ACCEPTANCE, read=lambda *_: report))
    found = machine.run(tests=["functional"])
    assert (found["verdict"], found["tests"][0]["cards"]) == (NOT_TESTED, {"S0": PASSED, "S1": NOT_TESTED})
    text = "\n".join(found["lines"])
    assert "functional: not tested: no test of memory ran on cards [1]; log " in text and "1 (S1)" in text
    assert text.endswith("hl_qual, suite quick: not tested (2 cards)")
    kept = qualification.results(machine.state)
    assert kept["last"]["verdict"] == NOT_TESTED and kept["last"]["failed"] == {}
    assert qualification.not_passed(kept["cards"], CARDS, QUICK, ["functional"]) == [CARDS[1]]
    assert machine.run(tests=["functional"])["tests"][0]["before"].startswith("not tested 20")
    # A note of a pass is shown too.
    report = Report(PASSED, OFF)
    monkeypatch.setattr(hl_qual, "ACCEPTANCE", replace(hl_qual.ACCEPTANCE, read=lambda *_: report))
    assert f"functional: passed: {OFF}" in "\n".join(machine.run(tests=["functional"])["lines"])
    # A verdict of a newer version of the toolkit is shown, and is no pass.
    saved = (machine.state / qualification.RESULTS).read_text().replace(f'"{PASSED}"', '"new"')
    (machine.state / qualification.RESULTS).write_text(saved)
    assert machine.run(tests=["functional"])["tests"][0]["before"].startswith("new 20")


def test_known_failures_do_not_fail_a_suite_and_are_marked(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(hl_qual.FOLDERS, "GAUDI3", str(machine.folder))
    machine.set(device_name="HL-325L", qual={"-s": {"fail": [0]}})
    found = machine.run(LONG, ["power"], device="HL-325L", release="1.24.1")
    assert (found["verdict"], found["tests"][0]["verdict"]) == (PASSED, "known failure")
    assert "healthy cards fail it: lists of Intel's cloud" in "\n".join(found["lines"])
    # A card that gives no result has no excuse.
    machine.set(qual={"-s": {"answer": [1, "crash"]}})
    assert machine.run(LONG, ["power"], device="HL-325L", release="1.24.1")["verdict"] == NO_RESULT


def test_the_driver_is_loaded_for_tests_of_memory_and_again_as_it_was(machine: Machine) -> None:
    found = machine.run(LONG, ["hbm-dma", "functional"])
    assert [test["name"] for test in found["tests"]] == ["functional", "hbm-dma"]
    assert found["verdict"] == PASSED, found["lines"]
    unload = ["-r habanalabs", "-r habanalabs_cn"]
    assert machine.modprobes == [
        *unload,
        "habanalabs_cn",
        "habanalabs timeout_locked=0",
        *unload,
        *machine.modprobes[-2:],
    ]
    assert machine.modprobes[-2:] == ["habanalabs_cn", "habanalabs"]
    assert not machine.unlocked and (machine.root / "run/gaudi-sim/ports").read_text() == "up\n"
    assert not (machine.state / qualification.MARK).exists()


def test_a_run_that_is_killed_is_repaired_by_the_next(machine: Machine) -> None:
    machine.set(qual={"-hbm_dma_stress": {"sleep": 60}})
    code = (
        "import sys; sys.path[:0] = [sys.argv[1], sys.argv[2]]\nfrom pathlib import Path\n"
        "from gaudi_serve.platforms import hl_qual\nfrom test_qualification import Machine\n"
        "one = Machine.__new__(Machine); one.root = Path(sys.argv[3]); one.state = one.root / 'state'\n"
        "hl_qual.FOLDERS['GAUDI2'] = str(one.root / 'opt/gaudi2')\none.run('long', ['hbm-dma'])\n"
    )
    argv = [sys.executable, "-c", code, str(ROOT / "lib"), str(Path(__file__).parent), str(machine.root)]
    path = os.pathsep.join(one for one in sys.path if one)
    process = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": path})
    log = lambda: list(machine.state.glob("logs/*/hbm-dma.log"))  # noqa: E731
    wait_for(lambda: bool(log()) and "Start running" in log()[0].read_text())
    process.kill()
    process.wait()
    # The tool has ended with it: it would go on holding the cards.
    wait_for(lambda: not running(machine.folder / "hl_qual", "-hbm_dma_stress"))
    assert machine.unlocked
    assert qualification.observe(hl_qual.ACCEPTANCE, machine.state)["unlocked"]
    machine.set(qual={})
    qualification.lock_again(hl_qual.ACCEPTANCE, "HL-225", machine.state, str(machine.root))
    assert not machine.unlocked and not qualification.observe(hl_qual.ACCEPTANCE, machine.state)["unlocked"]


def wait_for(condition: Any) -> None:
    import time

    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def running(program: Path, option: str) -> bool:
    """Return whether the stand-in of this machine runs a test."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words, folder = (path / "cmdline").read_bytes().decode(errors="replace"), (path / "cwd").resolve()
        except OSError:
            continue
        if option in words and folder == program.parent.resolve():
            return True
    return False


def test_a_driver_that_cannot_be_loaded_stays_marked(machine: Machine) -> None:
    (machine.root / "bin/modprobe").write_text("#!/bin/sh\necho 'FATAL: Module habanalabs is in use.' >&2; exit 1\n")
    with pytest.raises(InputError, match="modprobe -r habanalabs: FATAL: Module habanalabs is in use"):
        machine.run(LONG, ["hbm-dma"])
    assert (machine.state / qualification.MARK).exists()


def test_a_test_that_does_not_end_is_ended_and_has_no_result(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(hl_qual.MEMORY), "limit_s", 1)
    machine.set(qual={"-f2": {"sleep": 60}})
    found = machine.run(tests=["functional"])
    assert (found["verdict"], found["tests"][0]["why"]) == (
        NO_RESULT,
        "it did not end within 1 second, and was stopped",
    )
    assert not running(machine.folder / "hl_qual", "-f2")


# ---- the stand-in is as strict as the real tool


def standin(machine: Machine, *words: str, folder: Path | None = None, **env: str) -> tuple[int, str]:
    argv = [str(machine.folder / "hl_qual"), "-gaudi2", "-c", "all", "-rmod", "parallel", *words]
    given = {**hl_qual.ENV, "HABANA_LOGS": str(machine.root / "logs"), "GAUDI_SIM_ROOT": str(machine.root), **env}
    done = subprocess.run(argv, cwd=folder or machine.folder, env=given, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_stand_in_refuses_what_the_real_tool_refuses(machine: Machine) -> None:
    assert standin(machine, "-ser", "-dis_mon")[0] == 0
    for words, said in (
        (("-ser",), "Error opening terminal"),
        (("-ser", "-sramOnly", "-dis_mon"), "unknown option -sramOnly"),
        (("-ser", "-f2", "-dis_mon"), "usage"),
        (("-hbm_dma_stress", "-i", "1", "-dis_mon"), "timeout_locked=0"),
    ):
        status, text = standin(machine, *words)
        assert status == 2 and said in text
    assert "current folder" in standin(machine, "-ser", "-dis_mon", folder=machine.root)[1]
    assert "RDMA_CORE_LIB is not set" in standin(machine, "-ser", "-dis_mon", RDMA_CORE_LIB="")[1]
    (machine.root / "run/gaudi-sim/ports").write_text("down\n")
    assert "ports are down" in standin(machine, "-nic_base", "-test_type", "pairs", "-dis_mon")[1]
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(f"\0gaudi-sim{machine.root}-card-1")
        assert "accel1 is in use" in standin(machine, "-ser", "-dis_mon")[1]


# ---- the stage


def pending(host: dict[str, Any] | None = None, state: dict[str, Any] | None = None, **variables: Any) -> Pending:
    facts = host or machine_facts()
    nothing = {"cards": {}, "last": {}, "unlocked": False, "programs": ["/opt/habanalabs/qual/gaudi2/bin/hl_qual"]}
    usual = {"qualification_asked": False, "qualification_suite": QUICK, "qualification_required": ""}
    known = {**usual, "gaudi_host": facts, "gaudi_qualification": {**nothing, **(state or {})}, **variables}
    return STAGE.pending(Given("a", known))


def machine_facts(**more: Any) -> dict[str, Any]:
    found = gaudi_host(**more)
    for card in found["modules"]:
        card |= {"serial": f"S{card['module_id']}", "firmware": "1", "bus_id": f"0000:1{card['module_id']}:00.0"}
    return found


ASKED: dict[str, Any] = {"qualification_asked": True}
SERVING = {"m": {"module_ids": [0, 1], "port": 1, "active": True}}


def test_nothing_is_due_where_nobody_asks() -> None:
    found = pending()
    assert (found.due, found.refusal, found.notes, found.changes["now"]) == ([], [], [], False)


def test_what_is_asked_for_is_due_with_its_minutes() -> None:
    found = pending(**ASKED)
    assert found.due == [
        "run acceptance suite quick on 8 cards, about 12 minutes: functional 2 min, memory-bandwidth 3 min, "
        "pcie-bandwidth 4 min, serdes-pairs 3 min"
    ]
    assert found.changes["every"] and found.changes["tests"] == QUICK_TESTS
    assert found.changes["table"][2].split()[:3] == ["functional", "about", "2"]
    found = pending(**ASKED, accelerator_cards_excluded=["S3"])
    assert [card["module_id"] for card in found.changes["cards"]] == [0, 1, 2, 4, 5, 6, 7]
    assert not found.changes["every"]


@pytest.mark.parametrize(
    ("host", "state", "text"),
    [
        (
            machine_facts(services=SERVING),
            {},
            "a: model m has cards [0, 1]: acceptance tests never run on cards that serve; stop it first: "
            "playbooks/stop.yml -e model=m",
        ),
        (None, {"programs": []}, "a: /opt/habanalabs/qual/gaudi2/bin/hl_qual is missing; driver_optional_packages: ["),
        (
            {**machine_facts(), "problem": ["hl-smi failed"], "modules": []},
            {},
            "its cards do not answer: hl-smi failed",
        ),
        (
            {**machine_facts(), "accelerator": "cuda", "modules": [{"module_id": 0, "alone": True}]},
            {},
            "a: no acceptance test: dcgmi diag does not test cards that are divided into parts",
        ),
        ({**machine_facts(), "accelerator": "rocm"}, {}, "a: no acceptance test for this platform: "),
        (
            {**machine_facts(), "device_name": "HL-999"},
            {},
            "a: no acceptance test for HL-999: hl_qual does not know it",
        ),
    ],
)
def test_what_is_asked_for_is_refused_with_the_reason(host: Any, state: Any, text: str) -> None:
    found = pending(host, state, **ASKED)
    assert found.refusal and text in found.refusal[0]
    assert found.due == [] and not found.changes["now"]


def test_a_program_on_a_card_is_named() -> None:
    host = machine_facts()
    host["modules"][4] |= {"in_use": True, "held_by": "python3 (pid 7)"}
    assert pending(host, **ASKED).refusal == ["a: card 4 is used by python3 (pid 7); end it first"]


def test_what_is_required_runs_once_and_waits_while_cards_serve() -> None:
    required = {"qualification_required": QUICK}
    assert "run acceptance suite quick on 8 cards" in pending(**required).due[0]
    passed = {"1": {QUICK: {"time": 1, "tests": dict.fromkeys(QUICK_TESTS, PASSED)}}}
    state = {"cards": {f"S{number}": passed for number in range(8)}}
    assert pending(None, state, **required).due == []
    state["cards"].pop("S5")
    assert pending(None, state, **required).due
    waits = pending(machine_facts(services=SERVING), state, **required)
    assert (waits.due, waits.refusal) == ([], [])
    assert waits.notes == ["acceptance suite quick has not passed on 1 card: playbooks/qualify.yml"]
    # Cards without a driver wait for it.
    bare = pending({**machine_facts(), "problem": ["no driver"], "modules": []}, **required)
    assert (bare.due, bare.refusal) == ([], [])
    # A tool that stage driver provides is not missed before.
    brings = {"driver_optional_packages": ["habanalabs-qual"], "preflight_for": ["driver", "qualification"]}
    assert pending(None, {"programs": []}, **required, **brings).due


def test_a_driver_that_was_left_for_tests_is_repaired_by_any_run() -> None:
    found = pending(None, {"unlocked": True})
    assert (found.due, found.changes["tests"], found.changes["now"]) == ([REPAIR], [], True)
    assert (found.drift, found.notes) == ([UNLOCKED], [])
    # A model that serves on it is not interrupted, and a run and a status report what helps.
    serving = pending(machine_facts(services=SERVING), {"unlocked": True})
    assert (serving.due, serving.changes["now"], serving.drift, serving.notes) == ([], False, [UNLOCKED], [UNLOCKED])


def test_without_a_card_to_test_nothing_runs() -> None:
    excluded = {"accelerator_cards_excluded": [f"S{number}" for number in range(8)]}
    refused = pending(None, **ASKED, **excluded)
    assert (refused.refusal, refused.changes["now"]) == ([f"a: {ALL_EXCLUDED}"], False)
    found = pending(None, qualification_required=QUICK, **excluded)
    assert (found.due, found.refusal, found.changes["now"]) == ([], [], False)


def test_the_status_line_has_suite_day_verdict_and_cards() -> None:
    last = {"suite": QUICK, "time": 0, "verdict": FAILED, "cards": 8, "failed": {"S3": ["functional"]}}
    assert pending(None, {"last": last}).notes == [
        "hl_qual: suite quick failed on 1970-01-01 (8 cards); card 3 (serial number S3) failed functional; "
        "accelerator_cards_excluded keeps models from it"
    ]


# ---- the module, by its file


def module_result(machine: Machine, **given: Any) -> dict[str, Any]:
    """Return what the module reports, run in a process of its own as on a host."""
    arguments = {"accelerator": "gaudi", "device": "HL-225", "folder": str(machine.state), **given}
    start = "from helpers.plugins import load; load('library/qualify_cards.py').main()"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PATH": f"{STANDINS}:{os.environ['PATH']}"}
    text = json.dumps({"ANSIBLE_MODULE_ARGS": arguments})
    done = subprocess.run(
        [sys.executable, "-c", start], input=text, env=env, capture_output=True, text=True, check=False
    )
    return dict(json.loads(done.stdout))


def test_the_module_tests_nothing_in_check_mode_and_beside_a_program(machine: Machine) -> None:
    for card in CARDS:
        (machine.root / f"dev/accel/accel{card['index']}").touch()
    full = [{**card, "memory_mib": 98304, "uuid": "u", "numa_node": 0, "cpus": ["0-3"], "links": []} for card in CARDS]
    machine.set(cards=full, driver_version="1.21.3-57")
    found = module_result(machine, tests=["functional"], cards=CARDS, _ansible_check_mode=True)
    assert (found["changed"], found["lines"]) == (True, []) and not machine.state.exists()
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(f"\0gaudi-sim{machine.root}-card-1")
        found = module_result(machine, tests=["functional"], cards=CARDS)
    assert found["failed"] and found["msg"].startswith("card 1 is used by ")
    assert not (machine.state / "logs").exists()
    assert module_result(machine)["verdict"] == PASSED
    with (machine.state / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = module_result(machine)
    assert found["msg"] == "another run tests the cards of this host; wait until it ends"
    found = module_result(machine, accelerator="rocm")
    assert found["failed"] and found["msg"].startswith("no acceptance test for this platform")
