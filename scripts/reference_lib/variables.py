"""The variables that an inventory or ``-e`` may set, and the page about them."""

from __future__ import annotations

from pathlib import Path

from gaudi_serve.core.options import OPTIONS
from gaudi_serve.inventory.facts import OTHERS, VARIABLES
from gaudi_serve.inventory.variables import HANDED, INPUTS
from gaudi_serve.stages.registry import STAGES

from . import mappings
from .entries import Entry, data_of
from .roles import text_of

HEAD = """# Inventory variables

An inventory, or `-e`, sets variables. The variable `vllm_models` has the [keys of a model](model-keys.md). Every
variable and key has a tier, and each tier has a page:

| tier | who needs it |
|---|---|
| [everyday](everyday.md) | everybody: a first host needs nothing else |
| [site](site.md) | a fleet: images, drivers, mirrors, proxies, gateway, monitoring |
| [expert](expert.md) | few: the defaults fit nearly every host |

A variable that begins with a prefix of the toolkit and is on none of these pages is refused, with the nearest known
name. Options of single playbooks, such as `-e model=`, are on the page of the [playbooks](playbooks.md).
`scripts/reference` writes these pages.

An editor can check an inventory while you type. Put one of these lines at the top of the file:

```yaml
# yaml-language-server: $schema=PATH/docs/reference/schemas/inventory.schema.json
```

```yaml
# yaml-language-server: $schema=PATH/docs/reference/schemas/variables.schema.json
```

The first is for `hosts.yml`, the second for files in `group_vars` and `host_vars`. `PATH` is the checkout of
this repository.

## Variables with keys

A variable that takes a mapping has a table of its keys. In the path of a mapping, an uppercase word is a name that
you choose, and `[]` is each entry of a list. All keys exist since 1.0.0, unless their table has another version.
An unknown key is refused.

"""
# Observed facts, which an inventory has no reason to set.
FACTS = ("gaudi_runtime", "preflight_catalog")
# Roles that are no stage, with their playbooks.
PLAYBOOKS = {"preflight": "all", "site_mirror": "mirror"}


def own() -> list[Entry]:
    """Return the variables that belong to no role, in the order of their data."""
    rules = {**VARIABLES, **INPUTS}
    found = []
    for name, data in data_of("variables").items():
        readers = ", ".join(f"`{one}.yml`" for one in data.get("read_by", ()))
        allowed = data.get("allowed") or (rules[name].allowed if name in rules else "")
        found.append(Entry.of(name, data, allowed, readers))
    return found


def of_roles() -> dict[str, list[Entry]]:
    """Return the options of roles that an inventory may set, by role."""
    roles: dict[str, list[Entry]] = {}
    names = [name for name in INPUTS if name in OPTIONS and name not in (*HANDED, *FACTS)]
    owners = sorted((*STAGES, *PLAYBOOKS), key=len, reverse=True)
    for name in names:
        role = next(one for one in owners if name.startswith(f"{one}_"))
        option = OPTIONS[name]
        kind = option["type"] + (f" of {option['elements']}" if "elements" in option else "")
        data = {"type": kind, "help": text_of(dict(option)), "choices": option.get("choices")}
        if option.get("default") not in (None, "", [], {}):
            data["default"] = f"`{str(option['default']).lower() if kind == 'bool' else option['default']}`"
        roles.setdefault(role, []).append(Entry.of(name, data, INPUTS[name].allowed, ""))
    return roles


def readers(role: str) -> str:
    """Return which playbooks read the options of a role."""
    playbook = PLAYBOOKS.get(role) or STAGES[role]
    return "All playbooks" if playbook == "all" else f"`{playbook}.yml` and `site.yml`"


def every() -> list[Entry]:
    """Return all variables."""
    return own() + [one for entries in of_roles().values() for one in entries]


def known() -> set[str]:
    """Return the names of all variables that a user may set."""
    return {*VARIABLES, *OTHERS, *INPUTS, mappings.AWX} - {*HANDED, *FACTS}


def pages(root: Path) -> dict[Path, str]:
    """Return the files that this part writes, by their paths."""
    return {root / "docs/reference/inventory.md": HEAD + mappings.sections(every())}
