"""host_tuning: what it wants, what it finds, and the drop-in as GRUB's own shell reads it."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.core.errors import InputError
from gaudi_serve.core.templates import rendered
from gaudi_serve.host import observe_tuning
from gaudi_serve.host.baseline import RECORDS
from gaudi_serve.platforms import PLATFORMS
from gaudi_serve.stages import host_tuning
from gaudi_serve.stages.base import Given, Pending

ROLE = Path(__file__).parents[2] / "roles/host_tuning"
ARGS = ["cpufreq.default_governor=performance", "intel_idle.max_cstate=0"]
UBUNTU = {"kernel": "6.8.0-45-generic", "accelerator": "gaudi", "pretty_name": "Ubuntu 24.04"}


def dropin(arguments: list[str]) -> str:
    """Return the drop-in's text, as Ansible renders it."""
    return rendered("host_tuning", "grub.cfg.j2", arguments=arguments)


@pytest.mark.parametrize(
    ("system", "iommu", "given", "expected"),
    [
        (UBUNTU, "auto", None, [*ARGS, "intel_iommu=on", "iommu=pt"]),
        ({**UBUNTU, "kernel": "5.15.0-1"}, "auto", None, ARGS),
        ({**UBUNTU, "accelerator": "cpu"}, "auto", None, ARGS),
        ({**UBUNTU, "kernel": "5.15.0-1"}, "on", None, [*ARGS, "intel_iommu=on", "iommu=pt"]),
        (UBUNTU, "off", None, ARGS),
        (UBUNTU, "auto", [], []),
        (UBUNTU, "auto", ["quiet", "a=b"], ["quiet", "a=b"]),
    ],
)
def test_wanted_arguments(system: Any, iommu: str, given: Any, expected: list[str]) -> None:
    assert host_tuning.kernel_arguments_wanted(system, iommu, given) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([True], "host_tuning_kernel_args: True: must be a quoted text such as 'iommu=pt', without blanks or quotes"),
        (["a b"], "host_tuning_kernel_args: 'a b': must be a quoted text such as 'iommu=pt', without blanks or quotes"),
        (['x="$(reboot)"'], "host_tuning_kernel_args: 'x=\"$(reboot)\"': must be a quoted text"),
        ([0], "host_tuning_kernel_args: 0: must be a quoted text"),
        (["quiet", "quiet"], "host_tuning_kernel_args: 'quiet': must be there once; it is there more than once"),
        ("quiet", "host_tuning_kernel_args: 'quiet': must be a list of quoted texts such as ['iommu=pt']"),
    ],
)
def test_wrong_arguments_are_refused(given: Any, message: str) -> None:
    with pytest.raises(InputError) as problem:
        host_tuning.kernel_arguments_wanted(UBUNTU, "auto", given)
    assert message in str(problem.value)


@pytest.mark.parametrize("iommu", [True, False, "yes", None])
def test_a_bare_on_is_not_taken_for_off(iommu: Any) -> None:
    with pytest.raises(InputError) as problem:
        host_tuning.kernel_arguments_wanted(UBUNTU, iommu)
    assert f"host_tuning_iommu: {iommu!r}: must be 'auto', 'on' or 'off', in quotes" in str(problem.value)


