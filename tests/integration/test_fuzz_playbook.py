"""Models and inventories mutated at random, through ansible-playbook: an error that names the key, no traceback."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import yaml
from helpers.inventories import BASE, KEYS, bent
from helpers.mutations import SEED, mutated, wishes
from helpers.plans import gaudi_host
from helpers.playbooks import run

HOSTS = 5  # in one run: each has a request of its own


def case(chance: random.Random, number: int) -> dict[str, Any]:
    """Return a host's variables: its models, or in turn the others, are mutated."""
    if number % 2:
        return {"vllm_models": mutated(chance)}
    return {"vllm_models": wishes(), **{key: bent(chance, BASE.get(key)) for key in chance.sample(KEYS, 2)}}


def sayable(variables: dict[str, Any]) -> bool:
    """Return whether YAML can carry the variables, and there is a request among them."""
    try:
        return yaml.safe_load(yaml.safe_dump(variables))["vllm_models"] is not None
    except yaml.YAMLError:
        return False


def test_twenty_requests_through_four_runs(tmp_path: Path) -> None:
    chance = random.Random(SEED + 1)  # noqa: S311 - reproducible, not secret
    (tmp_path / "facts").mkdir()
    number = 0
    for _ in range(4):
        hosts: dict[str, Any] = {}
        while len(hosts) < HOSTS:
            number += 1
            if sayable(variables := case(chance, number)):
                hosts[f"g{number}"] = {**variables, "ansible_host": "192.0.2.1"}
        for name in hosts:
            facts = {"gaudi_host": gaudi_host(driver_version="1.21.3-57")}
            (tmp_path / f"facts/{name}.json").write_text(json.dumps(facts))
        (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
        path = tmp_path / "plan.json"
        path.unlink(missing_ok=True)
        status, text = run(tmp_path, "-e", f"plan_file={path}")
        assert status in (0, 2), text
        assert "Traceback" not in text, text
        assert ("ERRORS (" in text) == (status == 2), text
        # Every host has been planned, or refused by its own name.
        plan = json.loads(path.read_text())
        assert set(plan["hosts"]) | {error["host"] for error in plan["errors"]} == set(hosts), text
