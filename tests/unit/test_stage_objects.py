"""Stage objects: every role has one, and what a run, a status and a reset read follows from it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import trust_as_template
from gaudi_serve.core.errors import InputError
from gaudi_serve.core.templates import rendered
from gaudi_serve.host import observe_runtime
from gaudi_serve.inventory.rendered import Undefined, Variables
from gaudi_serve.inventory.variables import SAID
from gaudi_serve.show.status import PARTS
from gaudi_serve.stages.base import Given, Pending, Stage
from gaudi_serve.stages.registry import BY_ROLE, EVERYTHING, OBJECTS, REPORTED
from gaudi_serve.stages.reset import ROLES

ROOT = Path(__file__).parents[2]


def variables(**values: Any) -> Variables:
    """Return variables as a task has them: their texts may be templates."""
    loader = DataLoader()
    return Variables({name: trust_as_template(value) for name, value in values.items()}, loader, ["host_tuning"])


def test_every_role_but_preflight_is_a_stage_with_its_playbooks() -> None:
    # The mirror is not a host of the fleet: playbooks/mirror.yml alone has its role.
    others = {"preflight", "site_mirror"}
    roles = {path.parent.parent.name for path in ROOT.glob("roles/*/tasks/main.yml")} - others
    assert roles == set(BY_ROLE)
    for stage in OBJECTS:
        assert (ROOT / f"playbooks/{stage.tag}.yml").exists(), stage.role
        (play,) = yaml.safe_load((ROOT / f"playbooks/stages/{stage.tag}.yml").read_text(encoding="utf-8"))
        assert (play["vars"]["gaudi_stage"], play["tags"]) == (stage.tag, stage.tag)
        # The role asks its stage, and looks again after its work.
        tasks = "\n".join(
            path.read_text(encoding="utf-8") for path in (ROOT / "roles" / stage.role).glob("tasks/*.yml")
        )
        assert f"stage: {stage.role}\n" in tasks
        assert PARTS[stage.tag] == f"{stage.role}_status"
        assert f"{stage.role}_due" in REPORTED


def test_what_a_stage_reads_is_known_and_a_reset_takes_stages_back_in_the_opposite_order() -> None:
    for stage in OBJECTS:
        assert set(stage.reads) <= {*EVERYTHING, "haproxy", "weights_store"}, stage.role
        assert {f"gaudi_{subset}" for subset in EVERYTHING} <= SAID
    assert (*[one.role for one in reversed(OBJECTS)], "preflight_packages", "preflight_rest") == ROLES


def test_variables_are_rendered_when_they_are_read_above_the_defaults_of_roles() -> None:
    known = variables(host_tuning_governor="{{ mode }}", mode="powersave", broken="{{ nowhere }}")
    assert known["host_tuning_governor"] == "powersave"
    assert (
        known["host_tuning_hugepages"]
        == yaml.safe_load((ROOT / "roles/host_tuning/defaults/main.yml").read_text(encoding="utf-8"))[
            "host_tuning_hugepages"
        ]
    )
    # What refers to a value that has been replaced sees the new one; nothing else is rendered.
    other = known.but(mode="performance")
    assert (other["host_tuning_governor"], known["host_tuning_governor"]) == ("performance", "powersave")
    assert ("broken" in known, "gaudi_host" in known, known.get("gaudi_host")) == (True, False, None)
    with pytest.raises(Undefined, match="'gaudi_host' is undefined"):
        known["gaudi_host"]


def test_a_stage_looks_before_it_compares_and_a_look_that_fails_is_the_reason() -> None:
    def pending(given: Given) -> Pending:
        return Pending(due=[f"{given.known['gaudi_weights']} of {given.seen['module']}"])

    stage = Stage("made_up", "made-up", look=lambda given: ("module", {"of": given.host}), pending=pending)
    asked: list[Any] = []

    def run(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        asked.append((name, arguments))
        return {"ansible_facts": {"gaudi_weights": "facts"}, "module": "look"}

    found = stage.asked(Given("h", variables()), run)
    assert (found.due, asked) == (["facts of look"], [("module", {"of": "h"})])
    assert stage.facts(found) == {"made_up_due": ["facts of look"], "made_up_refusal": [], "made_up_stops": ()}
    with pytest.raises(InputError, match="no such folder"):
        stage.asked(Given("h", variables()), lambda *_: {"failed": True, "msg": "no such folder"})


def test_a_template_that_lacks_a_value_is_refused_and_not_rendered_without_it() -> None:
    assert rendered("host_tuning", "sysctl.conf.j2", sysctl={"b": 1, "a": 2}).splitlines()[1:] == ["a = 2", "b = 1"]
    with pytest.raises(InputError, match=r"host_tuning/templates/sysctl\.conf\.j2: 'sysctl' is undefined"):
        rendered("host_tuning", "sysctl.conf.j2")


def test_no_credential_of_proxies_and_repositories_is_in_what_a_stage_returns() -> None:
    defaults = yaml.safe_load((ROOT / "roles/container_runtime/defaults/main.yml").read_text(encoding="utf-8"))
    secret = "hunter2"  # noqa: S105 - of the test
    given = {
        **defaults,
        "container_runtime_http_proxy": f"http://user:{secret}@proxy.example:3128",
        "container_runtime_habana_repository": {"uris": [f"https://user:{secret}@mirror.example/x"], "suites": ["a"]},
        "gaudi_system": {
            **{"id": "debian", "version_id": "12", "pretty_name": "Debian 12", "accelerator": "gaudi"},
        },
        "gaudi_runtime": observe_runtime.observe(),
    }
    found = BY_ROLE["container_runtime"].pending(Given("h", given))
    assert found.changes["proxies_marker"]
    assert secret not in str(found)


def nested(tasks: list[dict[str, Any]], conditions: str = "") -> list[tuple[str, str]]:
    """Return the registered variable of each task, with the conditions of the blocks around it."""
    found = []
    for task in tasks:
        found += [(str(task["register"]), conditions)] if "register" in task else []
        for part in ("block", "rescue", "always"):
            found += nested(task.get(part) or [], f"{conditions} {task.get('when', '')}")
    return found


def test_no_task_registers_again_what_the_condition_of_its_block_reads() -> None:
    # Ansible evaluates that condition at each task: a skipped task would leave a variable without its values.
    wrong = []
    for path in (*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("playbooks/tasks/*.yml")):
        tasks = yaml.safe_load(path.read_text(encoding="utf-8")) or []
        wrong += [(path.name, name) for name, conditions in nested(tasks) if re.search(rf"\b{name}\b", conditions)]
    assert wrong == []
