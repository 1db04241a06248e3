"""Plans a host from its facts, and compares every stage with the host. Changes nothing."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase

LIB = str(Path(__file__).resolve().parents[1] / "lib")
if LIB not in sys.path:
    sys.path.insert(0, LIB)

from gaudi_serve.bundle.host import BundleHost  # noqa: E402
from gaudi_serve.bundle.offline import missing_lines  # noqa: E402
from gaudi_serve.core.checks import is_true  # noqa: E402
from gaudi_serve.core.errors import Finding, InputError  # noqa: E402
from gaudi_serve.inventory.as_task import run_as_task  # noqa: E402
from gaudi_serve.inventory.facts import FACTS, checked_facts  # noqa: E402
from gaudi_serve.inventory.rendered import UNRENDERED, Undefined, Variables  # noqa: E402
from gaudi_serve.plan.assembly import assemble  # noqa: E402
from gaudi_serve.plan.judged import judged, reasons  # noqa: E402
from gaudi_serve.plan.peers import Fleet, Tied, tied_models  # noqa: E402
from gaudi_serve.plan.wanted import Wanted  # noqa: E402
from gaudi_serve.stages import offline  # noqa: E402
from gaudi_serve.stages.base import Given, Pending, Stage  # noqa: E402
from gaudi_serve.stages.changes import StageChanges  # noqa: E402
from gaudi_serve.stages.registry import OBJECTS, awaits_driver, expected_host, plans_models  # noqa: E402

FIRST = (
    "{host}: the host does not match gaudi_offline ({due}), and this run has no stage for it; run "
    "playbooks/offline.yml first"
)


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core has no type information
    """``gaudi_plan: {due: true}``."""

    _VALID_ARGS = frozenset(("due", "judge", "status", "fleet"))
    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the plan and the pending changes of every stage as facts.

        ``due`` compares the stages, with ``fleet`` also those that depend on the plans of other hosts. ``judge`` adds
        the reasons not to start the run, and its stages. ``status`` returns the differences of every stage. The reason
        why a stage cannot be compared is the fact ``preflight_unclear``.
        """
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            facts = self._facts(task_vars or {})
        except (InputError, Undefined) as problem:
            return {**result, "failed": True, "msg": str(problem)}
        return {**result, "changed": False, "ansible_facts": facts}

    def _facts(self, variables: dict[str, Any]) -> dict[str, Any]:
        host = str(variables["inventory_hostname"])
        known = Variables(variables, self._loader, ["preflight", *[stage.role for stage in OBJECTS]])
        stages = list(known["preflight_for"])
        facts: dict[str, Any] = {}
        findings: list[Finding] = []
        warnings: list[str] = []
        if plans_models(stages):
            # Without it nothing of the host is known. The error reports that.
            read = {"gaudi_host": known["gaudi_host"], **{name: known[name] for name in FACTS if name in known}}
            complete, wrong = checked_facts(read)
            expected = {} if wrong else self._expected(host, known, stages)
            tied = self._tied(host, known, variables, waits=bool(expected.get("awaits_driver")))
            known = known.but(preflight_chosen=tied.chosen)
            given = read if wrong else {**complete, "gaudi_host": {**complete["gaudi_host"], **expected}}
            gateways = list(known.get("preflight_gateways") or [])
            wanted = dataclasses.replace(Wanted.of_role(known), left=tied.left)
            found = assemble(host, wanted, given, known.get("gaudi_runtime"), gateways, tied.peers)
            findings = [*tied.findings, *found.findings]
            warnings = list(found.warnings)
            facts |= {"preflight_plan": found.models, "preflight_expected": expected, "preflight_chosen": tied.chosen}
            # gaudi_lock uses it to find whether another run has changed the host since the plan's facts were read.
            facts["preflight_observed"] = {"at": known["gaudi_observed_at"], "boot": known.get("gaudi_boot_id", "")}
            known = known.but(**facts)
        if self._task.args.get("due"):
            facts |= self._asked(host, known, stages, variables)
        fetches = self._task.args.get("due") and any(one.role in stages for one in OBJECTS)
        if fetches and is_true(known.get("offline_enabled") or False):
            try:
                facts |= self._mirrored(host, known.but(**facts), stages, variables)
            except (Undefined, *UNRENDERED, InputError) as problem:
                facts.setdefault("preflight_unclear", str(problem))
        known = known.but(**facts)
        if self._task.args.get("judge"):
            facts |= judged(host, known, stages, findings, warnings)
        if self._task.args.get("status"):
            facts |= self._differing(host, known, stages, variables)
            facts |= {"preflight_status": reasons(known, stages, findings, host)} if plans_models(stages) else {}
        return facts

    @staticmethod
    def _tied(host: str, known: Variables, variables: dict[str, Any], *, waits: bool) -> Tied:
        """Return the models of a host that run on several hosts. Without any, nothing of other hosts is read."""
        if not known.get("vllm_distributed_models"):
            return Tied()
        gateways, run = list(known.get("preflight_gateways") or []), list(variables.get("ansible_play_hosts_all") or [])
        fleet = Fleet(variables["hostvars"], gateways, run, only_reads=not known["preflight_for"])
        return tied_models(host, fleet, waits)

    def _mirrored(self, host: str, known: Variables, stages: list[str], variables: dict[str, Any]) -> dict[str, Any]:
        """Return as a refusal of stage offline what a run would fetch but the site's mirror does not have."""
        facts = {}
        if offline.ROLE not in stages:
            found = self._found(offline.STAGE, host, known, variables)
            facts = offline.STAGE.facts(found)
            if found.due and not found.refusal:
                return {**facts, "offline_refusal": [FIRST.format(host=host, due=found.due[0])]}
            known = known.but(**facts)
        if known["offline_refusal"]:
            return facts
        models = list(known.get("preflight_plan", {}).get("models") or ())
        due = list(StageChanges.of(known, stages).pending)
        lacks = missing_lines(
            BundleHost(host, known, models), str(known["offline_mirror_url"]), known["offline_has"], due
        )
        return {**facts, "offline_refusal": lacks}

    def _expected(self, host: str, known: Variables, stages: list[str]) -> dict[str, Any]:
        """Return the facts for planning that earlier stages of the run change."""
        try:
            again = is_true(known["preflight_plans_again"]) and not self._task.args.get("status")
            return expected_host(host, known, stages, plans_again=again)
        except (InputError, Undefined, *UNRENDERED):
            # The stage itself reports mistakes when it is compared.
            return {}

    def _stages(self, stages: list[str], waits: bool) -> list[Stage]:
        """Return the stages to compare."""
        fleet = self._task.args.get("fleet")
        asked = [one for one in OBJECTS if one.role in stages and (fleet or not one.of_fleet)]
        return [one for one in asked if not (waits and one.planned)]

    def _differing(self, host: str, known: Variables, stages: list[str], variables: dict[str, Any]) -> dict[str, Any]:
        """Return the differences of every stage from the plan, as facts."""
        facts: dict[str, Any] = {}
        for stage in self._stages(stages or [one.role for one in OBJECTS], awaits_driver(known)):
            found = self._found(stage, host, known, variables)
            facts[f"{stage.role}_status"] = list(found.drift)
            facts |= {} if found.notes is None else {f"{stage.role}_notes": list(found.notes)}
        return facts

    def _found(self, stage: Stage, host: str, known: Variables, variables: dict[str, Any]) -> Pending:
        def run(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
            return run_as_task(self, name, arguments, variables)

        return stage.asked(Given(host, known), run)

    def _asked(self, host: str, known: Variables, stages: list[str], variables: dict[str, Any]) -> dict[str, Any]:
        """Return the facts of every stage, up to the first that cannot be compared, and the reason."""
        facts: dict[str, Any] = {}
        for stage in self._stages(stages, awaits_driver(known)):
            try:
                facts |= stage.facts(self._found(stage, host, known, variables))
            except AnsibleConnectionFailure:
                # The host is unreachable, which is not a refusal.
                raise
            except (InputError, Undefined, AnsibleError) as problem:
                facts["preflight_unclear"] = str(problem)
                break
        return facts
