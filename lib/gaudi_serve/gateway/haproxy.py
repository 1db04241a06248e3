"""The HAProxy of a gateway on its host: how it is read, and how new files come to it without a lost connection.

Its files are a folder of their own for each configuration, checked by HAProxy before a link lets it be the one that
counts: a run that is killed leaves a folder that nobody reads. Which one the running workers have read, they tell.
"""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import ssl
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..core.atomic_write import sync_folder, write_whole
from ..core.errors import InputError, near, refusal
from ..core.run import read_text, run, sha256_file
from ..host.dpkg import packages
from ..host.observe_host import network, ports
from .fleet import entry_of
from .objects import Gateway
from .runtime import VERSION, Runtime, State

UNIT = "gaudi-gateway.service"
UNIT_PATH = Path("/etc/systemd/system") / UNIT
# keepalived, which holds the address that several gateways share. A copy of its file tells what it runs with.
ADDRESS_UNIT = "gaudi-gateway-address.service"
ADDRESS_PATH = UNIT_PATH.with_name(ADDRESS_UNIT)
ADDRESS_COPY = Path("/run/gaudi-gateway-address/keepalived.conf")
FOLDER = Path(Gateway.folder)
LINK = "current"
CONFIG, SERVERS = "haproxy.cfg", "servers.json"
# The servers that are drained while their host reboots, by host: {host: [server]}. A run that was cut off leaves it.
REBOOTS = Path(Gateway.state).with_name("reboots.json")
# What stands for the folder in texts that are made before it has a name.
PLACE = f"{Gateway.folder}/@FOLDER@"
# A master that is about to take its signals over once more loses one that comes just then.
RELOAD_S, AGAIN_S = 30.0, 3.0
# In which it answers after a boot of its host.
START_S = 60.0
SHOWN = 1500  # characters of what HAProxy says


def runtime() -> Runtime:
    """Return the socket of this host's gateway."""
    return Runtime(Path(Gateway.run) / "admin.sock")


def current(folder: Path = FOLDER) -> str:
    """Return the name of the folder that counts; empty where there is none."""
    try:
        return (folder / LINK).readlink().name
    except OSError:
        return ""


def running() -> str:
    """Return the name of the folder that the running workers have read; empty where none runs."""
    try:
        return runtime().info().get("description", "")
    except OSError:
        return ""


def observe() -> dict[str, Any]:
    """Return what role gateway compares: package, unit, configuration, servers, ports. No key is in it."""
    folder = current()
    return {
        "installed": sorted(one.name for one in packages("haproxy", "keepalived") if one.state == "installed"),
        "interface": network()["interface"],
        "address": {
            "unit": _unit(ADDRESS_UNIT),
            "unit_sha256": sha256_file(ADDRESS_PATH),
            "runs_sha256": sha256_file(ADDRESS_COPY),
        },
        "unit": _unit(UNIT),
        "unit_sha256": sha256_file(UNIT_PATH),
        "distribution": _unit("haproxy.service"),
        "folder": folder,
        "running": (found := running()),
        "servers": _servers(FOLDER / folder / SERVERS) if folder else [],
        "states": [asdict(one) for one in runtime().servers()] if found else [],
        "reboots": reboots(),
        "ports": ports(),
    }


def _unit(name: str) -> dict[str, Any]:
    keys = ("LoadState", "ActiveState", "UnitFileState", "NeedDaemonReload")
    said = run(["systemctl", "show", name, f"--property={','.join(keys)}"]).out
    found = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    return {
        "there": found.get("LoadState") == "loaded",
        "active": found.get("ActiveState") == "active",
        "enabled": found.get("UnitFileState") == "enabled",
        "need_reload": found.get("NeedDaemonReload") == "yes",
    }


def _servers(path: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads(read_text(path) or "[]")
    except ValueError:
        return []
    return found if isinstance(found, list) else []


def certificate_problem(path: str) -> str:
    """Return why a file with certificate and key cannot be used; empty where it can."""
    if not Path(path).is_file():
        return "is not a file on this host"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path, password=lambda: "")
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "reason", None) or getattr(problem, "strerror", None) or "it cannot be read"
        return f"must be one file with the certificate, its chain and its key without a passphrase ({reason})"
    return ""


def name_of(files: Mapping[str, str], secrets: Mapping[str, str], folder: Path = FOLDER) -> str:
    """Return the name of the folder for files: of their content, and another one where only secrets differ.

    No digest of a secret is in it: names are seen by more than root.
    """
    text = json.dumps(dict(sorted(files.items())), sort_keys=True)
    plain, live = sha256(text.encode()).hexdigest()[:16], current(folder)
    if live.partition(".")[0] != plain:
        return plain
    same = all(read_text(folder / live / name) == _placed(content, folder / live) for name, content in secrets.items())
    return live if same else plain if live != plain else f"{plain}.b"


