"""Mode, owner and group of every file and folder that the toolkit writes on a host: compared, and repaired.

The table below is the only place of these values. A role writes its files with them, each look at a host compares the
host with them, and docs/reference/host-files.md is checked against them.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from ..core.paths import MARK, MARKER, PLACES
from ..core.run import json_list, read_text

ROOT = ("root", "root")


def _any(_: Path) -> bool:
    return True


def _marked(path: Path) -> bool:
    """Return whether a unit is the toolkit's; a unit of the same name without the marker is a user's."""
    return MARKER in (read_text(path) or "")


def _of_registry(path: Path) -> bool:
    return (path / MARK).exists() or path.with_name(MARK).exists()


def _with_ports(path: Path) -> bool:
    """Return whether the toolkit manages the ports of a host; elsewhere, the addresses of its ports are a user's."""
    return (path.parents[1] / "gaudi-serve/ports.json").exists()


def _not_linked(path: Path) -> bool:
    """Return whether a file is not reached through a link beside its folder, by which it would count twice."""
    return not path.parent.is_symlink()


@dataclass(frozen=True)
class Rule:
    """The permissions of files, or of folders if the pattern ends with a slash; ``*`` matches one part of a path.

    most: fewer permissions are allowed too, because the file is created under the umask of a program. owners: user and
    group; None if the file may belong to a user, who may also have restricted it. If a host does not have the group,
    root's replaces it, and the group gets no permission. only: which of the matching paths are the toolkit's.
    """

    pattern: str
    mode: int
    most: bool = False
    owners: tuple[str, str] | None = ROOT
    only: Callable[[Path], bool] = _any

    @property
    def folder(self) -> bool:
        """Return whether the rule is for folders."""
        return self.pattern.endswith("/")


def _most(pattern: str, mode: int, only: Callable[[Path], bool] = _any) -> Rule:
    return Rule(pattern, mode, most=True, only=only)


def _of_user(pattern: str) -> Rule:
    """Return the rule for a file of which only keys are the toolkit's: other users must not write it."""
    return Rule(pattern, 0o775, most=True, owners=None)


