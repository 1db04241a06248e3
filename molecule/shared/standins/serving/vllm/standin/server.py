"""The HTTP side: vLLM's routes, error texts and metrics."""

from __future__ import annotations

import argparse
import hmac
import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import vllm

from . import answers, log
from .abilities import Abilities, ranked, vector
from .metrics import Metrics
from .model import Model

FROZEN = Path("/tmp/frozen")


class Api:
    """What the routes know."""

    def __init__(self, model: Model, options: argparse.Namespace, fault: str) -> None:
        self.model, self.fault = model, fault
        self.key = options.api_key or os.environ.get("VLLM_API_KEY") or ""
        self.abilities = Abilities(options)
        self.metrics = Metrics(model.names[0], model.max_model_len, int(options.max_num_seqs or 256))
        # What the engine does of a request: its tokens, those of the answer, and how many requests run.
        self.step: Callable[[int, int, int], None] = lambda prompt, generated, running: None
        # Of a server of several models those behind the first, each with a name of its own.
        self.others: list[Api] = []
        self.asked = threading.Event()
        self.created = int(time.time())

    def run(self, prompt: int, generated: int, reason: str, emit: Callable[[int], None] | None = None) -> None:
        """Take a request through the engine.

        A token of its answer takes STANDIN_TOKEN_S, and STANDIN_CONTEXT_S more for each token of the prompt (seconds).
        Each token is given to ``emit`` as soon as it is made.
        """
        pace, context = (float(os.environ.get(f"STANDIN_{name}_S", "0")) for name in ("TOKEN", "CONTEXT"))
        running = self.metrics.begin()
        try:
            self.step(prompt, generated, running)
            for number in range(generated):
                time.sleep(pace + context * prompt)
                if emit:
                    emit(number)
        finally:
            self.metrics.end()
        self.metrics.count(prompt, generated, reason)

    def models(self) -> dict[str, Any]:
        """Return the answer of /v1/models."""
        return {"object": "list", "data": [self.card(one, name) for one in self.every() for name in one.model.names]}

    def every(self) -> list[Api]:
        """Return what is known of each model."""
        return [self, *self.others]

    def of(self, name: str) -> Api:
        """Return what is known of the model of a name.

        Raises:
            Refused: where there is none.
        """
        found = next((one for one in self.every() if name in one.model.names), None)
        if found is None:
            raise answers.Refused(404, "NotFoundError", f"The model `{name}` does not exist.")
        return found

    def card(self, one: Api, name: str) -> dict[str, Any]:
        """Return one model's entry; of several, all have the limit of the first."""
        entry = {"id": name, "object": "model", "created": self.created, "owned_by": "vllm"}
        return {**entry, "root": one.model.path, "parent": None, "max_model_len": self.model.max_model_len}