@pytest.mark.parametrize(
    ("linux", "default", "expected"),
    [
        ("", "quiet", ("", "quiet A B")),
        ("", "", ("", "A B")),
        ("net.ifnames=0 A", "quiet  splash", ("net.ifnames=0", "quiet splash A B")),
        ("", "intel_idle.max_cstate=9 quiet " + ARGS[0], ("", "quiet A B")),
        ("", 'dyndbg="file x +p" *', ("", 'dyndbg="file x +p" * A B')),
    ],
)
def test_dropin_in_a_real_shell(tmp_path: Path, linux: str, default: str, expected: tuple[str, str]) -> None:
    (tmp_path / "drop.cfg").write_text(dropin(ARGS), encoding="utf-8")
    script = '. ./drop.cfg; printf "%s\\n%s\\n" "$GRUB_CMDLINE_LINUX" "$GRUB_CMDLINE_LINUX_DEFAULT"'
    short = {"A": ARGS[0], "B": ARGS[1]}
    fill = lambda text: " ".join(short.get(word, word) for word in text.split(" "))  # noqa: E731 - a one-line helper
    done = subprocess.run(
        ["sh", "-eu", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "GRUB_CMDLINE_LINUX": fill(linux), "GRUB_CMDLINE_LINUX_DEFAULT": default},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [expected[0], fill(expected[1])]


def test_hugepages_are_capped_and_the_cap_is_reported() -> None:
    tuning = {"mem_total_kib": 24 * 2**20, "hugepage_kib": 2048}
    assert host_tuning.hugepages_wanted(tuning, 64, 0.5) == {"pages": 64, "note": None}
    assert host_tuning.hugepages_wanted(tuning, 15000, 0.5) == {
        "pages": 6144,
        "note": "hugepages: 6144 instead of 15000, which is 0.5 of 24.0 GiB memory",
    }


@pytest.mark.parametrize(
    ("size_kib", "memory_gib", "wish", "pages", "note"),
    [
        (2**20, 1024, 15000, 30, "hugepages: 30 of the host's default size, 1 GiB, in place of 15000 of 2 MiB"),
        (2**20, 1024, 512, 1, "hugepages: 1 of the host's default size, 1 GiB, in place of 512 of 2 MiB"),
        (2**20, 1024, 0, 0, None),
        (2**20, 24, 15000, 12, "hugepages: 12 of 1 GiB instead of 30, which is 0.5 of 24.0 GiB memory"),
        (512 * 1024, 1024, 15000, 59, "hugepages: 59 of the host's default size, 512 MiB, in place of 15000 of 2 MiB"),
        (2048, 1024, 15000, 15000, None),
    ],
)
def test_hugepages_are_counted_in_the_hosts_default_size(
    size_kib: int, memory_gib: int, wish: int, pages: int, note: str | None
) -> None:
    """15000 pages of 2 MiB are 29.3 GiB; as 1 GiB pages they would be all of the memory."""
    tuning = {"mem_total_kib": memory_gib * 2**20, "hugepage_kib": size_kib}
    assert host_tuning.hugepages_wanted(tuning, wish, 0.5) == {"pages": pages, "note": note}


def test_numbers_may_come_as_text() -> None:
    tuning = {"mem_total_kib": 24 * 2**20, "hugepage_kib": 2048}
    assert host_tuning.hugepages_wanted(tuning, "64", "0.5") == {"pages": 64, "note": None}
    assert host_tuning.hugepages_wanted(tuning, 10**9, 1)["pages"] == 12288
    assert host_tuning.hugepages_wanted(tuning, 1, 0)["pages"] == 0


@pytest.mark.parametrize(
    ("wish", "fraction", "message"),
    [
        (True, 0.5, "host_tuning_hugepages: True: must be an integer of pages, 0 or more"),
        (-1, 0.5, "host_tuning_hugepages: -1: must be an integer of pages, 0 or more"),
        ("64k", 0.5, "host_tuning_hugepages: '64k': must be an integer of pages, 0 or more"),
        (64, 50, "host_tuning_hugepages_max_fraction: 50: must be a number from 0 to 1, such as 0.5"),
        (64, "half", "host_tuning_hugepages_max_fraction: 'half': must be a number from 0 to 1, such as 0.5"),
        (64, "nan", "host_tuning_hugepages_max_fraction: 'nan': must be a number from 0 to 1, such as 0.5"),
        (64, True, "host_tuning_hugepages_max_fraction: True: must be a number from 0 to 1, such as 0.5"),
    ],
)
def test_wrong_numbers_are_refused(wish: Any, fraction: Any, message: str) -> None:
    with pytest.raises(InputError) as problem:
        host_tuning.hugepages_wanted({"mem_total_kib": 2**20, "hugepage_kib": 2048}, wish, fraction)
    assert str(problem.value) == message


def test_hugepages_that_cannot_be_had() -> None:
    tuning = {"sysctl": {"vm.nr_hugepages": "40"}}
    assert host_tuning.host_tuning_missing(tuning, {"vm.nr_hugepages": "64"}, "gaudi01") == [
        "gaudi01: vm.nr_hugepages: got 40 of 64: memory is fragmented or in use; reboot the host, stop "
        "programs that use its memory"
        ", or lower host_tuning_hugepages"
    ]
    assert host_tuning.host_tuning_missing(tuning, {"vm.nr_hugepages": "40"}, "gaudi01") == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a made-up host that was tuned by hand, in Ubuntu's layout."""
    files = {
        "proc/meminfo": "MemTotal: 25165824 kB\nHugepagesize: 2048 kB\n",
        "proc/cmdline": "BOOT_IMAGE=/vmlinuz ro quiet\n",
        "proc/sys/kernel/numa_balancing": "1\n",
        "proc/sys/vm/nr_hugepages": "12\n",
        "etc/default/grub": 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\n',
        "etc/default/grub.d/50-cloudimg-settings.cfg": 'GRUB_CMDLINE_LINUX_DEFAULT="console=ttyS0"\n',
        "boot/grub/grub.cfg": (
            "menuentry 'a' {\n\tlinux\t/vmlinuz root=UUID=1 ro quiet\n}\n"
            "menuentry 'r' {\n\tlinux /vmlinuz ro single\n}\n"
        ),
        "etc/sysctl.conf": "# vm.nr_hugepages=1\nvm.nr_hugepages=15000\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (tmp_path / "etc/sysctl.d").mkdir()
    (tmp_path / "etc/sysctl.d/99-sysctl.conf").symlink_to("../sysctl.conf")
    return tmp_path


def test_observation_of_a_host_tuned_by_hand(tree: Path) -> None:
    found = observe_tuning.observe(str(tree))
    assert found["grub"]["entries"] == [["root=UUID=1", "ro", "quiet"]]
    assert found["sysctl"] == {"kernel.numa_balancing": "1", "vm.nr_hugepages": "12"}
    assert [(line["line"], line["value"]) for line in found["sysctl_others"]] == [(2, "15000")]
    assert found["governor"]["values"] == {"cpu0": "powersave"}


def changes(tree: Path, arguments: list[str] = ARGS) -> dict[str, Any]:
    """Return what is left to do on the made-up host."""
    tuning = observe_tuning.observe(str(tree))
    wanted = host_tuning.sysctl_wanted(tuning, 64)
    return host_tuning.host_tuning_changes(tuning, arguments, dropin(arguments) if arguments else "", "S\n", wanted)


def test_everything_that_differs_is_found(tree: Path) -> None:
    found = changes(tree)
    assert found["dropin"] == ["GRUB drop-in: is not there"]
    assert found["grub"] == ["grub.cfg: written without the planned drop-in"]
    assert found["sysctl"] == ["kernel.numa_balancing: 1 -> 0", "vm.nr_hugepages: 12 -> 64"]
    assert found["take_over"] == [f"{tree}/etc/sysctl.conf:2: vm.nr_hugepages=15000"]
    assert found["governor"] == ["cpu0: powersave -> performance"]
    assert found["reboot"] == [f"the running kernel lacks {argument}" for argument in ARGS]


def test_processors_with_the_same_governor_are_one_line(tree: Path) -> None:
    for number in range(1, 160):
        folder = tree / f"sys/devices/system/cpu/cpu{number}/cpufreq"
        folder.mkdir(parents=True)
        governor = {7: "performance", 159: "schedutil"}.get(number, "powersave")
        (folder / "scaling_governor").write_text(governor + "\n", encoding="utf-8")
    assert changes(tree)["governor"] == [
        "cpu0-6: powersave -> performance",
        "cpu8-158: powersave -> performance",
        "cpu159: schedutil -> performance",
    ]


def settle(tree: Path) -> None:
    """Make the host what the role would make it."""
    (tree / observe_tuning.DROPIN).write_text(dropin(ARGS), encoding="utf-8")
    (tree / observe_tuning.SYSCTL).write_text("S\n", encoding="utf-8")
    (tree / "boot/grub/grub.cfg").write_text(f"linux /vmlinuz ro {' '.join(ARGS)}\n", encoding="utf-8")
    (tree / "proc/cmdline").write_text(f"ro {' '.join(ARGS)}\n", encoding="utf-8")
    (tree / "proc/sys/kernel/numa_balancing").write_text("0\n", encoding="utf-8")
    (tree / "proc/sys/vm/nr_hugepages").write_text("64\n", encoding="utf-8")
    (tree / "etc/sysctl.conf").write_text("# gaudi-serve took this over: vm.nr_hugepages=15000\n", encoding="utf-8")
    (tree / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").write_text("performance\n", encoding="utf-8")


def test_a_settled_host_has_nothing_to_do(tree: Path) -> None:
    settle(tree)
    found = changes(tree)
    assert not found["due"]
    assert found["reboot"] == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"ro {ARGS[0]}", "grub.cfg: intel_idle.max_cstate=0 is missing"),
        (f"ro {ARGS[0]} {ARGS[1]} {ARGS[1]}", "grub.cfg: intel_idle.max_cstate=0 is not the only one of its key"),
        (f"ro {ARGS[0]} intel_idle.max_cstate=9", "grub.cfg: intel_idle.max_cstate=0 is missing"),
    ],
)
def test_menu_that_lacks_an_argument(tree: Path, line: str, expected: str) -> None:
    settle(tree)
    (tree / "boot/grub/grub.cfg").write_text(f"linux /vmlinuz {line}\n", encoding="utf-8")
    assert changes(tree)["grub"] == [expected]


