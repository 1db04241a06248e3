"""hl-smi prints the real formats and refuses what it does not know."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from gaudi_serve.platforms.hl_smi import hl_smi_modules, hl_smi_processes, hl_smi_topology


def test_query_in_the_three_csv_forms(host: Any) -> None:
    out = host.run("hl-smi", "-Q", "index,module_id", "-f", "csv").stdout
    assert out.splitlines()[:2] == ["index, module_id", "0, 2"]
    assert [card["module_id"] for card in hl_smi_modules(out)] == [2, 0, 3, 1, 6, 4, 7, 5]
    out = host.run("hl-smi", "-Q", "name,memory.total", "-f", "csv,noheader").stdout
    assert out.splitlines()[0] == "HL-225, 98304 MiB"
    out = host.run("hl-smi", "-Q", "memory.total", "-f", "csv,noheader,nounits").stdout
    assert out.splitlines()[0] == "98304"


def test_topology_and_links(host: Any) -> None:
    rows = hl_smi_topology(host.run("hl-smi", "topo", "-c", "-N").stdout)
    assert rows[0] == {"cpus": ["0-39", "80-119"], "numa_node": 0}
    assert rows[7]["numa_node"] == 1
    host.state["cards"][2]["links"][5] = "DOWN"
    host.save()
    out = host.run("hl-smi", "-n", "link", "-i", host.state["cards"][2]["bus_id"]).stdout
    assert out.splitlines()[0] == "port  0:        UP"
    assert out.count("DOWN") == 1


def test_ports_lead_to_other_cards_or_out_of_the_box(host: Any) -> None:
    bus_id = host.state["cards"][0]["bus_id"]
    lines = host.run("hl-smi", "-n", "ports", "-i", bus_id).stdout.splitlines()
    assert lines[7:9] == ["port 7: internal", "port 8: external"]
    assert len(lines) == len(host.run("hl-smi", "-n", "link", "-i", bus_id).stdout.splitlines()) == 24


def test_errors_and_what_slows_a_card_down(host: Any) -> None:
    host.state["cards"][0] |= {"ecc": 1, "corrected": 2, "thermal_violation": 3, "odd": {"power.draw": "N/A"}}
    host.save()
    kinds = [f"ecc.errors.{kind}.volatile.total" for kind in ("uncorrected", "corrected", "dram", "dram-corrected")]
    fields = ",".join([*kinds, "stats.violation.thermal", "stats.violation.power", "power.draw"])
    rows = host.run("hl-smi", "-Q", fields, "-f", "csv,noheader,nounits").stdout.splitlines()
    assert rows[:2] == ["1, 2, 0, 0, 3, 0, N/A", "0, 0, 0, 0, 0, 0, 80"]
    # One field that a release lacks, and the call gives nothing.
    host.state["unknown"] = [kinds[-1]]
    host.save()
    result = host.run("hl-smi", "-Q", fields, "-f", "csv,noheader,nounits")
    assert (result.returncode, result.stdout) == (1, "")
    assert f'Field "{kinds[-1]}" is not a valid field' in result.stderr


def test_table_shows_who_holds_a_card(host: Any) -> None:
    with socket.socket(socket.AF_UNIX) as holder:
        holder.bind(f"\0gaudi-sim{host.root}-card-3")
        out = host.run("hl-smi").stdout
    assert list(hl_smi_processes(out)) == [3]
    assert out.count("768MiB /  98304MiB") == 7
    assert hl_smi_processes(host.run("hl-smi").stdout) == {}


def test_only_cards_with_a_node_are_seen(host: Any) -> None:
    host.keep_nodes(2, 5)
    assert host.run("hl-smi", "-Q", "index", "-f", "csv,noheader").stdout.split() == ["2", "5"]


def test_a_missing_card_is_not_listed(host: Any) -> None:
    host.state["cards"][0]["missing"] = True
    host.save()
    assert len(host.run("hl-smi", "-Q", "index", "-f", "csv,noheader").stdout.split()) == 7


def test_odd_cards_look_as_real_ones(host: Any) -> None:
    host.state["cards"][5]["used_mib"] = 96564
    host.state["cards"][6]["row"] = "6, N/A"
    host.save()
    out = host.run("hl-smi").stdout
    full = next(line for line in out.splitlines() if "96564MiB" in line)
    assert full.split("|")[2:4] == [" 96564MiB /  98304MiB ", "    98%            0% "]
    assert ["5", "N/A", "N/A", "N/A", "N/A"] in [line.strip("|").split() for line in out.splitlines()]
    rows = host.run("hl-smi", "-Q", "index,memory.used", "-f", "csv,noheader").stdout.splitlines()
    assert rows[4:8] == ["4, 768 MiB", "5, 96564 MiB", "6, N/A", "7, 768 MiB"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nonsense"], "Invalid arguments"),
        (["-Q", "index,colour", "-f", "csv"], 'Field "colour" is not a valid field'),
        (["-Q", "index", "-f", "xml"], "Invalid format"),
        (["-Q", "index"], "Invalid arguments"),
        (["topo"], "Invalid arguments"),
        (["-n", "link", "-i", "0000:ff:00.0"], "No AIP with bus id"),
        (["-n", "link", "-i", "3"], "Invalid bus id"),
    ],
)
def test_refusals(host: Any, words: list[str], message: str) -> None:
    result = host.run("hl-smi", *words)
    assert result.returncode == 1
    assert message in result.stderr


def test_no_driver(host: Any) -> None:
    host.state["driver_loaded"] = False
    host.save()
    result = host.run("hl-smi")
    assert result.returncode == 1
    assert "driver is not loaded" in result.stderr
