"""A text of a program as its constant parts and the names of what differs."""

from __future__ import annotations

import ast
import re

# A constant text, or a name of what differs as a tuple of one.
Parts = list[str | tuple[str]]
UNKNOWN = "..."
# Methods of a text; the text has the better name.
OF_TEXTS = frozenset({"strip", "rstrip", "split", "splitlines", "lower", "upper", "decode"})


def concatenated(node: ast.AST) -> bool:
    """Return whether a node is a text, or texts that are added."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return concatenated(node.left) or concatenated(node.right)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def parts_of(node: ast.AST) -> Parts:
    """Return the parts of a text."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.JoinedStr):
        return [part for value in node.values for part in parts_of(value)]
    if isinstance(node, ast.FormattedValue):
        return differing(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*parts_of(node.left), *parts_of(node.right)]
    return differing(node)


def differing(node: ast.AST) -> Parts:
    """Return the parts of something that differs: its name in CAPITALS, or the constant words that it can be."""
    if isinstance(node, ast.IfExp) and isinstance(node.body, ast.Constant) and isinstance(node.orelse, ast.Constant):
        words = [str(one.value) for one in (node.body, node.orelse) if str(one.value).strip()]
        return [("/".join(word.strip() for word in words),)] if len(words) == 2 else [(UNKNOWN,)]
    if (
        isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "counted"
        and isinstance(node.args[1], ast.Constant)
    ):
        return [("COUNT",), " ", (f"{node.args[1].value!s}s",)]
    return [(name_of(node),)]


def name_of(node: ast.AST) -> str:
    """Return the name of what an expression is about, in CAPITALS; ``...`` where it has none."""
    if isinstance(node, ast.Name):
        return node.id.strip("_").upper()
    if isinstance(node, ast.Attribute):
        return node.attr.strip("_").upper()
    if isinstance(node, ast.Subscript):
        key = node.slice
        return (
            str(key.value).upper()
            if isinstance(key, ast.Constant) and isinstance(key.value, str)
            else name_of(node.value)
        )
    if isinstance(node, ast.Call):
        return name_of(subject_of(node))
    if isinstance(node, (ast.GeneratorExp, ast.ListComp)):
        return name_of(node.generators[0].iter)
    return UNKNOWN


def subject_of(call: ast.Call) -> ast.AST:
    """Return what a call is about: the text of a method of texts, the first argument, or the function."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in OF_TEXTS:
        return call.func.value
    return call.args[0] if call.args else call.func


def template_of(parts: Parts) -> str:
    """Return the text for people, on one line."""
    text = ""
    for one in parts:
        if isinstance(one, str):
            text += one
        elif re.search(r"[a-z)]$", text):
            text += UNKNOWN  # such as an optional clause with its separator
        else:
            text += f" {one[0]}" if text[-1:].isalnum() else one[0]
    return re.sub(r"\s+", " ", text).strip(" ,;")


def pattern_of(parts: Parts) -> str:
    """Return a regular expression that finds a message of these parts."""
    return "".join(re.escape(one) if isinstance(one, str) else ".*?" for one in parts)
