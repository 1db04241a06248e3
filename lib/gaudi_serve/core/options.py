"""The options of the roles. Ansible reads their types and choices from ``meta/argument_specs.yml``."""

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
# ``-e key=value`` sets texts. Ansible accepts numbers such as 1e3 that later readers do not accept.
NUMBERS = {"int": re.compile(r"\d{1,18}", re.ASCII), "float": re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII)}
NATIVE: dict[str, Any] = {"int": int, "float": (int, float), "str": str, "path": str, "list": list, "dict": Mapping}


class Range(NamedTuple):
    """The limits of a number, and its unit."""

    low: float
    high: float
    what: str = ""


def _folder(value: Any) -> bool:
    fits = isinstance(value, str) and re.fullmatch(r"(/[\w.@+-]+)+/?", value)
    return bool(fits) and ".." not in str(value).split("/")


FOLDER = Rule(_folder, "must be an absolute path of letters, digits and . _ - / @ +, without ..")
# The rule for options that have only a type.
USUAL = {
    "bool": Rule(lambda _: True, "must be true or false"),
    "str": Rule(is_line, "must be a quoted text of one line; '' for none"),
    "path": FOLDER,
    "list": Rule(list_of(lambda word: is_line(word) and word != ""), "must be a list of quoted texts of one line each"),
}


def rule_of(option: Option, form: Rule | Range | None = None) -> Rule:
    """Return the rule of an option: its type and choices from the role, and a further rule for its form.

    Null is allowed if it is the default.

    Args:
        option: The option: type, and elements, choices and default if it has them.
        form: The further rule; None allows every choice, or uses the usual rule for the type.
    """
    kind, elements, default = option["type"], option.get("elements", "raw"), option.get("default", REQUIRED)
    spec = {key: option[key] for key in ("type", "elements", "choices", "options") if key in option}
    validator, form = ArgumentSpecValidator({"value": spec}), _form(option, form)

    def good(value: Any) -> bool:
        if value is None:
            return default is None
        if not _is_native(kind, value) or (kind == "list" and not all(_is_native(elements, one) for one in value)):
            return False
        # Ansible's message about unknown keys fails for keys that are not texts.
        if "options" in spec and not all(isinstance(key, str) for key in value):
            return False
        result = validator.validate({"value": value})
        # Only numbers are compared after Ansible's conversion.
        return not result.error_messages and form.good(
            result.validated_parameters["value"] if kind in NUMBERS else value
        )

    return Rule(good, form.allowed, default)


def _form(option: Option, form: Rule | Range | None) -> Rule:
    if isinstance(form, Range):
        counted = f"{'an integer' if option['type'] == 'int' else 'a number'}{form.what and ' of '}{form.what}"
        return Rule(within(form.low, form.high), f"must be {counted} from {form.low} to {form.high}")
    if form is None and "choices" in option:
        *others, last = (str(one) or "''" for one in option["choices"])
        return Rule(lambda _: True, f"must be {', '.join(others)} or {last}, as a quoted text")
    return form or USUAL[option["type"]]


def _is_native(kind: str, value: Any) -> bool:
    """Return whether a value has the type without conversion. Ansible would convert texts to lists."""
    if kind == "bool":
        return is_flag_text(value)
    if kind in NUMBERS and isinstance(value, str):
        return NUMBERS[kind].fullmatch(value) is not None
    return kind not in NATIVE or (isinstance(value, NATIVE[kind]) and not (kind in NUMBERS and isinstance(value, bool)))
