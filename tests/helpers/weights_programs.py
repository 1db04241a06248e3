"""The programs that fetch and serve weights, run on simulated hosts."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.programs import load_program

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "roles/model_weights/files/fetch_weights"
SERVER = ROOT / "molecule/shared/standins/hub_server.py"
COMMIT, NEWER = "a" * 40, "b" * 40
MIB = 1 << 20


def server_module() -> Any:
    """Import the hub's stand-in."""
    return load_program(SERVER)


def noise(length: int, seed: int) -> bytes:
    """Return bytes without repetitions."""
    return random.Random(seed).randbytes(length)  # noqa: S311 - these are not secrets


def model(folder: Path, seed: int = 0, size: int = MIB) -> Path:
    """Create a small model of two shards."""
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    (folder / "sub/vocab.txt").write_text("a\nb\n")
    for number in (1, 2):
        (folder / f"model-{number}.safetensors").write_bytes(noise(size, seed + number))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Return a folder's files, without the toolkit's own."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if not name.startswith(".gaudi-serve")}


class Host:
    """The program on a simulated host."""

    def __init__(self, folder: Path, source: dict[str, Any]) -> None:
        self.folder, self.target = folder, folder / "data/QwQ-32B"
        self.partial = self.target.with_name("QwQ-32B.partial")
        self.target.parent.mkdir()
        self.job: dict[str, Any] = {"name": "qwq", "host": "h1", "target": str(self.target), "source": source}
        self.job |= {"state": str(folder / "state"), "retries": 1, "pause_s": 0.05, "verify": "quick"}

    def start(self, **changed: Any) -> subprocess.Popen[str]:
        """Start the program."""
        limit = changed.pop("limit", None)
        environment = {**os.environ, "HOME": str(self.folder), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        # ModelScope's client requests a list four times, with pauses of up to eight seconds.
        environment["MODELSCOPE_REPO_TREE_PAGE_RETRY_MAX_DELAY_SECONDS"] = "1"
        process = subprocess.Popen(
            [sys.executable, PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        if limit:
            # The program waits for its job in the meantime.
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, limit))
        assert process.stdin is not None
        process.stdin.write(json.dumps({**self.job, **changed}))
        process.stdin.close()
        return process

    def run(self, **changed: Any) -> dict[str, Any]:
        """Run the program to its end."""
        with self.start(**changed) as process:
            assert process.stdout is not None and process.stderr is not None
            out, err = process.stdout.read(), process.stderr.read()
        assert out, err
        result: dict[str, Any] = json.loads(out.splitlines()[-1])
        return result

    def written(self) -> int:
        """Return the bytes of shards that are already written."""
        shards = self.partial.rglob("*model-*") if self.partial.exists() else []
        total = 0
        for path in shards:
            try:
                total += path.stat().st_size
            except OSError:
                continue
        return total

    def begun(self, process: subprocess.Popen[str]) -> None:
        """Wait until the download of the first shard has begun."""
        while not (self.partial.exists() and list(self.partial.rglob("*model-*"))):
            assert process.poll() is None, "it ended before it was seen"
            time.sleep(0.002)

    def kill_at(self, part: float, total: int) -> None:
        """Kill the program after this part was downloaded."""
        with self.start(parallel=1) as process:
            while self.written() < part * total:
                assert process.poll() is None, "it ended before it was killed"
                time.sleep(0.002)
            assert not self.target.exists()
            process.send_signal(signal.SIGKILL)

    def manifest(self) -> dict[str, Any]:
        """Return the target's manifest."""
        found: dict[str, Any] = json.loads((self.target / ".gaudi-serve-weights.json").read_text())
        return found


def alone(host: Host, original: Path) -> None:
    """Assert that the target equals the original, without leftovers."""
    assert contents(host.target) == contents(original)
    assert [path.name for path in host.target.parent.iterdir()] == ["QwQ-32B"]
    assert {path.name for path in host.target.iterdir()} >= {"config.json", "sub", ".gaudi-serve-weights.json"}
    assert not {path.name for path in host.target.iterdir()} & {".gaudi-serve-work", ".git", ".cache"}


NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a file system; make test runs as root")


@contextlib.contextmanager
def mounted(folder: Path, size: str) -> Iterator[Path]:
    """Mount a small file system until the end of the context."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def in_process_list(secret: str) -> bool:
    """Return whether a text is in the command line of any process."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if secret.encode() in path.read_bytes():
                return True
    return False
