#!/usr/bin/python
"""Ansible module: asks every started model of a host one question and looks at the answer."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: vllm_smoke
short_description: Asks models a question over their own API and looks at the answer
description:
  - For every model, C(/v1/models) must list its served name, and a streamed chat completion must
    bring text and a finish_reason within the limit.
  - All models of the host are asked at the same time.
  - A passed test is recorded on the host, so that a server that has not been restarted is not asked again.
options:
  models:
    description: Models to ask, each with C(name), C(host), C(port) and C(served_model_name).
    type: list
    elements: dict
    required: true
  api_keys:
    description: Keys by model name.
    type: dict
    default: {}
  timeout:
    description: Limit for one model, in seconds.
    type: int
    default: 120
  prompt:
    description: The question.
    type: str
    default: List 3 countries and their capitals.
  max_tokens:
    description: Limit of the answer, in tokens.
    type: int
    default: 32
  journal_lines:
    description: How many of the unit's last journal lines a failure shows.
    type: int
    default: 30
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Ask the model
  vllm_smoke:
    models:
      - {name: qwq-32b, host: 127.0.0.1, port: 30001, served_model_name: qwq-32b}
"""

RETURN = r"""
answers:
  description: By model, C(text), C(finish_reason), C(first_token_s) and C(total_s).
  returned: always
  type: dict
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.smoke import Unhealthy, ask, journal, record


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "models": {"type": "list", "elements": "dict", "required": True},
            "api_keys": {"type": "dict", "default": {}, "no_log": True},
            "timeout": {"type": "int", "default": 120},
            "prompt": {"type": "str", "default": "List 3 countries and their capitals."},
            "max_tokens": {"type": "int", "default": 32},
            "journal_lines": {"type": "int", "default": 30},
        },
        supports_check_mode=True,
    )
    given = module.params
    if module.check_mode:
        module.exit_json(changed=False, answers={}, msg="not asked in check mode")

    def test(model: dict[str, Any]) -> tuple[str, dict[str, Any] | None, str]:
        name = str(model["name"])
        try:
            key = given["api_keys"].get(name)
            answer = ask(model, given["prompt"], given["max_tokens"], given["timeout"], key)
            record(name, answer)
            return name, answer, ""
        except Unhealthy as problem:
            return name, None, str(problem)

    with ThreadPoolExecutor(max_workers=max(1, len(given["models"]))) as pool:
        results = list(pool.map(test, given["models"]))
    answers = {name: answer for name, answer, _ in results if answer}
    problems = []
    for name, _, problem in results:
        if problem:
            problems.append(f"model {name} failed its smoke test: {problem}\n{journal(name, given['journal_lines'])}")
    if problems:
        module.fail_json(msg="\n".join(problems), answers=answers)
    module.exit_json(changed=False, answers=answers)


if __name__ == "__main__":
    main()
