"""Clients of a gateway: single requests, and a load of many that looks at every answer."""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
import threading
import time
from types import TracebackType
from typing import Any, NamedTuple, Self

CHAT = "/v1/chat/completions"
KEY = "canary-key-of-alice-5f2a"
MODELS = ("Qwen/QwQ-32B", "small")
# A long prompt for a short answer, its first words: so many requests at a time, each of them seconds under way, take a
# fraction of what as many quick ones would of the two processors that clients and hosts share.
LONG = " ".join(["one two three four five six seven eight nine ten", *["and so on"] * 30])
WORDS = 12  # the two of the reply's beginning, and the first ten
# Nobody has signed the test's certificate.
CONTEXT = ssl.create_default_context()
CONTEXT.check_hostname, CONTEXT.verify_mode = False, ssl.CERT_NONE


def inside(name: str, command: str) -> str:
    """Return what a command prints on a host."""
    argv = ["docker", "exec", name, "sh", "-c", command]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()


class Answer(NamedTuple):
    """What a request gave."""

    status: int
    text: str
    headers: dict[str, str]

    @property
    def code(self) -> str:
        """Return the code of an error as OpenAI's clients read it."""
        error: dict[str, Any] = json.loads(self.text)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return str(error["code"])


def ask(address: str, path: str, body: Any = None, key: str | None = KEY) -> Answer:
    """Ask the gateway at an address."""
    connection = http.client.HTTPSConnection(address, 443, timeout=120, context=CONTEXT)
    try:
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        connection.request("POST" if body is not None else "GET", path, body and json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        return Answer(answer.status, text, {name.lower(): value for name, value in answer.getheaders()})
    finally:
        connection.close()


def chat(
    model: str, stream: bool = False, text: str = "List 3 countries and their capitals.", most: int = 40
) -> dict[str, Any]:
    """Return the body of a question."""
    return {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": most, "stream": stream}


class Load:
    """So many requests at a time, half of them streams, of both models, as long as the block lasts."""

    def __init__(self, address: str, clients: int = 24) -> None:
        self.address, self.stop = address, threading.Event()
        self.failed: list[str] = []
        self.done = 0
        self.threads = [threading.Thread(target=self.client, args=(number,)) for number in range(clients)]

    def client(self, number: int) -> None:
        """Ask again and again; an answer is good when it is right and whole."""
        model, stream = MODELS[number % 2], number % 4 < 2
        while not self.stop.is_set():
            begin = time.strftime("%T")
            try:
                answer = ask(self.address, CHAT, chat(model, stream, LONG, WORDS))
                whole = not stream or answer.text.endswith("data: [DONE]\n\n")
                if answer.status == 200 and whole and " ten" in answer.text:
                    self.done += 1
                else:
                    self.failed.append(f"{begin} {model}: {answer.status} {answer.text[-200:]}")
            except (OSError, http.client.HTTPException) as problem:
                self.failed.append(f"{begin} {model}: {problem!r}")
            time.sleep(0.1)

    def __enter__(self) -> Self:
        """Begin."""
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, where: TracebackType | None) -> None:
        """End, and wait for the last answers."""
        self.stop.set()
        for thread in self.threads:
            thread.join(150)
