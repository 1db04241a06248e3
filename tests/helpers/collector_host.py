"""A simulated host for the metrics collector: strict stand-ins of its programs, and the written metrics."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from gaudi_serve.monitoring.metrics import BY_NAME

FOLDER = "var/lib/prometheus/node-exporter"
# Refuses every option that the collector does not use, and records each call.
PROGRAM = """#!{python} -SE
import json, pathlib, sys, time
root = pathlib.Path({root!r})
state = json.loads((root / "state.json").read_text())
name, words = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
with (root / "calls").open("a") as calls:
    calls.write(json.dumps([name, *words]) + "\\n")
fault = state["faults"].get(name, "")
if fault == "hangs":
    time.sleep(60)
if fault == "garbage":
    while True:
        sys.stdout.buffer.write(bytes(range(256)) * 4096)
if fault == "fails":
    sys.exit("it fails")
unit = lambda word: word[len("vllm-"):-len(".service")]
def refused():
    print("unknown option", words, file=sys.stderr)
    sys.exit(2)
"""
SYSTEMCTL = """
if words[:2] != ["show", "--property=Id,ActiveState,SubState,StatusText,NeedDaemonReload,UnitFileState"]:
    refused()
usual = {"ActiveState": "inactive", "SubState": "dead", "StatusText": "", "NeedDaemonReload": "no"}
usual["UnitFileState"] = "enabled"
blocks = [{"Id": word, **usual, **state["units"].get(unit(word), {})} for word in words[2:]]
print("\\n\\n".join("\\n".join(f"{key}={value}" for key, value in block.items()) for block in blocks))
"""
DOCKER = """
running = {one["id"]: (name, one) for name, one in state["containers"].items()}
if words == ["ps", "--quiet", "--no-trunc", "--filter=label=gaudi-serve.model"]:
    print("\\n".join(running))
elif words[:3] == ["container", "inspect", "--format"]:
    # The template is JSON with parts of it to be filled in.
    for one in words[4:]:
        name, record = running[one]
        text = words[3]
        values = {"Name": f"/vllm-{name}", "Id": one, "State.StartedAt": record["started"]}
        values["Config.Labels"] = record["labels"]
        for key, value in values.items():
            text = text.replace("{{json .%s}}" % key, json.dumps(value))
        print(text)
else:
    refused()
"""
JOURNALCTL = """
usual = ["--output=json", "--output-fields=MESSAGE", "--no-pager", "--quiet"]
if not words[0].startswith("--unit=") or words[1:5] != usual or len(words) != 6:
    refused()
lines = state["journal"].get(unit(words[0][len("--unit="):]), [])
place, begin, after = words[5].partition("=") [2], 0, 0.0
if words[5].startswith("--after-cursor="):
    if place not in [f"s=1;i={number}" for number in range(len(lines))] or state["faults"].get("cursor"):
        print("Failed to seek to cursor: Invalid argument", file=sys.stderr)
        sys.exit(1)
    begin = int(place.rpartition("=")[2]) + 1
elif words[5].startswith("--since=@"):
    after = int(place[1:])
else:
    refused()
for number, (at, message) in enumerate(lines):
    if number < begin or at < after:
        continue
    if number == state["faults"].get("journal ends after"):
        sys.stdout.flush()
        time.sleep(60)
    entry = {"__CURSOR": f"s=1;i={number}", "__REALTIME_TIMESTAMP": str(int(at * 1e6)), "MESSAGE": message}
    print(json.dumps({"__MONOTONIC_TIMESTAMP": "1", "_BOOT_ID": "b", **entry}))
