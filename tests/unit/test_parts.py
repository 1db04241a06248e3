"""The parts of the tests: what each covers, and on which state it has passed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))
from test_lib import graph, parts, verified  # noqa: E402

# Of these every file is covered by a part that runs it, and not only by those that read all files.
COVERED = (
    *("lib/", "roles/", "playbooks/", "library/", "action_plugins/", "filter_plugins/", "callback_plugins/"),
    *("site.yml", "tests/integration/", "tests/runner/", "tests/vm/", "molecule/"),
)
KNOWN = parts.definitions()
FILES = {
    "ansible.cfg": "",
    "callback_plugins/lines.py": "",
    "requirements.txt": "",
    "pyproject.toml": "",
    "requirements-dev.txt": "",
    "tests/conftest.py": "",
    "filter_plugins/gaudi_serve.py": "from gaudi_serve.show.text import lines\nfrom gaudi_serve.awx import other\n",
    "lib/gaudi_serve/__init__.py": "",
    "lib/gaudi_serve/awx.py": "def other(): ...\n",
    "lib/gaudi_serve/core.py": "",
    "lib/gaudi_serve/show/text.py": "from ..core import (\n    one,\n    two,\n)\n",
    "lib/gaudi_serve/stages/registry.py": "from . import driver, gateway\n",
    "lib/gaudi_serve/stages/driver.py": 'STAGE = Stage(role="driver")\n',
    "lib/gaudi_serve/stages/gateway.py": 'STAGE = Stage(role="gateway")\n',
    "action_plugins/gaudi_stage.py": "from gaudi_serve.stages import registry\nself._execute_module('vllm_units')\n",
    "library/gaudi_facts.py": "import os\nfrom ansible.module_utils.gaudi_serve import facts\n",
    "lib/gaudi_serve/facts.py": "",
    "lib/gaudi_serve/gate.lua": "",
    "lib/gaudi_serve/show/__init__.py": "",
    "library/vllm_units.py": "",
    "roles/preflight/tasks/observe.yml": "",
    "playbooks/vars/online.yml": "",
    "site.yml": "# See playbooks/other.yml\n- import_playbook: playbooks/driver.yml\n",
    "playbooks/driver.yml": "- hosts: all\n  vars_files:\n    - vars/all.yml\n"
    "    - vars/{{ x | ternary('offline', 'online') }}.yml\n"
    "  roles:\n    - role: driver\n",
    "playbooks/vars/offline.yml": "- import_role: {name: preflight, tasks_from: observe}\n",
    "playbooks/other.yml": "- hosts: all\n",
    "playbooks/vars/all.yml": 'text: "{{ x | lines }}"\n',
    "roles/driver/tasks/main.yml": "- gaudi_facts:\n- gaudi_stage:\n- fail:\n    msg: use playbooks/other.yml\n",
    "roles/driver/templates/a.j2": "",
    "roles/gateway/tasks/main.yml": "- gaudi_stage:\n",
    "tests/test_it.py": 'from helpers import one\nRUN = "site.yml"\nPLAN = ROOT / "playbooks/driver.yml"\n',
    "tests/helpers.py": 'FACTS = "data/facts.txt"\n',
    "tests/data/facts.txt": "",
    "other.txt": "",
}
UNUSED = {"lib/gaudi_serve/awx.py", "lib/gaudi_serve/stages/gateway.py", "roles/gateway/tasks/main.yml"}
USED = {name for name in FILES if "other" not in name} - UNUSED


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a small repository in place of this one, with one part."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    monkeypatch.setattr(graph, "ROOT", tmp_path)
    monkeypatch.setattr(verified, "ROOT", tmp_path)
    monkeypatch.setattr(verified, "RECORD", tmp_path / "verified.json")
    graph.forget(), verified.digests.cache_clear()
    yield tmp_path
    graph.forget(), verified.digests.cache_clear()


def part(name: str = "it", **data: Any) -> parts.Definition:
    """Return a part of that repository."""
    data = {"tests": ["tests/test_it.py"], **data}
    return parts.Definition(name, "pytest", 1, True, False, tuple(data.get("covers", ())), "", data)


def test_every_part_declares_code_that_exists() -> None:
    for one in KNOWN.values():
        assert one.everything or graph.covered(one.covers, one.paths), one.name
        assert one.shows and one.seconds, one.name
    with pytest.raises(SystemExit, match=r"roles/nothing does not exist"):
        graph.covered(["roles/nothing"], [])


def test_every_file_is_covered_by_a_part_that_runs_it() -> None:
    covered = set().union(*(verified.files_of(one) for one in KNOWN.values() if not one.everything))
    assert sorted(name for name in graph.files() if name.startswith(COVERED) and name not in covered) == []


def test_the_gate_has_the_main_job_and_25_minutes_of_two_processors() -> None:
    gate = [one for one in KNOWN.values() if one.gate]
    assert {"default", "service", "fleet", "distributed", "vm", "unit"} <= {one.base for one in gate}
    heavy = sum(one.seconds for one in gate if one.part().heavy)
    assert max(heavy, sum(one.seconds for one in gate) / 2) < 25 * 60


def test_a_part_covers_what_its_tests_use_and_no_more(tree: Path) -> None:
    assert graph.covered([], part().paths) == USED
    assert "playbooks/driver.yml" in graph.covered(["site.yml"], [])
    assert "lib/gaudi_serve/stages/gateway.py" in graph.covered(["roles/gateway"], [])


@pytest.mark.parametrize("name", sorted(USED))
@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_text(path.read_text() + "\n# changed\n"),
        lambda path: path.chmod(0o755),
        lambda path: path.rename(path.with_name(f"{path.name}.away")),
    ],
    ids=["content", "mode", "name"],
)
def test_every_change_of_what_a_part_covers_is_seen(tree: Path, name: str, change: Callable[[Path], Any]) -> None:
    before = verified.state(part())
    change(tree / name)
    verified.refresh()
    try:
        assert verified.state(part()) != before
    except SystemExit as problem:  # its own test has gone
        assert "does not exist" in str(problem)


def test_a_new_file_in_a_role_and_another_command_are_seen_and_other_files_are_not(tree: Path) -> None:
    before = verified.state(part())
    (tree / "other.txt").write_text("changed")
    (tree / "roles/gateway/tasks/main.yml").write_text("changed")
    verified.refresh()
    assert verified.state(part()) == before
    assert verified.state(part("it:short")) != before
    (tree / "roles/driver/tasks/more.yml").write_text("---\n")
    verified.refresh()
    assert verified.state(part()) != before


def test_a_pass_is_recorded_by_the_state_on_which_the_part_began(tree: Path, capsys: Any) -> None:
    known = {one.name: one for one in (part(), part("it:short"), part("more", tests=["tests/helpers.py"]))}
    assert verified.unverified(known) == ["it", "more"]
    began = verified.state(known["it"])
    verified.ended(known["it"], True, began, known)
    assert verified.unverified(known) == ["more"]
    assert set(verified.read()) == {"it", "it:short"}
    before = verified.state(known["more"])
    (tree / "tests/helpers.py").write_text("changed = True\n")
    verified.ended(known["more"], True, before, known)
    assert "more: its files changed after the run began" in capsys.readouterr().out
    assert verified.unverified(known) == ["it", "more"]


def test_a_failure_removes_the_record_of_a_pass_on_the_same_state(tree: Path) -> None:
    known = {"it": part()}
    began = verified.state(known["it"])
    verified.ended(known["it"], True, began, known)
    verified.ended(known["it"], False, "another", known)
    assert verified.unverified(known) == []
    verified.ended(known["it"], False, began, known)
    assert verified.unverified(known) == ["it"]


@pytest.mark.parametrize("text", ["", "<<<<<<< HEAD\n", '["it"]'])
def test_a_record_that_cannot_be_read_is_written_again(tree: Path, text: str, capsys: Any) -> None:
    known = {"it": part()}
    (tree / "verified.json").write_text(text)
    verified.refresh()
    verified.ended(known["it"], True, verified.state(known["it"]), known)
    assert "verified.json cannot be read, and is written again" in capsys.readouterr().out
    assert verified.unverified(known) == []


def test_a_link_that_leads_elsewhere_is_seen(tree: Path) -> None:
    (tree / "link").symlink_to("tests")
    verified.refresh()
    before = verified.state(part())
    (tree / "link").unlink()
    (tree / "link").symlink_to("nowhere")
    verified.refresh()
    assert verified.state(part()) != before


# What outsiders found missing: a file, and a part that uses it.
PAIRS = [
    ("roles/preflight/tasks/judge.yml", "integration-platforms"),
    ("roles/preflight/files/catalog/qwen3-8b.yml", "service"),
    ("tests/helpers/simulated/connection/simulated.py", "integration-rollout"),
    ("filter_plugins/gaudi_serve.py", "reset"),
    ("callback_plugins/gaudi_serve_stages.py", "faults"),
    ("library/vllm_units.py", "service"),
    ("library/vllm_bench.py", "fleet"),
    ("playbooks/vars/offline.yml", "offline"),
    ("lib/gaudi_serve/gateway/gateway.lua", "fleet"),
    ("tests/unit/golden/metrics/fork.prom", "integration-pages"),
    ("tests/unit/golden/vllm_metrics.txt", "integration-operations"),
    ("lib/gaudi_serve/core/__init__.py", "monitoring"),
    ("molecule/shared/vmimage/prepare", "vm"),
    ("library/vllm_units.py", "integration-examples"),
    ("scripts/environment", "offline"),
    ("requirements-dev.txt", "integration-weights"),
    ("playbooks/templates/page/page.html.j2", "integration-pages"),
]


@pytest.mark.parametrize(("name", "user"), PAIRS)
def test_a_file_is_covered_by_the_part_that_uses_it(name: str, user: str) -> None:
    assert name in verified.files_of(KNOWN[user])


def test_what_a_short_form_has_shown_is_not_all(tree: Path) -> None:
    known = {one.name: one for one in (part(), part("it:short"))}
    verified.ended(known["it:short"], True, verified.state(known["it:short"]), known)
    assert verified.unverified(known) == ["it"]


def test_names_select_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parts.selected(["fleet:short", "fleet:short"], KNOWN) == ["fleet:short"]
    assert "fleet:short" in parts.selected(["gate"], KNOWN) and "fleet" not in parts.selected(["gate"], KNOWN)
    assert not [name for name in parts.selected(["all"], KNOWN) if name.endswith(parts.SHORT)]
    assert {"host", "fleet"} <= {*parts.selected(["molecule"], KNOWN)}
    with pytest.raises(SystemExit, match=r"unknown part nonsense; known are changed, unverified, gate, all, lint"):
        parts.selected(["nonsense"], KNOWN)


def test_the_commit_of_the_last_release_is_in_the_history() -> None:
    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)

    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("without history there is no earlier commit")
    commit = (ROOT / "tests/last_release").read_text(encoding="utf-8").strip()
    assert re.fullmatch("[0-9a-f]{40}", commit) and git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0
