"""The tables of metrics, compared with what the real programs show: HAProxy, node exporter, Prometheus."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from gaudi_serve.monitoring.engine_metrics import HAPROXY, NODE, PROMETHEUS
from gaudi_serve.monitoring.files import targets
from gaudi_serve.monitoring.fleet import Endpoint, Watched
from gaudi_serve.monitoring.settings import Monitoring
from helpers.machine import free_port
from helpers.monitoring_tools import tool

SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? \S+", re.MULTILINE)
CONFIG = """
defaults
    mode http
    timeout connect 1s
    timeout client 9s
    timeout server 9s
frontend gateway
    bind 127.0.0.1:{port}
    http-request use-service prometheus-exporter if {{ path /metrics }}
    default_backend qwq
backend qwq
    option httpchk GET /health
    server g1.qwq 127.0.0.1:9 check inter 100ms
backend own:minutes
    stick-table type string len 9 size 9 expire 1m store gpc0
"""


@contextlib.contextmanager
def running(command: Sequence[str | Path], log: Path) -> Iterator[None]:
    """Run a program as long as it is needed."""
    with log.open("w") as handle:
        process = subprocess.Popen(command, stdout=handle, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def shown(port: int, until: str) -> dict[str, set[str]]:
    """Return the metrics of a page with their labels, as soon as it has one of them."""
    found: dict[str, set[str]] = defaultdict(set)
    for _ in range(300):
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page,
        ):
            for name, labels in SAMPLE.findall(page.read().decode()):
                found[name] |= set(re.findall(r'(\w+)="', labels))
        if until in found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"no {until} in {sorted(found)}")


def differences(table: Mapping[str, tuple[str, ...]], found: Mapping[str, set[str]]) -> dict[str, object]:
    """Return the rows of a table that the page shows otherwise, or not at all."""
    return {name: found.get(name) for name, labels in table.items() if found.get(name) != set(labels)}


@pytest.mark.skipif(not shutil.which("haproxy"), reason="HAProxy is missing; scripts/deps installs it")
def test_haproxy_shows_what_the_table_has(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "haproxy.cfg").write_text(CONFIG.format(port=port), encoding="utf-8")
    with running(["haproxy", "-db", "-f", tmp_path / "haproxy.cfg"], tmp_path / "log"):
        assert differences(HAPROXY, shown(port, "haproxy_server_check_failures_total")) == {}


def test_node_exporter_shows_what_the_table_has(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "gaudi-host.prom").write_text("# HELP a A.\n# TYPE a gauge\na 1\n", encoding="utf-8")
    command = [tool("prometheus-node-exporter"), f"--web.listen-address=127.0.0.1:{port}"]
    with running([*command, f"--collector.textfile.directory={tmp_path}"], tmp_path / "log"):
        assert differences(NODE, shown(port, "node_textfile_mtime_seconds")) == {}


def test_prometheus_shows_what_the_table_has(tmp_path: Path) -> None:
    port = free_port()
    rules = {"groups": [{"name": "g", "rules": [{"record": "r", "expr": "1"}]}]}
    (tmp_path / "rules.yml").write_text(json.dumps(rules), encoding="utf-8")
    managers = [{"static_configs": [{"targets": ["127.0.0.1:9"]}]}]
    config = {"rule_files": ["rules.yml"], "alerting": {"alertmanagers": managers}}
    (tmp_path / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
    command = [tool("prometheus"), f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
    with running([*command, f"--web.listen-address=127.0.0.1:{port}"], tmp_path / "log"):
        assert differences(PROMETHEUS, shown(port, "prometheus_notifications_errors_total")) == {}


def test_a_site_may_call_its_scrape_jobs_as_it_likes(tmp_path: Path) -> None:
    port = free_port()
    paths = {"vllm": "model/qwq", "node": "node", "haproxy": "gateway", "usage": "usage", "cards": "cards"}
    models = (Endpoint("qwq", "qwq", "127.0.0.1", 9),)
    host = Watched("a", "127.0.0.1", "A", gateway=8405, usage=True, cards=True, models=models)
    settings = Monitoring(files_only="/etc/prometheus/gaudi-serve", exporters_port=9, cards_port=41611)
    for job, found in targets("p", settings, [host]).items():
        (tmp_path / f"{job}.json").write_text(json.dumps(found), encoding="utf-8")
    config = {"scrape_configs": [{"job_name": "accelerators", "file_sd_configs": [{"files": ["*.json"]}]}]}
    (tmp_path / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
    command = [tool("prometheus"), f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
    with running([*command, f"--web.listen-address=127.0.0.1:{port}"], tmp_path / "log"):
        shown(port, "prometheus_tsdb_head_series")
        for _ in range(100):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/targets", timeout=5) as page:
                active = json.load(page)["data"]["activeTargets"]
            if len(active) == len(paths):
                break
            time.sleep(0.1)
    asked = {one["labels"]["job"]: one["scrapeUrl"] for one in active}
    assert asked == {job: f"https://127.0.0.1:9/{path}/metrics" for job, path in paths.items()}
