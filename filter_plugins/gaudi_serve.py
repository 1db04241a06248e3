"""The project's filters. Each is a pure function of lib/gaudi_serve."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jinja2 import pass_context

# Works from every playbook, molecule, ansible-runner and AWX, without installation.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from gaudi_serve.awx.settings import awx_default, awx_models, awx_nothing_left, awx_refusal, awx_report, awx_settings
from gaudi_serve.bench.loads import benchmark_names
from gaudi_serve.bench.report import benchmark_ask, benchmark_plan, benchmark_report
from gaudi_serve.bench.results import benchmark_kept
from gaudi_serve.buckets.bucket_plan import hpu_bucket_plan
from gaudi_serve.buckets.linear import hpu_buckets, hpu_padded_shape
from gaudi_serve.buckets.plugin import hpu_plugin_buckets
from gaudi_serve.buckets.plugin_server import hpu_plugin_padded_shape
from gaudi_serve.bundle.report import bundle_manifest
from gaudi_serve.catalog.files import model_catalog
from gaudi_serve.catalog.merge import model_files, model_hosts, model_weights, served_names
from gaudi_serve.core.errors import as_filter
from gaudi_serve.gateway.fleet import (
    behind_gateway,
    fleet_entries,
    fleet_gateways,
    fleet_keys,
    server_secrets,
)
from gaudi_serve.host.hccl import hccl_benchmark
from gaudi_serve.host.secret import vllm_secret_marks
from gaudi_serve.inventory.variables import inventory_refusal
from gaudi_serve.memory.autocalc import hpu_memory
from gaudi_serve.model.distributed import host_models
from gaudi_serve.monitoring.files import alertmanager_config
from gaudi_serve.monitoring.fleet import fleet_monitors, fleet_watched
from gaudi_serve.plan.fleet import (
    gaudi_facts_saved,
    vllm_fleet_lines,
    vllm_fleet_plan,
    vllm_fleet_summary,
)
from gaudi_serve.plan.host import vllm_plan
from gaudi_serve.plan.launch import vllm_launch
from gaudi_serve.plan.refusal import refused_hosts
from gaudi_serve.platforms import accelerator_needs
from gaudi_serve.platforms.hl_smi import hl_smi_links, hl_smi_modules, hl_smi_topology
from gaudi_serve.rollout.figures import benchmark_lines
from gaudi_serve.rollout.state import rollout_reports, rollout_stopped
from gaudi_serve.rollout.waves import (
    hosts_down,
    hosts_down_at_once,
    restarted_at_once,
    too_few_servers,
    unverified_hosts,
)
from gaudi_serve.show.log import log_view
from gaudi_serve.show.page.html import fleet_page_html
from gaudi_serve.show.page.view import fleet_page
from gaudi_serve.show.report import endpoint_table
from gaudi_serve.show.status import fleet_status, fleet_status_lines, status_metrics
from gaudi_serve.stages.apt_access import apt_access
from gaudi_serve.stages.gateway import gateway_config
from gaudi_serve.stages.image import missing_images, registry_login, vllm_images, with_official_images
from gaudi_serve.stages.registry import facts_wanted, plans_models, run_stages, task_hosts
from gaudi_serve.stages.reset import (
    packages_reset,
    reset_failure,
    reset_lines,
    reset_refusal,
    rest_reset,
)
from gaudi_serve.stages.service import (
    model_refusal,
    restart_refusal,
    vllm_api_keys,
    vllm_secret_files,
    vllm_start_limits,
)
from gaudi_serve.stages.weights import (
    weights_sources,
)
from gaudi_serve.tune.report import tune_refusal, tune_report

FILTERS: tuple[Callable[..., Any], ...] = (
    accelerator_needs,
    alertmanager_config,
    apt_access,
    awx_default,
    awx_models,
    awx_nothing_left,
    awx_refusal,
    awx_report,
    awx_settings,
    behind_gateway,
    benchmark_ask,
    benchmark_kept,
    benchmark_lines,
    benchmark_names,
    benchmark_plan,
    benchmark_report,
    bundle_manifest,
    endpoint_table,
    facts_wanted,
    fleet_entries,
    fleet_gateways,
    fleet_keys,
    fleet_monitors,
    fleet_page,
    fleet_page_html,
    fleet_status,
    fleet_status_lines,
    fleet_watched,
    gateway_config,
    gaudi_facts_saved,
    hccl_benchmark,
    hl_smi_links,
    hl_smi_modules,
    hl_smi_topology,
    hosts_down,
    hosts_down_at_once,
    hpu_bucket_plan,
    hpu_buckets,
    hpu_memory,
    hpu_padded_shape,
    hpu_plugin_buckets,
    hpu_plugin_padded_shape,
    inventory_refusal,
    log_view,
    missing_images,
    model_refusal,
    packages_reset,
    model_catalog,
    model_files,
    model_hosts,
    model_weights,
    plans_models,
    reset_failure,
    reset_lines,
    refused_hosts,
    registry_login,
    reset_refusal,
    rest_reset,
    restart_refusal,
    restarted_at_once,
    too_few_servers,
    unverified_hosts,
    rollout_reports,
    rollout_stopped,
    run_stages,
    host_models,
    served_names,
    server_secrets,
    status_metrics,
    task_hosts,
    tune_refusal,
    tune_report,
    vllm_api_keys,
    vllm_fleet_lines,
    vllm_fleet_summary,
    vllm_fleet_plan,
    vllm_images,
    vllm_launch,
    vllm_plan,
    vllm_secret_files,
    vllm_secret_marks,
    vllm_start_limits,
    weights_sources,
    with_official_images,
)


# Filters whose first argument is the variables of their task. Unlike a host's hostvars, these may refer to hostvars
# themselves.
OF_TASK = (inventory_refusal,)
OF_HOSTS = (benchmark_plan, fleet_entries, fleet_gateways, fleet_keys, fleet_monitors, fleet_watched, vllm_fleet_plan)


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
    """Pass a filter the variables of its task instead of its input."""

    @pass_context
    def call(context: Any, _: Any, *args: Any) -> Any:
        return function(OfTask(context), *args)

    return call


class Hosts(Mapping[str, Any]):
    """``hostvars`` of hosts whose variables may also refer to hostvars, like those of a task."""

    def __init__(self, hostvars: Any) -> None:
        self._hostvars = hostvars

    def __getitem__(self, name: str) -> Any:
        from ansible.vars.hostvars import HostVarsVars

        variables = {**self._hostvars.raw_get(name), "hostvars": self._hostvars}
        return HostVarsVars(variables, loader=getattr(self._hostvars, "_loader", None), host=name)

    def __contains__(self, name: object) -> bool:
        return name in self._hostvars

    def __iter__(self) -> Iterator[str]:
        return iter(self._hostvars)

    def __len__(self) -> int:
        return len(self._hostvars)


def of_hosts(function: Callable[..., Any]) -> Callable[..., Any]:
    """Pass a filter hosts whose variables may refer to others."""
    return lambda hostvars, *args: function(Hosts(hostvars), *args)


class FilterModule:
    """The names of the filters for templates."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        found = {function.__name__: as_filter(function) for function in FILTERS}
        found |= {function.__name__: of_task(as_filter(function)) for function in OF_TASK}
        return found | {function.__name__: of_hosts(as_filter(function)) for function in OF_HOSTS}