def differing(files: Mapping[str, str], secrets: Mapping[str, str], folder: Path = FOLDER) -> list[str]:
    """Return the names of the files that are not as those that count."""
    live = folder / (current(folder) or "-")
    found = {**files, **secrets}
    here = {path.name for path in live.iterdir()} if live.is_dir() else set()
    wrong = [name for name, text in found.items() if read_text(live / name) != _placed(text, live)]
    return sorted({*wrong, *(here - found.keys())})


def _placed(text: str, folder: Path) -> str:
    return text.replace(PLACE, str(folder)).replace(Path(PLACE).name, folder.name)


def install(files: Mapping[str, str], secrets: Mapping[str, str], folder: Path = FOLDER) -> bool:
    """Let files count, and a running HAProxy read them; tell whether anything was done.

    Raises:
        InputError: where HAProxy refuses them, or does not begin with them; what counted before counts then.
    """
    before, wrong = current(folder), differing(files, secrets, folder)
    name = name_of(files, secrets, folder)
    # What somebody has changed in the very folder that counts is written again under its other name.
    if wrong and name == before:
        name = before.removesuffix(".b") if before.endswith(".b") else f"{before}.b"
    changed = name != before
    if changed:
        _write(folder / name, {**files, **secrets})
        _check(folder / name, secrets)
        _point(folder, name)
    _begin_state()
    active = _unit(UNIT)["active"]
    if active and running() != name:
        try:
            reload(name)
        except InputError:
            if changed and before:
                _point(folder, before)
            raise
        changed = True
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink() and path.name != name:
            shutil.rmtree(path)
    return changed


def _begin_state() -> None:
    """Write down that nothing is to be remembered yet: HAProxy warns of a file that is not there."""
    state = Path(Gateway.state)
    if not state.exists():
        state.parent.mkdir(parents=True, exist_ok=True)
        write_whole(state, VERSION, 0o600)


def _write(target: Path, files: Mapping[str, str]) -> None:
    if target.exists():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.parent.chmod(0o700)
    target.mkdir(mode=0o700)
    for name, text in files.items():
        write_whole(target / name, _placed(text, target), 0o600)
    sync_folder(target.parent)


def _check(target: Path, secrets: Mapping[str, str]) -> None:
    said = run(["haproxy", "-c", "-f", str(target / CONFIG)])
    if said.status != 0:
        text = (said.err or said.out).strip()[:SHOWN]
        # All at once and the longest first: a short one inside of another would leave parts of that.
        words = sorted({word for one in secrets.values() for word in one.split()}, key=len, reverse=True)
        text = re.sub("|".join(map(re.escape, words)), "(hidden)", text) if words else text
        shutil.rmtree(target)
        raise InputError(f"HAProxy refuses its configuration, and nothing has changed: {text}")


def _point(folder: Path, name: str) -> None:
    beside = folder / f".{LINK}"
    beside.unlink(missing_ok=True)
    beside.symlink_to(name)
    beside.replace(folder / LINK)
    sync_folder(folder)


def reload(name: str) -> None:
    """Let new workers take over from the running ones, which end what they have begun.

    Raises:
        InputError: where none has come with the files of that name.
    """
    end, again = time.monotonic() + RELOAD_S, 0.0
    while running() != name:
        now = time.monotonic()
        if now > end:
            said = run(["journalctl", "-u", UNIT, "-n", "15", "-o", "cat", "--no-pager"]).out.strip()[-SHOWN:]
            raise InputError(f"HAProxy has not begun with its new configuration within {RELOAD_S:g} s: {said}")
        if now > again:
            save()
            run(["systemctl", "kill", "--signal=SIGUSR2", "--kill-who=main", UNIT])
            again = now + AGAIN_S
        time.sleep(0.1)


def save() -> None:
    """Write down which servers are drained, for the next start of HAProxy."""
    entries = [entry_of(one) for one in _servers(FOLDER / LINK / SERVERS)]
    with _answering():
        runtime().save(Path(Gateway.state), {one.name: (one.address, one.port) for one in entries})


def set_state(host: str, state: str, check: bool = False, reboot: bool = False) -> list[str]:
    """Drain all servers of a host, or let them be ready again; return those whose state has changed.

    Args:
        host: of the inventory.
        state: drain or ready.
        check: only tell.
        reboot: drain them for a reboot of the host, which is recorded; or let those be ready that were drained for one,
            and no server that somebody else has drained.

    Raises:
        InputError: where no gateway runs here.
    """
    with nullcontext() if check else _alone():
        return _state_set(host, state, check, reboot)


