"""The disk of a virtual machine: Debian with a real GRUB, a Docker engine and a user who may use sudo."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from . import base_image
from .common import SHARED, HostError, cache, digest, install, remove_superseded, run, step
from .standin_image import archives

FILES = SHARED / "vmimage"
# What both kinds of test hosts use.
COMMON = [SHARED / "hostimage" / name for name in ("index-packages", "keep-compiled", "compiled.py")]
SIZE_MIB = 6144
# A boot loader, what a server has, what the roles' modules and the engine need: nothing is fetched in a test.
PACKAGES = [
    "systemd-sysv",
    "dbus",
    "udev",
    "linux-image-cloud-amd64",
    "grub-pc",
    "initramfs-tools",
    "kmod",
    "zstd",
    "openssh-server",
    "sudo",
    "iproute2",
    "procps",
    "python3",
    "python3-apt",
    "ca-certificates",
    "curl",
    "iptables",
    # What the engine needs beside what a test installs: unpacking is slow under emulation.
    "containerd",
    "runc",
    "tini",
    "libdevmapper1.02.1",
    "adduser",
    "lsb-base",
]
# What tests install, out of the machine's own repository.
KEPT = ["docker.io", "apparmor"]
USER = "ops"
EDITION = "1"  # to be raised when the image is made differently from the same inputs


def key() -> str:
    """Return the key of the image."""
    return digest(base_image.CODENAME, " ".join([*PACKAGES, *KEPT]), str(SIZE_MIB), EDITION, FILES, *COMMON)


def ensure() -> Path:
    """Return the disk, made where it is missing."""
    disk = archives() / f"vm-{key()}.qcow2"
    install("qemu-system-x86", "qemu-system-x86_64")
    install("qemu-utils", "qemu-img")
    if disk.exists():
        return disk
    for package, program in (
        ("mmdebstrap", "mmdebstrap"),
        ("fdisk", "sfdisk"),
        ("e2fsprogs", "mkfs.ext4"),
        ("mount", "losetup"),
        ("util-linux", "partx"),
    ):
        install(package, program)
    # Beside the final place: it must be renamed, and /tmp may be small.
    with step("Making the virtual machine's disk"), tempfile.TemporaryDirectory(dir=cache(), prefix="vm-") as folder:
        raw, beside = Path(folder) / "disk.raw", Path(folder) / "disk.qcow2"
        with raw.open("wb") as handle:
            handle.truncate(SIZE_MIB << 20)
        fill(raw, Path(folder) / "root")
        run("qemu-img", "convert", "-O", "qcow2", raw, beside)
        beside.replace(disk)
    remove_superseded("images/vm-*.qcow2", disk)
    return disk


def fill(raw: Path, root: Path) -> None:
    """Partition an empty disk and put the system on it."""
    run("sfdisk", "--quiet", raw, stdin="label: dos\nstart=2048, type=83, bootable\n")
    root.mkdir()
    with loop_device(raw) as device:
        # The kernel of a container may not look for partitions itself.
        run("partx", "--update", device)
        partition = f"{device}p1"
        with partition_node(partition), contextlib.ExitStack() as mounts:
            run("mkfs.ext4", "-q", "-F", "-L", "root", partition)
            mounted(mounts, "-o", "data=ordered", partition, root)
            bootstrap(root)
            for folder in ("dev", "proc", "sys"):
                mounted(mounts, "--bind", f"/{folder}", root / folder)
            for path in (FILES / "prepare", *COMMON):
                shutil.copy(path, root / "srv" / path.name)
            run("chroot", root, "/srv/prepare", device, env={"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"})
            with contextlib.suppress(HostError):
                run("fstrim", root)  # what was written and removed need not be kept


@contextlib.contextmanager
def loop_device(raw: Path) -> Iterator[str]:
    """Give a file as a block device, and take it back whatever happens."""
    device = run("losetup", "--find", "--show", raw).strip()
    try:
        yield device
    finally:
        with contextlib.suppress(HostError):
            run("partx", "--delete", device)
        run("losetup", "--detach", device)


@contextlib.contextmanager
def partition_node(partition: str) -> Iterator[None]:
    """Make the device node of a partition where no udev does."""
    path = Path(partition)
    made = not path.exists()
    if made:
        numbers = Path("/sys/class/block", path.name, "dev").read_text(encoding="ascii").strip().split(":")
        run("mknod", path, "b", *numbers)
    try:
        yield
    finally:
        if made:
            path.unlink(missing_ok=True)


def mounted(stack: contextlib.ExitStack, *arguments: str | Path) -> None:
    """Mount, and unmount at the stack's end: not lazily, since the disk is read afterwards."""
    run("mount", *arguments)
    stack.callback(lambda: run("umount", arguments[-1]))


def bootstrap(root: Path) -> None:
    """Put the packages on the disk with this machine's own package sources."""
    keep = "apt-get --yes --no-install-recommends --download-only --reinstall -o APT::Keep-Downloaded-Packages=true"
    hooks = [
        # prepare.yml decides where GRUB goes; a question would stop the installation.
        "--essential-hook=echo grub-pc grub-pc/install_devices_empty boolean true | chroot $1 debconf-set-selections",
        "--customize-hook=mkdir -p $1/srv/apt/partial",
        f"--customize-hook=chroot $1 {keep} -o Dir::Cache::archives=/srv/apt install {' '.join(KEPT)}",
        "--customize-hook=rm -rf $1/srv/apt/partial $1/srv/apt/lock",
    ]
    run(
        "mmdebstrap",
        "--variant=minbase",
        f"--include={','.join(PACKAGES)}",
        *hooks,
        base_image.CODENAME,
        root,
        *base_image.distribution_sources(),
    )