def test_run_cut_off_before_update_grub_is_finished(tree: Path) -> None:
    settle(tree)
    menu = tree / "boot/grub/grub.cfg"
    os.utime(menu, (1, 1))
    assert changes(tree)["grub"] == ["grub.cfg: is older than the drop-in"]


def test_arguments_are_taken_back(tree: Path) -> None:
    settle(tree)
    found = changes(tree, [])
    assert found["dropin"] == ["GRUB drop-in: is there, planned none"]
    assert found["grub"] == ["grub.cfg: written with a drop-in, planned none"]
    (tree / observe_tuning.DROPIN).unlink()
    menu = tree / "boot/grub/grub.cfg"
    menu.write_text("linux /vmlinuz ro quiet\n", encoding="utf-8")
    later = (tree / observe_tuning.DROPIN).parent.stat().st_mtime + 5
    os.utime(menu, (later, later))
    found = changes(tree, [])
    assert found["grub"] == []
    assert found["reboot"] == [f"the running kernel still has {argument}" for argument in ARGS]


def test_host_without_grub_and_sysctl_conflicts_are_refused(tree: Path) -> None:
    tuning = observe_tuning.observe(str(tree))
    assert host_tuning.host_tuning_refusal(UBUNTU, tuning, ARGS, "gaudi01") == []
    (tree / "boot/grub/grub.cfg").unlink()
    tuning = observe_tuning.observe(str(tree))
    assert "set host_tuning_kernel_args: []" in host_tuning.host_tuning_refusal(UBUNTU, tuning, ARGS, "gaudi01")[0]
    assert host_tuning.host_tuning_refusal(UBUNTU, tuning, [], "gaudi01") == []
    (conflict,) = host_tuning.sysctl_conflicts(tuning, {"vm.nr_hugepages": "64"}, "gaudi01")
    assert conflict == (
        f"gaudi01: {tree}/etc/sysctl.conf:2: vm.nr_hugepages = 15000 is set there already, wanted is 64; remove the "
        "line, or let host_tuning_take_over comment it out"
    )


