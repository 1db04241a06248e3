"""The HAProxy of a gateway on its host: reads its state and installs files without losing a connection.

Each configuration has its own folder. HAProxy checks it before a link makes it current, so a killed run leaves only an
unused folder. The running workers report which folder they have read.
"""

from __future__ import annotations

import fcntl
import json
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
from ..core.hide import hidden
from ..core.run import json_list, read_text, run, sha256_file
from ..host.dpkg import packages
from ..host.observe_host import network, ports
from ..host.permissions import make_folder
from ..host.secret import own_api_key
from .fleet import STORED, entry_of
from .objects import Gateway
from .refusals import refusals
from .runtime import VERSION, Runtime, State

UNIT = "gaudi-gateway.service"
UNIT_PATH = Path("/etc/systemd/system") / UNIT
# keepalived manages the address that several gateways share. A copy of its file shows its running configuration.
ADDRESS_UNIT = "gaudi-gateway-address.service"
ADDRESS_PATH = UNIT_PATH.with_name(ADDRESS_UNIT)
ADDRESS_COPY = Path("/run/gaudi-gateway-address/keepalived.conf")
FOLDER = Path(Gateway.folder)
LINK = "current"
CONFIG, SERVERS, KEYS = "haproxy.cfg", "servers.json", "servers.map"
# The models' files of this host, some with secrets.
CONFIG_FOLDER = FOLDER.parent
# Servers that are drained during their host's reboot: {host: [server]}. An interrupted run leaves this file.
REBOOTS = Path(Gateway.state).with_name("reboots.json")
# The placeholder for the folder in texts that are generated before the folder has a name.
PLACE = f"{Gateway.folder}/@FOLDER@"
# The HAProxy master loses a signal that arrives while it executes itself again, so the signal is repeated.
RELOAD_S, AGAIN_S = 30.0, 3.0
# Time for the gateway to respond after its host has booted.
START_S = 60.0
# Maps of keys and passwords, and of what they may use.
RIGHTS = ("clients.map", "users.map", "allowed.map")
SHOWN = 1500  # characters of HAProxy's output in a message


def runtime() -> Runtime:
    """Return the admin socket of this host's gateway."""
    return Runtime(Path(Gateway.run) / "admin.sock")


def current(folder: Path = FOLDER) -> str:
    """Return the name of the current folder; empty without one."""
    try:
        return (folder / LINK).readlink().name
    except OSError:
        return ""


def running() -> str:
    """Return the name of the folder that the running workers have read; empty if none runs."""
    try:
        return runtime().info().get("description", "")
    except OSError:
        return ""


def observe() -> dict[str, Any]:
    """Return the state that role gateway compares: package, unit, configuration, servers, ports; without keys."""
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
        "servers": json_list(FOLDER / folder / SERVERS) if folder else [],
        "states": states(runtime().servers()) if found else [],
        "reboots": reboots(),
        "folders": [str(path) for path in (FOLDER, Path(Gateway.state).parent) if path.is_dir()],
        "ports": ports(),
    }


def states(servers: Sequence[State]) -> list[dict[str, Any]]:
    """Return the states of servers; ``refused`` is the HTTP status of one that refuses the gateway's key, else 0."""
    text = read_text(FOLDER / LINK / KEYS) or ""
    keys = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    refused = refusals(servers, [entry_of(one) for one in json_list(FOLDER / LINK / SERVERS)], keys)
    return [
        {**asdict(one), "up": one.up and one.name not in refused, "refused": refused.get(one.name, 0)}
        for one in servers
    ]


def with_stored(secrets: Mapping[str, str], folder: Path = CONFIG_FOLDER) -> dict[str, str]:
    """Return the secret files of a gateway with the keys that this host stores for models without a key in a run."""
    lines = []
    for name, _, key in (line.partition(" ") for line in secrets.get(KEYS, "").splitlines()):
        stored = own_api_key(folder / f"{key.removeprefix(STORED)}.secret") if key.startswith(STORED) else key
        lines += [f"{name} {stored}\n"] if stored else []
    return {**secrets, KEYS: "".join(lines)} if KEYS in secrets else dict(secrets)


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


def certificate_problem(path: str) -> str:
    """Return why a file with certificate and key cannot be used; empty if it is valid."""
    if not Path(path).is_file():
        return "is not a file on this host"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path, password=lambda: "")
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "reason", None) or getattr(problem, "strerror", None) or "it cannot be read"
        return f"must be one file with the certificate, its chain and its key without a passphrase ({reason})"
    return ""


def name_of(files: Mapping[str, str], secrets: Mapping[str, str], folder: Path = FOLDER) -> str:
    """Return the folder name for files: a digest of their content, with a suffix if only secrets differ.

    The name contains no digest of a secret, because other users than root can see it.
    """
    text = json.dumps(dict(sorted(files.items())), sort_keys=True)
    plain, live = sha256(text.encode()).hexdigest()[:16], current(folder)
    if live.partition(".")[0] != plain:
        return plain
    same = all(read_text(folder / live / name) == _placed(content, folder / live) for name, content in secrets.items())
    return live if same else plain if live != plain else f"{plain}.b"


