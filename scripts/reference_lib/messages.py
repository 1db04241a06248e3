"""The page of the messages with which a run is refused, collected from the programs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from . import tiers
from .message_groups import GROUPS
from .message_parts import Parts, concatenated, parts_of, pattern_of, template_of

HEAD = """# Messages

All messages with which a run is refused or fails. Search this page, or the site, for the constant words of your
message. Words in CAPITALS stand for a part that differs, such as VALUE, HOST_NAME or KEY. The toolkit joins some
messages from two lines of this page: the first names the place, the second what is wrong.
[Troubleshooting](../troubleshooting.md) explains the messages that need more than a sentence. `make docs` writes this
page.

"""
SOURCES = ("lib/gaudi_serve/**/*.py", "library/*.py", "*_plugins/*.py", "roles/model_weights/files/*")
TASKS = ("roles/*/tasks/*.yml", "playbooks/**/*.yml", "site.yml")
LEAST_WORDS = 3
# Calls whose texts are reasons of a refusal, and calls whose texts are not for people.
REFUSING = {
    "refusal",
    "_refusal",
    "Finding",
    "of_model",
    "Rule",
    "fail_json",
    "InputError",
    "AnsibleActionFail",
    "failed",
}
CODE = {"compile", "search", "match", "fullmatch", "sub", "split", "partition", "startswith", "endswith", "get"}
CODE |= {"removeprefix", "replace", "count", "strftime", "add_argument", "run"}
# Names of the variables that collect reasons, and what a function is called or described as that returns some.
COLLECTED = {"reasons", "refused", "refusals", "refusal", "problems", "problem", "errors", "wrong", "allowed", "fault"}
RETURNS = re.compile(r"refus|problem|error|wrong|mistake|\bwhy\b|conflict|invalid|must (?!be kept)", re.I)
NOT_PROSE = re.compile(r"\\[dwsSb]|\(\?|^[\w./-]+$|^SELECT|^--|\n.*\n")
# This section of the page of explanations fits most messages, so that a link to it shows nothing.
GENERIC = "A value is not allowed"


class Tasks(yaml.SafeLoader):
    """Reads tasks, also those with tags of Ansible such as !unsafe."""


Tasks.add_multi_constructor("!", lambda loader, tag, node: loader.construct_scalar(node))


@dataclass(frozen=True)
class Message:
    """A message with which a run is refused.

    source: the file, from the repository's root. template: its text with CAPITALS for what differs. pattern: a regular
    expression that finds it.
    """

    source: str
    template: str
    pattern: str


class Reader:
    """Finds the messages of one program."""

    def __init__(self, source: str, text: str) -> None:
        self.source = source
        self.tree = ast.parse(text)
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self.used: set[ast.AST] = set()

    def messages(self) -> Iterator[Message]:
        """Yield the messages, in the order of the file."""
        keyed = [*self._keyed()]
        nothing: Parts = []
        others = [(node, nothing, parts_of(node)) for node in ast.walk(self.tree) if self._is_reason(node)]
        for _, before, parts in sorted([*keyed, *others], key=lambda one: getattr(one[0], "lineno", 0)):
            if is_sentence([*before, *parts]):
                yield Message(self.source, template_of([*before, *parts]), pattern_of(parts))

    def _keyed(self) -> Iterator[tuple[ast.AST, Parts, Parts]]:
        """Yield each reason that stands beside the key and the value that it is about."""
        functions = [one for one in ast.walk(self.tree) if isinstance(one, ast.FunctionDef)]
        for node in (inside for function in functions for inside in ast.walk(function)):
            for before, reason in self._with_key(node):
                for text in self._texts(reason):
                    self.used.add(text)
                    if " " in template_of(parts_of(text)):
                        yield text, before, parts_of(text)

    def _with_key(self, node: ast.AST) -> Iterator[tuple[Parts, ast.expr]]:
        value: Parts = [("VALUE",)]
        if isinstance(node, ast.Tuple) and len(node.elts) == 3 and is_key(node.elts[0]):
            yield [*parts_of(node.elts[0]), *([] if is_none(node.elts[1]) else [" ", *value]), ": "], node.elts[2]
        elif isinstance(node, ast.Call) and called(node) == "refusal" and len(node.args) == 4:
            yield [*parts_of(node.args[1]), ": ", *([] if is_none(node.args[2]) else [*value, " "])], node.args[3]
        elif isinstance(node, ast.Call) and called(node) == "size_problem":
            yield ["tensor_parallel_size ", *value, ": "], node.args[0]

    def _texts(self, node: ast.expr, names: bool = True) -> list[ast.expr]:
        """Return the texts that an expression can be, also by a name of the same function."""
        if isinstance(node, ast.IfExp):
            return [*self._texts(node.body, names), *self._texts(node.orelse, names)]
        if isinstance(node, ast.Name) and names:
            function = next((one for one in self._above(node) if isinstance(one, ast.FunctionDef)), self.tree)
            before = [
                one
                for one in ast.walk(function)
                if isinstance(one, ast.Assign)
                and one.lineno < node.lineno
                and any(getattr(to, "id", "") == node.id for to in one.targets)
            ]
            return self._texts(max(before, key=lambda one: one.lineno).value, names=False) if before else []
        return [node] if concatenated(node) else []

    def _above(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self.parents:
            node = self.parents[node]
            yield node

    def _is_reason(self, node: ast.AST) -> bool:
        """Return whether a node is a complete text, not used yet, that is the reason why a run is refused."""
        above = [*self._above(node)]
        if not concatenated(node) or node in self.used or any(one in self.used or concatenated(one) for one in above):
            return False
        if isinstance(above[0], (ast.Expr, ast.Compare, ast.FormattedValue)):
            return False
        calls = {called(one) for one in above if isinstance(one, ast.Call)}
        if calls & CODE:
            return False
        return bool(calls & REFUSING) or any(map(refuses, above))


def refuses(node: ast.AST) -> bool:
    """Return whether what is inside a node is a reason: it is raised, collected, or returned as one."""
    if isinstance(node, ast.Raise):
        return True
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(getattr(one, "id", "").lower() in COLLECTED for one in targets)
    if isinstance(node, ast.Call) and called(node) in ("append", "extend"):
        return isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") in COLLECTED
    if isinstance(node, ast.FunctionDef):
        # A reason, or None where nothing is wrong.
        perhaps = node.returns is not None and "str | None" in ast.unparse(node.returns)
        return perhaps or bool(RETURNS.search(f"{node.name} {(ast.get_docstring(node) or '').partition(chr(10))[0]}"))
    return False


def called(node: ast.Call) -> str:
    """Return the last name of what is called."""
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


def is_key(node: ast.expr) -> bool:
    """Return whether a node is the name of a key, or begins with one."""
    first = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else node
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        return re.match(r"[a-z_]+$|[a-z_]+\.", first.value) is not None
    return isinstance(first, ast.Name) and first.id == "key"


def is_none(node: ast.expr) -> bool:
    """Return whether a node is None."""
    return isinstance(node, ast.Constant) and node.value is None


def is_sentence(parts: Parts) -> bool:
    """Return whether parts are a text for people: some constant words, and no pattern or program."""
    text = " ".join(one for one in parts if isinstance(one, str))
    return len(re.findall(r"[A-Za-z]{2,}", text)) >= LEAST_WORDS and " " in text.strip() and not NOT_PROSE.search(text)


def of_tasks(source: str, text: str) -> Iterator[Message]:
    """Yield the messages with which tasks fail."""
    for task in _tasks(yaml.load(text, Loader=Tasks)):  # noqa: S506 - a subclass of SafeLoader
        for key in ("ansible.builtin.fail", "ansible.builtin.assert"):
            given = task.get(key) or {}
            said = given.get("msg") or given.get("fail_msg") or ""
            parts: Parts = []
            for index, one in enumerate(re.split(r"\{\{(.*?)\}\}", " ".join(str(said).split()))):
                names = re.findall(r"[a-z_]{3,}", one)
                parts.append((names[0].strip("_").upper() if names else "...",) if index % 2 else one)
            if is_sentence(parts):
                yield Message(source, template_of(parts), pattern_of(parts))


def _tasks(value: Any) -> Iterator[Mapping[str, Any]]:
    for one in value if isinstance(value, list) else []:
        if isinstance(one, dict):
            yield one
            for part in ("tasks", "pre_tasks", "post_tasks", "block", "rescue", "always"):
                yield from _tasks(one.get(part))


def messages(root: Path) -> list[Message]:
    """Return every message, once, in the order of the files."""
    found: dict[str, Message] = {}
    programs = sorted(path for pattern in SOURCES for path in root.glob(pattern) if path.suffix in ("", ".py"))
    for path in programs:
        for one in Reader(str(path.relative_to(root)), path.read_text(encoding="utf-8")).messages():
            found.setdefault(one.template, one)
    for path in sorted(path for pattern in TASKS for path in root.glob(pattern)):
        for one in of_tasks(str(path.relative_to(root)), path.read_text(encoding="utf-8")):
            found.setdefault(one.template, one)
    return list(found.values())


def group_of(source: str) -> str:
    """Return the heading of a file's messages: that of the longest beginning of its name in GROUPS."""
    begins = {begin: title for title, group in GROUPS.items() for begin in group.sources if source.startswith(begin)}
    if not begins:
        raise KeyError(f"{source}: no heading of scripts/reference_lib/message_groups.py has the messages of this file")
    return begins[max(begins, key=len)]


