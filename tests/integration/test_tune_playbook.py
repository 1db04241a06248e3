"""playbooks/tune.yml at a desk, and against a server of this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml
from test_plan_playbook import read

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from test_plan import gaudi_host, model

MODEL = {"launch_profile": "plugin", "input_range": None, "output_range": None, "max_num_seqs": 16}
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:{index // 60:02}:{index % 60:02}.6805900,{100 + 37 * (index % 50)},{20 + index % 90}\n"
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
                    "vars": {"gaudi_release": "1.22.2", "vllm_models": models},
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
    # What it says to write does what it says.
    (line,) = {line.strip().strip('"').rstrip('",') for line in text.splitlines() if "strategy: file" in line}
    taken = yaml.safe_load(line.replace('\\"', '"'))
    status, text = desk(tmp_path, bucketing=taken["bucketing"])
    assert status == 0, text
    assert "today (file)" in text and "qwq has this list already" in text