def test_keys_that_a_kernel_lacks_are_left_out(tree: Path) -> None:
    (tree / "proc/sys/kernel/numa_balancing").unlink()
    assert host_tuning.sysctl_wanted(observe_tuning.observe(str(tree)), 64) == {"vm.nr_hugepages": "64"}


def test_template_digest_is_the_files(tree: Path) -> None:
    settle(tree)
    found = observe_tuning.observe(str(tree))["grub"]["dropin_sha256"]
    assert found == sha256(dropin(ARGS).encode()).hexdigest()


def test_a_key_that_a_user_wants_several_times(tree: Path) -> None:
    consoles = ["console=tty0", "console=ttyS0"]
    settle(tree)
    (tree / observe_tuning.DROPIN).write_text(dropin(consoles), encoding="utf-8")
    menu = tree / "boot/grub/grub.cfg"
    for words, missing in ((consoles, []), (consoles[::-1], consoles), (consoles[:1], consoles)):
        menu.write_text(f"linux /vmlinuz ro {' '.join(words)}\n", encoding="utf-8")
        (tree / "proc/cmdline").write_text(f"console=hvc0 {' '.join(words)}\n", encoding="utf-8")
        found = changes(tree, consoles)
        assert bool(found["grub"]) == bool(missing)
        # Which one came last decides; a shorter list lacks the others.
        assert bool([reason for reason in found["reboot"] if "lacks" in reason]) == (words == consoles[:1])


