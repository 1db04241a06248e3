"""Every query of every dashboard, answered by a real Prometheus that has recorded pages of each engine."""

from __future__ import annotations

import json
import math
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.monitoring.rules import rules_text
from helpers import exposition, recorded
from helpers.dashboards import Query, queries
from helpers.machine import free_port
from helpers.monitoring_tools import tool

# By host: the recorded page of its server, and whether the vendor's exporter is read in place of the collector.
ENGINES = {f"host-{name.replace('.', '-')}": (name, name == "fork") for name in recorded.NAMES}
# What an engine does not count, by its page. All other panels have data of every engine.
UNAVAILABLE = {name: {"Rejected requests"} for name in recorded.NAMES if name != "0.33.0"}
UNAVAILABLE["fork"] |= {"Prompt tokens that the prefix cache had"}
SECONDS = 1800
# What the vendor's exporter does not have.
OWN_ALONE = {
    *("Slower because of heat or power", "ECC errors since the driver was loaded", "ECC errors in the card's life"),
    "Which card is which",
}
EXPORTER_ALONE = {
    *("Last Xid of NVIDIA's cards", "Cards that their exporter calls unhealthy", "Uncorrected errors, by the exporter"),
}


def samples(times: exposition.Times) -> Iterator[str]:
    """Give the lines of the file of samples."""
    for host, (page, exporter) in ENGINES.items():
        yield from exposition.server(page, host, f"model-{host}", times)
        yield from exposition.host(host, f"model-{host}", times, exporter)
    models = tuple(f"model-{host}" for host in ENGINES)
    for name in ("gw", "gw2"):
        yield from exposition.gateway(name, models, times)
    yield from exposition.prometheus(models, times)
    yield "# EOF"


class Prometheus:
    """A Prometheus that scrapes nothing and has samples up to a time."""

    def __init__(self, folder: Path, at: int) -> None:
        self.at = at
        self.url = f"http://127.0.0.1:{free_port()}"
        for name, text in rules_text({"model-host-fork": {"ttft_s": 1, "itl_s": 1, "errors": 0.1}}).items():
            (folder / name).write_text(text, encoding="utf-8")
        config = {"global": {"evaluation_interval": "1s"}, "rule_files": ["*-*.yml"]}
        (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
        command = [
            *(tool("prometheus"), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"),
            *(f"--web.listen-address={self.url.removeprefix('http://')}", "--log.level=warn"),
        ]
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def wait(self) -> None:
        """Wait until it answers."""
        for _ in range(300):
            assert self.process.poll() is None, self.log.read_text()
            try:
                self.answer("/-/ready", {})
                return
            except OSError:
                time.sleep(0.1)
        raise AssertionError(self.log.read_text())

    def answer(self, path: str, values: dict[str, Any]) -> str:
        """Return what it answers."""
        url = f"{self.url}{path}?{urllib.parse.urlencode(values)}"
        with urllib.request.urlopen(url, timeout=30) as found:  # noqa: S310 - on loopback
            return str(found.read().decode())

    def values(self, expr: str) -> list[float]:
        """Return the values that an expression has."""
        found = json.loads(self.answer("/api/v1/query", {"query": expr, "time": self.at}))
        assert found["status"] == "success", found
        values = [float(one["value"][1]) for one in found["data"]["result"]]
        return [one for one in values if not math.isnan(one)]

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(30)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Start one with the samples of half an hour."""
    folder = tmp_path_factory.mktemp("prometheus")
    end = int(time.time()) - 60
    text = "\n".join(samples(exposition.Times(end - SECONDS, end))) + "\n"
    (folder / "samples").write_text(text, encoding="utf-8")
    command = [tool("promtool"), "tsdb", "create-blocks-from", "openmetrics", "samples", "data"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = Prometheus(folder, end)
    try:
        found.wait()
        yield found
    finally:
        found.stop()


@pytest.mark.parametrize("query", list(queries()), ids=lambda one: f"{one.board}-{one.panel}".replace(" ", "_"))
def test_a_panel_has_data_of_each_engine(query: Query, prometheus: Prometheus) -> None:
    for host, (page, exporter) in ENGINES.items():
        model = f"model-{host}"
        expr = query.filled({"host": host, "model": model, "gateway": "gw", "proxy": model})
        missing = OWN_ALONE if exporter else EXPORTER_ALONE
        empty = query.panel in UNAVAILABLE.get(page, ()) or query.panel in missing
        values = prometheus.values(expr)
        assert bool(values) != empty, (host, expr)
        if "usage_perc" in expr or "bad:ratio" in expr:
            assert all(0 <= one <= 1 for one in values)
        if query.panel == "Power":
            assert all(one < 1000 for one in values)


def test_prometheus_evaluates_every_rule_on_the_samples_of_all_engines(prometheus: Prometheus) -> None:
    rules: list[dict[str, Any]] = []
    for _ in range(300):
        groups = json.loads(prometheus.answer("/api/v1/rules", {}))["data"]["groups"]
        rules = list(chain.from_iterable(group["rules"] for group in groups))
        if rules and all(rule["health"] != "unknown" for rule in rules):
            break
        time.sleep(0.1)
    assert len({rule["name"] for rule in rules}) > 60
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}


def test_all_hosts_together_have_one_line_for_each_server(prometheus: Prometheus) -> None:
    (query,) = [one for one in queries() if (one.board, one.panel) == ("gaudi-serve-model", "KV cache in use")]
    assert prometheus.values(query.filled({"host": ".*", "model": ".*"})) == [0.25] * len(ENGINES)
