"""How the collector reads Gaudi cards: fields of hl-smi's query, and the links of their ports."""

from __future__ import annotations

from .card_metrics import FIXED_S, MIB, PERCENT, SLOW_S, CardMetrics, Only, Query, Value

KEY = "module_id"
PORT = r"(?im)^\s*port\s+(?P<port>\d+)\s*:\s*"


def _query(*values: Value, columns: tuple[str, ...] = ()) -> Query:
    """Return one call; a release that does not know one of its fields refuses the whole call."""
    names = tuple(dict.fromkeys((KEY, *columns, *(one.source for one in values))))
    argv = ("hl-smi", "-Q", ",".join(names), "-f", "csv,noheader,nounits")
    return Query(argv, values, KEY, names)


def _errors(field: str, kind: str) -> tuple[Value, Value]:
    """Return the counts of a kind of errors: since the driver was loaded, and in the card's life."""
    return (
        Value(f"ecc.errors.{field}.volatile.total", "ecc_errors_total", labels={"kind": kind}),
        Value(f"ecc.errors.{field}.aggregate.total", "ecc_errors_lifetime", labels={"kind": kind}),
    )


METRICS = CardMetrics(
    cards=_query(
        Value("temperature.aip", "temperature_celsius"),
        # Of the 54 V rail alone.
        Value("power.draw", "power_watts"),
        Value("utilization.aip", "utilization_ratio", PERCENT),
        Value("memory.used", "memory_used_bytes", MIB),
        Value("memory.total", "memory_total_bytes", MIB),
        columns=("index", "bus_id", "name", "serial"),
    ),
    card=KEY,
    bus_id="bus_id",
    details="{name}, index {index}, {bus_id}, serial {serial}",
    queries=(
        _query(*_errors("uncorrected", "uncorrected"), *_errors("corrected", "corrected")),
        # Only newer releases have all four.
        _query(*_errors("dram", "dram_uncorrected"), *_errors("dram-corrected", "dram_corrected")),
        # The vendor's page does not name the unit; they do not grow while a card runs at full speed.
        _query(
            Value("stats.violation.thermal", "throttled_seconds_total", labels={"reason": "thermal"}),
            Value("stats.violation.power", "throttled_seconds_total", labels={"reason": "power"}),
        ),
        # Ports to other hosts have no link without a network for them.
        Query(
            ("hl-smi", "-n", "link", "-i", "{bus_id}"),
            (Value("value", "port_up", words={"up": 1, "down": 0}),),
            pattern=PORT + r"(?P<value>up|down)\b",
            only=Only(("hl-smi", "-n", "ports", "-i", "{bus_id}"), PORT + r"internal\b", FIXED_S),
            every_s=SLOW_S,
        ),
    ),
)
