"""A LoRA adapter of random numbers for the tiny model, as PEFT saves one."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

LAYERS, HIDDEN, VALUES, RANK = 3, 256, 128, 4


def write_tiny_adapter(folder: Path) -> None:
    """Write adapter_config.json and adapter_model.safetensors for the queries and values of all layers."""
    given = {"r": RANK, "lora_alpha": 64, "target_modules": ["q_proj", "v_proj"], "base_model_name_or_path": "tiny"}
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "task_type": "CAUSAL_LM", **given}))
    header, data, seed = {}, b"", random.Random(1)  # noqa: S311 - numbers, no secret
    for layer in range(LAYERS):
        for name, outputs in (("q_proj", HIDDEN), ("v_proj", VALUES)):
            for matrix, shape in (("lora_A", (RANK, HIDDEN)), ("lora_B", (outputs, RANK))):
                numbers = [seed.gauss(0, 1) for _ in range(shape[0] * shape[1])]
                begin, data = len(data), data + struct.pack(f"<{len(numbers)}f", *numbers)
                key = f"base_model.model.model.layers.{layer}.self_attn.{name}.{matrix}.weight"
                header[key] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
