"""A few requests to a server, and the checks of its answers."""

from __future__ import annotations

import http.client
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.hide import hidden
from ..core.run import run, write_json
from ..core.served import served_models, smallest_request
from .media import PICTURE_COLOUR, film, picture, sound
from .observe_services import STATE

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to reach such a server from its host
QUESTION = "List 3 countries and their capitals."
# Enough for a model that thinks first; most answers end much earlier.
TEXT_TOKENS, SHORT_TOKENS = 384, 32
QUESTION_TOKENS = 1024  # The most of a question, with the template and the system prompt that a server adds.
LONGEST, SHOWN = 2**16, 400  # characters of an error that are read, and that a message shows
CAPITALS = {
    **{"argentina": "buenos aires", "australia": "canberra", "austria": "vienna", "brazil": "brasília|brasilia"},
    **{"canada": "ottawa", "chile": "santiago", "china": "beijing", "egypt": "cairo", "france": "paris"},
    **{"germany": "berlin", "greece": "athens", "india": "new delhi", "indonesia": "jakarta", "italy": "rome"},
    **{"japan": "tokyo", "kenya": "nairobi", "mexico": "mexico city", "nigeria": "abuja", "norway": "oslo"},
    **{"peru": "lima", "poland": "warsaw", "portugal": "lisbon", "russia": "moscow", "south korea": "seoul"},
    **{"spain": "madrid", "sweden": "stockholm", "thailand": "bangkok", "turkey": "ankara", "ukraine": "kyiv|kiev"},
    **{"united kingdom": "london", "united states": "washington", "vietnam": "hanoi"},
}


class Unhealthy(Exception):
    """The error in an answer. refused: the server does not take such a request, which shows nothing of its engine."""

    def __init__(self, text: str, refused: bool = False) -> None:
        """Save whether the request was refused."""
        super().__init__(text)
        self.refused = refused