def differing(files: Mapping[str, str], secrets: Mapping[str, str], folder: Path = FOLDER) -> list[str]:
    """Return the names of the files that differ from the current ones."""
    live = folder / (current(folder) or "-")
    found = {**files, **secrets}
    here = {path.name for path in live.iterdir()} if live.is_dir() else set()
    wrong = [name for name, text in found.items() if read_text(live / name) != _placed(text, live)]
    return sorted({*wrong, *(here - found.keys())})


def _placed(text: str, folder: Path) -> str:
    return text.replace(PLACE, str(folder)).replace(Path(PLACE).name, folder.name)


def install(files: Mapping[str, str], secrets: Mapping[str, str], folder: Path = FOLDER) -> bool:
    """Make files current and reload a running HAProxy; return whether anything changed.

    Raises:
        InputError: if HAProxy refuses the files or does not start with them; the previous files are then current.
    """
    before, wrong = current(folder), differing(files, secrets, folder)
    name = name_of(files, secrets, folder)
    # If a user has edited the current folder, the files are written under its other name.
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
    if active:
        withdraw_rights(Runtime(Path(Gateway.run) / "master.sock"), folder / name)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink() and path.name != name:
            shutil.rmtree(path)
    return changed


def _begin_state() -> None:
    """Create an empty state file, because HAProxy warns about a missing one."""
    state = Path(Gateway.state)
    if not state.exists():
        make_folder(state.parent)
        write_whole(state, VERSION, 0o600)


def _write(target: Path, files: Mapping[str, str]) -> None:
    if target.exists():
        shutil.rmtree(target)
    make_folder(target)
    for name, text in files.items():
        write_whole(target / name, _placed(text, target), 0o600)
    sync_folder(target.parent)


def _check(target: Path, secrets: Mapping[str, str]) -> None:
    said = run(["haproxy", "-c", "-f", str(target / CONFIG)])
    if said.status != 0:
        words = [word for one in secrets.values() for word in one.split()]
        text = hidden((said.err or said.out).strip(), words)[:SHOWN]
        shutil.rmtree(target)
        raise InputError(f"HAProxy refuses its configuration, and nothing has changed: {text}")


def _point(folder: Path, name: str) -> None:
    beside = folder / f".{LINK}"
    beside.unlink(missing_ok=True)
    beside.symlink_to(name)
    beside.replace(folder / LINK)
    sync_folder(folder)


def reload(name: str) -> None:
    """Replace the running workers with new ones; the old workers finish their requests.

    Raises:
        InputError: if no worker has started with the files of that name in time.
    """
    end, again = time.monotonic() + RELOAD_S, 0.0
    while running() != name:
        now = time.monotonic()
        if now > end:
            said = run(["journalctl", "-u", UNIT, "-n", "15", "-o", "cat", "--no-pager"]).out.strip()[-SHOWN:]
            raise InputError(f"HAProxy has not loaded its new configuration within {RELOAD_S:g} s: {said}")
        if now > again:
            save()
            run(["systemctl", "kill", "--signal=SIGUSR2", "--kill-who=main", UNIT])
            again = now + AGAIN_S
        time.sleep(0.1)


def withdraw_rights(master: Runtime, folder: Path) -> None:
    """Remove revoked keys and rights from older workers, which serve open connections with the maps that they read.

    Args:
        master: the master's socket.
        folder: the folder of the current configuration.

    Raises:
        InputError: if the master's socket does not respond in time.
    """
    lines = {name: (read_text(folder / name) or "").splitlines() for name in RIGHTS}
    current = {name: dict(line.split(" ", 1) for line in found) for name, found in lines.items()}
    end = time.monotonic() + RELOAD_S
    while True:
        try:
            # The master answers a little later than the new worker.
            for worker in master.old_workers():
                master.withdraw(worker, current)
            return
        except OSError as problem:
            if time.monotonic() > end:
                raise InputError(
                    f"revoked keys may work in old workers until their connections end: {problem}"
                ) from None
            time.sleep(0.2)


def save() -> None:
    """Save which servers are drained, for the next start of HAProxy."""
    entries = [entry_of(one) for one in json_list(FOLDER / LINK / SERVERS)]
    with _answering():
        runtime().save(Path(Gateway.state), {one.name: (one.address, one.port) for one in entries})


def set_state(host: str, state: str, check: bool = False, reboot: bool = False) -> list[str]:
    """Drain all servers of a host, or make them ready again; return those whose state changes.

    Args:
        host: name of the host in the inventory.
        state: drain or ready.
        check: only return the servers.
        reboot: drain servers for a reboot of the host, and record them; or make only the recorded servers ready, so
            that servers that an operator has drained stay drained.

    Raises:
        InputError: if no gateway runs here.
    """
    with nullcontext() if check else _alone():
        return _state_set(host, state, check, reboot)