class Server(ThreadingHTTPServer):
    """Binds at once, as vLLM does, and listens only when it can answer."""

    api: Api
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, Handler, bind_and_activate=False)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(address)
        self.server_address = self.socket.getsockname()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that do not wait for the end of an answer, as a health check; nor does uvicorn."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Write the access log as the web server of vLLM does."""
        host, port = self.client_address[:2]
        log.uvicorn(f'{host}:{port} - "{self.requestline}" {args[1] if len(args) > 1 else ""}')

    def send(self, status: int, body: Any) -> None:
        """Send a whole answer."""
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if isinstance(body, bytes) else "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def refuse(self, status: int, kind: str, message: str) -> None:
        """Send vLLM's form of an error."""
        self.send(status, {"object": "error", "message": message, "type": kind, "param": None, "code": status})

    def allowed(self) -> bool:
        """Ask for the key where one is set; health and metrics stay open, as in vLLM."""
        api = self.server.api
        if not api.key or not self.path.startswith("/v1"):
            return True
        given = self.headers.get("Authorization", "")
        if hmac.compare_digest(given.encode(), f"Bearer {api.key}".encode()):
            return True
        self.send(401, {"error": "Unauthorized"})
        return False

    def hang_if_told(self) -> None:
        """With hang_after_ready nothing is answered any more once a model was asked something."""
        api = self.server.api
        if api.fault != "hang_after_ready":
            return
        if self.path.startswith("/v1"):
            api.asked.set()
        if api.asked.is_set():
            threading.Event().wait()

    def freeze_if_told(self) -> None:
        """While there is a file /tmp/frozen, the engine does nothing: /health and /metrics answer as before."""
        while FROZEN.exists():
            time.sleep(0.2)

    def do_GET(self) -> None:
        """Answer what can be looked at."""
        self.hang_if_told()
        if not self.allowed():
            return
        path = self.path.partition("?")[0]
        if path in ("/health", "/ping"):
            self.send(200, b"")
        elif path == "/version":
            self.send(200, {"version": vllm.__version__})
        elif path == "/metrics":
            self.send(200, self.server.api.metrics.text().encode())
        elif path == "/v1/models":
            self.send(200, self.server.api.models())
        else:
            self.send(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        """Answer a question."""
        self.hang_if_told()
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self.allowed():
            return
        path = self.path.partition("?")[0]
        jobs = {
            "/v1/chat/completions": lambda request: self.complete(request, True),
            "/v1/completions": lambda request: self.complete(request, False),
            "/v1/embeddings": self.embed,
            **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), self.rerank),
        }
        if path not in jobs:
            self.send(404, {"detail": "Not Found"})
            return
        self.freeze_if_told()
        try:
            request = json.loads(content)
            if not isinstance(request, dict):
                raise answers.Refused(400, "BadRequestError", "Input should be a valid dictionary")
            self.require_model(request)
            jobs[path](request)
        except ValueError as problem:
            self.refuse(400, "BadRequestError", f"JSON decode error: {problem}")
        except answers.Refused as refusal:
            self.refuse(refusal.status, refusal.kind, str(refusal))

    def require_model(self, request: dict[str, Any]) -> None:
        """Refuse a name that is not served."""
        api = self.server.api
        if api.others and "model" not in request:
            raise answers.Refused(400, "BadRequestError", "Tokenizer for model None not found.")
        api.of(request.setdefault("model", api.model.names[0]))

    def embed(self, request: dict[str, Any]) -> None:
        """Answer with a vector a text."""
        self.server.api.of(request["model"]).abilities.require("Embeddings")
        texts = request.get("input")
        texts = [texts] if isinstance(texts, str) else texts
        if not isinstance(texts, list):
            raise answers.Refused(400, "BadRequestError", "input: Field required")
        data = [{"index": index, "object": "embedding", "embedding": vector(text)} for index, text in enumerate(texts)]
        self.send(200, {"object": "list", "model": request["model"], "data": data})

    def rerank(self, request: dict[str, Any]) -> None:
        """Answer with the documents, best first."""
        self.server.api.of(request["model"]).abilities.require("Rerank")
        query, documents = request.get("query"), request.get("documents")
        if not isinstance(query, str) or not isinstance(documents, list):
            raise answers.Refused(400, "BadRequestError", "query, documents: Field required")
        self.send(200, {"model": request["model"], "results": ranked(query, documents)})

    def complete(self, request: dict[str, Any], chat: bool) -> None:
        """Answer whole or in pieces."""
        name = request["model"]
        api = self.server.api.of(name)
        api.abilities.require("Chat Completions" if chat else "Completions")
        prompt, parts = answers.prompt_of(request, chat)
        seen = api.abilities.seen(parts)
        asked = len(answers.words_of(prompt)) + (10 if chat else 0)
        limit = answers.limit_of(request, asked, api.model.max_model_len)
        call = api.abilities.tool_call(request) if chat else None
        words, reason = answers.reply(prompt, seen, limit, api.fault)
        usage = {
            "prompt_tokens": asked,
            "total_tokens": asked + len(words),
            "completion_tokens": len(words),
            "prompt_tokens_details": None,
        }
        base = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": name,
        }
        if request.get("stream"):
            options = request.get("stream_options") or {}
            shown = usage if options.get("include_usage") else None
            self.stream(base, words, chat, shown, lambda emit: api.run(asked, len(words), reason, emit), reason)
            return
        api.run(asked, len(words), reason)
        text = "".join(words).lstrip()
        message: dict[str, Any] = {"role": "assistant", "reasoning_content": None, "content": text, "tool_calls": []}
        if call:
            calls = [{"id": f"chatcmpl-tool-{uuid.uuid4().hex}", "type": "function", "function": call}]
            message, reason = {**message, "content": None, "tool_calls": calls}, "tool_calls"
        answer = {"message": message} if chat else {"text": text}
        choice = {"index": 0, **answer, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        kind = "chat.completion" if chat else "text_completion"
        self.send(200, {**base, "object": kind, "choices": [choice], "usage": usage})

    def stream(
        self,
        base: dict[str, Any],
        words: list[str],
        chat: bool,
        usage: dict[str, Any] | None,
        run: Callable[[Callable[[int], None]], None],
        reason: str,
    ) -> None:
        """Send an answer as server-sent events, each as soon as ``run`` has made its token."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        kind = {"object": "chat.completion.chunk" if chat else "text_completion"}

        def send(piece: dict[str, Any]) -> None:
            self.event({**base, **kind, "choices": [{"index": 0, **piece, "logprobs": None, "finish_reason": None}]})

        def emit(number: int) -> None:
            text = words[number].lstrip() if number == 0 else words[number]
            send({"delta": {"content": text}} if chat else {"text": text})

        if chat:
            send({"delta": {"role": "assistant", "content": ""}})
        run(emit)
        last: dict[str, Any] = {"delta": {"content": ""}} if chat else {"text": ""}
        end = {"index": 0, **last, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        self.event({**base, **kind, "choices": [end]})
        if usage:
            self.event({**base, **kind, "choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, body: dict[str, Any]) -> None:
        """Send one event."""
        self.wfile.write(b"data: " + json.dumps(body).encode() + b"\n\n")
        self.wfile.flush()