@pytest.mark.parametrize(
    ("governor", "message"),
    [
        ("performance", None),
        ("", None),
        (
            "ondemand",
            "gaudi01: host_tuning_governor: 'ondemand': must be one that the host has: performance, powersave",
        ),
        (True, "gaudi01: host_tuning_governor: True: must be a quoted name, or '' to leave the governor as it is"),
    ],
)
def test_governor_that_the_host_does_not_have(tree: Path, governor: Any, message: str | None) -> None:
    offered = tree / "sys/devices/system/cpu/cpu0/cpufreq/scaling_available_governors"
    offered.write_text("performance powersave\n", encoding="utf-8")
    tuning = observe_tuning.observe(str(tree))
    found = host_tuning.host_tuning_refusal(UBUNTU, tuning, ARGS, "gaudi01", governor)
    assert found == ([message] if message else [])


def test_cpupower_of_ubuntu_is_a_script_that_looks_for_the_kernels_own(tree: Path) -> None:
    assert not observe_tuning.has_cpupower(str(tree), "6.8.0-45-generic")
    program = tree / "usr/bin/cpupower"
    program.parent.mkdir(parents=True)
    program.write_bytes(b"#!/bin/bash\n")
    assert not observe_tuning.has_cpupower(str(tree), "6.8.0-45-generic")
    own = tree / "usr/lib/linux-tools/6.8.0-45-generic/cpupower"
    own.parent.mkdir(parents=True)
    own.touch()
    assert observe_tuning.has_cpupower(str(tree), "6.8.0-45-generic")
    assert not observe_tuning.has_cpupower(str(tree), "6.8.0-48-generic")
    program.write_bytes(b"\x7fELF")
    assert observe_tuning.has_cpupower(str(tree), "6.8.0-48-generic")


def test_sysctl_lines_behind_links_and_in_other_notations_are_found(tree: Path) -> None:
    elsewhere = tree / "opt/tuning.conf"
    elsewhere.parent.mkdir()
    elsewhere.write_text("-vm/nr_hugepages = 7\r\nvm.nr_hugepages_mempolicy=1\n", encoding="utf-8")
    (tree / "etc/sysctl.d/90-linked.conf").symlink_to(elsewhere)
    found = observe_tuning.observe(str(tree))["sysctl_others"]
    assert [(Path(line["path"]).name, line["value"]) for line in found] == [
        ("sysctl.conf", "15000"),
        ("90-linked.conf", "7"),
    ]


def wanted_arguments(tree: Path) -> list[str]:
    """Return the kernel arguments that the made-up host shall have, as a Gaudi host with kernel 6.8."""
    return host_tuning.kernel_arguments_wanted(UBUNTU, "auto", None, observe_tuning.observe(str(tree)))


@pytest.mark.parametrize(
    ("text", "intel", "pt"),
    [
        ('GRUB_CMDLINE_LINUX="intel_iommu=on,sm_on"', "intel_iommu=on,sm_on", "iommu=pt"),
        ('GRUB_CMDLINE_LINUX="intel_iommu=sm_on intel_iommu=on"', "intel_iommu=sm_on,on", "iommu=pt"),
        ("GRUB_CMDLINE_LINUX='quiet iommu=pt,nobypass'", "intel_iommu=on", "iommu=pt,nobypass"),
        ('GRUB_CMDLINE_LINUX="intel_iommu=sm_on"', "intel_iommu=on", "iommu=pt"),
        ('GRUB_CMDLINE_LINUX="intel_iommu=off"', "intel_iommu=on", "iommu=pt"),
        ('# GRUB_CMDLINE_LINUX="intel_iommu=on,sm_on"', "intel_iommu=on", "iommu=pt"),
        ('GRUB_CMDLINE_LINUX="intel_iommu=on,sm_on"\nGRUB_CMDLINE_LINUX="quiet"', "intel_iommu=on", "iommu=pt"),
        (
            'GRUB_CMDLINE_LINUX="intel_iommu=on,sm_on"\nexport GRUB_CMDLINE_LINUX="${GRUB_CMDLINE_LINUX-} quiet"',
            *("intel_iommu=on,sm_on", "iommu=pt"),
        ),
        ('GRUB_CMDLINE_LINUX+=" intel_iommu=on,sm_on"', "intel_iommu=on,sm_on", "iommu=pt"),
        ('GRUB_CMDLINE_LINUX="unfinished', "intel_iommu=on", "iommu=pt"),
    ],
)
def test_a_value_of_the_user_that_holds_what_is_needed_stays(tree: Path, text: str, intel: str, pt: str) -> None:
    (tree / "etc/default/grub.d/60-own.cfg").write_text(f"{text}\n", encoding="utf-8")
    assert wanted_arguments(tree) == [*ARGS, intel, pt]
    # Given as the whole list, it is what it is.
    given = host_tuning.kernel_arguments_wanted(UBUNTU, "auto", ["iommu=pt"], observe_tuning.observe(str(tree)))
    assert given == ["iommu=pt"]


