"""The exporters of cards' vendors: which of their metrics means what, and the expressions that read them all.

Each exporter has its own names and units. Rules and dashboards read what the toolkit's collector counts first, and an
exporter where the collector has no value of a host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OF_CARDS = 'job="cards"'


@dataclass(frozen=True)
class Exporter:
    """One exporter.

    card: the label that identifies a card. labels: all its labels. metrics: the names of its metrics by measure, each
    with what converts its value into the measure's unit: degrees Celsius, watts, bytes, a part of 1, or a count.
    """

    card: str
    labels: tuple[str, ...]
    metrics: Mapping[str, Mapping[str, str]]


def _gaudi(**measures: tuple[str, str]) -> dict[str, dict[str, str]]:
    return {measure: {f"habanalabs_{name}": convert} for measure, (name, convert) in measures.items()}


def _amd(**measures: tuple[tuple[str, ...], str]) -> dict[str, dict[str, str]]:
    """Return the metrics of AMD's exporter: newer releases begin their names with ``amd_``."""
    return {
        measure: {f"{prefix}gpu_{name}": convert for name in names for prefix in ("amd_", "")}
        for measure, (names, convert) in measures.items()
    }


MIB = " * 1048576"
# Exporters show impossible values at times, for example 9.2e18 for one that cannot be read.
DEGREES, COUNT = " > 0 < 500", " < 1e9"
EXPORTERS = (
    # Gaudi's reports unreadable values as 0. It has no module_id: id is the driver's index of a card.
    Exporter(
        "id",
        ("Serial", "UUID", "device", "id", "fit", "spi", "driver", "pod_namespace", "pod_name"),
        _gaudi(
            seen=("device_config", ""),
            temperature=("temperature_onchip", DEGREES),
            slowdown=("temperature_threshold_slowdown", DEGREES),
            power=("power_mW", " / 1000"),
            utilization=("utilization", " / 100"),
            memory_used=("memory_used_bytes", ""),
            rows_pending=("pending_rows_state", ""),
            pcie_width=("pci_link_width", ""),
        ),
    ),
    # dcgm-exporter's default metrics, and those of its list that are often switched on: slowdown, ECC, pending rows,
    # the count of Xids. It counts time of throttling in units that differ by release, so nothing reads it.
    Exporter(
        "UUID",
        ("gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "DCGM_FI_DRIVER_VERSION"),
        {
            "seen": {"DCGM_FI_DEV_GPU_TEMP": ""},
            "temperature": {"DCGM_FI_DEV_GPU_TEMP": DEGREES},
            "slowdown": {"DCGM_FI_DEV_SLOWDOWN_TEMP": DEGREES},
            "power": {"DCGM_FI_DEV_POWER_USAGE": ""},
            "utilization": {"DCGM_FI_DEV_GPU_UTIL": " / 100"},
            "memory_used": {"DCGM_FI_DEV_FB_USED": MIB},
            "ecc_uncorrected": {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": COUNT},
            "rows_replaced": {"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": COUNT},
            "rows_pending": {"DCGM_FI_DEV_ROW_REMAP_PENDING": ""},
            "no_spare_row": {"DCGM_FI_DEV_ROW_REMAP_FAILURE": ""},
            "last_xid": {"DCGM_FI_DEV_XID_ERRORS": ""},
        },
    ),
    # AMD's device-metrics-exporter. It calls MiB MB.
    Exporter(
        "gpu_id",
        ("gpu_id", "gpu_uuid", "serial_number", "card_model", "gpu_partition_id", "hostname", "driver_version"),
        _amd(
            seen=(("total_vram",), ""),
            temperature=(("junction_temperature", "edge_temperature"), DEGREES),
            power=(("power_usage",), ""),
            utilization=(("gfx_activity",), " / 100"),
            memory_used=(("used_vram",), MIB),
            ecc_uncorrected=(("ecc_uncorrect_total",), COUNT),
            unhealthy=(("health",), " == bool 0"),
        ),
    ),
)
# Metrics with further labels.
PORTS, XIDS = "habanalabs_nic_port_status", "DCGM_EXP_XID_ERRORS_COUNT"
CARDS: dict[str, tuple[str, ...]] = {
    **{name: one.labels for one in EXPORTERS for names in one.metrics.values() for name in names},
    PORTS: (*EXPORTERS[0].labels, "port", "port_type"),
    XIDS: (*EXPORTERS[1].labels, "window_size_in_ms", "xid"),
}
# Series of an exporter that are not about cards, but about its own process or its host.
NO_CARD = "up|scrape_.+|go_.+|process_.+|promhttp_.+|python_.+|(amd_)?gpu_nodes_total"


def of_card(series: str, label: str) -> str:
    """Return an expression on an exporter with the label ``card``; label: what the exporter calls it."""
    return f'label_replace({series}, "card", "$1", "{label}", "(.+)")'


def exported(measure: str, matchers: str = OF_CARDS, by: str = "host, card") -> str:
    """Return the expression for a measure of all exporters; by: the labels to keep.

    It keeps few labels: with a new driver an exporter's series have others, which is no new card.
    """
    found = [
        of_card(f"{name}{{{matchers}}}{convert}", one.card)
        for one in EXPORTERS
        for name, convert in one.metrics.get(measure, {}).items()
    ]
    return f"max by ({by}) ({' or '.join(found)})"
