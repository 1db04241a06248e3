"""host_tuning on a host where the manual was followed by hand, and which reboots like a server."""

from __future__ import annotations

import re
from typing import Any

from runs import eventually

MENU = "/boot/grub/grub.cfg"
SYSCTL = "/etc/sysctl.d/zz-gaudi-serve.conf"


def entries(host: Any) -> list[list[str]]:
    """Return the kernel arguments of the menu's entries that are not for recovery."""
    lines = [line.split() for line in host.file(MENU).content_string.splitlines()]
    found = [words[2:] for words in lines if words[:1] == ["linux"] and "single" not in words]
    assert found
    return found


def live(host: Any, key: str) -> str:
    """Return a live kernel value."""
    text: str = host.file(f"/proc/sys/{key}").content_string.strip()
    return text


def boot(host: Any) -> str:
    """Return what is another after every boot."""
    text: str = host.check_output("cat /proc/sys/kernel/random/boot_id; stat -c %Y /proc/1")
    return text


def test_arguments_are_in_the_menu_exactly_once_and_the_users_stay(host: Any) -> None:
    for words in entries(host):
        assert words.count("cpufreq.default_governor=performance") == 1
        assert [word for word in words if word.startswith("intel_idle.max_cstate")] == ["intel_idle.max_cstate=0"]
        assert "console=ttyS0" in words
        assert "net.ifnames=0" in words
    assert host.run(f"grub-script-check {MENU}").rc == 0
    assert "max_cstate=9" in host.file("/etc/default/grub").content_string


def test_values_are_live_and_persisted_once(host: Any) -> None:
    assert live(host, "vm/nr_hugepages") == "48"
    assert live(host, "kernel/numa_balancing") == "0"
    assert "vm.nr_hugepages = 48" in host.file(SYSCTL).content_string
    assert host.file(SYSCTL).mode == 0o644
    assert "# gaudi-serve took this over: vm.nr_hugepages=12" in host.file("/etc/sysctl.conf").content_string
    assert host.run("sysctl --system").rc == 0
    assert live(host, "vm/nr_hugepages") == "48"


def test_governor_is_live(host: Any) -> None:
    values = host.check_output("awk 1 /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor").split()
    assert set(values) == {"performance"}


def test_reboot_is_reported_and_not_done(host: Any, playbook: Any) -> None:
    before = boot(host)
    wish = {"host_tuning_kernel_args": ["intel_idle.max_cstate=0", "cpufreq.default_governor=performance", "nosmt"]}
    run = playbook("playbooks/host.yml", **wish)
    assert run.status == 0, run.text
    run = playbook("playbooks/host.yml", "-v", **wish)
    assert run.changed_nothing, run.text
    assert re.search(r"the running kernel lacks [^\n]*nosmt", run.flat), run.text
    assert boot(host) == before


def test_a_reboot_that_is_allowed_sets_the_arguments_and_the_host_returns(host: Any, playbook: Any) -> None:
    before = boot(host)
    wish = {"host_tuning_kernel_args": ["intel_idle.max_cstate=0", "panic=30"], "host_tuning_reboot_allowed": True}
    run = playbook("playbooks/host.yml", **wish)
    assert run.status == 0, run.text
    rebooted = boot(host)
    assert rebooted != before
    words = host.file("/proc/cmdline").content_string.split()
    assert {"intel_idle.max_cstate=0", "panic=30"} <= set(words)
    test_governor_is_live(host)
    assert eventually(lambda: host.service("docker").is_running)
    run = playbook("playbooks/host.yml", **wish)
    assert run.changed_nothing, run.text
    assert boot(host) == rebooted
    # Changed back: only another boot takes the argument from the running kernel.
    wish["host_tuning_kernel_args"] = ["panic=30"]
    run = playbook("playbooks/host.yml", **wish)
    assert run.status == 0, run.text
    assert boot(host) != rebooted
    words = host.file("/proc/cmdline").content_string.split()
    assert "intel_idle.max_cstate=0" not in words
    assert {"intel_idle.max_cstate=9", "net.ifnames=0", "panic=30"} <= set(words)


def test_a_false_given_as_text_reboots_nothing(host: Any, playbook: Any) -> None:
    before = boot(host)
    run = playbook("playbooks/host.yml", "-e", "host_tuning_reboot_allowed=false", "-e", "host_tuning_hugepages=48")
    assert run.changed_nothing, run.text
    assert "Reboot the host" not in run.text
    assert boot(host) == before