def test_a_value_without_options_is_never_joined(tree: Path) -> None:
    own = 'GRUB_CMDLINE_LINUX="intel_idle.max_cstate=9 intel_idle.max_cstate=0"\n'
    (tree / "etc/default/grub.d/60-own.cfg").write_text(own, encoding="utf-8")
    assert wanted_arguments(tree)[:2] == ARGS


@pytest.mark.parametrize(
    ("name", "text", "lost"),
    [
        ("zzz.cfg", '# own\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\n', ARGS),
        ("zzz.cfg", '\nGRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT intel_idle.max_cstate=9"\n', ARGS[1:]),
        ("zzz.cfg", '\nGRUB_CMDLINE_LINUX="intel_idle.max_cstate=9"\n', ARGS[1:]),
        ("zzz.cfg", '\nGRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT quiet"\n', []),
        ("zzz.cfg", '\nGRUB_CMDLINE_LINUX="quiet"\n', []),
        ("zzz.cfg", '\nGRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX_DEFAULT="$(cat /run/arguments)"\n', []),
        ("60-own.cfg", '\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\n', []),
        ("zzz.txt", '\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\n', []),
    ],
)
def test_a_dropin_that_undoes_ours_is_refused_by_its_file(tree: Path, name: str, text: str, lost: list[str]) -> None:
    path = tree / "etc/default/grub.d" / name
    path.write_text(text, encoding="utf-8")
    found = host_tuning.host_tuning_refusal(UBUNTU, observe_tuning.observe(str(tree)), ARGS, "gaudi01")
    variable = "GRUB_CMDLINE_LINUX" if "LINUX=" in text else "GRUB_CMDLINE_LINUX_DEFAULT"
    assert (
        found
        == [
            f"gaudi01: {path}:2: {variable} is set after /etc/default/grub.d/zz-gaudi-serve.cfg, and undoes "
            f"{', '.join(lost)}; give the file a name that sorts before that one, or remove the line"
        ][: len(lost)]
    )
    assert host_tuning.host_tuning_refusal(UBUNTU, observe_tuning.observe(str(tree)), [], "gaudi01") == []
    # Where the menu has them nevertheless, as in a branch of the shell that is not taken, nothing is in the way.
    settle(tree)
    assert host_tuning.host_tuning_refusal(UBUNTU, observe_tuning.observe(str(tree)), ARGS, "gaudi01") == []


@pytest.mark.parametrize(("tuned", "arguments"), [(True, [*host_tuning.TUNED]), (False, [])])
def test_the_manual_s_settings_are_for_its_own_platforms(
    tuned: bool, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PLATFORMS, "cpu", replace(PLATFORMS["cpu"], tuned=tuned))
    system = {"kernel": "6.1.0", "accelerator": "cpu"}
    assert host_tuning.kernel_arguments_wanted(system, "auto") == arguments


def test_hugepages_that_nobody_asks_for_stay_as_they_are() -> None:
    others = [{"path": "/etc/sysctl.conf", "line": 2, "key": "vm.nr_hugepages", "value": "100", "text": "x"}]
    tuning = {
        **{"mem_total_kib": 24 * 2**20, "hugepage_kib": 2048, "sysctl_others": others},
        "sysctl": {"kernel.numa_balancing": "0", "vm.nr_hugepages": "100"},
    }
    assert host_tuning.hugepages_wanted(tuning, None, 0.5) == {"pages": None, "note": None}
    wanted = host_tuning.sysctl_wanted(tuning, None)
    assert wanted == {"kernel.numa_balancing": "0"}
    assert host_tuning.sysctl_conflicts(tuning, wanted, "h") == []


