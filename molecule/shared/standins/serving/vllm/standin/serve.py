"""A server's life: check, bind, take cards, warm up, answer until told to stop."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType

import vllm

from . import cards, log, meeting, model, several, stack, warmup
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
    if getattr(options, "models", None):
        run(server, serve_several(options, fault))
        return 0
    known = model.load(options)
    meeting.meet(options.tensor_parallel_size)
    api = Api(known, options, fault)
    if stack.GPUS:
        gpus(options, known)
    elif stack.PLUGIN:
        api.step = upstream_engine(options, known, fault)
    else:
        engine(options, known, fault)
    run(server, api)
    return 0


def serve_several(options: argparse.Namespace, fault: str) -> Api:
    """Bring up one engine a model, one after the other, in this one process and on its one card."""
    every = several.each(options)
    meeting.meet(options.tensor_parallel_size)
    taken = cards.acquire(options.tensor_parallel_size)
    log.info("hpu_worker.py:73", f"acquired {len(taken)} HPU device(s), indices {taken}")
    apis = []
    for one in every:
        known = model.load(one)
        log.info("loader.py:447", f"Loading model weights took {known.weights_gib:.4f} GB")
        log.info("executor_base.py:112", f"# hpu blocks: {known.blocks}, # CPU blocks: 2048")
        warmup.warm_up(known, fault, decodes=one.task == "generate")
        cards.USED.append(known.weights_gib + known.cache_gib)
        apis.append(Api(known, one, fault))
    apis[0].others = apis[1:]
    return apis[0]


def engine(options: argparse.Namespace, known: model.Model, fault: str) -> None:
    """Bring the fork's engine up."""
    taken = cards.acquire(options.tensor_parallel_size)
    log.info("hpu_worker.py:73", f"acquired {len(taken)} HPU device(s), indices {taken}")
    log.info("loader.py:447", f"Loading model weights took {known.weights_gib / options.tensor_parallel_size:.4f} GB")
    log.info("executor_base.py:112", f"# hpu blocks: {known.blocks}, # CPU blocks: 2048")
    warmup.warm_up(known, fault)


def gpus(options: argparse.Namespace, known: model.Model) -> None:
    """Bring upstream's engine up on GPUs: those whose nodes are in the container, of which it takes the first ones."""
    taken = cards.acquire_gpus(options.tensor_parallel_size)
    log.info("gpu_model_runner.py:4259", f"Model loading took {known.weights_gib / len(taken):.2f} GiB", log.CORE)
    tokens = known.blocks * options.block_size
    log.info("kv_cache_utils.py:1307", f"GPU KV cache size: {tokens:,} tokens on {' '.join(taken)}", log.CORE)


def upstream_engine(options: argparse.Namespace, known: model.Model, fault: str) -> Callable[[int, int, int], None]:
    """Bring upstream's engine up, which is a process of its own there, and return what a request's steps do.

    What ends the engine is in its log, and on standard error; the server then ends without a reason of its own.
    """
    from . import plugin  # the fork's image has nothing of it

    try:
        taken = cards.acquire(options.tensor_parallel_size)
        return plugin.start(options, known, taken, fault).step
    except Exception:
        trace = traceback.format_exc()
        log.write("ERROR", "core.py:1108", f"EngineCore failed to start.\n{trace}", log.CORE)
        print("Process EngineCore:\n" + trace, file=sys.stderr, flush=True)
    raise RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {}")


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
