"""The options of the roles: their types and choices stand in ``meta/argument_specs.yml``, and Ansible reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from .checks import REQUIRED, Rule, is_flag_text, is_line, list_of, within
from .templates import ROLES
from .yaml_text import load

Option = Mapping[str, Any]
OPTIONS: dict[str, Option] = {
    name: option
    for path in sorted(ROLES.glob("*/meta/argument_specs.yml"))
    for name, option in load(path.read_text(encoding="utf-8"), quick=True)["argument_specs"]["main"]["options"].items()
}
# ``-e key=value`` gives texts. Ansible takes more for numbers, such as 1e3, than what reads them later.
NUMBERS = {"int": re.compile(r"\d{1,18}", re.ASCII), "float": re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII)}
NATIVE: dict[str, Any] = {"int": int, "float": (int, float), "str": str, "path": str, "list": list, "dict": Mapping}


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
    kind, elements, default = option["type"], option.get("elements", "raw"), option.get("default", REQUIRED)
    spec = {key: option[key] for key in ("type", "elements", "choices", "options") if key in option}
    validator, form = ArgumentSpecValidator({"value": spec}), _form(option, form)

    def good(value: Any) -> bool:
        if value is None:
            return default is None
        if not _is_native(kind, value) or (kind == "list" and not all(_is_native(elements, one) for one in value)):
            return False
        # Of a key that is not a text Ansible's sentence about unknown keys cannot be made.
        if "options" in spec and not all(isinstance(key, str) for key in value):
            return False
        result = validator.validate({"value": value})
        # Of what Ansible converts, numbers alone are compared.
        return not result.error_messages and form.good(
            result.validated_parameters["value"] if kind in NUMBERS else value
        )

    return Rule(good, form.allowed, default)


def _form(option: Option, form: Rule | Range | None) -> Rule:
    if isinstance(form, Range):
        counted = f"{'an integer' if option['type'] == 'int' else 'a number'}{form.what and ' of '}{form.what}"
        return Rule(within(form.low, form.high), f"must be {counted} from {form.low} to {form.high}")
    if form is None and "choices" in option:
        *others, last = option["choices"]
        return Rule(lambda _: True, f"must be {', '.join(others)} or {last}, as a quoted text")
    return form or USUAL[option["type"]]


def _is_native(kind: str, value: Any) -> bool:
    """Tell whether a value has a type by itself: of texts Ansible would make lists, and texts of numbers."""
    if kind == "bool":
        return is_flag_text(value)
    if kind in NUMBERS and isinstance(value, str):
        return NUMBERS[kind].fullmatch(value) is not None
    return kind not in NATIVE or (isinstance(value, NATIVE[kind]) and not (kind in NUMBERS and isinstance(value, bool)))
