"""One question to a server, and what a good answer is."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .observe_services import STATE
from .run import run

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to reach such a server from its host


class Unhealthy(Exception):
    """What was wrong with an answer."""


def ask(
    model: Mapping[str, Any], prompt: str, max_tokens: int, timeout: float, api_key: str | None = None
) -> dict[str, Any]:
    """Ask a model and return ``text``, ``finish_reason``, ``first_token_s`` and ``total_s`` (seconds).

    Raises:
        Unhealthy: when the server does not list the model, answers no text, or takes too long.
    """
    served, deadline = str(model["served_model_name"]), time.monotonic() + timeout
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    _require_listed(served, b"".join(_request(model, "GET", "/v1/models", None, headers, deadline)))
    body = {
        "model": served,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "stream": True,
    }
    return _streamed(_request(model, "POST", "/v1/chat/completions", json.dumps(body), headers, deadline))


def _require_listed(served: str, listed: bytes) -> None:
    try:
        names = [entry["id"] for entry in json.loads(listed)["data"]]
    except (ValueError, LookupError, TypeError) as problem:
        raise Unhealthy(f"/v1/models is not vLLM's: {listed[:200]!r}; is another program there?") from problem
    if served not in names:
        raise Unhealthy(f"/v1/models lists {names}, not {served}")


def _streamed(lines: Iterator[bytes]) -> dict[str, Any]:
    begin, first, text, reason = time.monotonic(), None, "", None
    for line in lines:
        if not line.startswith(b"data: {"):
            continue
        try:
            choices = json.loads(line[len(b"data: ") :]).get("choices", [])
        except ValueError as problem:
            raise Unhealthy(f"the chat completion sent a line that is no JSON: {line[:200]!r}") from problem
        for choice in choices:
            delta = choice.get("delta", {})
            # A reasoning model's first words come in a field of their own.
            piece = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or ""
            if piece and first is None:
                first = time.monotonic() - begin
            text += piece
            reason = choice.get("finish_reason") or reason
    if not text.strip() or first is None:
        raise Unhealthy(f"the chat completion brought no text (finish_reason {reason})")
    if not reason:
        raise Unhealthy("the chat completion ended without a finish_reason")
    total = time.monotonic() - begin
    return {"text": text[:400], "finish_reason": reason, "first_token_s": round(first, 4), "total_s": round(total, 4)}


def _request(
    model: Mapping[str, Any],
    method: str,
    path: str,
    body: str | None,
    headers: Mapping[str, str],
    deadline: float,
) -> Iterator[bytes]:
    host = EVERYWHERE.get(model["host"], model["host"])
    left = deadline - time.monotonic()
    connection = http.client.HTTPConnection(host, int(model["port"]), timeout=max(left, 0.1))
    try:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        if response.status != 200:
            detail = response.read(400).decode(errors="replace")
            raise Unhealthy(f"{method} {path} answered status {response.status}: {detail}")
        for line in response:
            if time.monotonic() > deadline:
                raise Unhealthy(f"{method} {path} took longer than its limit")
            yield line
    except (OSError, http.client.HTTPException) as problem:
        raise Unhealthy(f"{method} {path} on port {model['port']}: {problem or type(problem).__name__}") from problem
    finally:
        connection.close()


def record(name: str, answer: Mapping[str, Any], state: Path = STATE) -> None:
    """Keep a passed test beside the start of the container that passed it."""
    inspected = run(["docker", "inspect", "--format", "{{.State.StartedAt}}", f"vllm-{name}"])
    kept = {**answer, "container_started": inspected.out.strip()}
    folder = state / name
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / "smoke.json.new"
    beside.write_text(json.dumps(kept), encoding="utf-8")
    beside.chmod(0o640)
    beside.replace(folder / "smoke.json")


def journal(name: str, lines: int) -> str:
    """Return the last lines of a model's journal, as a failure shows them."""
    result = run(["journalctl", "-u", f"vllm-{name}", "-n", str(lines), "-o", "cat", "--no-pager"])
    return f"the last lines of journalctl -u vllm-{name}:\n{result.out.rstrip() or result.err.rstrip()}"