def explained(root: Path) -> list[tuple[str, str]]:
    """Return (pattern, link) of each template of the page of explanations."""
    found = []
    for section in (root / "docs/troubleshooting.md").read_text(encoding="utf-8").split("\n### ")[1:]:
        title = section.partition("\n")[0]
        slug = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        for template in re.findall(r"^`([^`]+)`$", section, re.M) if title != GENERIC else []:
            found.append((".*".join(map(re.escape, template.split("..."))), f"../troubleshooting.md#{slug}"))
    return found


def line(one: Message, known: Mapping[str, str], sections: Sequence[tuple[str, str]]) -> str:
    """Return a message as an item of a list, with links to its key and to its explanation."""
    words = re.findall(r"[a-z]\w+", one.template.split(":")[0])
    links = [f"[{word}]({known[word]})" for word in words if "_" in word and word in known][:1]
    text = f"KEY: {one.template}"
    links += [f"[explanation]({to})" for pattern, to in sections if re.fullmatch(pattern, text, re.S)][:1]
    fence = "``" if "`" in one.template else "`"
    code = f"{fence} {one.template} {fence}" if fence == "``" else f"`{one.template}`"
    return f"- {code}{' ' * bool(links)}{', '.join(links)}"


def pages(root: Path) -> dict[Path, str]:
    """Return the files that this part writes, by their paths."""
    known, sections = tiers.links(), explained(root)
    groups: dict[str, list[str]] = {title: [] for title in GROUPS}
    for one in messages(root):
        groups[group_of(one.source)].append(line(one, known, sections))
    text = HEAD
    for title, lines in groups.items():
        text += f"## {title}\n\n{GROUPS[title].help}\n\n" + "\n".join(lines) + "\n\n"
    return {root / "docs/reference/messages.md": text.rstrip("\n") + "\n"}