PROMETHEUS = ("root", "prometheus")
# By the role that compares and repairs: the records and programs of all stages belong to the one that serves models.
PERMISSIONS: dict[str, tuple[Rule, ...]] = {
    "offline": (
        _most("/etc/gaudi-mirror/", 0o755),
        Rule("/etc/gaudi-mirror/*", 0o644),
        _most("/etc/docker/certs.d/*/", 0o755, only=_of_registry),
        *(Rule(f"/etc/docker/certs.d/*/{name}", 0o644, only=_of_registry) for name in ("ca.crt", MARK)),
        *(_most(f"/var/lib/gaudi-mirror/{name}", 0o755) for name in ("", "lists/")),
    ),
    "host_tuning": (
        Rule("/etc/default/grub.d/zz-gaudi-serve.cfg", 0o644),
        Rule("/etc/sysctl.d/zz-gaudi-serve.conf", 0o644),
    ),
    "driver": (
        Rule("/etc/apt/sources.list.d/gaudi-serve-driver.sources", 0o644),
        Rule("/etc/apt/auth.conf.d/gaudi-serve-driver.conf", 0o600),
        *(Rule(f"/etc/apt/keyrings/gaudi-serve-driver.{kind}", 0o644) for kind in ("asc", "gpg")),
    ),
    "accelerator_network": (
        Rule("/etc/gaudi-serve/ports.json", 0o644),
        Rule("/etc/udev/rules.d/90-gaudi-serve-ports.rules", 0o644),
        *(Rule(f"/etc/habanalabs/gaudinet.json{end}", 0o644, only=_with_ports) for end in ("", ".before-gaudi-serve")),
        Rule("/etc/systemd/system/gaudi-ports.service", 0o644),
        Rule("/usr/local/lib/gaudi-serve/gaudi-ports", 0o755),
    ),
    "container_runtime": (
        _of_user("/etc/docker/daemon.json"),
        _of_user("/etc/docker/daemon.json.before-gaudi-serve"),
        _of_user("/etc/habana-container-runtime/config.toml"),
        _of_user("/etc/apt/sources.list.d/docker.sources"),
        _of_user("/etc/apt/keyrings/docker.asc"),
        Rule("/etc/apt/sources.list.d/gaudi-serve-*.sources", 0o644),
        Rule("/etc/apt/keyrings/gaudi-serve-*", 0o644),
        Rule("/etc/apt/auth.conf.d/gaudi-serve-*.conf", 0o600),
        Rule("/etc/systemd/system/docker.service.d/gaudi-serve-proxy.conf", 0o644),
        Rule("/etc/gaudi-serve/docker-proxy.env", 0o600),
    ),
    "vllm_service": (
        Rule("/etc/systemd/system/vllm-*.service", 0o644, only=_marked),
        *(Rule(f"/etc/gaudi-serve/*.{kind}", 0o640) for kind in ("json", "env")),
        *(Rule(f"/etc/gaudi-serve/*.{kind}", 0o600) for kind in ("secret", "token")),
        # The server reads them without the capabilities of root.
        *(Rule(f"/etc/gaudi-serve/*.{kind}", 0o644) for kind in ("buckets", "ray")),
        Rule("/usr/local/lib/gaudi-serve/vllm-supervisor", 0o755),
        _most("/usr/local/lib/gaudi-serve/weights/", 0o755),
        Rule("/usr/local/lib/gaudi-serve/weights/*_weights", 0o755),
        Rule("/usr/local/lib/gaudi-serve/weights/*.py", 0o644),
        Rule("/var/lib/gaudi-serve/found/", 0o700),
        Rule("/var/lib/gaudi-serve/found/*.json", 0o600),
        _most("/var/lib/gaudi-serve/rollout/", 0o700),
        _most("/var/lib/gaudi-serve/*/", 0o755, only=lambda path: path.name != "registry"),
        *(_most(f"/var/lib/gaudi-serve/{name}.json", 0o640) for name in ("*", "*/*")),
        _most("/var/lib/gaudi-serve/*/label.key", 0o600),
        _most("/run/gaudi-serve/", 0o755),
    ),
    "gateway": (
        *(Rule(f"/etc/systemd/system/{name}.service", 0o644) for name in ("gaudi-gateway", "gaudi-gateway-address")),
        Rule("/etc/gaudi-serve/gateway/", 0o700),
        Rule("/etc/gaudi-serve/gateway/*/", 0o700),
        Rule("/etc/gaudi-serve/gateway/*/*", 0o600, only=_not_linked),
        Rule("/var/lib/gaudi-serve/gateway/", 0o700),
        *(_most(f"/var/lib/gaudi-serve/gateway/{name}", 0o600) for name in ("state", "reboots.json")),
    ),
    "monitoring": (
        *(Rule(f"/etc/systemd/system/gaudi-metrics.{kind}", 0o644) for kind in ("service", "timer")),
        *(
            Rule(f"/etc/systemd/system/gaudi-{name}.service", 0o644)
            for name in ("node-exporter", "exporters", "prometheus", "alertmanager")
        ),
        Rule("/etc/gaudi-serve/metrics.json", 0o640),
        Rule("/usr/local/lib/gaudi-serve/gaudi-metrics", 0o755),
        *(Rule(f"/etc/gaudi-monitoring/{name}", 0o755) for name in ("", "*/")),
        *(Rule(f"/etc/gaudi-monitoring/{name}", 0o644) for name in ("*", "*/*")),
        *(Rule(f"/etc/gaudi-monitoring/{name}", 0o600) for name in ("watched.json", "host.pem")),
        *(
            Rule(f"/etc/gaudi-monitoring/{name}", 0o640, owners=PROMETHEUS)
            for name in ("client.pem", "alertmanager.yml")
        ),
        _most("/var/lib/gaudi-serve/metrics/", 0o750),
        _most("/var/lib/gaudi-serve/metrics/*", 0o600),
        _most("/var/lib/prometheus/node-exporter/gaudi-*.prom", 0o644),
    ),
}
# Folders of several roles. The first role with a file below one repairs it.
SHARED = (
    Rule("/etc/gaudi-serve/", 0o750),
    _most("/usr/local/lib/gaudi-serve/", 0o755),
    _most("/var/lib/gaudi-serve/", 0o755),
)


@cache
def _every() -> tuple[Rule, ...]:
    """Return all rules, those without a wildcard first: they decide about a path that a pattern matches too."""
    rules = [*SHARED, *(rule for some in PERMISSIONS.values() for rule in some)]
    return tuple(sorted(rules, key=lambda rule: rule.pattern.count("*")))


