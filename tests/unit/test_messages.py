"""Every message with which a run is refused has a line, under a heading, on the page of messages."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from reference_lib import messages  # noqa: E402

(PAGE,) = messages.pages(ROOT).values()
LISTED = messages.messages(ROOT)
# The exceptions with which the toolkit refuses a user's input, or gives up.
ERRORS = {"InputError", "BmcError", "AwxError", "FetchError", "Unhealthy", "AnsibleActionFail"}


def of(text: str) -> list[str]:
    """Return the messages of a program."""
    return [one.template for one in messages.Reader("x.py", text).messages()]


def golden() -> Iterator[str]:
    """Yield the messages of the golden files."""
    for name in ("errors", "facts"):
        value: Any = yaml.safe_load((ROOT / f"tests/unit/{name}.yml").read_text(encoding="utf-8"))
        for part in value if isinstance(value, list) else [value]:
            yield from map(str, part.get("messages") or ())


def raised() -> Iterator[tuple[str, str]]:
    """Yield (file, constant text) of each sentence that the library raises as an error."""
    for path in sorted(ROOT.glob("lib/gaudi_serve/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            call = node.exc if isinstance(node, ast.Raise) else None
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ERRORS and call.args:
                parts = call.args[0].values if isinstance(call.args[0], ast.JoinedStr) else [call.args[0]]
                for part in parts:
                    if isinstance(part, ast.Constant) and len(re.findall(r"[a-z]{2,}(?=\s|$)", str(part.value))) >= 3:
                        yield path.name, " ".join(str(part.value).split())


def test_every_golden_message_is_listed() -> None:
    # A line of one placeholder alone would fit everything.
    patterns = [re.compile(one.pattern, re.S) for one in LISTED if len(re.findall(r"[a-z]{2,}", one.template)) >= 3]
    found = [*golden()]
    assert len(found) > 200
    assert [message for message in found if not any(pattern.search(message) for pattern in patterns)] == []


def test_every_error_that_the_library_raises_is_listed() -> None:
    found = [*raised()]
    assert len(found) > 150
    assert [(name, text) for name, text in found if text.strip(" ,;") not in PAGE] == []


def test_every_message_of_a_failing_task_is_listed() -> None:
    assert "this host, which is therefore not rebooted; start the gateway" in PAGE
    assert "still to remove after this run:" in PAGE


def test_every_file_with_messages_has_a_heading() -> None:
    assert {f"## {messages.group_of(one.source)}\n" in PAGE for one in LISTED} == {True}
    with pytest.raises(KeyError, match=r"elsewhere/x\.py: no heading"):
        messages.group_of("elsewhere/x.py")


def test_every_listed_message_is_on_the_page_once() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("- ")]
    assert len(lines) == len(LISTED) == len(set(lines))


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        ('def f(x):\n    raise InputError(f"{x}: is not a text of one line")', ["X: is not a text of one line"]),
        ('def f(x):\n    raise refusal("", "dtype", x, "is not known here")', ["dtype: VALUE is not known here"]),
        ('def f(x):\n    raise refusal("", "dtype", None, "is not known here")', ["dtype: is not known here"]),
        (
            'def f(x):\n    allowed = "is not known here"\n    return [("dtype", x, allowed)]',
            ["dtype VALUE: is not known here"],
        ),
        (
            'def f(x, y):\n    return [("dtype", x, "is not known here" if y else "is not allowed here")]',
            ["dtype VALUE: is not known here", "dtype VALUE: is not allowed here"],
        ),
        ('def f(x):\n    """Return the errors of x."""\n    return ["x is not known here"]', ["x is not known here"]),
        ('def f(x):\n    reasons.append("x is not " + "known here")', ["x is not known here"]),
        (
            "def f(x):\n    raise InputError(f\"no more than {counted(x, 'card')} here\")",
            ["no more than COUNT cards here"],
        ),
        ('def f(x):\n    """Return the errors of x."""\n    return re.search("not known here", x)', []),
        ('def f(x):\n    """Return a title."""\n    return "x is not known here"', []),
    ],
)
def test_what_is_a_message(text: str, listed: list[str]) -> None:
    assert sorted(of(text)) == sorted(listed)


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("card.bus_id", "BUS_ID"),
        ("entry['port']", "PORT"),
        ("cards[0]", "CARDS"),
        ("sorted(hosts)", "HOSTS"),
        ("line.strip()", "LINE"),
        ("', '.join(one.name for one in models)", "MODELS"),
        ("one()", "ONE"),
        ("'on' if x else 'off'", "on/off"),
        ("'on' if x else ''", "..."),
        ("a + b", "..."),
    ],
)
def test_what_differs_is_named_by_what_it_is_about(expression: str, name: str) -> None:
    text = f'def f():\n    raise InputError(f"{{{expression}}}: is not known here")'
    assert of(text) == [f"{name}: is not known here"]


def test_a_message_leads_to_its_key_and_its_explanation() -> None:
    one = messages.Message("x.py", "max_model_len VALUE: is above LONGEST, the model's longest context", "")
    sections = [(r".*: max_model_len .*: is above .*", "../troubleshooting.md#a-context-is-too-long")]
    found = messages.line(one, {"max_model_len": "model-keys.md#max_model_len"}, sections)
    assert found.startswith(
        "- `max_model_len VALUE: is above LONGEST, the model's longest context` [max_model_len](model-keys"
    )
    assert found.endswith(", [explanation](../troubleshooting.md#a-context-is-too-long)")