def _state_set(host: str, state: str, check: bool, reboot: bool) -> list[str]:
    before, returns = reboots().get(host, []), reboot and state == "ready"
    if returns and not before:
        # Nothing is drained, and a gateway whose host has just booted need not respond yet.
        return []
    with _answering(START_S if returns else 0):
        changing = [server for server in _servers_of(host) if server.drained != (state == "drain")]
        if returns:
            changing = [server for server in changing if server.name in before]
        elif reboot and not check:
            # Record servers before they are drained, so that a later run can return them if this one is interrupted.
            _record_reboot(host, [*before, *(server.name for server in changing)])
        for server in [] if check else changing:
            runtime().set_state(server.backend, server.name, state)
    saved = _saved(changing, check)
    if not check and (state == "ready" or not reboot):
        # A later run for a reboot must not return servers that an operator or a rollout has drained.
        _record_reboot(host, [])
    return saved


@contextmanager
def _alone() -> Iterator[None]:
    """Lock the recorded and saved state, because tasks for several hosts change it at the same time."""
    path = REBOOTS.with_suffix(".lock")
    make_folder(path.parent)
    with path.open("w", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def reboots() -> dict[str, list[str]]:
    """Return the servers that are drained during their host's reboot, by host."""
    try:
        found = json.loads(read_text(REBOOTS) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _record_reboot(host: str, servers: Sequence[str]) -> None:
    """Record the servers of a host that are drained for its reboot; an empty list removes the record."""
    before = reboots()
    after = {**before, host: sorted(set(servers))}
    after = {name: names for name, names in after.items() if names}
    if after != before:
        write_whole(REBOOTS, json.dumps(after, sort_keys=True) + "\n", 0o600)


def set_weight(host: str, percent: int, check: bool = False) -> list[str]:
    """Set the weight of all servers of a host, in percent of their share; return those with another weight.

    Raises:
        InputError: if no gateway runs here.
    """
    with _answering():
        changing = [server for server in _servers_of(host) if server.weight != percent]
        for server in [] if check else changing:
            runtime().set_weight(server.backend, server.name, percent)
    return _saved(changing, check)


def _saved(changed: Sequence[State], check: bool) -> list[str]:
    """Save the state of the servers; return the names of those that changed."""
    if not check:
        # Save even without changes: an earlier run may have been killed before it saved the state.
        save()
    return [f"{server.backend}/{server.name}" for server in changed]


@contextmanager
def _answering(seconds: float = 0) -> Iterator[None]:
    """Raise an InputError if HAProxy's socket does not respond within some seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not running():
        time.sleep(0.5)
    try:
        yield
    except OSError as problem:
        raise InputError(f"the gateway on this host does not answer at {runtime().path}: {problem}") from problem


def refuse_unknown_host(host: str) -> None:
    """Refuse a host without servers at this gateway: a misspelt name would drain nothing without an error.

    Raises:
        InputError: with the hosts that have servers.
    """
    hosts = sorted({one["host"] for one in json_list(FOLDER / LINK / SERVERS)})
    if host not in hosts:
        hint = near(host, hosts, 1) or f"; there are {', '.join(hosts) or 'none'}"
        raise refusal("", "host", host, f"has no server at this gateway{hint}")


def wait_left(host: str, seconds: float) -> None:
    """Wait until a gateway has no running, sent or queued requests of a host's drained servers.

    Raises:
        InputError: if requests are left after ``seconds``, or a server is no longer drained.
    """
    names = {one.name for one in _servers_of(host)}
    end, quiet = time.monotonic() + seconds, 0
    # Twice in a row, because a request may be between the queue and the server.
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
    """Return ``{server: requests}`` of the current worker and of older workers."""
    found = runtime().requests(names)
    master = Runtime(Path(Gateway.run) / "master.sock")
    try:
        for worker in master.old_workers():
            for name, count in master.requests(names, worker).items():
                found[name] = found.get(name, 0) + count
    except OSError:
        # The gateway was started before this socket existed, or its master is executing itself again.
        return found
    return found


def _servers_of(host: str) -> list[State]:
    names = {entry_of(one).name for one in json_list(FOLDER / LINK / SERVERS) if one["host"] == host}
    return [one for one in runtime().servers() if one.name in names]


def _reason(state: Mapping[str, Any]) -> str:
    refused = state["refused"]
    return f"{state['name']} (it refuses the gateway's key: HTTP {refused})" if refused else str(state["name"])


def wait_up(host: str, seconds: float) -> None:
    """Wait until a gateway reports all servers of a host as up.

    Raises:
        InputError: if a server is still down after ``seconds``.
    """
    end = time.monotonic() + seconds
    while down := [_reason(one) for one in states(_servers_of(host)) if not one["up"]]:
        if time.monotonic() > end:
            raise InputError(f"the gateway on this host has not found {', '.join(down)} up within {seconds:g} s")
        time.sleep(0.5)
