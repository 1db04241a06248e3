"""The options of the roles: their types and choices stand in ``meta/argument_specs.yml``, and Ansible reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from .checks import REQUIRED, Check, Rule, is_line, list_of, within
from .yaml_text import load

Option = Mapping[str, Any]
ROLES = Path(__file__).resolve().parents[3] / "roles"
OPTIONS: dict[str, Option] = {
    name: option
    for path in sorted(ROLES.glob("*/meta/argument_specs.yml"))
    for name, option in load(path.read_text(encoding="utf-8"), quick=True)["argument_specs"]["main"]["options"].items()
}
# ``-e key=value`` gives texts. Ansible takes more for numbers, such as 1e3, than what reads them later.
NUMBERS = {"int": re.compile(r"\d{1,18}", re.ASCII), "float": re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII)}
NATIVE: dict[str, type | tuple[type, ...]] = {
    **{"int": int, "float": (int, float), "str": str, "path": str, "list": list, "dict": Mapping},
}


class Range(NamedTuple):
    """The limits of a number, and what it counts."""

    low: float
    high: float
    what: str = ""


def _folder(value: Any) -> bool:
    fits = isinstance(value, str) and re.fullmatch(r"(/[\w.@+-]+)+/?", value)
    return bool(fits) and ".." not in str(value).split("/")


FOLDER = Rule(_folder, "must be an absolute path of letters, digits and . _ - / @ +, without ..")
# What an option may hold whose type is all that is known of it.
USUAL = {
    "bool": Rule(lambda _: True, "must be true or false"),
    "str": Rule(is_line, "must be a quoted text of one line; '' for none"),
    "path": FOLDER,
    "list": Rule(list_of(lambda word: is_line(word) and word != ""), "must be a list of quoted texts of one line each"),
}


def rule_of(option: Option, form: Rule | Range | None = None) -> Rule:
    """Return the rule of an option: its type and choices as its role has them, and a form besides.

    Null is right where it is the default.

    Args:
        option: with type, and elements, choices, default where it has them.
        form: what values of this type it may have, and the sentence; None takes every choice, or what is usual.
    """
    converted, form = _converted(option), _form(option, form)

    def good(value: Any) -> bool:
        if value is None:
            return option.get("default", REQUIRED) is None
        typed = converted(value)
        return bool(typed) and form.good(typed[0])

    return Rule(good, form.allowed, option.get("default", REQUIRED))


def _form(option: Option, form: Rule | Range | None) -> Rule:
    if isinstance(form, Range):
        kind = "a whole number" if option["type"] == "int" else "a number"
        counted = f"{kind}{form.what and ' of '}{form.what}"
        return Rule(within(form.low, form.high), f"must be {counted} from {_figure(form.low)} to {_figure(form.high)}")
    if form is None and "choices" in option:
        *others, last = option["choices"]
        return Rule(lambda _: True, f"must be {', '.join(others)} or {last}, as a quoted text")
    return form or USUAL[option["type"]]


def _figure(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


def fits(option: Option) -> Check:
    """Return a check for what has the type of an option, and is one of its choices."""
    converted = _converted(option)
    return lambda value: bool(converted(value))


def _converted(option: Option) -> Any:
    """Return what makes a list of a value, and of a number as Ansible converts it; of another type it is empty.

    Ansible would make texts of numbers and lists of texts too, which are mistakes in an inventory.
    """
    spec = {key: option[key] for key in ("type", "elements", "choices", "options") if key in option}
    validator = ArgumentSpecValidator({"value": spec})

    def convert(value: Any) -> list[Any]:
        if not _is_native(spec["type"], value) or not all(
            _is_native(spec["elements"], one) for one in (value if "elements" in spec else ())
        ):
            return []
        # Of a key that is no text Ansible's sentence about unknown keys cannot be made.
        if "options" in spec and not all(isinstance(key, str) for key in value):
            return []
        result = validator.validate({"value": value})
        if result.error_messages:
            return []
        return [result.validated_parameters["value"] if spec["type"] in NUMBERS else value]

    return convert


def _is_native(kind: str, value: Any) -> bool:
    if kind in NUMBERS and isinstance(value, str):
        return NUMBERS[kind].fullmatch(value) is not None
    if kind in NUMBERS and isinstance(value, bool):
        return False
    return kind not in NATIVE or isinstance(value, NATIVE[kind])
