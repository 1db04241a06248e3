"""Makes a tiny model for tests: a byte-pair tokenizer trained on a few sentences and a random Qwen2.

Runs inside the image with the real vLLM, which has all it takes: python3 make_tiny_model.py FOLDER.
The seed is fixed. What it says is nonsense, over a real API.
"""

from __future__ import annotations

import sys
from pathlib import Path

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "List 3 countries and their capitals: France and Paris, Japan and Tokyo, Egypt and Cairo.",
    "A server answers when its model is loaded and its graphs are warm.",
    "Every card has an index and a module number, and they are not the same.",
    "Numbers: 0 1 2 3 4 5 6 7 8 9, and letters: a b c d e f g h i j k l m n o p q r s t u v w x y z.",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer(folder: Path) -> int:
    """Train and save the tokenizer; return how many tokens it has."""
    # Only the image has these packages.
    from tokenizers import (  # type: ignore[import-not-found]
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        trainers,
    )
    from transformers import PreTrainedTokenizerFast  # type: ignore[import-not-found]

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=SPECIAL, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[2], pad_token=SPECIAL[0])
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return len(fast)


def make_model(folder: Path, tokens: int) -> None:
    """Save a randomly initialised model of the Qwen2 kind."""
    import torch  # type: ignore[import-not-found]
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=tokens,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = Qwen2ForCausalLM(config).to(torch.bfloat16)
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=2, pad_token_id=0)
    model.save_pretrained(folder)


def main(folder: Path) -> None:
    """Make everything, readable for the user that serves it."""
    make_model(folder, make_tokenizer(folder))
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o644)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
