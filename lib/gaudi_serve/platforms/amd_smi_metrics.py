"""How the collector reads AMD's GPUs: JSON of amd-smi, in ROCm 6 and newer."""

from __future__ import annotations

from .card_metrics import FIXED_S, MIB, PERCENT, SLOW_S, CardMetrics, Query, Value

KEY = "gpu"
ACTIVE = {"ACTIVE": 1.0, "NOT ACTIVE": 0.0}
THERMAL = ("prochot", "socket_thermal", "vr_thermal", "hbm_thermal")


def _query(*words: str, values: tuple[Value, ...], every_s: int = 0) -> Query:
    return Query(("amd-smi", *words, "--json"), values, KEY, every_s=every_s)


def _active(name: str, reason: str) -> Value:
    return Value(f"throttle.{name}_violation_status", "throttled", labels={"reason": reason}, words=ACTIVE)


METRICS = CardMetrics(
    cards=_query("list", values=()),
    card="bdf",
    bus_id="bdf",
    details="GPU {gpu}, {bdf}",
    queries=(
        _query(
            *("metric", "--usage", "--power", "--temperature", "--mem-usage"),
            values=(
                Value("temperature.hotspot", "temperature_celsius"),
                Value("power.socket_power", "power_watts"),
                Value("usage.gfx_activity", "utilization_ratio", PERCENT),
                # The tool calls MiB MB.
                Value("mem_usage.used_vram", "memory_used_bytes", MIB),
                Value("mem_usage.total_vram", "memory_total_bytes", MIB),
            ),
        ),
        # Each of the following calls takes seconds: the tool is a program in Python.
        _query(
            *("metric", "--ecc"),
            values=(
                Value("ecc.total_uncorrectable_count", "ecc_errors_total", labels={"kind": "uncorrected"}),
                Value("ecc.total_correctable_count", "ecc_errors_total", labels={"kind": "corrected"}),
            ),
            every_s=SLOW_S,
        ),
        # Since ROCm 6.3, of MI300 and newer.
        _query(
            *("metric", "--throttle"),
            values=(_active("ppt", "power"), *(_active(name, "thermal") for name in THERMAL)),
            every_s=SLOW_S,
        ),
        # A list of pages, a single page without brackets, or a sentence that there is none.
        _query(
            "bad-pages",
            values=(Value("pending", "rows_pending", words={"{}": 1, "No bad pages found.": 0}),),
            every_s=SLOW_S,
        ),
        _query(
            *("static", "--limit"),
            values=(Value("limit.slowdown_hotspot_temperature", "temperature_slowdown_celsius"),),
            every_s=FIXED_S,
        ),
    ),
)
