"""A server's life: check, bind, take cards, warm up, answer until told to stop."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from types import FrameType

import vllm

from . import cards, log, model, warmup
from .server import Api, Server

STOP = threading.Event()
READY = threading.Event()


def stop(signum: int, frame: FrameType | None) -> None:
    """End cleanly, also in the middle of a start."""
    STOP.set()
    if not READY.is_set():
        os._exit(0)


def serve(options: argparse.Namespace) -> int:
    """Run the server; what it refuses ends it with vLLM's exception and status 1."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    fault = os.environ.get("STANDIN_FAULT", "")
    log.info("api_server.py:1042", f"vLLM API server version {vllm.__version__}")
    log.info("api_server.py:1043", f"args: {options}")
    server = Server((options.host or "0.0.0.0", options.port))
    if fault == "crash_at_start":
        raise RuntimeError("Engine core initialization failed. See root cause above.")
    known = model.load(options)
    taken = cards.acquire(options.tensor_parallel_size)
    log.info("hpu_worker.py:73", f"acquired {len(taken)} HPU device(s), indices {taken}")
    log.info("loader.py:447", f"Loading model weights took {known.weights_gib / options.tensor_parallel_size:.4f} GB")
    log.info("executor_base.py:112", f"# hpu blocks: {known.blocks}, # CPU blocks: 2048")
    warmup.warm_up(known, fault)
    run(server, Api(known, options, fault))
    return 0


def run(server: Server, api: Api) -> None:
    """Answer until told to stop."""
    server.api = api
    server.server_activate()
    log.uvicorn(f"Started server process [{os.getpid()}]")
    log.uvicorn("Waiting for application startup.")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    READY.set()
    log.uvicorn("Application startup complete.")
    host, port = server.server_address[:2]
    log.uvicorn(f"Uvicorn running on http://{host!s}:{port} (Press CTRL+C to quit)")
    while not STOP.wait(0.2):
        pass
    log.uvicorn("Shutting down")
    log.uvicorn("Application shutdown complete.")
    os._exit(0)
