"""playbooks/tune.yml at a desk, and against a server of this machine."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from helpers.plans import gaudi_host, model
from helpers.playbooks import read

# A short context, so that a plan of buckets is made in a second.
MODEL = {"launch_profile": "plugin", "input_range": None, "output_range": None, "max_num_seqs": 8}
MODEL |= {"max_model_len": 2048, "max_num_batched_tokens": 2048}
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:{index // 60:02}:{index % 60:02}.6805900,{100 + 400 * (index % 5)},{20 + 40 * (index % 3)}\n"
    for index in range(300)
)


def desk(folder: Path, *arguments: str, **more: Any) -> tuple[int, str]:
    """Run the playbook for a host that does not exist, with a trace; return its status and what it printed."""
    (folder / "facts").mkdir(exist_ok=True)
    (folder / "facts/g1.json").write_text(json.dumps({"gaudi_host": gaudi_host(driver_version="1.22.2-32")}))
    models = [model(**{**MODEL, **more})]
    models = [{key: value for key, value in one.items() if value is not None} for one in models]
    (folder / "hosts.yml").write_text(
        yaml.safe_dump(
            {
                "all": {
                    "hosts": {"g1": {"ansible_host": "192.0.2.1"}},
                    "vars": {"accelerator_release": "1.22.2", "vllm_models": models},
                }
            }
        )
    )
    (folder / "trace.csv").write_text(TRACE)
    return tune(folder, "-e", f"plan_facts_dir={folder}/facts", "-e", f"trace={folder}/trace.csv", *arguments)


def tune(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run the playbook on an inventory that is there."""
    return read(folder, "-e", "model=qwq", *arguments, playbook="tune")


def test_a_trace_gives_a_list_beside_the_inventory_which_the_plan_then_takes(tmp_path: Path) -> None:
    status, text = desk(tmp_path, "--check")
    assert status == 0, text
    assert "today (exp)" in text and "planned" in text
    assert not (tmp_path / "buckets").exists()
    status, text = desk(tmp_path)
    assert status == 0, text
    path = tmp_path / "buckets/qwq.buckets"
    assert "300 requests (trace trace.csv)" in path.read_text()
    written = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    status, text = desk(tmp_path)
    assert status == 0, text
    assert "changed=0" in text
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == written
    # The configuration that it proposes does what it reports.
    (line,) = {part.strip() for part in text.splitlines() if "strategy: file" in part}
    status, text = desk(tmp_path, **yaml.safe_load(line))
    assert status == 0, text
    assert "today (file)" in text and "qwq already has this list" in text


def test_the_ranges_of_the_fork_are_taken_too(tmp_path: Path) -> None:
    fork = {"launch_profile": "aice_1_21", "input_range": [100, 4096], "output_range": [20, 2048]}
    status, text = desk(tmp_path, **fork)
    assert status == 0, text
    written = tmp_path / "buckets/qwq.env.yml"
    assert set(yaml.safe_load(written.read_text())) >= {"VLLM_PROMPT_SEQ_BUCKET_STEP", "VLLM_DECODE_BLOCK_BUCKET_MAX"}
    (line,) = {part.strip() for part in text.splitlines() if part.strip().startswith("env: ")}
    status, text = desk(tmp_path, **fork, **yaml.safe_load(line))
    assert status == 0, text
    rows = [part.split() for part in text.splitlines() if part.strip().startswith(("today (ranges)", "planned"))]
    assert rows[0][2:] == rows[1][1:]


def test_everything_wrong_is_reported_at_once_and_nothing_is_written(tmp_path: Path) -> None:
    status, text = desk(tmp_path, "-e", "model=qwg", "-e", "tune_like=expo", "-e", f"trace={tmp_path}/other.csv")
    # Refused, not failed.
    assert status == 3, text
    assert "model 'qwg': no host has it; g1: its models are qwq; did you mean qwq?" in text
    assert "tune_like: 'expo' is not one of exp, lin, pad" in text
    assert f"trace: {tmp_path}/other.csv: no such file" in text
    assert "Traceback" not in text and not (tmp_path / "buckets").exists()
    status, text = desk(tmp_path, "-e", "tune_dir=/proc/none/buckets")
    assert status == 2
    assert "tune_dir: /proc/none/buckets: its folder must exist, and be writable" in " ".join(text.split())
    status, text = desk(
        tmp_path, "-e", f"tune_dir={tmp_path}/mine", "-e", '{"tune_max_padding": {"prompt_tokens": 0.3}}'
    )
    assert status == 3, text
    assert "tune_max_padding.decode_batch: is required: a number from 0 to 1" in text
    shares = "{prompt_tokens: 0.5, decode_batch: 1, decode_blocks: 1}"
    status, text = desk(tmp_path, "-e", f"tune_dir={tmp_path}/mine", "-e", f"tune_max_padding='{shares}'")
    assert status == 0, text
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["qwq.buckets", "qwq.svg"]


METRICS = Path(__file__).parents[1] / "unit/golden/vllm_metrics.txt"


@contextmanager
def server(text: str) -> Iterator[int]:
    """Answer /metrics on loopback, as vLLM does; yield the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    try:
        yield listening.server_address[1]
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def served(folder: Path, port: int, *arguments: str) -> tuple[int, str]:
    """Run the playbook for this machine, where a server is, and for a host that cannot be reached."""
    (folder / "facts").mkdir(exist_ok=True)
    hosts = {
        "g1": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False},
        "g0": {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_control_path_dir": str(folder / "cp")},
    }
    for name in hosts:
        (folder / f"facts/{name}.json").write_text(json.dumps({"gaudi_host": gaudi_host(driver_version="1.22.2-32")}))
    one = {key: value for key, value in model(**MODEL, port=port).items() if value is not None}
    variables = {"accelerator_release": "1.22.2", "vllm_models": [one]}
    (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": variables}}))
    return tune(folder, "-e", f"plan_facts_dir={folder}/facts", *arguments)


def test_without_a_trace_it_learns_from_what_serves_and_goes_on_without_what_cannot_be_reached(tmp_path: Path) -> None:
    with server(METRICS.read_text()) as port:
        status, text = served(tmp_path, port)
    assert status == 0, text
    words = " ".join(text.replace("\\n", "\n").split())
    assert "qwq on g0, g1: 500 requests (made like the 500 that g1 had" in words
    assert "g1: its server has 3000 KV-cache blocks, but the plan estimates 3276" in words
    assert "g0: cannot be reached" in words
    assert "num_hpu_blocks 3276" in (tmp_path / "buckets/qwq.buckets").read_text()
    written = (tmp_path / "buckets/qwq.buckets").read_bytes()
    # The server is gone.
    status, text = served(tmp_path, port)
    assert status == 3, text
    words = " ".join(text.split())
    assert "model qwq: no server of it reports its traffic; start it, or set a trace (-e trace=FILE)" in words
    assert f"g1: /metrics on port {port}: [Errno 111] Connection refused" in words
    assert (tmp_path / "buckets/qwq.buckets").read_bytes() == written