def rule_of(path: str, *, folder: bool = False) -> Rule | None:
    """Return the rule of a path; None for a path that the toolkit does not write."""
    pure = PurePosixPath(path)
    return next((rule for rule in _every() if rule.folder == folder and pure.match(rule.pattern.rstrip("/"))), None)


def mode_of(path: str) -> str:
    """Return the mode with which a role writes a file, such as ``0640``; empty if the table does not have the file."""
    rule = rule_of(path)
    return f"{rule.mode:04o}" if rule and rule.owners else ""


def make_folder(path: Path) -> None:
    """Create a folder and its parents with their modes, 0755 for those of others. An existing one of others stays.

    Nobody compares a shared folder before a stage has a file in it, so the first writer sets its mode.
    """
    rule = rule_of(str(path), folder=True)
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        path.chmod(rule.mode if rule else 0o755)
    elif rule in SHARED and not rule.most and not path.is_symlink():
        path.chmod(rule.mode)


def observe(root: str = "/") -> dict[str, list[str]]:
    """Return by role how the permissions of files and folders differ, a line each."""
    found: dict[str, list[str]] = {}
    for role, path, rule in _present(root):
        if text := _difference(path, rule):
            found.setdefault(role, []).append(f"/{path.relative_to(root)}: {text}")
    return found


def repair(role: str, root: str = "/") -> None:
    """Set the permissions of all files and folders of a role that differ.

    Raises:
        OSError: if the system refuses.
    """
    for of, path, rule in _present(root):
        if of == role and _difference(path, rule):
            # A link that replaces the file meanwhile is not followed.
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                mode, user, group = _desired(os.fstat(handle), rule)
                os.fchown(handle, user, group)
                os.fchmod(handle, mode)
            finally:
                os.close(handle)


def _present(root: str) -> Iterator[tuple[str, Path, Rule]]:
    """Yield the files and folders that a host has, with role and rule; folders before what is in them."""
    shared = list(SHARED)
    for role, rules in PERMISSIONS.items():
        own = [(path, rule) for rule in rules for path in _matching(rule, root)]
        own += [(path, PLACE) for path in _files_of_site(root)] if role == "monitoring" else []
        for rule in [rule for rule in shared if any(Path(root, rule.pattern[1:]) in path.parents for path, _ in own)]:
            shared.remove(rule)
            own += [(path, rule) for path in _matching(rule, root)]
        yield from ((role, path, rule) for path, rule in sorted(own, key=lambda one: one[0].parts))


PLACE = Rule("files that a Prometheus or Grafana of the site reads", 0o644)


def _files_of_site(root: str) -> list[Path]:
    here = [Path(root, str(path).lstrip("/")) for path in json_list(Path(root, PLACES.lstrip("/")))]
    return [path for path in here if path.is_file() and not path.is_symlink()]


def _matching(rule: Rule, root: str) -> Iterator[Path]:
    for path in Path(root).glob(rule.pattern.strip("/")):
        kind = stat.S_ISDIR if rule.folder else stat.S_ISREG
        if kind(path.lstat().st_mode) and rule is rule_of(f"/{path.relative_to(root)}", folder=rule.folder):
            yield from [path] if rule.only(path) else []


def _difference(path: Path, rule: Rule) -> str:
    """Return how the permissions of a path differ from its rule; empty if they do not."""
    try:
        now = path.lstat()
    except OSError:
        return ""
    mode, user, group = _desired(now, rule)
    before = stat.S_IMODE(now.st_mode)
    parts = [f"mode {before:04o} instead of {mode:04o}"] if before != mode else []
    parts += [f"owner {_user(now.st_uid)} instead of {_user(user)}"] if now.st_uid != user else []
    parts += [f"group {_group(now.st_gid)} instead of {_group(group)}"] if now.st_gid != group else []
    return ", ".join(parts)


def _desired(now: os.stat_result, rule: Rule) -> tuple[int, int, int]:
    """Return the mode, user and group that a path should have."""
    before, mode = stat.S_IMODE(now.st_mode), rule.mode
    if rule.owners is None:
        return before & mode, now.st_uid, now.st_gid
    user, group = (_number(*one) for one in zip(("user", "group"), rule.owners, strict=True))
    if group is None:
        group, mode = 0, mode & ~0o070
    return before & mode if rule.most else mode, user or 0, group


def _number(kind: str, name: str) -> int | None:
    """Return the number of a user or group; None if the host does not have it."""
    try:
        return pwd.getpwnam(name).pw_uid if kind == "user" else grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
