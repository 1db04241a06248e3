"""A host in a rollout: waiting until it has no requests, its speed, and the saved models for a rollback."""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..core.atomic_write import sync_folder, write_whole
from ..core.errors import InputError
from ..core.paths import vllm_unit_paths
from ..core.run import read_text, run
from ..core.served import served_names
from ..model.distributed import answers
from . import observe_services
from .observe_services import CONFIG, STATE, UNITS
from .observe_traffic import Unread, metrics, samples
from .smoke import KINDS, QUESTION, Server, Unhealthy

BEFORE = STATE / "rollout"
FILES = ("env", "json", "buckets", "ray", "token", "secret")
# Requests of a benchmark: how many at a time, in how many rounds; and the tokens of each answer.
AT_A_TIME, ROUNDS, TOKENS = 4, 3, 48
CHAT = ("text", "any", "image", "audio", "video", "tools")


def live_models(services: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the present models of a host, as smoke tests and waiting take them, with the data for a restore."""
    found = services if services is not None else observe_services.observe()
    models = []
    for name, unit in found["units"].items():
        launch = _json(CONFIG / f"{name}.json")
        container = unit["container"] or {}
        if not launch:
            continue
        smoke, names = unit["smoke"] or {}, served_names(name, launch.get("command") or ())
        models.append(
            {
                "name": name,
                "host": launch.get("host", "127.0.0.1"),
                "port": launch["port"],
                "served_model_name": names[0],
                "smoke": smoke.get("kinds") or ["any"],
                **({"served": smoke["served"]} if smoke.get("served") else {}),
                "answers": answers(launch),
                "start_timeout_s": launch.get("start_timeout_s", 7200),
                "active": unit["active"],
                "enabled": unit["enabled"],
                "container": container.get("id"),
                "image": launch["image"],
                "image_id": container.get("image"),
            }
        )
    return models


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_text(path) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def busy(models: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return ``{model: its requests}`` of the servers with running or waiting requests, or with unknown counts.

    A server on whose port no program listens has no requests.
    """
    found = {}
    for model in models:
        if not model.get("answers", True):
            continue
        try:
            text = samples(metrics(str(model["host"]), int(model["port"]), 10.0))
        except Unread as problem:
            if not isinstance(problem.__cause__, ConnectionRefusedError):
                found[str(model["name"])] = f"unknown ones ({problem}; playbooks/restart.yml ends them)"
            continue
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        count = int(sum(value for name in names for _, value in text.get(name, [])))
        if count:
            found[str(model["name"])] = str(count)
    return found


def wait_idle(models: Sequence[Mapping[str, Any]], seconds: float, pause: float = 1.0) -> dict[str, str]:
    """Wait until two checks in a row find no request on any server: one may be on its way from a gateway.

    Returns:
        The models that still have requests after the time limit, with their number, or why it is unknown.
    """
    end, quiet = time.monotonic() + seconds, 0
    while True:
        found = busy(models)
        quiet = 0 if found else quiet + 1
        if quiet == 2 or (found and time.monotonic() > end):
            return found
        time.sleep(pause)


def benchmark(model: Mapping[str, Any], timeout: float, key: str | None) -> dict[str, float]:
    """Return the speed of a server: ``first_token_s`` (median, seconds) and ``tokens_s`` (of all requests together).

    For a model that generates no text, an answer counts as a token.

    Raises:
        Unhealthy: if it does not answer.
    """

    def one(_: int) -> tuple[float, float]:
        server = Server(model, timeout, key)
        return _chat(server) if kind in CHAT else _call(server, kind)

    kind = str(model["smoke"][0])
    one(0)  # the first request after a start is slower and does not count
    begin = time.monotonic()
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        answers = list(pool.map(one, range(AT_A_TIME * ROUNDS)))
    seconds = max(time.monotonic() - begin, 1e-6)
    first = statistics.median(first for first, _ in answers)
    return {"first_token_s": round(first, 4), "tokens_s": round(sum(tokens for _, tokens in answers) / seconds, 3)}


def _chat(server: Server) -> tuple[float, float]:
    body = {
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    begin, first, tokens = time.monotonic(), 0.0, 0
    for event in server.events("benchmark", body):
        deltas = [choice.get("delta") or {} for choice in event.get("choices") or []]
        if not first and any(
            delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") for delta in deltas
        ):
            first = time.monotonic() - begin
        tokens = int((event.get("usage") or {}).get("completion_tokens") or tokens)
    if not first or not tokens:
        raise Unhealthy("an answer of the benchmark has no text")
    return first, float(tokens)


def _call(server: Server, kind: str) -> tuple[float, float]:
    begin = time.monotonic()
    KINDS[kind](server)
    return time.monotonic() - begin, 1.0


def kept() -> dict[str, Any]:
    """Return the state of a host that was saved before its change: ``{models, measured}``; empty if there is none."""
    return _json(BEFORE / "record.json")


def keep(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Save the models of this host, atomically; an earlier saved state stays, since it was the last verified one.

    Args:
        measured: the results of benchmark, by model.
    """
    if found := kept():
        return found
    beside = BEFORE.with_name("rollout.new")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(mode=0o700, parents=True)
    models = live_models()
    for model in models:
        for path in _files(model["name"]):
            if path.is_file():
                text = path.read_text(encoding="utf-8")
                write_whole(beside / path.name, text, path.stat().st_mode & 0o7777)
    record = {"models": models, "measured": dict(measured)}
    write_whole(beside / "record.json", json.dumps(record, indent=1, sort_keys=True) + "\n", 0o600)
    beside.rename(BEFORE)
    sync_folder(STATE)
    return record


def _files(name: str) -> list[Path]:
    return [UNITS / f"vllm-{name}.service", *[CONFIG / f"{name}.{kind}" for kind in FILES]]


def restore() -> list[dict[str, Any]]:
    """Restore the saved models; return those that must be waited for.

    Models that still run unchanged are not touched.

    Raises:
        InputError: if an image does not get its name back, for example because the engine does not answer.
    """
    record = kept()
    if not record:
        return []
    # This waits for the engine if the host has just started.
    run(["systemctl", "start", "docker.service"], timeout=180)
    services = observe_services.observe()
    known = {model["name"] for model in record["models"]}
    for name in services["units"].keys() - known:
        run(["systemctl", "disable", "--now", f"vllm-{name}.service"], timeout=180)
        run(["docker", "rm", "--force", f"vllm-{name}"], timeout=120)
        for path in vllm_unit_paths([name]):
            Path(path).unlink(missing_ok=True)
    changed = {model["name"] for model in record["models"] if _put_back(model["name"])}
    run(["systemctl", "daemon-reload"])
    for model in record["models"]:
        unit = services["units"].get(model["name"]) or {}
        name, container = f"vllm-{model['name']}.service", unit.get("container") or {}
        if not model["active"]:
            run(["systemctl", "stop", name], timeout=180)
            continue
        _retag(model)
        same = container.get("id") == model["container"] and container.get("running") and unit.get("active")
        if same and model["name"] not in changed:
            continue
        run(["systemctl", "reset-failed", name])
        run(["systemctl", "enable", name])
        run(["systemctl", "restart", "--no-block", name])
    return [model for model in record["models"] if model["active"]]


def _put_back(name: str) -> bool:
    """Restore the saved files of a model; return whether one differed."""
    differed = False
    for path in _files(name):
        old, now = BEFORE / path.name, read_text(path)
        text = read_text(old)
        if text == now:
            continue
        differed = True
        if text is None:
            path.unlink(missing_ok=True)
        else:
            write_whole(path, text, old.stat().st_mode & 0o7777)
    return differed


def _retag(model: Mapping[str, Any]) -> None:
    """Give the image its previous name if a newer image has it now."""
    if model["image_id"] and "@" not in model["image"]:
        now = run(["docker", "image", "inspect", "--format", "{{.Id}}", model["image"]]).out.strip()
        if now != model["image_id"]:
            tagged = run(["docker", "tag", model["image_id"], model["image"]])
            if tagged.status != 0:
                raise InputError(
                    f"image {model['image']}: its previous name could not be restored: {tagged.err.strip()}"
                )


def forget() -> bool:
    """Delete the saved state, since the present one passed its checks; return whether there was any."""
    there = BEFORE.exists()
    # Without its record, the saved state is no longer used for a rollback.
    (BEFORE / "record.json").unlink(missing_ok=True)
    shutil.rmtree(BEFORE, ignore_errors=True)
    return there
