"""The variables of a host as a task sees them, with defaults of roles. Each is rendered when it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ansible.errors import AnsibleError
from ansible.template import Templar
from jinja2 import TemplateError

from ..core.templates import ROLES

# Errors of a variable whose template cannot be rendered: Jinja's errors in filters, Ansible's elsewhere.
UNRENDERED = (AnsibleError, TemplateError)


class Undefined(KeyError):
    """A variable that a host does not have, such as a fact of an unreachable host."""

    def __str__(self) -> str:
        return f"{self.args[0]!r} is undefined"


class Variables(Mapping[str, Any]):
    """Variables by name, rendered when they are read."""

    def __init__(self, variables: Mapping[str, Any], loader: Any, roles: Iterable[str] = ()) -> None:
        """Store the variables of a task.

        Args:
            variables: The variables that Ansible gives an action plugin.
            loader: The file loader of every plugin.
            roles: Roles whose defaults apply if a variable is not set.
        """
        defaults: dict[str, Any] = {}
        for role in roles:
            path = str(ROLES / role / "defaults/main.yml")
            defaults |= loader.load_from_file(path, trusted_as_template=True) or {}
        self._variables, self._loader = {**defaults, **variables}, loader
        self._rendered: dict[str, Any] = {}

    def but(self, **values: Any) -> Variables:
        """Return the variables with other values, which have no templates. Other variables refer to the new values."""
        return Variables({**self._variables, **values}, self._loader)

    def __getitem__(self, name: str) -> Any:
        if name not in self._rendered:
            if name not in self._variables:
                raise Undefined(name)
            templar = Templar(loader=self._loader, variables=self._variables)
            self._rendered[name] = templar.template(self._variables[name])
        return self._rendered[name]

    def __contains__(self, name: object) -> bool:
        return name in self._variables

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)
