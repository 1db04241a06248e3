"""The serving image's stand-in as a running server."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

SERVER = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
SMALL = {"num_attention_heads": 40, "num_key_value_heads": 8, "hidden_size": 5120, "num_hidden_layers": 4}
BUCKETS = {
    "VLLM_PROMPT_BS_BUCKET_MAX": "2",
    "VLLM_PROMPT_SEQ_BUCKET_MAX": "512",
    "VLLM_DECODE_BS_BUCKET_MAX": "2",
    "VLLM_DECODE_BLOCK_BUCKET_MAX": "256",
    "STANDIN_STEP_S": "0",
}


class Server:
    """A running stand-in; its log is read up to the line with its address."""

    def __init__(self, host: Any, weights: Path, *words: str, **env: str) -> None:
        argv = [*SERVER, "--model", str(weights), "--host", "127.0.0.1", "--port", "0", *words]
        everything = host.environment(**{**BUCKETS, **env})
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=everything)
        self.log = []
        self.url = ""
        for line in self.process.stdout or ():
            self.log.append(line)
            if found := re.search(r"Uvicorn running on (\S+)", line):
                self.url = found[1]
                break

    def ask(self, path: str, body: Any = None, key: str = "", timeout: float = 5) -> tuple[int, str]:
        """Send a request and return status and text."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=headers)  # noqa: S310 (http, from its log)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310 (as above)
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as problem:
            return problem.code, problem.read().decode()

    def stop(self) -> int:
        """Stop it as Docker does."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=10)


def multimodal(weights: Path, kind: str) -> Path:
    """Change the model to one of this kind."""
    config = json.loads((weights / "config.json").read_text(encoding="ascii"))
    (weights / "config.json").write_text(json.dumps({**config, "model_type": kind}), encoding="ascii")
    return weights