class Server:
    """One model's server, queried from its host, with one time limit for all requests together."""

    def __init__(self, model: Mapping[str, Any], timeout: float, api_key: str | None) -> None:
        """Save the address of the server, and compute the deadline."""
        self.model, self.name = model, str(model["served_model_name"])
        self.context = model.get("max_model_len")
        self.deadline = time.monotonic() + timeout
        self.headers = {"Content-Type": "application/json"}
        self.secrets = [api_key]
        if api_key:
            self.headers["Authorization"] = f"Bearer {api_key}"

    def lines(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Iterator[bytes]:
        """Yield the lines of an answer.

        Raises:
            Unhealthy: for a status other than 200, no connection, or an answer that takes too long.
        """
        address = EVERYWHERE.get(self.model["host"], self.model["host"])
        left = max(self.deadline - time.monotonic(), 0.1)
        connection = http.client.HTTPConnection(address, int(self.model["port"]), timeout=left)
        try:
            connection.request(method, path, json.dumps({"model": self.name, **body}) if body else None, self.headers)
            response = connection.getresponse()
            if response.status != 200:
                detail = self.excerpt(response.read(LONGEST).decode(errors="replace"))
                text = f"{method} {path} answered status {response.status}: {detail}"
                raise Unhealthy(text, refused=response.status // 100 == 4)
            for line in response:
                if time.monotonic() > self.deadline:
                    raise Unhealthy(f"{method} {path} took longer than its limit")
                yield line
        except (OSError, http.client.HTTPException) as problem:
            where = f"{method} {path} on port {self.model['port']}"
            raise Unhealthy(f"{where}: {self.excerpt(problem) or type(problem).__name__}") from problem
        finally:
            connection.close()

    def events(self, what: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the events of a streamed chat completion.

        Args:
            what: Names the question in a message, such as ``chat completion``.

        Raises:
            Unhealthy: as above, and if an event is not a JSON object.
        """
        for line in self.lines("POST", "/v1/chat/completions", body):
            if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                continue
            try:
                event = json.loads(line[len(b"data: ") :])
            except ValueError as problem:
                raise Unhealthy(f"the {what} sent a line that is not JSON: {self.excerpt(line)}") from problem
            if not isinstance(event, dict):
                raise Unhealthy(f"the {what} sent an event that is not an object: {self.excerpt(line)}")
            yield event

    def excerpt(self, answer: Any) -> str:
        """Return the beginning of what the server sent, for a message: without the key, which it can repeat."""
        return hidden(str(answer), self.secrets)[:SHOWN]

    def json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return a complete answer.

        Raises:
            Unhealthy: as above, and if it is not a JSON object.
        """
        text = b"".join(self.lines(method, path, body))
        try:
            found = json.loads(text)
            if not isinstance(found, dict):
                raise ValueError("no object")
            return found
        except ValueError as problem:
            raise Unhealthy(f"{path} is not vLLM's: {self.excerpt(text)}; is another program there?") from problem

    def chat(self, content: Any, max_tokens: int, what: str) -> dict[str, Any]:
        """Send one request and return ``text``, ``finish_reason``, ``first_token_s``, ``total_s`` (seconds)."""
        messages = [{"role": "user", "content": content}]
        return _streamed(self, {"messages": messages, **self.limit(max_tokens), "stream": True}, what)

    def limit(self, tokens: int) -> dict[str, int]:
        """Return the limit of an answer for a request.

        Without one, a server answers until its context is full. It refuses a limit beyond that, so a short context
        gets none.
        """
        fits = not isinstance(self.context, int) or tokens + QUESTION_TOKENS <= self.context
        return {"max_tokens": tokens} if fits else {}


def ask(model: Mapping[str, Any], kinds: Sequence[str], timeout: float, api_key: str | None = None) -> dict[str, Any]:
    """Send a model one request of each kind.

    Returns:
        ``kinds`` that passed; of the first chat ``text``, ``finish_reason``, ``first_token_s`` and ``total_s``
        (seconds).

    Raises:
        Unhealthy: if the server does not list the model, gives no good answer, or takes too long.
    """
    found: dict[str, Any] = {}
    several = len(model.get("served") or ()) > 1
    for one in served_models(model):
        server = Server(one, timeout, api_key)
        _require_listed(server)
        for kind in one["smoke"] if several else kinds:
            found = {**(KINDS[kind](server) or {}), **found}
        _require_adapters(one, timeout, api_key)
    return {**found, "kinds": list(kinds), **({"served": list(model["served"])} if several else {})}


def _require_adapters(model: Mapping[str, Any], timeout: float, api_key: str | None) -> None:
    """Fail if a LoRA adapter of a model does not answer the smallest request under its name."""
    for name in model.get("adapters", ()):
        adapter = {**model, "served_model_name": name}
        request = smallest_request(adapter)
        try:
            Server(adapter, timeout, api_key).json("POST", request["path"], request["body"])
        except Unhealthy as problem:
            raise Unhealthy(f"adapter {name}: {problem}") from problem


def health(model: Mapping[str, Any], timeout: float, api_key: str | None = None) -> str:
    """Return why a model does not answer ``/health``, list itself or make one token; empty on success."""
    try:
        for one in served_models(model):
            server = Server(one, timeout, api_key)
            for _ in server.lines("GET", "/health"):
                pass
            _require_listed(server)
            _require_work(one, timeout, api_key)
    except Unhealthy as problem:
        return str(problem)
    return ""


def _require_work(model: Mapping[str, Any], timeout: float, api_key: str | None) -> None:
    """Fail if a model does not answer the smallest request in time, and does no other work meanwhile.

    A server may list its models for hours after its engine has stopped. If its queue is long, its counters move.
    """
    request, before = smallest_request(model), _tokens(model, timeout, api_key)
    try:
        Server(model, timeout, api_key).json("POST", request["path"], request["body"])
    except Unhealthy as problem:
        after = _tokens(model, timeout, api_key)
        if not problem.refused and (None in (before, after) or before == after):
            raise Unhealthy(f"it does no work: {problem}") from problem


def _tokens(model: Mapping[str, Any], timeout: float, api_key: str | None) -> float | None:
    """Return how many tokens a server has read and made; None if unknown."""
    names = (b"vllm:generation_tokens_total", b"vllm:prompt_tokens_total")
    try:
        lines = [line for line in Server(model, timeout, api_key).lines("GET", "/metrics") if line.startswith(names)]
        return sum(float(line.rsplit(maxsplit=1)[1]) for line in lines) if lines else None
    except (Unhealthy, ValueError, LookupError):
        return None


def _require_listed(server: Server) -> None:
    listed = server.json("GET", "/v1/models")
    try:
        contexts = {entry["id"]: entry.get("max_model_len") for entry in listed["data"]}
    except (AttributeError, LookupError, TypeError) as problem:
        raise Unhealthy(f"/v1/models is not vLLM's: {server.excerpt(listed)}; is another program there?") from problem
    missing = [name for name in (server.name, *server.model.get("adapters", ())) if name not in contexts]
    if missing:
        raise Unhealthy(f"/v1/models lists {server.excerpt([*contexts])}, not {', '.join(missing)}")
    # Also known if vLLM chose its context itself.
    server.context = contexts[server.name] or server.context


def _streamed(server: Server, body: Mapping[str, Any], what: str) -> dict[str, Any]:
    begin, first, text, reason = time.monotonic(), None, "", None
    for event in server.events(what, body):
        for choice in event.get("choices") or []:
            delta = choice.get("delta") or {}
            # A reasoning model's first words come in a field of their own.
            piece = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or ""
            if piece and first is None:
                first = time.monotonic() - begin
            text += piece
            reason = choice.get("finish_reason") or reason
    if not text.strip() or first is None:
        raise Unhealthy(f"the {what} returned no text (finish_reason {server.excerpt(reason)})")
    if not reason:
        raise Unhealthy(f"the {what} ended without a finish_reason")
    total = time.monotonic() - begin
    return {"text": text[:2000], "finish_reason": reason, "first_token_s": round(first, 4), "total_s": round(total, 4)}


def _any(server: Server) -> dict[str, Any]:
    return server.chat(QUESTION, SHORT_TOKENS, "chat completion")


def _text(server: Server) -> dict[str, Any]:
    answer = server.chat(QUESTION, TEXT_TOKENS, "chat completion")
    if not right_capitals(answer["text"]):
        # A host without iommu=pt gives garbled answers although its health check passes.
        raise Unhealthy(
            f"asked {QUESTION!r}, the answer names no country with its capital: {server.excerpt(answer['text'])!r}"
        )
    return answer


def right_capitals(text: str) -> list[str]:
    """Return the countries that a text names together with their capital."""
    low = text.lower()
    return [
        country
        for country, names in CAPITALS.items()
        if country in low and any(name in low for name in names.split("|"))
    ]


def _image(server: Server) -> dict[str, Any]:
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture()}"}}
    question = {"type": "text", "text": "What colour is this picture? Answer with one word."}
    answer = server.chat([part, question], SHORT_TOKENS, "question about a picture")
    if PICTURE_COLOUR not in answer["text"].lower():
        raise Unhealthy(
            f"asked for the colour of a {PICTURE_COLOUR} picture, it answered {server.excerpt(answer['text'])!r}"
        )
    return answer


def _audio(server: Server) -> dict[str, Any]:
    part = {"type": "input_audio", "input_audio": {"data": sound(), "format": "wav"}}
    return server.chat([part, {"type": "text", "text": "What do you hear?"}], SHORT_TOKENS, "question about a sound")


def _video(server: Server) -> dict[str, Any]:
    part = {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{film()}"}}
    question = {"type": "text", "text": "What colour is this film? Answer with one word."}
    return server.chat([part, question], SHORT_TOKENS, "question about a film")


def _tools(server: Server) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    function = {"name": "get_weather", "description": "Weather of a city now", "parameters": parameters}
    body = {
        "messages": [{"role": "user", "content": "What is the weather in Paris now? Use the tool."}],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "auto",
        **server.limit(TEXT_TOKENS),
    }
    answer = server.json("POST", "/v1/chat/completions", body)
    try:
        call = answer["choices"][0]["message"]["tool_calls"][0]["function"]
        if call["name"] == "get_weather" and isinstance(json.loads(call["arguments"])["city"], str):
            return
        raise Unhealthy(f"the answer has another tool call: {server.excerpt(call)}")
    except (LookupError, TypeError, ValueError) as problem:
        raise Unhealthy(f"asked to use a tool, it made no call: {server.excerpt(answer.get('choices'))}") from problem


def _embedding(server: Server) -> None:
    answer = server.json("POST", "/v1/embeddings", {"input": "Paris is the capital of France."})
    try:
        vector = answer["data"][0]["embedding"]
        if vector and all(math.isfinite(number) for number in vector) and any(vector):
            return
    except (LookupError, TypeError):
        pass
    raise Unhealthy(f"the embedding is not a vector of numbers: {server.excerpt(answer)}")


def _rerank(server: Server) -> None:
    documents = ["Bananas are yellow.", "Paris is the capital of France."]
    body = {"query": "What is the capital of France?", "documents": documents}
    answer = server.json("POST", "/v1/rerank", body)
    try:
        best = max(answer["results"], key=lambda result: result["relevance_score"])
        if best["index"] == 1:
            return
    except (LookupError, TypeError, ValueError):
        pass
    raise Unhealthy(f"asked for the capital of France, it ranked bananas first: {server.excerpt(answer)}")


KINDS: dict[str, Callable[[Server], dict[str, Any] | None]] = {
    "text": _text,
    "any": _any,
    "image": _image,
    "audio": _audio,
    "video": _video,
    "tools": _tools,
    "embedding": _embedding,
    "rerank": _rerank,
}


def record(name: str, answer: Mapping[str, Any], state: Path = STATE) -> None:
    """Save a passed test with the start time of its container."""
    inspected = run(["docker", "inspect", "--format", "{{.State.StartedAt}}", f"vllm-{name}"])
    kept = {**answer, "container_started": inspected.out.strip()}
    write_json(state / name / "smoke.json", kept)


def journal(name: str, lines: int) -> str:
    """Return the last lines of a model's journal, for a failure message."""
    result = run(["journalctl", "-u", f"vllm-{name}", "-n", str(lines), "-o", "cat", "--no-pager"])
    return f"the last lines of journalctl -u vllm-{name}:\n{result.out.rstrip() or result.err.rstrip()}"
