"""Reader of the trace that bucket plans are measured with.

golden/azure_llm_2023_conv.csv.gz: 19,366 requests to a production conversation service, from the Azure LLM inference
trace 2023 (https://github.com/Azure/AzurePublicDataset), licence CC-BY, unchanged but for its compression. Described
in: P. Patel et al., "Splitwise: Efficient generative LLM inference using phase splitting", ISCA 2024.
"""

from __future__ import annotations

import csv
import gzip
from datetime import datetime
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "unit/golden/azure_llm_2023_conv.csv.gz"


def azure(speed: float = 1) -> list[dict[str, Any]]:
    """Return the trace in the format of hpu_bucket_plan, at a multiple of its speed."""
    with gzip.open(FILE, "rt", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in rows]
    return [
        {
            "arrival_s": (time - times[0]) / speed,
            "input_tokens": int(row["ContextTokens"]),
            "output_tokens": int(row["GeneratedTokens"]),
        }
        for time, row in zip(times, rows, strict=True)
    ]