def test_run_that_was_cut_off_is_finished(host: Any, playbook: Any) -> None:
    # As if the run had ended between the drop-in and update-grub, and after a value was lost.
    host.check_output(f"sed -i 's/ intel_idle.max_cstate=0//' {MENU}")
    host.check_output("sysctl -qw vm.nr_hugepages=5")
    host.check_output(f"truncate -s 20 {SYSCTL}")
    run = playbook("playbooks/host.yml")
    assert run.status == 0, run.text
    test_arguments_are_in_the_menu_exactly_once_and_the_users_stay(host)
    assert live(host, "vm/nr_hugepages") == "48"
    assert playbook("playbooks/host.yml").changed_nothing


def test_a_menu_that_is_still_being_written_is_waited_for(host: Any, playbook: Any) -> None:
    # As if the update-grub of a run whose line broke went on alone: two at once write one file.
    host.check_output(f"sed -i 's/ intel_idle.max_cstate=0//' {MENU}")
    writes = "sleep 40; date +%s.%N >/root/written"
    host.check_output(f"systemd-run --quiet flock /run/lock/gaudi-serve-grub sh -c '{writes}'")
    run = playbook("playbooks/host.yml")
    assert run.status == 0, run.text
    written = float(host.check_output("cat /root/written"))
    assert float(host.check_output(f"stat --format %.Y {MENU}")) > written
    host.check_output("rm /root/written")
    test_arguments_are_in_the_menu_exactly_once_and_the_users_stay(host)


def test_user_setting_wins_and_is_taken_back(host: Any, playbook: Any) -> None:
    run = playbook("playbooks/host.yml", host_tuning_kernel_args=["mitigations=off"], host_tuning_hugepages=16)
    assert run.status == 0, run.text
    assert all(words.count("mitigations=off") == 1 for words in entries(host))
    assert live(host, "vm/nr_hugepages") == "16"
    run = playbook("playbooks/host.yml", host_tuning_kernel_args=[])
    assert run.status == 0, run.text
    assert not host.file("/etc/default/grub.d/zz-gaudi-serve.cfg").exists
    assert not any("mitigations=off" in words for words in entries(host))
    assert playbook("playbooks/host.yml", host_tuning_kernel_args=[]).changed_nothing


def test_cap_of_hugepages_is_reported(playbook: Any) -> None:
    wish = {"host_tuning_hugepages": 10**9, "host_tuning_hugepages_max_fraction": 0.001}
    first, second = (playbook("playbooks/host.yml", "-v", **wish) for _ in range(2))
    assert first.status == 0, first.text
    assert second.changed_nothing, second.text
    assert "instead of 1000000000, which is 0.001 of" in second.flat


def test_hugepages_that_cannot_be_had(host: Any, playbook: Any) -> None:
    # A kernel that gives 40 pages whatever is asked for: to fragment the real memory would harm this machine.
    host.check_output("echo 40 > /run/pages; mount --bind /run/pages /proc/sys/vm/nr_hugepages")
    loop = "while :; do [ $(cat /run/pages) = 40 ] || echo 40 > /run/pages; sleep 0.02; done"
    host.check_output(f"systemd-run --quiet --unit=scarce sh -c '{loop}'")
    run = playbook("playbooks/host.yml")
    host.check_output("systemctl stop scarce; umount /proc/sys/vm/nr_hugepages")
    assert run.status != 0
    assert "mol-host: vm.nr_hugepages: got 40 of 48: memory is fragmented or in use" in run.flat
    assert playbook("playbooks/host.yml").status == 0
    assert live(host, "vm/nr_hugepages") == "48"


def test_conflict_is_refused_when_nothing_may_be_taken_over(host: Any, playbook: Any) -> None:
    host.check_output("echo vm.nr_hugepages=7 > /etc/sysctl.d/60-mine.conf")
    run = playbook("playbooks/host.yml", host_tuning_take_over=False)
    host.check_output("rm /etc/sysctl.d/60-mine.conf")
    assert run.status != 0
    assert "mol-host: /etc/sysctl.d/60-mine.conf:1: vm.nr_hugepages = 7 is set there already" in run.flat
    assert "changed=0" in run.text


def test_line_behind_a_link_is_taken_over_in_its_own_file(host: Any, playbook: Any) -> None:
    host.check_output("printf 'vm/nr_hugepages = 7\\r\\n' > /root/theirs.conf")
    host.check_output("ln -s /root/theirs.conf /etc/sysctl.d/60-mine.conf")
    run = playbook("playbooks/host.yml")
    text = host.file("/root/theirs.conf").content_string
    host.check_output("rm /etc/sysctl.d/60-mine.conf /root/theirs.conf")
    assert run.status == 0, run.text
    assert text == "# gaudi-serve took this over: vm/nr_hugepages = 7\r\n"
    assert playbook("playbooks/host.yml").changed_nothing