KNOWN = {
    **{"host_tuning_kernel_args": None, "host_tuning_iommu": "auto", "host_tuning_governor": "performance"},
    **{"host_tuning_hugepages": None, "host_tuning_hugepages_max_fraction": 0.5, "host_tuning_take_over": True},
    "host_tuning_reboot_allowed": False,
}


def asked(tree: Path, accelerator: str, **more: Any) -> Pending:
    """Return what the stage would change on the made-up host."""
    system = {**UBUNTU, "id": "ubuntu", "version_id": "24.04", "kernel": "6.1.0", "accelerator": accelerator}
    known = {**KNOWN, "gaudi_system": system, "gaudi_tuning": observe_tuning.observe(str(tree)), **more}
    return host_tuning.STAGE.pending(Given("h", known))


def changed(tree: Path, values: dict[str, str], record: dict[str, Any] | None) -> None:
    """Make the host one on which the toolkit has set sysctl values, with the baseline ``record``."""
    (tree / observe_tuning.SYSCTL).write_text("".join(f"{key} = {one}\n" for key, one in values.items()), "utf-8")
    (tree / "proc/sys/vm/nr_hugepages").write_text(f"{values.get('vm.nr_hugepages', '0')}\n", encoding="utf-8")
    (tree / "etc/sysctl.conf").write_text("# gaudi-serve took this over: vm.nr_hugepages=15000\n", encoding="utf-8")
    folder = tree / str(RECORDS).lstrip("/")
    folder.mkdir(parents=True)
    if record is not None:
        (folder / "host_tuning.json").write_text(json.dumps({"found": record}), encoding="utf-8")


@pytest.mark.parametrize(("accelerator", "pages"), [("gaudi", "6144"), ("cpu", None), ("cuda", None)])
def test_the_manual_s_hugepages_are_for_gaudi_alone(tree: Path, accelerator: str, pages: str | None) -> None:
    found = asked(tree, accelerator)
    assert [one for one in found.changes["sysctl"] if "huge" in one] == (
        [f"vm.nr_hugepages: 12 -> {pages}"] if pages else []
    )
    assert ("vm.nr_hugepages" in found.changes["sysctl_text"]) is bool(pages)
    # A user's number is for every host.
    assert "vm.nr_hugepages = 64" in asked(tree, accelerator, host_tuning_hugepages=64).changes["sysctl_text"]


def test_hugepages_that_a_host_no_longer_gets_are_given_back(tree: Path) -> None:
    before = {"sysctl": {"vm.nr_hugepages": "12", "kernel.numa_balancing": "1"}}
    changed(tree, {"kernel.numa_balancing": "0", "vm.nr_hugepages": "6144"}, before)
    found = asked(tree, "cpu")
    assert "vm.nr_hugepages: 6144 -> 12" in found.due and "vm.nr_hugepages = 12" in found.changes["sysctl_text"]
    # The next run finds nothing to do, and keeps the number.
    (tree / "proc/sys/vm/nr_hugepages").write_text("12\n", encoding="utf-8")
    (tree / observe_tuning.SYSCTL).write_text(found.changes["sysctl_text"], encoding="utf-8")
    again = asked(tree, "cpu")
    assert again.changes["sysctl_file"] == [] and not [one for one in again.due if "huge" in one]


@pytest.mark.parametrize("record", [None, {"late": True}, {"sysctl": {"vm.nr_hugepages": None}}])
def test_hugepages_of_which_nobody_knows_the_number_before_stay_until_a_boot(
    tree: Path, record: dict[str, Any] | None
) -> None:
    changed(tree, {"vm.nr_hugepages": "6144"}, record)
    found = asked(tree, "cpu")
    assert "vm.nr_hugepages" not in found.changes["sysctl_text"] and not [one for one in found.due if "huge" in one]
    stays = "hugepages: 6144 stay until the next boot, because their number before the toolkit is not known"
    assert stays in (found.notes or [])
