#!/usr/bin/python
"""Ansible module: sends every started model of a host a test request and checks the answer."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: vllm_smoke
short_description: Sends test requests to models over their own API, and checks the answers
description:
  - For every model, C(/v1/models) must list its served name, and one request of each of its kinds must get a correct
    answer within the limit.
  - C(text) asks for three countries and their capitals, of which one must be correct. C(any) accepts any text. C(image)
    asks for the colour of a picture. C(audio) and C(video) send a short sound and film. C(tools) requires a tool call,
    C(embedding) a vector, and C(rerank) the better of two documents.
  - All models of the host are tested at the same time.
  - A passed test is recorded on the host, so that a server is not tested again until it restarts.
options:
  models:
    description: Models to test, each with C(name), C(host), C(port), C(served_model_name) and C(smoke), a list of text,
      any, image, audio, video, tools, embedding, rerank; the default is text. For a server of several models, C(served)
      has a C(served_model_name) and C(smoke) for each, and each is tested separately.
    type: list
    elements: dict
    required: true
  health_only:
    description: Whether to check only that every model is healthy, lists its name and makes one token, or works for
      other clients meanwhile. Sends no test requests, records nothing, and never fails.
    type: bool
    default: false
  api_keys:
    description: API keys by model name. For other models, the key in the model's secret file on the host.
    type: dict
    default: {}
  timeout:
    description: Limit for one model, in seconds.
    type: int
    default: 120
  journal_lines:
    description: Number of the unit's last journal lines that a failure shows.
    type: int
    default: 30
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Test the model
  vllm_smoke:
    models:
      - {name: qwq-32b, host: 127.0.0.1, port: 30001, served_model_name: qwq-32b}
"""

RETURN = r"""
answers:
  description: By model, C(kinds), C(text), C(finish_reason), C(first_token_s) and C(total_s).
  returned: always
  type: dict
health:
  description: By model, why it does not answer; an empty text if it does.
  returned: with I(health_only)
  type: dict
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.host.observe_services import CONFIG
from ansible.module_utils.gaudi_serve.host.secret import own_api_key
from ansible.module_utils.gaudi_serve.host.smoke import Unhealthy, ask, health, journal, record
from ansible.module_utils.gaudi_serve.model.distributed import answers as is_asked


def _health(given: dict[str, Any]) -> dict[str, str]:
    def look(model: dict[str, Any]) -> tuple[str, str]:
        name = str(model["name"])
        return name, health(model, given["timeout"], given["api_keys"].get(name))

    with ThreadPoolExecutor(max_workers=max(1, len(given["models"]))) as pool:
        return dict(pool.map(look, given["models"]))


def _with_own_keys(module: AnsibleModule) -> dict[str, str]:
    """Return the API keys. A run without the secrets uses the keys of the host."""
    names = [str(model["name"]) for model in module.params["models"]]
    own = {name: key for name in names if (key := own_api_key(CONFIG / f"{name}.secret"))}
    module.no_log_values.update(own.values())
    return {**own, **module.params["api_keys"]}


def _tested(model: dict[str, Any], given: dict[str, Any]) -> tuple[str, dict[str, Any] | None, str]:
    """Return the name of a model, its answer, and what is wrong with the answer."""
    name = str(model["name"])
    try:
        key = given["api_keys"].get(name)
        answer = ask(model, model.get("smoke") or ["text"], given["timeout"], key)
        record(name, answer)
        return name, answer, ""
    except Unhealthy as problem:
        return name, None, str(problem)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "models": {"type": "list", "elements": "dict", "required": True},
            "health_only": {"type": "bool", "default": False},
            "api_keys": {"type": "dict", "default": {}, "no_log": True},
            "timeout": {"type": "int", "default": 120},
            "journal_lines": {"type": "int", "default": 30},
        },
        supports_check_mode=True,
    )
    # A worker of a model over several hosts has no endpoint.
    given = {**module.params, "models": [one for one in module.params["models"] if is_asked(one)]}
    given["api_keys"] = _with_own_keys(module)
    if given["health_only"]:
        module.exit_json(changed=False, answers={}, health=_health(given))
    if module.check_mode:
        module.exit_json(changed=False, answers={}, msg="not probed in check mode")

    with ThreadPoolExecutor(max_workers=max(1, len(given["models"]))) as pool:
        results = list(pool.map(lambda model: _tested(model, given), given["models"]))
    answers = {name: answer for name, answer, _ in results if answer}
    problems = [
        f"model {name} failed its smoke test: {problem}\n{journal(name, given['journal_lines'])}"
        for name, _, problem in results
        if problem
    ]
    if problems:
        module.fail_json(msg="\n".join(problems), answers=answers)
    module.exit_json(changed=False, answers=answers)


if __name__ == "__main__":
    main()
