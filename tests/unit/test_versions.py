"""What runs where: an older ansible-core is refused in a sentence, and hosts of Python 3.10 can read what they get."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from helpers.plugins import load

ROOT = Path(__file__).parents[2]
# Of Ubuntu 22.04; Debian 12 has 3.11.
OLDEST = (3, 10)


def on_hosts() -> list[Path]:
    """Return what is sent to hosts: modules, the code that they share, and the programs of roles."""
    files = [*ROOT.glob("library/*.py"), *ROOT.glob("lib/gaudi_serve/**/*.py"), *ROOT.glob("roles/*/files/*")]
    return [path for path in files if path.suffix == ".py" or (path.is_file() and b"python" in path.read_bytes()[:40])]


def test_hosts_of_the_oldest_python_can_read_what_they_get() -> None:
    assert len(on_hosts()) > 50
    for path in on_hosts():
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=OLDEST)
    with pytest.raises(SyntaxError):
        ast.parse("try: pass\nexcept* OSError: pass\n", feature_version=OLDEST)


@pytest.mark.parametrize("found", ["2.15.13", "2.18.6", "2.9.27"])
def test_an_older_ansible_core_ends_in_a_sentence(found: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = load("callback_plugins/gaudi_serve.py")
    with pytest.raises(SystemExit) as ended:
        module.refuse_older(found)
    assert ended.value.code == 3
    said = capsys.readouterr().err
    assert f"this is ansible-core {found}; 2.19 or newer is needed" in said
    for fitting in ("2.19.0", "2.19.14", "2.20.1", "3.0.0"):
        module.refuse_older(fitting)
