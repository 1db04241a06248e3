"""The project's filters; every one is a pure function of lib/gaudi_serve."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jinja2 import pass_context

# Works from every playbook, molecule, ansible-runner and AWX, with nothing installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from gaudi_serve.awx.settings import awx_default, awx_models, awx_nothing_left, awx_refusal, awx_report, awx_settings
from gaudi_serve.buckets.bucket_plan import hpu_bucket_plan
from gaudi_serve.buckets.linear import hpu_buckets, hpu_padded_shape
from gaudi_serve.buckets.plugin import hpu_plugin_buckets
from gaudi_serve.buckets.plugin_server import hpu_plugin_padded_shape
from gaudi_serve.catalog.files import model_catalog
from gaudi_serve.catalog.merge import model_hosts, model_weights, served_names
from gaudi_serve.core.errors import as_filter
from gaudi_serve.core.paths import vllm_unit_paths
from gaudi_serve.gateway.fleet import (
    behind_gateway,
    fleet_entries,
    fleet_gateways,
    fleet_keys,
    gateway_left,
    server_secrets,
)
from gaudi_serve.host.secret import vllm_secret_marks
from gaudi_serve.inventory.variables import inventory_refusal
from gaudi_serve.memory.autocalc import hpu_memory
from gaudi_serve.plan.changes import vllm_plan_changes
from gaudi_serve.plan.downtime import due_lines
from gaudi_serve.plan.fleet import (
    gaudi_facts_saved,
    unset_models,
    vllm_fleet_lines,
    vllm_fleet_plan,
    vllm_fleet_summary,
)
from gaudi_serve.plan.host import vllm_plan
from gaudi_serve.plan.launch import vllm_launch
from gaudi_serve.plan.refusal import plan_refusal, refused_hosts, system_refusal
from gaudi_serve.platforms import accelerator_needs
from gaudi_serve.platforms.habana_config import habana_config, habana_config_problems
from gaudi_serve.platforms.hl_smi import hl_smi_links, hl_smi_modules, hl_smi_topology
from gaudi_serve.rollout.approved import rollout_due, rollout_unapproved
from gaudi_serve.rollout.waves import (
    benchmark_lines,
    hosts_down_at_once,
    restarted_at_once,
    rollout_end,
    rollout_figures,
    rollout_lost,
    rollout_plan,
    rollout_stopped,
    slower_models,
)
from gaudi_serve.show.log import log_view
from gaudi_serve.show.report import endpoint_table
from gaudi_serve.show.status import drift_lines, fleet_status, fleet_status_lines
from gaudi_serve.stages.apt_access import apt_access
from gaudi_serve.stages.container_runtime import (
    container_runtime_changes,
    container_runtime_drift,
    container_runtime_notes,
    container_runtime_refusal,
    daemon_json,
    daemon_json_problems,
    engine_stopped,
)
from gaudi_serve.stages.driver import drained, gaudi_driver_changes, gaudi_driver_notes, gaudi_driver_refusal
from gaudi_serve.stages.gateway import (
    gateway_config,
    gateway_drift,
    gateway_due,
    gateway_notes,
    gateway_refusal,
    gateway_reset,
)
from gaudi_serve.stages.hccl import hccl_benchmark
from gaudi_serve.stages.hccl_check import hccl_note, hccl_refusal, hccl_validation_plan
from gaudi_serve.stages.host_tuning import (
    host_tuning_changes,
    host_tuning_missing,
    host_tuning_refusal,
    hugepages_wanted,
    kernel_arguments_wanted,
    sysctl_conflicts,
    sysctl_wanted,
)
from gaudi_serve.stages.image import images_shared, registry_login, vllm_images
from gaudi_serve.stages.registry import facts_wanted, plans_models, run_stages, stages_due, task_hosts
from gaudi_serve.stages.reset import (
    gaudi_driver_reset,
    hccl_validation_reset,
    model_weights_reset,
    packages_reset,
    recipe_caches,
    reset_failure,
    reset_lines,
    reset_refusal,
    rest_reset,
    vllm_image_reset,
    vllm_service_reset,
)
from gaudi_serve.stages.reset_host import container_runtime_found, container_runtime_reset, host_tuning_reset
from gaudi_serve.stages.service import (
    image_drift,
    missing_images,
    model_refusal,
    restart_refusal,
    vllm_api_keys,
    vllm_container,
    vllm_image_id,
    vllm_secret_files,
    vllm_service_changes,
    vllm_service_drift,
    vllm_service_files,
    vllm_service_refusal,
    vllm_service_summary,
    vllm_start_limits,
    vllm_withdrawn_secrets,
)
from gaudi_serve.stages.weights import (
    weights_changes,
    weights_drift,
    weights_folders,
    weights_lines,
    weights_refusal,
    weights_sources,
    weights_stops,
)
from gaudi_serve.tune.report import tune_refusal, tune_report

FILTERS: tuple[Callable[..., Any], ...] = (
    accelerator_needs,
    apt_access,
    awx_default,
    awx_models,
    awx_nothing_left,
    awx_refusal,
    awx_report,
    awx_settings,
    behind_gateway,
    benchmark_lines,
    container_runtime_changes,
    container_runtime_drift,
    container_runtime_found,
    container_runtime_notes,
    container_runtime_refusal,
    container_runtime_reset,
    daemon_json,
    daemon_json_problems,
    endpoint_table,
    engine_stopped,
    drained,
    drift_lines,
    due_lines,
    facts_wanted,
    fleet_entries,
    fleet_gateways,
    fleet_keys,
    fleet_status,
    fleet_status_lines,
    gateway_config,
    gateway_drift,
    gateway_due,
    gateway_left,
    gateway_notes,
    gateway_refusal,
    gateway_reset,
    gaudi_driver_changes,
    gaudi_driver_notes,
    gaudi_driver_refusal,
    gaudi_driver_reset,
    gaudi_facts_saved,
    habana_config,
    habana_config_problems,
    hccl_benchmark,
    hccl_note,
    hccl_refusal,
    hccl_validation_plan,
    hccl_validation_reset,
    hl_smi_links,
    hl_smi_modules,
    hl_smi_topology,
    host_tuning_changes,
    host_tuning_missing,
    host_tuning_refusal,
    host_tuning_reset,
    hosts_down_at_once,
    hpu_bucket_plan,
    hpu_buckets,
    hpu_memory,
    hpu_padded_shape,
    hpu_plugin_buckets,
    hpu_plugin_padded_shape,
    hugepages_wanted,
    image_drift,
    images_shared,
    inventory_refusal,
    kernel_arguments_wanted,
    log_view,
    missing_images,
    model_refusal,
    packages_reset,
    model_catalog,
    model_hosts,
    model_weights,
    model_weights_reset,
    plan_refusal,
    plans_models,
    recipe_caches,
    reset_failure,
    reset_lines,
    refused_hosts,
    registry_login,
    reset_refusal,
    rest_reset,
    restart_refusal,
    restarted_at_once,
    rollout_due,
    rollout_end,
    rollout_figures,
    rollout_lost,
    rollout_plan,
    rollout_stopped,
    rollout_unapproved,
    run_stages,
    served_names,
    server_secrets,
    slower_models,
    stages_due,
    task_hosts,
    sysctl_conflicts,
    sysctl_wanted,
    system_refusal,
    tune_refusal,
    tune_report,
    unset_models,
    vllm_api_keys,
    vllm_container,
    vllm_fleet_lines,
    vllm_fleet_summary,
    vllm_fleet_plan,
    vllm_image_id,
    vllm_image_reset,
    vllm_images,
    vllm_launch,
    vllm_plan,
    vllm_plan_changes,
    vllm_secret_files,
    vllm_secret_marks,
    vllm_service_changes,
    vllm_service_drift,
    vllm_service_files,
    vllm_service_refusal,
    vllm_service_reset,
    vllm_service_summary,
    vllm_start_limits,
    vllm_unit_paths,
    vllm_withdrawn_secrets,
    weights_changes,
    weights_drift,
    weights_folders,
    weights_lines,
    weights_refusal,
    weights_sources,
    weights_stops,
)


# Those whose first argument are the variables of the task that they are in: unlike a host's hostvars, these may refer
# to hostvars themselves.
OF_TASK = (inventory_refusal,)
OF_HOSTS = (fleet_entries, fleet_gateways, fleet_keys, vllm_fleet_plan)


class OfTask(Mapping[str, Any]):
    """The variables of a task, with ``hostvars`` of hosts whose variables may refer to others."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getitem__(self, name: str) -> Any:
        value = self._context[name]
        return Hosts(value) if name == "hostvars" else value

    def __contains__(self, name: object) -> bool:
        return name in self._context

    def __iter__(self) -> Iterator[str]:
        return iter(self._context.get_all())

    def __len__(self) -> int:
        return len(self._context.get_all())


def of_task(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a filter the variables of its task in place of what is piped into it."""

    @pass_context
    def call(context: Any, _: Any, *args: Any) -> Any:
        return function(OfTask(context), *args)

    return call


class Hosts(Mapping[str, Any]):
    """``hostvars`` of hosts whose variables may refer to hostvars too, as those of a task may."""

    def __init__(self, hostvars: Any) -> None:
        self._hostvars = hostvars

    def __getitem__(self, name: str) -> Any:
        from ansible.vars.hostvars import HostVarsVars

        variables = {**self._hostvars.raw_get(name), "hostvars": self._hostvars}
        return HostVarsVars(variables, loader=getattr(self._hostvars, "_loader", None), host=name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._hostvars)

    def __len__(self) -> int:
        return len(self._hostvars)


def of_hosts(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a filter hosts whose variables may refer to others."""
    return lambda hostvars, *args: function(Hosts(hostvars), *args)


class FilterModule:
    """Names under which templates find the functions."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        found = {function.__name__: as_filter(function) for function in FILTERS}
        found |= {function.__name__: of_task(as_filter(function)) for function in OF_TASK}
        return found | {function.__name__: of_hosts(as_filter(function)) for function in OF_HOSTS}
