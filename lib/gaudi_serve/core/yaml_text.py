"""YAML as people write it: of a key that stands twice the last would count, in silence."""

from __future__ import annotations

from typing import Any


def load(text: str) -> Any:
    """Return what a text of YAML says.

    Only the controller reads YAML; modules that share this package have no yaml, which is why it is imported here.

    Raises:
        yaml.YAMLError: where it is none, or a key stands twice in a mapping.
        Exception: of Python's own, for a date that is none, a number that is too long, and the like.
    """
    import yaml

    try:
        # libyaml takes a tenth of the time, and every run reads the whole catalog.
        return yaml.load(text, _refusing(getattr(yaml, "CSafeLoader", yaml.SafeLoader)))  # noqa: S506 - a SafeLoader
    except yaml.YAMLError:
        # The parser in Python names the place more exactly.
        return yaml.load(text, _refusing(yaml.SafeLoader))  # noqa: S506 - a SafeLoader


def _refusing(parser: Any) -> Any:
    """Return a loader that refuses a key that stands twice."""
    import yaml

    class Loader(parser):  # type: ignore[misc]  # one of two
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[str] = set()
            for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
                if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                    if key.value in seen:
                        raise yaml.constructor.ConstructorError(None, None, "a key that stands twice", key.start_mark)
                    seen.add(key.value)
            return super().construct_mapping(node, deep=deep)

    return Loader