def _state_set(host: str, state: str, check: bool, reboot: bool) -> list[str]:
    before, returns = reboots().get(host, []), reboot and state == "ready"
    if returns and not before:
        # Nothing is drained, and a gateway that has just booted itself need not answer yet.
        return []
    with _answering(START_S if returns else 0):
        changing = [server for server in _servers_of(host) if server.drained != (state == "drain")]
        if returns:
            changing = [server for server in changing if server.name in before]
        elif reboot and not check:
            # Before they are drained: a run that is cut off in between leaves nothing drained that no run returns.
            _record_reboot(host, [*before, *(server.name for server in changing)])
        for server in [] if check else changing:
            runtime().set_state(server.backend, server.name, state)
    saved = _saved(changing, check)
    if not check and (state == "ready" or not reboot):
        # What a person or a rollout drains, no run for a reboot returns.
        _record_reboot(host, [])
    return saved


@contextmanager
def _alone() -> Iterator[None]:
    """Hold what is recorded and saved: tasks of several hosts change it at the same time."""
    path = REBOOTS.with_suffix(".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def reboots() -> dict[str, list[str]]:
    """Return the servers that are drained while their host reboots, by host."""
    try:
        found = json.loads(read_text(REBOOTS) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _record_reboot(host: str, servers: Sequence[str]) -> None:
    """Record which servers of a host are drained for its reboot; none removes its record."""
    before = reboots()
    after = {**before, host: sorted(set(servers))}
    after = {name: names for name, names in after.items() if names}
    if after != before:
        write_whole(REBOOTS, json.dumps(after, sort_keys=True) + "\n", 0o600)


def set_weight(host: str, percent: int, check: bool = False) -> list[str]:
    """Let all servers of a host have a part of their share, in percent; return those that had another one.

    Raises:
        InputError: where no gateway runs here.
    """
    with _answering():
        changing = [server for server in _servers_of(host) if server.weight != percent]
        for server in [] if check else changing:
            runtime().set_weight(server.backend, server.name, percent)
    return _saved(changing, check)


def _saved(changed: Sequence[State], check: bool) -> list[str]:
    """Return the names of servers that changed, after their state is saved."""
    if not check:
        # Also where nothing has changed: a run that was killed here may not have saved it.
        save()
    return [f"{server.backend}/{server.name}" for server in changed]


@contextmanager
def _answering(seconds: float = 0) -> Iterator[None]:
    """Raise an InputError where HAProxy's socket does not answer, or not within some seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not running():
        time.sleep(0.5)
    try:
        yield
    except OSError as problem:
        raise InputError(f"the gateway on this host does not answer at {runtime().path}: {problem}") from problem


def refuse_unknown_host(host: str) -> None:
    """Refuse a host of which this gateway serves nothing: a name that is misspelt would drain nobody, and pass.

    Raises:
        InputError: with the hosts that it serves.
    """
    hosts = sorted({one["host"] for one in _servers(FOLDER / LINK / SERVERS)})
    if host not in hosts:
        hint = near(host, hosts, 1) or f"; there are {', '.join(hosts) or 'none'}"
        raise refusal("", "host", host, f"has no server at this gateway{hint}")


def wait_left(host: str, seconds: float) -> None:
    """Wait until a gateway has no request of a host's drained servers: none at work, being sent, or waiting.

    Raises:
        InputError: where it still has some when the time is over, or a server is no longer drained.
    """
    names = {one.name for one in _servers_of(host)}
    end, quiet = time.monotonic() + seconds, 0
    # Twice in a row: one may just be on its way.
    while quiet < 2:
        if back := [one.name for one in _servers_of(host) if not one.drained]:
            raise InputError(f"another run has returned {', '.join(sorted(back))} to service meanwhile")
        left = _requests(names)
        if left and time.monotonic() > end:
            counts = ", ".join(f"{name} has {count}" for name, count in sorted(left.items()))
            raise InputError(f"requests of the gateway on this host have not ended within {seconds:g} s: {counts}")
        quiet = 0 if left else quiet + 1
        time.sleep(0.5)


def _requests(names: Collection[str]) -> dict[str, int]:
    """Return ``{server: requests}`` of the current worker and of those before it."""
    found = runtime().requests(names)
    master = Runtime(Path(Gateway.run) / "master.sock")
    try:
        for worker in master.old_workers():
            for name, count in master.requests(names, worker).items():
                found[name] = found.get(name, 0) + count
    except OSError:
        # A gateway that runs since before it had this socket, or a master that takes its signals over again.
        return found
    return found


def _servers_of(host: str) -> list[State]:
    names = {entry_of(one).name for one in _servers(FOLDER / LINK / SERVERS) if one["host"] == host}
    return [one for one in runtime().servers() if one.name in names]


def wait_up(host: str, seconds: float) -> None:
    """Wait until a gateway finds all servers of a host up.

    Raises:
        InputError: where one is still down when the time is over.
    """
    end = time.monotonic() + seconds
    while down := [one.name for one in _servers_of(host) if not one.up]:
        if time.monotonic() > end:
            raise InputError(f"the gateway on this host has not found {', '.join(down)} up within {seconds:g} s")
        time.sleep(0.5)