"""
TOOL = """
import os
os.environ["GAUDI_SIM_ROOT"] = str(root)
os.execv({python!r}, [{python!r}, "-SE", {tool!r}, *words])
"""
Written = dict[tuple[str, tuple[tuple[str, str], ...]], float]
SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)')


@dataclass
class CollectorHost:
    """A root folder with the programs that the collector calls.

    settings: of the collector. state: output of systemctl, docker and journalctl, and ``faults`` of programs by name.
    """

    root: Path
    settings: dict[str, Any]
    state: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Create the programs and folders."""
        self.settings |= {"root": str(self.root)}
        self.state = {"units": {}, "containers": {}, "journal": {}, "faults": {}, **self.state}
        (self.root / FOLDER).mkdir(parents=True, exist_ok=True)
        self.put("proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/sda1 iommu=pt\n")
        for name, text in (("systemctl", SYSTEMCTL), ("docker", DOCKER), ("journalctl", JOURNALCTL)):
            self.program(name, text)

    def put(self, path: str, text: str) -> None:
        """Write a file below the root."""
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text, encoding="utf-8")

    def program(self, name: str, text: str) -> None:
        """Create a program."""
        self.put(f"bin/{name}", PROGRAM.format(python=sys.executable, root=str(self.root)) + text)
        (self.root / "bin" / name).chmod(0o755)

    def tool(self, path: Path) -> None:
        """Install the stand-in of a vendor's tool."""
        self.program(path.name, TOOL.format(python=sys.executable, tool=str(path)))

    def save(self) -> Path:
        """Write state and settings, and return the path of the settings."""
        (self.root / "state.json").write_text(json.dumps(self.state), encoding="utf-8")
        (self.root / "metrics.json").write_text(json.dumps(self.settings), encoding="utf-8")
        return self.root / "metrics.json"

    def collect(self, program: ModuleType) -> Written:
        """Run the collector once in this process, and return the metrics that node exporter would read."""
        program.STUCK.clear()
        assert program.main(self.save()) == 0
        return self.written()

    def calls(self) -> list[list[str]]:
        """Return the calls of programs since the last query."""
        path = self.root / "calls"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        path.unlink(missing_ok=True)
        return [json.loads(line) for line in text.splitlines()]

    def texts(self) -> dict[str, str]:
        """Return the files that node exporter reads."""
        return {path.name: path.read_text(encoding="utf-8") for path in sorted((self.root / FOLDER).glob("*.prom"))}

    def written(self) -> Written:
        """Return all samples; fail if a metric is not in the table, or differs from it in type, help or labels."""
        found: Written = {}
        for text in self.texts().values():
            self.read(text, found)
        return found

    def read(self, text: str, found: Written) -> None:
        """Read one file as strictly as node exporter does."""
        assert text == "" or text.endswith("\n")
        known: dict[str, list[str]] = {}
        for line in text.splitlines():
            if line.startswith("# "):
                _, kind, name, rest = line.split(" ", 3)
                known.setdefault(name, []).append(rest)
                assert rest == {"HELP": BY_NAME[name].help, "TYPE": BY_NAME[name].kind}[kind]
                continue
            match = SAMPLE.fullmatch(line)
            assert match, line
            labels = re.findall(r'([a-z_]+)="((?:[^"\\\n]|\\.)*)"', match[2] or "")
            assert len(known[match[1]]) == 2
            assert [name for name, _ in labels] == list(BY_NAME[match[1]].labels), line
            key = (match[1], tuple((name, re.sub(r"\\(.)", r"\1", value)) for name, value in labels))
            assert key not in found, line
            found[key] = float(match[3])


def of(found: Written, name: str, **labels: str) -> dict[str, float] | float | None:
    """Return the samples of a metric: one number if it has no further label, otherwise numbers by label values.

    labels: values to select; the values of the other labels are the keys, joined by blanks.
    """
    some: dict[str, float] = {}
    for (metric, pairs), value in found.items():
        known = dict(pairs)
        if metric == f"gaudi_serve_{name}" and labels.items() <= known.items():
            some[" ".join(text for key, text in pairs if key not in labels)] = value
    return some.get("") if set(some) <= {""} else some


def container(name: str, started: str, digest: str) -> Mapping[str, Any]:
    """Return a running container of a model."""
    labels = {"gaudi-serve.model": name, "gaudi-serve.digest": digest}
    return {"id": f"{name}-{started}", "started": started, "labels": labels}
