"""The parsers against what the tools print."""

from __future__ import annotations

import pytest
from gaudi_serve.core.errors import InputError
from gaudi_serve.platforms.hl_smi import device_family, hl_smi_links, hl_smi_modules, hl_smi_processes, hl_smi_topology
from helpers.tool_output import CARDS, TOPOLOGY


def test_modules() -> None:
    assert hl_smi_modules(CARDS) == [
        {"index": 0, "module_id": 2, "name": "HL-225"},
        {"index": 1, "module_id": 0, "name": "HL-225"},
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no output"),
        ("name\nHL-225\n", "no index and module_id: 'name'"),
        ("index, module_id\n0, x\n", "not a line of index, module_id: '0, x'"),
        ("index, module_id\n0\n", "not a line of index, module_id: '0'"),
        ("0, 1\n1, 1\n", "that came before: '1, 1'"),
    ],
)
def test_garbage_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        hl_smi_modules(text)


def test_topology_with_and_without_hyper_threading() -> None:
    assert hl_smi_topology(TOPOLOGY) == {
        0: {"cpus": ["0-39", "80-119"], "numa_node": 0},
        1: {"cpus": ["40-79"], "numa_node": 1},
    }
    with pytest.raises(InputError, match="no line with a module"):
        hl_smi_topology("modID CPU\n")
    with pytest.raises(InputError, match="'oops'"):
        hl_smi_topology(TOPOLOGY + "oops\n")


def test_processes() -> None:
    text = "|   0     4711     C    python3     61000MiB  |\n|   1     N/A     N/A    N/A     N/A  |\n"
    assert hl_smi_processes(text) == {0: "python3 (pid 4711)"}


def test_device_families() -> None:
    assert device_family("HL-225D") == "HL-225"
    with pytest.raises(InputError, match=r"'A100' is not one of HL-225\*, HL-288\*"):
        device_family("A100")


def test_links() -> None:
    assert hl_smi_links("port  0:        UP\n\nPort 10: down\n") == {0: "UP", 10: "DOWN"}
    for text, message in (("", "no line"), ("port 0: MAYBE", "MAYBE"), ("port 0: UP\nport 0: UP", "came before")):
        with pytest.raises(InputError, match=message):
            hl_smi_links(text)
