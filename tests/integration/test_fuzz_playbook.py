"""Wishes mutated at random, through ansible-playbook: an error that names the key, and never a traceback."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from test_fuzz import SEED, mutated
from test_plan_playbook import plan


def test_twenty_wishes_through_a_run(tmp_path: Path) -> None:
    chance = random.Random(SEED + 1)  # noqa: S311 - reproducible, not secret
    tried = 0
    while tried < 20:
        models = mutated(chance)
        try:
            if yaml.safe_load(yaml.safe_dump(models)) is None:
                continue
        except yaml.YAMLError:
            continue  # YAML itself cannot carry it
        tried += 1
        folder = tmp_path / str(tried)
        folder.mkdir()
        status, text = plan(folder, models, "--check")
        assert status in (0, 2), text
        assert "Traceback" not in text, text
        assert ("ERRORS (" in text) == (status == 2), text
