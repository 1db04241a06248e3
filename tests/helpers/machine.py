"""A virtual machine with a real boot loader for the toolkit's playbooks; tests reach it over ssh and cut its power.

If KVM cannot boot a guest, QEMU emulates: a boot then takes half a minute, and each command several tenths of a second.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from make_weights_hub import CONFIG
from runs import Run, eventually

PROJECT = Path(__file__).parents[2]
LIFETIME_S = 4 * 3600  # of one QEMU process: longer than all tests
# These are generous: on a busy machine everything takes several times as long.
BOOT_S = 900
PLAY_S = 3600
EMULATED = "tcg,thread=multi"
KVM_BOOT_S = 10  # until the kernel's first output; with KVM this takes three seconds
DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG
MODEL, WEIGHTS, PORT, PAGES = "small", "/data/models/small", 8000, 128


def wishes(image: str) -> dict[str, Any]:
    """Return the variables of a host without cards that serves one model.

    The serving image's stand-in needs a card: it gets one of a simulated root, in the folder of the weights.
    """
    model = {
        "name": MODEL,
        "weights": WEIGHTS,
        "image": image,
        "port": PORT,
        "max_model_len": 1024,
        "max_num_seqs": 1,
        "env": {"GAUDI_SIM_ROOT": f"{WEIGHTS}/card", "VLLM_SKIP_WARMUP": "true", "VLLM_CPU_KVCACHE_SPACE": "1"},
    }
    return {
        "accelerator": "cpu",
        "host_tuning_hugepages": PAGES,
        "vllm_images": [{"name": image, "archive": "/dev/vdb", "archive_on_host": True}],
        "vllm_models": [model],
    }


def images() -> dict[str, str]:
    """Create missing disks and images, and return their paths."""
    argv = [str(PROJECT / "molecule/shared/testhosts"), "vm-image"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def die_with_parent() -> None:
    """End this process when its parent ends, for whatever reason."""
    ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGKILL)


class Machine:
    """One virtual machine; its disk is a copy-on-write file over the image."""

    def __init__(self, folder: Path, made: dict[str, str], drive: Path | None = None) -> None:
        self.folder, self.user, self.drive = folder, made["user"], drive
        self.disk, self.key, self.image = folder / "disk.qcow2", folder / "key", Path(made["disk"])
        self.console = folder / "console.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.accelerator = EMULATED
        self.port = free_port()
        # ssh needs a short path for its socket, and pytest's folders are long.
        self.sockets = Path(tempfile.mkdtemp(prefix="gsvm"))
        argv = ["qemu-img", "create", "-q", "-f", "qcow2", "-b", made["disk"], "-F", "qcow2", str(self.disk)]
        subprocess.run(argv, check=True)
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(self.key)]
        subprocess.run(argv, check=True)
        self.console.touch()
        self.write_inventory(made["standin_image"])

    def write_inventory(self, image: str) -> None:
        """Write the inventory with this machine as its only host, and its variables."""
        host: dict[str, Any] = {
            **wishes(image),
            "ansible_host": "127.0.0.1",
            "ansible_port": self.port,
            "ansible_user": self.user,
            "ansible_ssh_private_key_file": str(self.key),
            "ansible_ssh_common_args": " ".join(self.ssh_options()),
            "ansible_python_interpreter": "/usr/bin/python3",
        }
        inventory: dict[str, Any] = {"all": {"hosts": {"vm": host}}}
        (self.folder / "inventory.yml").write_text(json.dumps(inventory), encoding="utf-8")

    @staticmethod
    def ssh_options() -> list[str]:
        """Return the options of every ssh: no prompts, and no known hosts."""
        options = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "BatchMode=yes"]
        # A machine whose power is cut no longer responds; an emulated one may be silent for a while.
        options += ["ConnectTimeout=120", "ServerAliveInterval=10", "ServerAliveCountMax=12"]
        return [word for option in options for word in ("-o", option)]

    def argv(self) -> list[str]:
        """Return QEMU's command line: two processors with their memory, a disk, a network with only this machine."""
        ssh_folder, owner = f"/home/{self.user}/.ssh", f"{self.user} {self.user}"
        public = base64.b64encode(self.key.with_suffix(".pub").read_bytes()).decode()
        lines = f"d {ssh_folder} 0700 {owner}\nf+~ {ssh_folder}/authorized_keys 0600 {owner} - {public}\n"
        credential = f"io.systemd.credential.binary:tmpfiles.extra={base64.b64encode(lines.encode()).decode()}"
        argv = ["qemu-system-x86_64", "-machine", "q35", "-accel", self.accelerator, "-cpu", "max"]
        argv += ["-m", "6144", "-smp", "2,sockets=2", "-display", "none", "-monitor", "none", "-nodefaults"]
        for node in (0, 1):
            argv += ["-object", f"memory-backend-ram,id=m{node},size=3G"]
            argv += ["-numa", f"node,nodeid={node},cpus={node},memdev=m{node}"]
        argv += ["-drive", f"file={self.disk},if=virtio,format=qcow2"]
        if self.drive:
            argv += ["-drive", f"file={self.drive},if=virtio,format=raw,readonly=on"]
        argv += ["-netdev", f"user,id=n0,hostfwd=tcp:127.0.0.1:{self.port}-:22"]
        argv += ["-device", "virtio-net-pci,netdev=n0", "-device", "virtio-rng-pci"]
        argv += ["-chardev", f"file,id=c0,path={self.console},append=on", "-serial", "chardev:c0"]
        return [*argv, "-smbios", f"type=11,value={credential}"]

    def start(self) -> None:
        """Start QEMU and wait until the machine accepts commands."""
        with (self.folder / "qemu.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.argv(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - no other thread starts processes meanwhile
            )
        timer = threading.Timer(LIFETIME_S, self.process.kill)
        timer.daemon = True
        timer.start()
        self.wait()

    def choose_accelerator(self) -> None:
        """Choose KVM if a guest boots with it; on some machines KVM exists, but no guest boots.

        The result is stored next to the disk's image, because the check takes a while.
        """
        kept = self.image.with_name("vm-accelerator")
        if kept.exists():
            self.accelerator = kept.read_text(encoding="ascii").strip()
            return
        if os.access("/dev/kvm", os.R_OK | os.W_OK):
            self.accelerator = "kvm"
            process = subprocess.Popen(self.argv(), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            boots = eventually(lambda: "Linux version" in self.said() or process.poll() is not None, KVM_BOOT_S)
            process.kill()
            process.wait()
            if not boots or "Linux version" not in self.said():
                self.accelerator = EMULATED
            self.console.write_text("", encoding="utf-8")
        kept.write_text(self.accelerator + "\n", encoding="ascii")

    def wait(self, seconds: float = BOOT_S) -> None:
        """Wait for a response: the forwarded port is open long before sshd is."""
        deadline = time.monotonic() + seconds
        # An abandoned login costs the emulated machine much time, so sshd must send its greeting first.
        while not self.greets() or self.ssh("true", timeout=seconds, check=False).returncode != 0:
            assert self.process and self.process.poll() is None, (self.folder / "qemu.log").read_text(encoding="utf-8")
            assert time.monotonic() < deadline, f"no answer within {seconds:g} s:\n{self.said()[-3000:]}"
            time.sleep(0.5)

    def greets(self) -> bool:
        """Return whether sshd responds."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=10) as line:
                return line.recv(4) == b"SSH-"
        except OSError:
            return False

    def cut(self) -> None:
        """Cut the power: only data on the disk survives."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def close(self) -> None:
        """Cut the power permanently, and remove large files."""
        self.cut()
        self.close_connections()
        self.disk.unlink(missing_ok=True)
        shutil.rmtree(self.sockets, ignore_errors=True)

    def connections(self) -> list[int]:
        """Return the ssh processes that share connections to this machine."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                line = (folder / "cmdline").read_bytes()
                if line.startswith(b"ssh") and str(self.sockets).encode() in line:
                    found.append(int(folder.name))
        return found

    def close_connections(self) -> None:
        """Kill the ssh processes, including masters: the connection is dead."""
        for pid in self.connections():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @contextlib.contextmanager
    def no_line(self) -> Iterator[None]:
        """Kill the connections and prevent new ones, because Ansible opens one for the next task."""
        away = self.key.with_suffix(".away")
        self.key.rename(away)
        try:
            self.close_connections()
            yield
        finally:
            away.rename(self.key)

    def said(self) -> str:
        """Return the output of the serial console over all boots."""
        return self.console.read_text(encoding="utf-8", errors="replace")

    def ssh(self, command: str, timeout: float = 600, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a shell command as the user."""
        argv = ["ssh", *self.ssh_options(), "-i", str(self.key), "-p", str(self.port), f"{self.user}@127.0.0.1"]
        # A key exchange takes the emulated processors seconds, so that many commands share one connection.
        argv += ["-o", "ControlMaster=auto", "-o", "ControlPersist=60s", "-o", f"ControlPath={self.sockets}/test"]
        done = subprocess.run(
            [*argv, command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def root(self, command: str, timeout: float = 900) -> str:
        """Run a shell command as root and return its output, without the final line break."""
        quoted = command.replace("'", "'\\''")
        return self.ssh(f"sudo sh -euc '{quoted}'", timeout).stdout.rstrip("\n")

    def write(self, path: str, content: str | bytes, mode: str = "0644") -> None:
        """Write a file as root, and create its folder."""
        code = base64.b64encode(content.encode() if isinstance(content, str) else content).decode()
        folder = str(Path(path).parent)
        self.root(f"mkdir -p {folder}; echo {code} | base64 -d >{path}; chmod {mode} {path}")

    def put_model(self) -> None:
        """Write a small model to the disk, and the card that serves it."""
        tensor = {"model.norm.weight": {"dtype": "BF16", "shape": [512], "data_offsets": [0, 1024]}}
        header = json.dumps(tensor).encode()
        content = len(header).to_bytes(8, "little") + header + bytes(1024)
        card = {"driver_loaded": True, "cards": [{"module_id": 0, "index": 0, "memory_mib": 98304}]}
        self.write(f"{WEIGHTS}/config.json", json.dumps(CONFIG))
        self.write(f"{WEIGHTS}/model.safetensors", content)
        self.write(f"{WEIGHTS}/card/etc/gaudi-sim/state.json", json.dumps(card))
        self.write(f"{WEIGHTS}/card/dev/accel/accel0", "")

    def boot_id(self) -> str:
        """Return an identifier that changes with every boot."""
        return self.ssh("cat /proc/sys/kernel/random/boot_id").stdout.strip()

    def play_argv(self, playbook: str, **extra: Any) -> list[str]:
        """Return the command that runs a playbook of the project on this machine."""
        argv = ["ansible-playbook", "-i", str(self.folder / "inventory.yml"), str(PROJECT / playbook)]
        for key, value in extra.items():
            argv += ["-e", json.dumps({key: value})]
        return argv

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a run: the project's settings, persistent connections, and long timeouts."""
        return {
            **os.environ,
            "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_STDOUT_CALLBACK": "default",
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.sockets),
            "ANSIBLE_SSH_ARGS": "-o ControlMaster=auto -o ControlPersist=120s",
            "ANSIBLE_TIMEOUT": "60",
            **more,
        }

    def play(self, playbook: str, **extra: Any) -> Run:
        """Run a playbook to its end."""
        self.close_connections()  # a restart of the machine breaks them
        begin = time.monotonic()
        done = subprocess.run(
            self.play_argv(playbook, **extra),
            cwd=PROJECT,
            env=self.environment(),
            stdin=subprocess.DEVNULL,  # ssh makes it non-blocking, which Ansible refuses
            capture_output=True,
            text=True,
            timeout=PLAY_S,
            check=False,
        )
        taken = time.monotonic() - begin
        print(f"{playbook}: {taken:.0f} s\n{done.stdout}{done.stderr}")
        return Run(done.returncode, done.stdout + done.stderr)


def free_port() -> int:
    """Return a port on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def unpacked(archive: Path, target: Path) -> Path:
    """Unpack a gzip file here, because the emulated processor would take ten times as long."""
    with target.open("wb") as out:
        done: IO[bytes] = out
        subprocess.run(["gzip", "--decompress", "--stdout", str(archive)], stdout=done, check=True)
    return target
