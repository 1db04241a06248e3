#!/usr/bin/python
"""Ansible module: measures how fast the servers of a host are."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: vllm_benchmark
short_description: Measures how fast the servers of a host are
description:
  - Sends every running server thirteen short requests, four at a time. Results of two runs are comparable only on a
    drained host.
options:
  strict:
    description: Whether a model that does not answer is an error. Otherwise it is not measured.
    type: bool
    default: true
  only:
    description: Name of the only model to measure. Empty measures all.
    type: str
    default: ''
  timeout:
    description: Limit for one request, in seconds.
    type: int
    default: 120
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Measure
  vllm_benchmark:
  register: before
"""

RETURN = r"""
measured:
  description: C(first_token_s) in seconds and C(tokens_s) in tokens a second, by served model name.
  returned: always
  type: dict
about:
  description: Properties of each measured model for a saved result, by the same names.
  returned: always
  type: dict
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.core.served import served_models
from ansible.module_utils.gaudi_serve.host.bench import about
from ansible.module_utils.gaudi_serve.host.observe_services import CONFIG, observe
from ansible.module_utils.gaudi_serve.host.rollout import benchmark, live_models
from ansible.module_utils.gaudi_serve.host.secret import own_api_key
from ansible.module_utils.gaudi_serve.host.smoke import Unhealthy


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "strict": {"type": "bool", "default": True},
            "only": {"type": "str", "default": ""},
            "timeout": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )
    services = {"units": {}} if module.check_mode else observe()
    models = [one for one in live_models(services) if one["active"] and one["answers"]]
    chosen = [one for one in models if module.params["only"] in ("", one["name"])]
    # Models that share a card are measured separately; they share the time of their one process.
    models = [one for model in chosen for one in served_models(model)]
    keys = {one["name"]: own_api_key(CONFIG / f"{one['name']}.secret") for one in models}
    module.no_log_values.update(key for key in keys.values() if key)

    def measure(model: dict[str, Any]) -> tuple[str, dict[str, float], str]:
        try:
            found = benchmark(model, module.params["timeout"], keys[model["name"]])
        except Unhealthy as problem:
            return str(model["served_model_name"]), {}, f"model {model['name']}: {problem}"
        return str(model["served_model_name"]), found, ""

    # At the same time, because they share the host in the same way before and after a change.
    with ThreadPoolExecutor(max(1, len(models))) as pool:
        results = list(pool.map(measure, models))
    measured = {name: found for name, found, _ in results if found}
    problems = [problem for _, _, problem in results if problem]
    units = [{**one, "unit": services["units"][one["name"]]} for one in models]
    kept = {str(one["served_model_name"]): about(one, one) for one in units if one["served_model_name"] in measured}
    if problems and module.params["strict"]:
        module.fail_json(msg="; ".join(problems), measured=measured, about=kept)
    module.exit_json(changed=False, measured=measured, about=kept)


if __name__ == "__main__":
    main()
