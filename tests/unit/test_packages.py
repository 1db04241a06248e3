"""The order of the packages: each imports only from those above it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LIBRARY = Path(__file__).resolve().parents[2] / "lib/gaudi_serve"
LAYERS = (
    *("core", "model", "platforms", "buckets", "engines", "memory", "host", "bios", "catalog"),
    *("gateway", "monitoring", "stages", "show", "tune", "awx", "bench", "inventory", "plan", "bundle", "rollout"),
)


def imported(path: Path, library: Path = LIBRARY) -> Iterator[tuple[int, str]]:
    """Return the line and the package of each import of the project's own, also of those inside a function."""
    package = path.relative_to(library).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            module = (node.module or "").split(".") if node.module else []
            if node.level:
                module = [*package[: len(package) - node.level + 1], *module]
            elif module[0] == "gaudi_serve":
                module = module[1:]
            else:
                continue
            for found in [module[0]] if module else [one.name for one in node.names]:
                yield node.lineno, found
        elif isinstance(node, ast.Import):
            parts = [one.name.split(".") for one in node.names]
            yield from ((node.lineno, one[1]) for one in parts if one[0] == "gaudi_serve" and len(one) > 1)


def too_low(path: Path, library: Path = LIBRARY) -> list[str]:
    """Return the imports of a file from a package that stands below its own."""
    own = path.relative_to(library).parts[0]
    above = LAYERS[: LAYERS.index(own) + 1]
    found = [(line, one) for line, one in imported(path, library) if one in LAYERS and one not in above]
    return [f"{path.relative_to(library)}:{line}: {own} may not import {one}" for line, one in found]


def test_each_package_stands_in_the_order() -> None:
    assert {path.parent.name for path in LIBRARY.glob("*/__init__.py")} == set(LAYERS)


def test_each_package_imports_only_from_those_above_it() -> None:
    assert [line for path in sorted(LIBRARY.glob("*/**/*.py")) for line in too_low(path)] == []


@pytest.mark.parametrize(
    "line",
    ["from ..plan.model import Spec", "def f():\n    from .. import plan", "import gaudi_serve.plan.model"],
)
def test_an_import_from_below_is_seen_wherever_it_stands(tmp_path: Path, line: str) -> None:
    path = tmp_path / "stages/service.py"
    path.parent.mkdir()
    path.write_text(line, encoding="utf-8")
    assert too_low(path, tmp_path) == [f"stages/service.py:{line.count(chr(10)) + 1}: stages may not import plan"]


# Of these the controller alone makes use; they may import what only it has.
CONTROLLER = (
    *("buckets", "engines", "catalog", "stages", "show", "tune"),
    *("awx", "bench", "inventory", "plan", "bundle", "rollout"),
)
ON_A_HOST = """
import runpy, sys, types
basic = types.ModuleType("ansible.module_utils.basic")
basic.AnsibleModule = basic.missing_required_lib = None
names = ("ansible", "ansible.module_utils", "ansible.module_utils.basic")
sys.modules |= dict(zip(names, (types.ModuleType("ansible"), types.ModuleType("ansible.module_utils"), basic)))
sys.modules["ansible.module_utils"].__path__ = [sys.argv[1]]
for path in sys.argv[2:]:
    runpy.run_path(path)
print(*sorted(name for name in sys.modules if ".gaudi_serve." in name))
"""


def test_modules_need_the_standard_library_alone_and_nothing_that_is_the_controllers() -> None:
    modules = sorted((LIBRARY.parents[1] / "library").glob("*.py"))
    command = [sys.executable, "-I", "-S", "-c", ON_A_HOST, LIBRARY.parent, *modules]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split()
    assert len(loaded) > 20
    assert [name for name in loaded if name.split(".")[3] in CONTROLLER] == []
