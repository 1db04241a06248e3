"""Lists everything that a run fetches from outside for a host, on the control node. Changes nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

LIB = str(Path(__file__).resolve().parents[1] / "lib")
if LIB not in sys.path:
    sys.path.insert(0, LIB)

from gaudi_serve.bundle.access import host_access  # noqa: E402
from gaudi_serve.bundle.host import BundleHost  # noqa: E402
from gaudi_serve.bundle.items import Item, joined  # noqa: E402
from gaudi_serve.bundle.listing import host_items, unplanned_models  # noqa: E402
from gaudi_serve.core.errors import InputError  # noqa: E402
from gaudi_serve.inventory.facts import checked_facts, rendered_of, saved_facts  # noqa: E402
from gaudi_serve.inventory.rendered import UNRENDERED, Undefined, Variables  # noqa: E402
from gaudi_serve.stages.registry import OBJECTS  # noqa: E402

SOURCE_HOST = "vllm_image_from_host"


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core has no type information
    """``gaudi_bundle: {fleet: "{{ fleet }}", facts_dir: "", access: false}``."""

    _VALID_ARGS = frozenset(("fleet", "facts_dir", "access"))
    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the items of the host as fact ``bundle_items``, and problems as ``bundle_problems``.

        ``fleet`` is the result of filter vllm_fleet_plan; ``facts_dir`` the folder of saved facts, empty if the hosts
        were read. With ``access`` it returns addresses and logins for fetching instead, which are secret: use no_log.
        """
        result: dict[str, Any] = super().run(tmp, task_vars)
        if self._task.args.get("access"):
            name = str((task_vars or {})["inventory_hostname"])
            return {**result, "changed": False, "access": host_access(*self._listed(name, task_vars or {}))}
        items, problems = [], []
        host = str((task_vars or {})["inventory_hostname"])
        # The plan has reported why a host cannot be planned.
        refused = any(one["host"] == host for one in self._task.args["fleet"]["errors"])
        try:
            items = [] if refused else [one.as_dict() for one in joined(self._listed(host, task_vars or {})[1])]
        except InputError as problem:
            problems = [str(problem)]
        except (Undefined, *UNRENDERED) as problem:
            problems = [f"{host}: {problem}"]
        return {**result, "changed": False, "ansible_facts": {"bundle_items": items, "bundle_problems": problems}}

    def _listed(self, host: str, variables: dict[str, Any]) -> tuple[BundleHost, list[Item]]:
        args = self._task.args
        roles = ["preflight", *[stage.role for stage in OBJECTS]]
        known = Variables(variables, self._loader, roles).but(**self._facts(host, str(args.get("facts_dir") or "")))
        plan = args["fleet"]["hosts"].get(host) or {"models": []}
        # If a run installs the driver first, the plan comes after that.
        models = plan["models"] or (unplanned_models(known) if "gaudi_host" in known else [])
        known = known.but(preflight_plan={"models": models})
        gives = any(_giver(one) == host for one in variables["hostvars"].values())
        serves = ["site_mirror"] if host in (variables["groups"].get("mirror") or ()) else []
        one = BundleHost(host, known, models, gives)
        return one, host_items(one, [*known["preflight_for"], *serves])

    @staticmethod
    def _facts(host: str, folder: str) -> dict[str, Any]:
        """Return the saved facts of a host; empty for a host without saved facts, or that was read."""
        found, problem = saved_facts(folder, host) if folder else ({}, None)
        if problem or not found:
            return {}
        complete, wrong = checked_facts(found)
        return {**found, **({} if wrong else {"gaudi_host": complete["gaudi_host"]})}


def _giver(variables: Mapping[str, Any]) -> str:
    found, _ = rendered_of(variables, (SOURCE_HOST,))
    return str(found.get(SOURCE_HOST) or "")
