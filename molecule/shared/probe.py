"""Reports, on a test host, what tests depend on, a line each: `probe.py engine serving system`. lives.py compares."""

# ruff: noqa: PTH110, PTH115, PTH116, PTH123, PTH207 - pathlib takes longer to import than the rest takes
import glob
import hashlib
import json
import os
import subprocess
import sys

CARDS = "/etc/gaudi-sim/state.json"
DATA = ("/data/hf_models", "/data/models")
LAID = ("/etc/", "/var/lib/gaudi-serve", "/var/lib/docker/tmp")
ENGINE = ("docker.service", "docker.socket", "containerd.service")
SOCKET = "/run/gaudi-gateway/admin.sock"
ASK = f"""
import socket
one = socket.socket(socket.AF_UNIX)
one.connect({SOCKET!r})
one.sendall(b"show servers state\\n")
print(b"".join(iter(lambda: one.recv(65536), b"")).decode())
"""


def said(*argv: str) -> list[str]:
    """Return the lines that a command prints, in order."""
    lines = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.splitlines()
    return sorted(" ".join(line.split()) for line in lines)  # without the columns, whose width depends on the others


def files(*patterns: str) -> list[str]:
    """Return mode and digest of the files."""
    found = []
    for path in sorted(path for pattern in patterns for path in glob.glob(pattern)):
        with open(path, "rb") as handle:
            digest = hashlib.sha256(handle.read()).hexdigest()[:16]
        found.append(f"{path} {os.stat(path).st_mode & 0o7777:o} {digest}")
    return found


def containers() -> list[str]:
    """Return every container with its state, and whether the server that runs in it has been asked."""
    found = []
    shown = '{{.Name}} {{.State.Status}} {{.State.StartedAt}} {{index .Config.Labels "gaudi-serve.digest"}}'
    for line in said("docker", "inspect", "--format", shown, *said("docker", "ps", "--all", "--quiet")):
        name, state, started, digest = [*line.split(), ""][:4]
        try:
            with open(f"/var/lib/gaudi-serve/{name[6:]}/smoke.json", encoding="utf-8") as handle:
                asked = json.load(handle).get("container_started") == started
        except (OSError, ValueError):
            asked = False
        found.append(f"container {name} {state} {digest} asked={asked}")
    return found


def content(path: str) -> str:
    """Return a JSON file without its order, its white space, and keys that have none."""
    with open(path, encoding="utf-8") as handle:
        found = {key: value for key, value in json.load(handle).items() if value is not None}
    return f"{path} {json.dumps(found, sort_keys=True)}"


def engine() -> list[str]:
    """Return the engine's state and settings, and its containers."""
    lines = files("/etc/gaudi-serve/docker-proxy.env", "/etc/habana-container-runtime/*")
    lines.append(content("/etc/docker/daemon.json"))
    lines += [f"engine {line}" for line in said("systemctl", "is-active", *ENGINE)]
    lines += [f"engine {line}" for line in said("systemctl", "is-enabled", *ENGINE)]
    # Its own shims among the runtimes are such that any reload makes an engine forget them until it starts again.
    shown = '{{range $name, $_ := .Runtimes}}{{if not (eq (slice $name 0 2) "io")}}{{$name}} {{end}}{{end}}'
    shown += "{{.LiveRestoreEnabled}} {{.HttpProxy}} {{.HttpsProxy}}"
    lines += [f"engine {line}" for line in said("docker", "info", "--format", shown)]
    return lines + containers()


def serving() -> list[str]:
    """Return the models' units and files, images and weights, and what tests lay over folders."""
    cards = [content(CARDS)] if os.path.exists(CARDS) else []
    lines = [*cards, *files("/etc/gaudi-sim/[anx]*.json"), *files("/etc/gaudi-serve/*.*", "/etc/systemd/system/vllm-*")]
    lines += [f"unit {line}" for line in said("systemctl", "list-units", "--all", "--plain", "--no-legend", "vllm-*")]
    lines += [f"unit file {line}" for line in said("systemctl", "list-unit-files", "--no-legend", "vllm-*")]
    lines += [f"image {line}" for line in said("docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}")]
    lines += [f"transient {path}" for path in sorted(glob.glob("/run/systemd/transient/*.service"))]
    lines += [f"data {line}" for line in said("find", *DATA, "-type", "f", "-printf", "%p %s\n")]
    laid = [line for line in said("findmnt", "--list", "--noheadings", "--output", "TARGET") if line.startswith(LAID)]
    return lines + [f"mount {line}" for line in laid]


def gateway() -> list[str]:
    """Return the gateway's unit and files, and which servers it keeps requests from."""
    unit = "gaudi-gateway.service"
    lines = files("/etc/systemd/system/gaudi-gateway*")
    # Their folder's name is in them; after a change that was taken back it is another one.
    for path in sorted(glob.glob("/etc/gaudi-serve/gateway/current/*")):
        with open(path, encoding="utf-8") as handle:
            text = handle.read().replace(os.readlink("/etc/gaudi-serve/gateway/current"), "")
        lines.append(f"{path} {hashlib.sha256(text.encode()).hexdigest()[:16]}")
    lines += [f"gateway {line}" for line in said("systemctl", "show", unit, "--property=ActiveState,UnitFileState")]
    # Of the columns the sixth is what has been set for a server: drained, in maintenance.
    asked = said("python3", "-c", ASK) if os.path.exists(SOCKET) else []
    return lines + [f"server {line.split()[3]} {line.split()[6]}" for line in asked if len(line.split()) > 20]


def system() -> list[str]:
    """Return packages, the driver, and what of the kernel is set."""
    lines = [content(CARDS), *files("/etc/os-release", "/etc/sysctl.conf", "/etc/sysctl.d/*", "/boot/grub/grub.cfg")]
    lines += files("/etc/default/grub", "/etc/default/grub.d/*", "/proc/sys/vm/nr_hugepages", "/proc/sys/kernel/numa_*")
    lines += files("/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor")
    lines += [f"module {path}" for path in sorted(glob.glob("/sys/module/habanalabs*"))]
    lines += [f"package {line}" for line in said("dpkg-query", "--show", "habanalabs-*", "docker.io", "apparmor")]
    lines += [f"dpkg {line}" for line in [*said("dpkg", "--audit"), *said("apt-mark", "showhold")]]
    return lines


for part in sys.argv[1:]:
    print("\n".join({"engine": engine, "gateway": gateway, "serving": serving, "system": system}[part]()))
