"""The kernel's log as journalctl and dmesg print it, and what NVIDIA's and AMD's drivers write into it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from gaudi_serve.core.run import Result, run
from gaudi_serve.core.words import counted
from gaudi_serve.platforms import amdgpu_log, kernel_log, nvidia_log
from gaudi_serve.platforms.kernel_log import BUFFER, JOURNAL, Record, words_of
from gaudi_serve.platforms.nvidia_log import CardErrors
from gaudi_serve.platforms.nvidia_smi import Errors
from helpers.gpu_hosts import MIDNIGHT, journal

FELL = "NVRM: Xid (PCI:0000:44:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
TEXT = "Xid 79 (it fell off the bus) at 2026-11-27 00:00:00 UTC: GPU has fallen off the bus"
CARD = "0000:44:00.0"
# As dmesg of util-linux 2.38 prints it, the second record with three lines.
DMESG = """\
2026-11-27T01:00:00,518506+01:00 NVRM: Xid (PCI:0000:44:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off
2026-11-27T01:00:07,000000+01:00 NVRM: The NVIDIA GPU 0000:b3:00.0
                                 NVRM: (PCI ID: 10de:26b5) installed in this system has
                                 NVRM: fallen off the bus and is not responding to commands.
2026-11-27T01:00:09,000000+01:00 usb 1-4: device descriptor read/64, error -71
"""


def answers(monkeypatch: pytest.MonkeyPatch, **results: Result) -> list[list[str]]:
    """Let programs answer, and return what is asked."""
    asked: list[list[str]] = []

    def answer(argv: list[str]) -> Result:
        asked.append(argv)
        return results.get(argv[0], Result(127, "", f"{argv[0]}: not found"))

    monkeypatch.setattr(kernel_log, "run", answer)
    return asked


def nvidia(*texts: str) -> dict[str, CardErrors]:
    """Return the errors of records, the first of midnight; only those count that journalctl would find."""
    found = journal([*JOURNAL, f"--grep={nvidia_log.PATTERN}"], list(texts))
    return nvidia_log.card_errors(kernel_log._journal(found.out))


def xid(number: int, words: str = "", place: str = "0000:44:00") -> str:
    return f"NVRM: Xid (PCI:{place}): {number}{words}"


def test_the_journal_is_searched_for_this_boot_s_records(monkeypatch: pytest.MonkeyPatch) -> None:
    row = json.dumps({"__REALTIME_TIMESTAMP": str(MIDNIGHT * 10**6), "MESSAGE": FELL, "_BOOT_ID": "a"})
    odd = json.dumps({"__REALTIME_TIMESTAMP": str(MIDNIGHT * 10**6 + 1), "MESSAGE": [78, 86, 255]})
    asked = answers(monkeypatch, journalctl=Result(0, f"{row}\n{odd}\n", ""))
    records, unread = kernel_log.kernel_log("Xid")
    assert records == [Record(FELL, "2026-11-27 00:00:00 UTC"), Record("NV\ufffd", "2026-11-27 00:00:00 UTC")]
    assert not unread and asked == [[*JOURNAL, "--grep=Xid"]]
    assert {"--dmesg", "--boot"} <= {*JOURNAL}


@pytest.mark.parametrize(
    "silent",
    [
        Result(1, "-- No entries --\n", ""),
        Result(1, "", "No journal files were found."),
        Result(127, "", "journalctl: not found"),
        Result(124, "", "journalctl: no answer within 20 s"),
        Result(1, "", "Compiled without pattern matching support"),
        Result(0, "Hint: You are currently not seeing messages from other users and the system.\n", ""),
    ],
)
def test_where_the_journal_has_nothing_the_kernel_s_buffer_is_read(
    silent: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answers(monkeypatch, journalctl=silent, dmesg=Result(0, DMESG, ""))
    records, unread = kernel_log.kernel_log(nvidia_log.PATTERN)
    assert [record.at for record in records] == ["2026-11-27 00:00:00 UTC", "2026-11-27 00:00:07 UTC"]
    assert sorted(nvidia_log.card_errors(records)) == [CARD, "0000:b3:00.0"]
    assert not unread and asked[1:] == [BUFFER]


def test_a_log_that_nobody_can_read_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    denied = Result(1, "", "dmesg: read kernel buffer failed: Operation not permitted")
    answers(monkeypatch, journalctl=Result(124, "", "journalctl: no answer within 20 s"), dmesg=denied)
    assert kernel_log.kernel_log("Xid") == (
        [],
        [
            "the kernel's log, which has errors of cards, cannot be read: journalctl: no answer within 20 s; "
            "dmesg: read kernel buffer failed: Operation not permitted"
        ],
    )
    # A journal that has the kernel's records, and none of these, reports it.
    answers(monkeypatch, journalctl=Result(1, "-- No entries --\n", ""), dmesg=denied)
    assert kernel_log.kernel_log("Xid") == ([], [])


def test_the_real_programs_take_these_options() -> None:
    """What they find differs by machine; a wrong option does not."""
    for argv in ([*JOURNAL, f"--grep={nvidia_log.PATTERN}"], [*JOURNAL, f"--grep={amdgpu_log.PATTERN}"], BUFFER):
        result = run(argv)
        if result.status != 127:
            wrong = ("option", "Usage", "pattern", "Invalid", "unrecognized")
            assert not [word for word in wrong if word in result.err], result.err


def test_a_journalctl_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("journalctl", "dmesg"):
        (tmp_path / name).write_text("#!/bin/sh\nexec sleep 9\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(kernel_log, "run", lambda argv: run(argv, 0.2))
    records, (unread,) = kernel_log.kernel_log("Xid")
    assert records == [] and "journalctl: no answer within 0.2 s; dmesg: no answer within 0.2 s" in unread


@pytest.mark.parametrize("number", [48, 62, 64, 74, 79, 95, 119, 120, 140, 154])
def test_errors_that_take_a_card_out(number: int) -> None:
    (found,) = nvidia(xid(number, ", pid=4711, name=python3, some words")).items()
    assert found[0] == CARD and found[1].fatal.startswith(f"Xid {number} (") and not found[1].warned
    assert found[1].fatal.endswith("at 2026-11-27 00:00:00 UTC: some words")


@pytest.mark.parametrize("number", [63, 92, 94])
def test_errors_that_are_warned_of(number: int) -> None:
    errors = nvidia(xid(number, ", first"), xid(number, ", last"))[CARD]
    assert not errors.fatal and errors.warned.startswith(f"Xid {number} (")
    assert errors.warned.endswith("at 2026-11-27 00:00:01 UTC: last")


@pytest.mark.parametrize("number", [13, 31, 43, 45, 8, 69, 109, 4, 7, 9, 790, 148, 1540])
def test_errors_of_programs_are_none_of_the_card(number: int) -> None:
    assert nvidia(xid(number, ", pid=4711, name=python3, Ch 00000008")) == {}


@pytest.mark.parametrize(
    ("text", "card"),
    [
        (FELL, CARD),
        ("NVRM: Xid (PCI:0000:44:00 GPU-I:05): 79, pid=7, name=a, GPU has fallen off the bus.", CARD),
        ("NVRM: Xid (PCI:0000:44:00 GPU-I:05 GPU-CI:00): 79, GPU has fallen off the bus.", CARD),
        (xid(79, ", GPU has fallen off the bus.", "000F:01:00"), "000f:01:00.0"),
        (xid(79, ", GPU has fallen off the bus.", "00000000:DB:00"), "0000:db:00.0"),
    ],
)
def test_a_card_by_each_form_of_its_place(text: str, card: str) -> None:
    assert nvidia(text) == {card: CardErrors(TEXT)}


@pytest.mark.parametrize("text", ["NVRM: Xid : 32, pid=2280636", "NVRM: Xid (PCI:0000:66:00): abc, pid=1", "NVRM: x"])
def test_what_is_no_error_of_a_card(text: str) -> None:
    assert nvidia(text) == {}


def test_a_card_that_fell_off_without_an_xid() -> None:
    bare = TEXT.removesuffix(": GPU has fallen off the bus")
    assert nvidia("NVRM: GPU 0000:44:00.0: GPU has fallen off the bus.") == {CARD: CardErrors(bare)}
    lines = ["NVRM: The NVIDIA GPU 0000:44:00.0", "NVRM: (PCI ID: 10de:26b5) installed in this system has"]
    lines.append("NVRM: fallen off the bus and is not responding to commands.")
    assert nvidia("\n".join(lines)) == {CARD: CardErrors(bare)}
    assert nvidia(*lines)[CARD].fatal.startswith("Xid 79 (it fell off the bus) at 2026-11-27 00:00:02 UTC")
    # Both forms of one event are one.
    assert nvidia(FELL, "NVRM: GPU 0000:44:00.0: GPU has fallen off the bus.") == {CARD: CardErrors(TEXT)}


def test_the_recovery_that_a_driver_asks_for_is_reported_with_the_cause() -> None:
    reboot = xid(154, ", GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
    asked = "Xid 154 (its driver requires a recovery) at 2026-11-27 00:00:0{} UTC: Node Reboot Required"
    assert nvidia(reboot)[CARD].fatal == asked.format(0)
    assert nvidia(FELL, reboot)[CARD].fatal == f"{TEXT}; then {asked.format(1)}"


def test_an_error_is_over_when_its_driver_is_loaded_again_or_asks_for_no_recovery_any_more() -> None:
    loaded = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build"
    assert nvidia(FELL, xid(94), loaded) == {}
    assert nvidia(loaded, FELL)[CARD].fatal
    over = xid(154, ", GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
    other = xid(48, place="0000:45:00")
    assert list(nvidia(xid(95), other, over)) == ["0000:45:00.0"]
    assert nvidia(xid(95), over, xid(62))[CARD].fatal.startswith("Xid 62 ")


@pytest.mark.parametrize(
    ("errors", "logged", "problem", "sick"),
    [
        (None, CardErrors(), "", ""),
        (Errors(0, "", "None"), CardErrors(), "", ""),
        (
            Errors(0, "", ""),
            CardErrors("Xid 48"),
            "Xid 48; it is out of service until its driver is loaded again or",
            "",
        ),
        (None, CardErrors("Xid 48", "Xid 63"), "Xid 48; it is out of service until its driver is loaded again or", ""),
        (Errors(0, "", "None"), CardErrors("Xid 48"), "", "Xid 48; its driver requires no recovery now"),
        (Errors(0, "", "None"), CardErrors("a", "b"), "", "a; its driver requires no recovery now; b"),
        (
            Errors(0, "", "Reset"),
            CardErrors(),
            "its driver requires a recovery (Reset); it is out of service until",
            "",
        ),
        (
            Errors(0, "", "Drain P2P"),
            CardErrors("Xid 74"),
            "its driver requires a recovery (Drain P2P), after Xid 74;",
            "",
        ),
        (Errors(0, "it has 3 errors", "Reset"), CardErrors("Xid 48"), "it has 3 errors", ""),
        (Errors(0, "", ""), CardErrors("", "Xid 94"), "", "Xid 94"),
    ],
)
def test_what_is_judged_of_a_card(errors: Errors | None, logged: CardErrors, problem: str, sick: str) -> None:
    found = nvidia_log.judge(errors, logged)
    assert found[0].startswith(problem) and bool(found[0]) == bool(problem) and found[1] == sick


def test_words_of_a_record_fit_a_line() -> None:
    assert words_of(" a\tb\n c\x07.") == "a b c"
    assert len(words_of("x" * 300)) == 100 and words_of("x" * 300).endswith("x...")


AMD = "amdgpu 0000:05:00.0: amdgpu: "


def amd(*texts: str) -> dict[str, str]:
    """Return what is reported of AMD's GPUs by records, the first of midnight."""
    found = journal([*JOURNAL, f"--grep={amdgpu_log.PATTERN}"], list(texts))
    return amdgpu_log.gpu_errors(kernel_log._journal(found.out))


@pytest.mark.parametrize(
    ("text", "count", "block"),
    [
        ("2 uncorrectable hardware errors detected in umc block", 2, "umc"),
        ("socket: 4, die: 0 3 uncorrectable hardware errors detected in gfx block", 3, "gfx"),
        ("{17}socket: 0, die: 1, 1 new uncorrectable hardware errors detected in sdma block", 1, "sdma"),
        ("{17}socket: 0, die: 1, 12 uncorrectable hardware errors detected in total in umc block", 12, "umc"),
        ("Total 5 uncorrectable hardware errors detected in umc block", 5, "umc"),
        ("socket: 0, die: 0 0 uncorrectable hardware errors detected in gfx block", 0, ""),
        ("no uncorrectable hardware errors detected in gfx block", 0, ""),
        ("3 correctable hardware errors detected in umc block", 0, ""),
        ("ring gfx_0.0.0 timeout, but soft recovered", 0, ""),
    ],
)
def test_uncorrectable_errors_of_an_amd_gpu(text: str, count: int, block: str) -> None:
    said = f"{counted(count, 'uncorrectable error')} in its block {block} at 2026-11-27 00:00:00 UTC"
    said = f"the kernel's log of this boot: {said}"
    assert amd(f"{AMD}{text}") == ({"0000:05:00.0": said} if count else {})
    # Kernels before 5.10 have the driver's name but once.
    assert amd(f"{AMD.removesuffix('amdgpu: ')}{text}") == ({"0000:05:00.0": said} if count else {})


def test_resets_of_an_amd_gpu_are_counted() -> None:
    begin = f"{AMD}GPU reset begin!. Source:  4"
    once = amd(begin, f"{AMD}GPU reset(1) succeeded!")["0000:05:00.0"]
    assert once.endswith(": 1 reset by its driver, the last at 2026-11-27 00:00:00 UTC: each ends what runs on it")
    both = amd(begin, f"{AMD}2 uncorrectable hardware errors detected in umc block", begin)["0000:05:00.0"]
    assert both == (
        "the kernel's log of this boot: 2 uncorrectable errors in its block umc at 2026-11-27 00:00:01 UTC; 2 resets "
        "by its driver, the last at 2026-11-27 00:00:02 UTC: each ends what runs on it"
    )
