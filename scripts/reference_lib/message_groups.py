"""The headings of the page of messages: which files' messages each has, and where their keys are explained."""

from __future__ import annotations

from dataclasses import dataclass

LIB = "lib/gaudi_serve/"


@dataclass(frozen=True)
class Group:
    """A heading. help: a sentence in Markdown. sources: how the names of its files begin."""

    help: str
    sources: tuple[str, ...]


def lib(*names: str) -> tuple[str, ...]:
    """Return the beginnings of files of the library."""
    return tuple(LIB + name for name in names)


GROUPS = {
    "Keys and variables": Group(
        "See [model keys](model-keys.md), [inventory variables](inventory.md) and the [catalog](../guides/models.md).",
        lib("__init__", "core/", "catalog/", "inventory/", "model/"),
    ),
    "Models and placement": Group(
        "See [model keys](model-keys.md), [models](../guides/models.md), [memory](../explanation/memory.md) and "
        "[models over several hosts](../guides/multi-host.md).",
        lib("plan/", "memory/"),
    ),
    "Ways to start vLLM": Group(
        "See [launch_profile](expert.md#keys-of-a-model) and [models](../guides/models.md).", lib("engines/")
    ),
    "Buckets": Group("See [buckets](../guides/buckets.md).", lib("buckets/", "tune/")),
    "Cards and platforms": Group("See [platforms](../guides/platforms.md).", lib("platforms/")),
    "Driver": Group("See [the driver](../guides/driver.md).", (*lib("stages/driver", "host/dpkg"), "roles/driver/")),
    "Networks between hosts": Group(
        "See [networks](../guides/networks.md).",
        (*lib("stages/accelerator_network", "host/ports", "model/between"), "roles/accelerator_network/"),
    ),
    "Container engine": Group(
        "See [host files](host-files.md) and [roles](roles.md#container_runtime).",
        (*lib("stages/container_runtime", "platforms/habana_config"), "roles/container_runtime/"),
    ),
    "Host": Group("See [roles](roles.md#host_tuning).", (*lib("stages/host_tuning", "host/"), "roles/host_tuning/")),
    "BIOS": Group(
        "See [BIOS settings](../guides/bios.md).", (*lib("bios/", "stages/bios"), "roles/bios/", "library/bios")
    ),
    "Images": Group(
        "See [images](../guides/images.md).",
        (*lib("stages/image", "host/registry", "host/pull", "host/layers", "core/images"), "roles/vllm_image/"),
    ),
    "Weights": Group(
        "See [weights](../guides/weights.md).",
        (*lib("stages/weights", "host/weights", "host/observe_weights", "model/weights"), "roles/model_weights/"),
    ),
    "Servers and secrets": Group(
        "See [vllm_secrets](everyday.md#variables) and [serving](../explanation/serving.md).",
        (*lib("stages/service", "stages/launch_view", "host/smoke", "host/secret"), "roles/vllm_service/"),
    ),
    "Gateway": Group(
        "See [fleet_gateway](inventory.md#fleet_gateway) and [the gateway](gateway.md).",
        (*lib("gateway/", "stages/gateway", "host/certificate"), "roles/gateway/", "library/gateway"),
    ),
    "Monitoring": Group(
        "See [fleet_monitoring](inventory.md#fleet_monitoring) and [monitoring](../guides/monitoring.md).",
        (*lib("monitoring/", "stages/monitoring", "host/observe_metrics"), "roles/monitoring/"),
    ),
    "Links between cards": Group(
        "See [links](../guides/links.md).",
        (*lib("stages/links", "host/links", "host/hccl", "host/nccl", "host/all_reduce"), "roles/link_validation/"),
    ),
    "Acceptance tests": Group(
        "See [qualification](../guides/qualification.md).",
        (
            *lib(
                "stages/qualification",
                "host/qualification",
                "platforms/acceptance",
                "platforms/hl_qual",
                "platforms/dcgm",
            ),
            "roles/qualification/",
        ),
    ),
    "Rollouts": Group("See [fleets](../guides/fleet.md).", lib("rollout/", "host/rollout")),
    "AWX": Group("See [AWX](../guides/awx.md).", lib("awx/")),
    "Benchmarks": Group("See [benchmarks](../guides/benchmark.md).", lib("bench/", "host/bench")),
    "Bundles and mirrors": Group(
        "See [sites without internet](../guides/air-gap.md).",
        (*lib("bundle/", "host/mirror", "host/bundle", "stages/offline", "stages/apt_access"), "roles/site_mirror/"),
    ),
    "Reset": Group(
        "See [reset](../guides/reset.md).",
        lib("stages/reset", "host/remove", "host/baseline", "host/observe_left"),
    ),
    "Runs and playbooks": Group(
        "See [playbooks](playbooks.md) and [exit status](exit-status.md).",
        (
            *lib("show/", "stages/"),
            "library/",
            "action_plugins/",
            "filter_plugins/",
            "callback_plugins/",
            "playbooks/",
            "roles/",
            "site.yml",
        ),
    ),
}
