"""How the collector reads Intel's GPUs: JSON of xpu-smi, and the table of its dump, in its releases 1 and 2."""

from __future__ import annotations

from .card_metrics import FIXED_S, MIB, PERCENT, SLOW_S, CardMetrics, Query, Value

KEY, DUMPED = "device_id", "DeviceId"


def _dump(values: dict[int, Value], times: int, every_s: int = 0) -> Query:
    """Return the call for the columns by their numbers; some have values only from the second row on."""
    numbers = ",".join(map(str, values))
    argv = ("xpu-smi", "dump", "-d", "-1", "-m", numbers, "-i", "1", "-n", str(times))
    columns = ("Timestamp", DUMPED, *(one.source for one in values.values()))
    return Query(argv, tuple(values.values()), DUMPED, columns, every_s=every_s)


METRICS = CardMetrics(
    cards=Query(("xpu-smi", "discovery", "-j"), (), KEY),
    card="pci_bdf_address",
    bus_id="pci_bdf_address",
    details="{device_name}, device {device_id}, {pci_bdf_address}",
    queries=(
        # The column headers differ between the releases, their order does not.
        _dump(
            {
                0: Value("utilization", "utilization_ratio", PERCENT),
                1: Value("power", "power_watts"),
                3: Value("core_temperature", "temperature_celsius"),
                18: Value("memory_used", "memory_used_bytes", MIB),
            },
            times=2,
        ),
        _dump(
            {
                29: Value("correctable", "ecc_errors_total", labels={"kind": "corrected"}),
                30: Value("uncorrectable", "ecc_errors_total", labels={"kind": "uncorrected"}),
            },
            times=1,
            every_s=SLOW_S,
        ),
        Query(
            ("xpu-smi", "discovery", "-d", "{key}", "-j"),
            (Value("memory_physical_size_byte", "memory_total_bytes"),),
            KEY,
            every_s=FIXED_S,
        ),
    ),
)
