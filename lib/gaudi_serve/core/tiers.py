"""Who needs a variable or a key: everyday names for a first host, site names for a fleet; all others are for experts.

A variable and a key of a model have their names here, a key in a mapping its path, such as ``source.kind``. The pages
of the reference and the order of suggestions follow from this list.
"""

from __future__ import annotations

TIERS = ("everyday", "site", "expert")
NAMES: dict[str, tuple[str, ...]] = {
    "everyday": (
        *("vllm_models", "vllm_secrets", "accelerator", "accelerator_release", "host_tuning_reboot_allowed"),
        *("name", "model", "weights", "source", "source.kind", "source.repo", "port"),
        *("tensor_parallel_size", "max_model_len", "max_num_seqs"),
    ),
    "site": (
        # Models and their images.
        *("vllm_model_defaults", "vllm_distributed_models", "vllm_catalog_dirs", "vllm_images"),
        *("vllm_images[].name", "vllm_images[].archive", "vllm_image_from_host"),
        *("image", "state", "host", "served_model_name", "dtype", "gpu_memory_utilization", "recipe_cache_path"),
        *("input_range", "output_range", "env", "slo", "hosts"),
        # Driver and runtime.
        *("accelerator_cards", "driver_version", "driver_upgrade_allowed", "driver_repository"),
        *(f"driver_repository.{key}" for key in ("uris", "suites", "components", "signed_by")),
        *("container_runtime_habana_version", "container_runtime_habana_repository"),
        # The network of the site: mirrors, proxies, logins.
        *("gaudi_offline", "gaudi_mirror_url", "container_runtime_https_proxy", "container_runtime_no_proxy"),
        *("vllm_image_mirror", "vllm_image_registries"),
        *(f"vllm_image_registries.REGISTRY.{key}" for key in ("username", "password")),
        *("model_weights_from_host", "model_weights_https_proxy", "model_weights_no_proxy", "model_weights_index_url"),
        *("model_weights_tokens", "model_weights_tokens.hub", "vllm_weights_endpoints", "vllm_weights_endpoints.hub"),
        # The fleet.
        *("fleet_awx", "fleet_monitoring", "fleet_gateway_secret", "fleet_gateway"),
        *(f"fleet_gateway.{key}" for key in ("address", "certificate", "clients")),
        *(f"fleet_gateway.clients.CLIENT.{key}" for key in ("key", "sha256")),
    ),
}
# Beginnings of variables of a host that no key of a model has.
OF_A_HOST = (
    *("accelerator_", "benchmark_", "bios_", "bundle_", "container_runtime_", "driver_", "fleet_", "gaudi_"),
    *("host_tuning_", "link_validation_", "model_weights_", "preflight_", "qualification_", "site_mirror_"),
    *("vllm_image_", "vllm_images", "vllm_models", "vllm_model_defaults", "vllm_secrets", "vllm_service_"),
    *("vllm_catalog_dirs", "vllm_distributed_models", "vllm_cluster_address", "vllm_weights_endpoints"),
)
_TIERS = {name: tier for tier, names in NAMES.items() for name in names}


def tier_of(name: str) -> str:
    """Return the tier of a variable, of a key of a model, or of a path in a mapping."""
    return _TIERS.get(name, TIERS[-1])


def rank(name: str) -> int:
    """Return the place of a name among suggestions: everyday names before those of a site, and these before others."""
    return TIERS.index(tier_of(name))
