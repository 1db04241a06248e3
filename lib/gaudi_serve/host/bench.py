"""Benchmarks on a model's host: the models to measure, and one run of the tool in a container of the model's image.

The container has no card, no capability and a read-only system; it ends by itself after its time limit.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.atomic_write import write_whole
from ..core.errors import InputError
from ..core.hide import hidden, without_credentials
from ..core.run import read_text, run
from ..core.served import served_models
from . import observe_services
from .observe_services import CONFIG
from .observe_traffic import Unread, journal_count, metrics, of_clients, samples
from .rollout import busy, live_models
from .secret import own_api_key
from .smoke import EVERYWHERE, Server, Unhealthy

CPUS, MEMORY = 4, "16g"
INSIDE = "/out"
GRACE_S = 30  # in addition to the tool's own limit: to start and remove the container
SHOWN = 40  # lines of a tool's output in an error message
ROOTS = "/etc/ssl/certs/ca-certificates.crt"
# Variables that keep the tool from network access, and from loading code that needs a card.
OFFLINE = {
    **dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "VLLM_NO_USAGE_STATS"), "1"),
    **{"DO_NOT_TRACK": "1", "HOME": "/tmp", "VLLM_PLUGINS": ""},  # noqa: S108 - a tmpfs of the container
}
# Runs in the image: reads the tool's source without importing it.
PROBE = r"""
import glob, importlib.metadata, importlib.util, json, os, re
spec = importlib.util.find_spec("vllm")
root = os.path.dirname(spec.origin) if spec and spec.origin else ""
script = os.path.join(os.path.dirname(root), "benchmarks", "benchmark_serving.py")
found = {"version": "", "command": [], "options": [], "datasets": [], "range_default": "", "lacks": []}
try:
    found["version"] = importlib.metadata.version("vllm")
except importlib.metadata.PackageNotFoundError:
    pass
files = []
if root and os.path.exists(os.path.join(root, "benchmarks", "serve.py")):
    found["command"] = ["vllm", "bench", "serve"]
    files = glob.glob(os.path.join(root, "benchmarks", "*.py"))
    files += glob.glob(os.path.join(root, "benchmarks", "datasets", "*.py"))
elif root and os.path.exists(script):
    found["command"] = ["python3", script]
    files = [script, os.path.join(os.path.dirname(script), "benchmark_dataset.py")]
text = "\n".join(open(one, encoding="utf-8").read() for one in files if os.path.exists(one))
found["options"] = sorted(set(re.findall(r"[\"'](--[a-z][a-z0-9-]+)[\"']", text)))
found["datasets"] = sorted(set(re.findall(r"[\"'](random|sonnet|sharegpt|custom|timed_trace)[\"']", text)))
default = re.search(r"--random-range-ratio[\"'].{0,300}?default=([\w.]+)", text, re.DOTALL)
found["range_default"] = default[1] if default else ""
found["lacks"] = [one for one in ("aiohttp", "numpy", "transformers", "tqdm") if not importlib.util.find_spec(one)]
print(json.dumps(found))
"""


class NotHere(InputError):
    """A host without a model to measure; other hosts may have it."""


def model_of(name: str, services: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return one model that runs here, as ``live_models`` returns it, with its launch.

    Raises:
        NotHere: if it does not run here, or if this host is only a worker.
    """
    services = services if services is not None else observe_services.observe()
    found = next((one for one in live_models(services) if one["name"] == name), None)
    if found is None or not found["active"]:
        raise NotHere(f"model {name}: does not serve here; start it first")
    if not found["answers"]:
        raise NotHere(f"model {name}: has no endpoint on this host, which is one of its workers")
    unit = services["units"][name]
    return {**found, "unit": unit, "mounts": _mounts(name)}


def _mounts(name: str) -> list[dict[str, Any]]:
    try:
        launch = json.loads(read_text(CONFIG / f"{name}.json") or "{}")
    except ValueError:
        return []
    return [one for one in launch.get("mounts") or [] if one.get("read_only")]


