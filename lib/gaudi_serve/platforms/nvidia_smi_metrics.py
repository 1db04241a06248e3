"""How the collector reads NVIDIA's cards: fields of nvidia-smi's query."""

from __future__ import annotations

from .card_metrics import FIXED_S, MIB, MICROSECONDS, PERCENT, CardMetrics, Query, Value
from .nvidia_smi import CSV

KEY = "uuid"
ACTIVE = {"Active": 1.0, "Not Active": 0.0}
REASONS = {
    **{"hw_thermal_slowdown": "thermal", "sw_thermal_slowdown": "thermal"},
    **{"hw_power_brake_slowdown": "power", "sw_power_cap": "power"},
}


def _query(*values: Value, columns: tuple[str, ...] = ()) -> Query:
    """Return one call; a driver that does not know one of its fields refuses the whole call."""
    names = tuple(dict.fromkeys((KEY, *columns, *(one.source for one in values))))
    return Query(("nvidia-smi", f"--query-gpu={','.join(names)}", CSV), values, KEY, names)


def _errors(kind: str) -> tuple[Value, Value]:
    """Return the counts of a kind of errors: since the driver was loaded, and in the card's life."""
    return (
        Value(f"ecc.errors.{kind}.volatile.total", "ecc_errors_total", labels={"kind": kind}),
        Value(f"ecc.errors.{kind}.aggregate.total", "ecc_errors_lifetime", labels={"kind": kind}),
    )


def _throttled(group: str) -> Query:
    """Return the call for the reasons that slow a card down now."""
    labels = {name: {"reason": reason} for name, reason in REASONS.items()}
    return _query(*(Value(f"{group}.{name}", "throttled", labels=labels[name], words=ACTIVE) for name in REASONS))


METRICS = CardMetrics(
    cards=_query(
        Value("temperature.gpu", "temperature_celsius"),
        Value("power.draw", "power_watts"),
        Value("utilization.gpu", "utilization_ratio", PERCENT),
        Value("memory.used", "memory_used_bytes", MIB),
        Value("memory.total", "memory_total_bytes", MIB),
        columns=("index", "pci.bus_id", "name"),
    ),
    card=KEY,
    bus_id="pci.bus_id",
    details="{name}, index {index}, {pci.bus_id}",
    queries=(
        _query(*_errors("uncorrected"), *_errors("corrected")),
        _query(Value("remapped_rows.pending", "rows_pending", words={"Yes": 1, "No": 0})),
        _throttled("clocks_event_reasons"),
        # Their name before driver 535.
        _throttled("clocks_throttle_reasons"),
        _query(
            *(
                Value(
                    f"clocks_event_reasons_counters.{name}",
                    "throttled_seconds_total",
                    MICROSECONDS,
                    labels={"reason": reason},
                )
                for name, reason in REASONS.items()
            )
        ),
        # This is not a field of the query; newer cards report the remaining degrees instead.
        Query(
            ("nvidia-smi", "-q", "-d", "TEMPERATURE", "-i", "{key}"),
            (Value("value", "temperature_slowdown_celsius"),),
            pattern=r"(?m)^\s*GPU Slowdown Temp\s*:\s*(?P<value>\d+) C\s*$",
            every_s=FIXED_S,
        ),
    ),
)
