"""YAML as people write it: of a key that stands twice the last would count, in silence."""

from __future__ import annotations

from typing import Any


def load(text: str, quick: bool = False) -> Any:
    """Return what a text of YAML says.

    Args:
        text: the text.
        quick: take libyaml's parser where it is, in a tenth of the time: for files of the project's own. It accepts
            what the one in Python refuses, and names places less exactly, so users' texts are not for it.

    Only the controller reads YAML; modules that share this package have no yaml, which is why it is imported here.

    Raises:
        yaml.YAMLError: where it is none, or a key stands twice in a mapping.
        Exception: of Python's own, for a date that is none, a number that is too long, and the like.
    """
    import yaml

    parser = getattr(yaml, "CSafeLoader", yaml.SafeLoader) if quick else yaml.SafeLoader
    return yaml.load(text, _refusing(parser))  # noqa: S506 - a SafeLoader


def dump(value: Any) -> str:
    """Return a value of mappings, lists, texts and numbers as a text of YAML; only the controller writes it."""
    import json

    import yaml

    # Ansible's own kinds of texts are none of YAML's.
    return str(yaml.safe_dump(json.loads(json.dumps(value)), sort_keys=False, allow_unicode=True, width=120))


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