def about(model: Mapping[str, Any], one: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of a served model that belong into a saved result.

    Args:
        model: as ``model_of`` returns it, or ``live_models`` with the state of its unit as ``unit``.
        one: the selected model among those that share its server.
    """
    unit = model["unit"]
    command = [str(word) for word in (unit.get("container") or {}).get("command") or ()]
    return {
        "model": model["name"],
        "served": str(one["served_model_name"]),
        "launch": unit.get("digest") or "",
        "launch_profile": (unit.get("launch") or {}).get("launch_profile") or "",
        "image": model["image"],
        "image_id": model["image_id"] or "",
        "module_ids": unit.get("module_ids") or [],
        # Credentials in addresses must not reach a file that is shared.
        "command": without_credentials(command),
        "env": sorted(unit.get("env") or {}),
    }


def probe(name: str, timeout: float) -> dict[str, Any]:
    """Return the possible measurements of a model.

    Returns:
        ``models``: one entry for each that its server serves, as ``about``, with ``max_model_len`` (None if unknown),
        ``tokenizer`` (its path in a container) and ``kinds`` of its smoke test. ``tool``: the tool of its image.
        ``url``: of its server. ``max_num_seqs``: None if the command lacks it. ``running``, ``waiting``,
        ``mean_token_s`` now; ``others``: other models of the host with requests, and their number. ``host``: properties
        of it that may affect a result.

    Raises:
        NotHere: if the model does not run here, or if this host is only a worker.
        InputError: if it does not answer.
    """
    services = observe_services.observe()
    model = model_of(name, services)
    here = live_models(services)
    address = EVERYWHERE.get(model["host"], model["host"])
    command = _command(model)
    host = f"[{address}]" if ":" in address else address
    seqs = option(command, "--max-num-seqs") or ""
    return {
        "models": _models(model, command, timeout),
        "tool": tool(str(model["image_id"] or model["image"])),
        "url": f"http://{host}:{model['port']}",
        "max_num_seqs": int(seqs) if seqs.isdigit() else None,
        "tokenizer_mode": option(command, "--tokenizer-mode") or "",
        "trust_remote_code": "--trust-remote-code" in command,
        **counts(model),
        "others": busy([one for one in here if one["active"] and one["name"] != name]),
        "host": host_state(),
    }


def _command(model: Mapping[str, Any]) -> list[str]:
    return [str(word) for word in (model["unit"].get("container") or {}).get("command") or ()]


def _models(model: Mapping[str, Any], command: Sequence[str], timeout: float) -> list[dict[str, Any]]:
    """Return the models of a server, each with the properties that a load needs."""
    lengths, paths = _lengths(model, timeout), [str(one["target"]) for one in model["mounts"]]
    return [
        {
            **about(model, one),
            "max_model_len": lengths.get(str(one["served_model_name"])),
            "tokenizer": option(command, "--tokenizer") or (paths[number] if number < len(paths) else ""),
            "kinds": list(one["smoke"]),
        }
        for number, one in enumerate(served_models(model))
    ]


def option(command: Sequence[str], name: str) -> str | None:
    """Return the value of an option of a server's command."""
    for place, word in enumerate(command):
        if word == name:
            return command[place + 1] if place + 1 < len(command) else None
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


def _lengths(model: Mapping[str, Any], timeout: float) -> dict[str, int]:
    """Return the context length of each model of a server, in tokens."""
    try:
        listed = Server(model, timeout, own_api_key(CONFIG / f"{model['name']}.secret")).json("GET", "/v1/models")
        return {str(one["id"]): int(one["max_model_len"]) for one in listed["data"] if one.get("max_model_len")}
    except (Unhealthy, LookupError, TypeError, ValueError) as problem:
        raise InputError(f"model {model['name']}: does not answer: {problem}") from problem


def counts(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the present and the past requests of a server; None for values that the server does not report."""
    try:
        found = samples(metrics(str(model["host"]), int(model["port"]), 10.0))
    except Unread as problem:
        return {"running": None, "waiting": None, "requests": None, "mean_token_s": 0.0, "unread": str(problem)}
    totals = {name: sum(value for _, value in found.get(name, [])) for name in COUNTED}
    tokens, seconds = totals["vllm:inter_token_latency_seconds_count"], totals["vllm:inter_token_latency_seconds_sum"]
    return {
        "running": totals["vllm:num_requests_running"],
        "waiting": totals["vllm:num_requests_waiting"],
        "requests": of_clients(found)["requests"],
        "mean_token_s": seconds / tokens if tokens else 0.0,
        "unread": "",
    }


COUNTED = (
    *("vllm:num_requests_running", "vllm:num_requests_waiting"),
    *("vllm:inter_token_latency_seconds_count", "vllm:inter_token_latency_seconds_sum"),
)


def host_state() -> dict[str, Any]:
    """Return properties of a host that may explain a result: kernel, governor, huge pages, load."""
    governor = (read_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or "").strip()
    pages = (read_text("/proc/sys/vm/nr_hugepages") or "").strip()
    load = os.getloadavg()[0]
    return {"kernel": os.uname().release, "governor": governor, "hugepages": pages, "load": round(load, 2)}


def tool(image: str) -> dict[str, Any]:
    """Return the benchmark tool of an image; ``problem`` is the error if it cannot be read."""
    limits = ["--network", "none", "--cap-drop", "ALL", "--read-only", "--memory", "1g", "--pids-limit", "64"]
    done = run(["docker", "run", "--rm", *limits, "--entrypoint", "python3", image, "-c", PROBE], timeout=120)
    try:
        found = json.loads(done.out.splitlines()[-1])
    except (ValueError, LookupError):
        words = (done.err or done.out).strip().splitlines()
        return {"problem": words[-1][:200] if words else f"it ended with status {done.status}"}
    return dict(found)


def measure(given: Mapping[str, Any], key: str | None) -> dict[str, Any]:
    """Send one load, and return the tool's measurement.

    Args:
        given: ``name`` of the model; ``argv`` of the tool; ``files`` by name, which the tool gets in /out; ``timeout``
            in seconds.
        key: API key of the endpoint; None if it requires none.

    Returns:
        ``result``: the tool's own text, unchanged. ``error``: its last error message. ``begin``, ``seconds``.
        ``compiled``: shapes that its server compiled meanwhile, None if its log cannot be read. ``of_others``: requests
        of other clients that it served, None if unknown. ``before``, ``after``: its present requests, and the host's
        state.

    Raises:
        InputError: if the tool returns no result, with its last lines.
    """
    model = model_of(str(given["name"]))
    before, begin = counts(model), time.time()
    state = host_state()
    result, error = _in_container(model, given, key)
    after = counts(model)
    compiled, unread = journal_count(str(model["name"]), begin, 60.0)
    known = None not in (before["requests"], after["requests"])
    own = int(json.loads(result).get("num_prompts") or 0)
    return {
        "result": result,
        "error": error,
        "begin": begin,
        "seconds": round(time.time() - begin, 1),
        "compiled": compiled,
        "journal_problem": unread,
        # The tool of old releases sends one request before it begins.
        "of_others": max(0, int(after["requests"] - before["requests"]) - own - 1) if known else None,
        "before": {**before, "host": state},
        "after": {**after, "host": host_state()},
    }


def _in_container(model: Mapping[str, Any], given: Mapping[str, Any], key: str | None) -> tuple[str, str]:
    limit = int(given["timeout"])
    name = f"vllm-benchmark-{model['name']}"
    with tempfile.TemporaryDirectory(prefix="gaudi-serve-benchmark-") as folder:
        out = Path(folder, "out")
        out.mkdir()
        # The image may run its programs as any user.
        out.chmod(0o777)
        for file, text in (given.get("files") or {}).items():
            write_whole(out / file, text, 0o644)
        write_whole(Path(folder, "env"), "".join(f"{one}\n" for one in _environment(given["argv"], key)), 0o600)
        argv = _docker(name, model, Path(folder), str(model["image_id"] or model["image"]), limit)
        try:
            done = run([*argv, *map(str, given["argv"])], timeout=limit + GRACE_S)
            text = read_text(out / "result.json")
        finally:
            _remove(name, folder)
    said = hidden(f"{done.out}\n{done.err}", [key])
    found = re.findall(r"^\S*(?:Error|Exception): .*$", said, re.MULTILINE)
    return _result(model, done.status, said, text, limit), found[-1][:300] if found else ""


def _remove(name: str, folder: str) -> None:
    """Remove the container of this run if it still exists; containers of other runs have other labels."""
    listed = run(["docker", "ps", "-aq", "--filter", f"name=^{name}$", "--filter", f"label=gaudi-serve.run={folder}"])
    if listed.out.split():
        run(["docker", "rm", "--force", *listed.out.split()], timeout=60)


def _docker(name: str, model: Mapping[str, Any], folder: Path, image: str, limit: int) -> list[str]:
    """Return the docker command in front of the tool's own command."""
    argv = ["docker", "run", "--rm", "--name", name, "--label", f"gaudi-serve.run={folder}", "--network", "host"]
    argv += ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--pids-limit", "1024"]
    argv += ["--cpus", str(min(CPUS, os.cpu_count() or 1)), "--memory", MEMORY, "--memory-swap", MEMORY]
    argv += ["--tmpfs", "/tmp:exec,mode=1777", "--env-file", str(folder / "env")]  # noqa: S108 - of the container
    for mount in model["mounts"]:
        argv += ["--mount", f"type=bind,source={mount['source']},target={mount['target']},readonly"]
    if Path(ROOTS).exists():
        argv += ["--mount", f"type=bind,source={Path(ROOTS).resolve()},target={ROOTS},readonly"]
    argv += ["--volume", f"{folder / 'out'}:{INSIDE}"]
    return [*argv, "--entrypoint", "timeout", image, "-k", "10", str(limit)]


def _environment(argv: Sequence[Any], key: str | None) -> list[str]:
    found = [f"{name}={value}" for name, value in OFFLINE.items()]
    if Path(ROOTS).exists() and any(str(word).startswith("https://") for word in argv):
        found.append(f"SSL_CERT_FILE={ROOTS}")
    return [*found, f"OPENAI_API_KEY={key}"] if key else found


def _result(model: Mapping[str, Any], status: int, said: str, text: str | None, limit: int) -> str:
    """Return the JSON text that the tool has written."""
    where = f"model {model['name']}"
    if status == 124:
        raise InputError(f"{where}: the benchmark has not ended within benchmark_timeout ({limit} s)")
    if "is already in use by container" in said:
        raise InputError(f"{where}: another benchmark of it is under way on this host")
    try:
        if isinstance(json.loads(text or ""), dict):
            return str(text)
        raise ValueError("no object")
    except ValueError:
        lines = [line for line in said.splitlines() if line.strip()][-SHOWN:]
        words = "\n".join(lines)
        raise InputError(
            f"{where}: the benchmark tool gave no result (status {status}); it ended with:\n{words}"
        ) from None
