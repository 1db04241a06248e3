"""The image of a host that has been provisioned: engine, habana runtime and the serving image's stand-in are there.

For tests that are not about their installation. The project's own playbooks make it, so its key has all that runs in
them. What an engine keeps does not fit into an image's layers: it comes as an archive, unpacked on the first boot.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from . import host_image, standin_image
from .common import KEY_LABEL, REPOSITORY, SHARED, HostError, digest, remove_superseded, run, step, succeeds
from .standin_image import archives

NAME = f"gaudi-serve/testhost-provisioned-{host_image.HOSTS.codename}"
HOST = "mol-provision"
FOLDER = SHARED / "provision"
STORE = "/var/lib/docker"
ROLES = [REPOSITORY / "roles" / name for name in ("preflight", "container_runtime", "vllm_image", "vllm_service")]
CODE = ("lib", "library", "action_plugins", "filter_plugins", "callback_plugins", "playbooks", "ansible.cfg")
# What was made for the host that the image was made from.
OWN = ["/etc/gaudi-sim", "/var/log/journal", "/etc/machine-id", "/run/gaudi-serve"]


def key() -> str:
    """Return the key of the image."""
    code = [REPOSITORY / name for name in CODE]
    made_by = [FOLDER, SHARED / "create.yml", SHARED / "converge.yml", Path(__file__)]
    return digest(host_image.key(), standin_image.key(), standin_image.plugin_key(), *ROLES, *code, *made_by)


def tag() -> str:
    """Return the image's name."""
    return f"{NAME}:{key()}"


def archive() -> Path:
    """Return where the archive of what the engine keeps is or will be."""
    return archives() / f"engine-{host_image.HOSTS.codename}-{key()}.tar"


def made() -> bool:
    """Return whether image and archive are there."""
    return archive().is_file() and succeeds("docker", "image", "inspect", tag())


def ensure() -> None:
    """Make image and archive where one is missing."""
    if made():
        return
    with step("Provisioning a test host"):
        try:
            provision()
            keep()
        finally:
            run("docker", "rm", "--force", "--volumes", HOST)
    old = run("docker", "images", "--format", "{{.Repository}}:{{.Tag}}", NAME).split()
    for name in old:
        if name != tag():
            succeeds("docker", "rmi", name)  # one that hosts still run from stays
    remove_superseded(f"images/engine-{host_image.HOSTS.codename}-*.tar", archive())


def provision() -> None:
    """Make a host, and install with the project's own playbooks what it is to have."""
    beside = Path(sys.executable).parent
    program = shutil.which("ansible-playbook", path=f"{beside}:{os.environ.get('PATH', '')}") or "ansible-playbook"
    settings = {"ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    settings["ANSIBLE_STDOUT_CALLBACK"] = "default"
    run(program, "-i", FOLDER / "inventory", FOLDER / "provision.yml", env=settings, timeout=900)


def keep() -> None:
    """Keep the host as an image, and what its engine has as an archive."""
    run("docker", "exec", HOST, "systemctl", "stop", "docker.socket", "docker.service", "containerd.service")
    beside = archive().with_suffix(".part")
    argv = ["docker", "exec", HOST, "tar", "--create", "--xattrs", "--xattrs-include=*", "--numeric-owner"]
    with beside.open("wb") as out:
        done = subprocess.run([*argv, "--file=-", f"--directory={STORE}", "."], stdout=out, check=False)
    if done.returncode != 0:
        beside.unlink()
        raise HostError(f"tar of {STORE}: status {done.returncode}")
    run("docker", "exec", HOST, "sh", "-euc", f"rm -rf {' '.join(OWN)}; touch /etc/machine-id")
    run("docker", "stop", "--time", "30", HOST)
    run("docker", "commit", "--change", f"LABEL {KEY_LABEL}={key()}", HOST, tag())
    if archive().is_dir():
        archive().rmdir()
    beside.replace(archive())
