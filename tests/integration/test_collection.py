"""The collection that `make collection` builds runs site.yml from an empty folder, over simulated hosts."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.simulated.fleet import fleet, state_of

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(sys.executable).parent
CONFIG = """[defaults]
stdout_callback = default
callbacks_enabled = gaudi.serve.gaudi_serve
inject_facts_as_vars = true

[connection]
pipelining = true
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the collection, install it, and return the folder of collections."""
    folder = tmp_path_factory.mktemp("collection")
    subprocess.run([sys.executable, ROOT / "scripts/collection", folder], check=True, capture_output=True)
    (archive,) = folder.glob("gaudi-serve-*.tar.gz")
    argv = [PROGRAMS / "ansible-galaxy", "collection", "install", "--no-deps", "-p", folder / "collections", archive]
    subprocess.run(argv, check=True, capture_output=True)
    return folder / "collections"


def play(folder: Path, collections: Path, *more: str) -> tuple[int, str]:
    """Run site.yml of the collection from a folder that has nothing of the tree."""
    (folder / "ansible.cfg").write_text(CONFIG, encoding="utf-8")
    names = {"ANSIBLE_CONFIG": str(folder / "ansible.cfg"), "ANSIBLE_COLLECTIONS_PATH": str(collections)}
    environment = {**fleet(folder, 1), **names, "PYTHONPATH": ""}
    argv = [PROGRAMS / "ansible-playbook", "-i", folder / "hosts.json", "gaudi.serve.site", *more]
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_site_is_set_up_from_the_collection_alone(installed: Path, tmp_path: Path) -> None:
    status, text = play(tmp_path, installed, "-e", '{"vllm_models": [{"name": "m", "port": 99999}]}')
    assert status == 3 and "port 99999" in text, text[-3000:]
    status, text = play(tmp_path, installed)
    assert status == 0 and str(ROOT) not in text, text[-3000:]
    assert "vllm-m" in json.dumps(state_of(tmp_path, "h01"))


def test_the_collection_has_the_version_of_the_tree(installed: Path) -> None:
    path = "gaudi_serve/core/version.py"
    both = ROOT / "lib" / path, installed / "ansible_collections/gaudi/serve/plugins/module_utils" / path
    tree, collection = (runpy.run_path(str(one))["toolkit_version"]() for one in both)
    assert collection == tree.partition(" ")[0]
