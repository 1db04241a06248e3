"""YAML that users write. The loader refuses a key that is there twice; plain YAML silently uses the last one."""

from __future__ import annotations

from typing import Any


def load(text: str, quick: bool = False) -> Any:
    """Return the value of a YAML text.

    Only the controller reads YAML. Modules that share this package have no yaml, so it is imported here.

    Args:
        text: The text.
        quick: Use libyaml's parser if it is installed. It takes a tenth of the time. Use it only for the project's
            own files: it accepts some errors that Python's parser refuses, and its line numbers are less exact.

    Raises:
        yaml.YAMLError: The text is not YAML, or a mapping has a key twice.
        Exception: Python's own errors, for example for an invalid date or a number that is too long.
    """
    import yaml

    parser = getattr(yaml, "CSafeLoader", yaml.SafeLoader) if quick else yaml.SafeLoader
    return yaml.load(text, _refusing(parser))  # noqa: S506 - a SafeLoader


def dump(value: Any) -> str:
    """Return a value of mappings, lists, texts and numbers as YAML. Only the controller writes YAML."""
    import json

    import yaml

    # YAML cannot write Ansible's own text types.
    return str(yaml.safe_dump(json.loads(json.dumps(value)), sort_keys=False, allow_unicode=True, width=120))


def _refusing(parser: Any) -> Any:
    """Return a loader that refuses a key that is there twice."""
    import yaml

    class Loader(parser):  # type: ignore[misc]  # one of two
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[str] = set()
            for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
                if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                    if key.value in seen:
                        raise yaml.constructor.ConstructorError(None, None, "a key that is there twice", key.start_mark)
                    seen.add(key.value)
            return super().construct_mapping(node, deep=deep)

    return Loader
