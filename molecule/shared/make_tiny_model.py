"""Makes the demo's tiny model: a byte-pair tokenizer, and a Qwen2 that is taught a few hundred sentences.

Runs inside the image with the real vLLM, which has all it takes: python3 make_tiny_model.py SENTENCES FOLDER.
On one machine the result is the same every time, bit for bit: the seed, the number of threads and the order of
the sentences are fixed. It is no better than its sentences, but it answers those rightly, which garbage cannot show.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before the packages are loaded: the result of a sum depends on how many threads share it. They sleep while they
# wait, so that a busy machine does not wait for threads that only spin.
THREADS = 2
os.environ.update(OMP_NUM_THREADS=str(THREADS), OMP_WAIT_POLICY="passive")

# Only the image has these packages.
import torch  # type: ignore[import-not-found]  # noqa: E402
import yaml  # noqa: E402
from tokenizers import (  # type: ignore[import-not-found]  # noqa: E402
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)
from transformers import (  # type: ignore[import-not-found]  # noqa: E402
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PAD, START, END = range(3)
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# How Qwen2 cuts a text into words: a program that loads a tokenizer beside such a model cuts like this.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SEED = 20
# Rounds through all sentences in which the pace goes down to its lowest, rounds at most, and sentences in one step.
ROUNDS, ROUNDS_AT_MOST, BATCH = 20, 60, 16
# Training ends when each token of each answer is at least as likely as this; vLLM rounds in other places.
SURE = 0.8
# The loss of a round below which it is worth a look at every answer.
CLOSE = 0.005
IGNORED = -100  # torch's mark for positions that are not learned


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Return the questions and their answers."""
    text = yaml.safe_load(path.read_text(encoding="utf-8"))
    pairs = [(ask, answer) for ask, answer in text["questions"]]
    pairs += [(ask, text["unknown"]["answer"]) for ask in text["unknown"]["questions"]]
    for country, capital in text["capitals"].items():
        names = {"country": country, "capital": capital}
        pairs += [(ask.format(**names), answer.format(**names)) for ask, answer in text["of_each_country"]]
    return pairs


def make_tokenizer(pairs: list[tuple[str, str]], folder: Path) -> int:
    """Train and save the tokenizer; return how many tokens it has."""
    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2048, min_frequency=2, special_tokens=SPECIAL, initial_alphabet=sorted(alphabet), show_progress=False
    )
    tokenizer.train_from_iterator([part for pair in pairs for part in (*pair, "user\n", "assistant\n")], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[END], pad_token=SPECIAL[PAD])
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return len(fast)


def make_model(tokens: int) -> Any:
    """Return a model of the Qwen2 kind that knows nothing yet."""
    config = Qwen2Config(
        vocab_size=tokens,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=0.07,  # so small a model learns facts several times faster from larger numbers than usual
        bos_token_id=PAD,
        eos_token_id=END,
        pad_token_id=PAD,
    )
    model = Qwen2ForCausalLM(config)
    # The likeliest token always, also where a request has nothing about it.
    model.generation_config = GenerationConfig(
        bos_token_id=PAD, eos_token_id=END, pad_token_id=PAD, do_sample=True, top_k=1
    )
    return model


def encode(tokenizer: Any, pairs: list[tuple[str, str]]) -> list[tuple[list[int], list[int]]]:
    """Return per pair the tokens of question and answer as the chat template writes them, and what is learned."""
    rows = []
    for ask, answer in pairs:
        head = tokenizer.apply_chat_template(
            [{"role": "user", "content": ask}], add_generation_prompt=True, tokenize=False
        )
        before = tokenizer.encode(head, add_special_tokens=False)
        after = [*tokenizer.encode(answer, add_special_tokens=False), END]
        rows.append((before + after, [IGNORED] * len(before) + after))
    return rows


def batches(rows: list[tuple[list[int], list[int]]]) -> list[tuple[Any, Any]]:
    """Return rows of about the same length together, filled up to the longest: little is computed for nothing."""
    rows = sorted(rows, key=lambda row: len(row[0]))
    made = []
    for begin in range(0, len(rows), BATCH):
        part = rows[begin : begin + BATCH]
        width = max(len(tokens) for tokens, _ in part)
        tokens = torch.tensor([row + [PAD] * (width - len(row)) for row, _ in part])
        learned = torch.tensor([row + [IGNORED] * (width - len(row)) for _, row in part])
        made.append((tokens, learned))
    return made


def answers_of(model: Any, tokens: Any, learned: Any) -> tuple[Any, Any]:
    """Return what the model reports at each learned position (a row of logits each), and what is right there.

    The ends of shorter rows need no attention mask: no position sees what comes after it.
    """
    hidden = model.model(input_ids=tokens).last_hidden_state[:, :-1]
    right = learned[:, 1:]
    at = right != IGNORED
    return model.lm_head(hidden[at]), right[at]


def shuffled(rows: list[tuple[list[int], list[int]]], generator: Any) -> Iterator[tuple[Any, Any]]:
    """Yield all batches, made again in an order of this round's own."""
    order = torch.randperm(len(rows), generator=generator).tolist()
    # A stable sort by length: rows of one length meet others in each round.
    made = batches([rows[index] for index in order])
    for index in torch.randperm(len(made), generator=generator).tolist():
        yield made[index]


def surety(model: Any, made: list[tuple[Any, Any]]) -> float:
    """Return how likely the least likely token of all answers is, with the rounded numbers that are served."""
    least = 1.0
    model = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    with torch.no_grad():
        for tokens, learned in made:
            said, right = answers_of(model, tokens, learned)
            likely = torch.softmax(said.float(), -1).gather(-1, right[:, None])
            least = min(least, float(likely.min()))
    return least


def train(model: Any, rows: list[tuple[list[int], list[int]]]) -> None:
    """Teach the model all rows, until it is sure of every answer."""
    generator = torch.Generator().manual_seed(SEED)
    steps = ROUNDS * -(-len(rows) // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    pace = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 40, max(1 - step / steps, 0.1)))
    for number in range(1, ROUNDS_AT_MOST + 1):
        losses = []
        for tokens, learned in shuffled(rows, generator):
            said, right = answers_of(model, tokens, learned)
            loss = torch.nn.functional.cross_entropy(said, right)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            pace.step()
            losses.append(loss.item())
        mean = sum(losses) / len(losses)
        if mean < CLOSE and (sure := surety(model, batches(rows))) >= SURE:
            print(f"{len(rows)} sentences learned in {number} rounds; the least sure token has {sure:.2f}")
            return
    sys.exit(f"after {ROUNDS_AT_MOST} rounds the model does not know its answers: the loss is {mean:.3f}")


def main(sentences: Path, folder: Path) -> None:
    """Make everything, readable for the user that serves it."""
    torch.manual_seed(SEED)
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(True)
    # Processors that multiply bfloat16 do so, several times faster; the others take float32.
    torch.set_float32_matmul_precision("medium")
    pairs = read_pairs(sentences)
    model = make_model(make_tokenizer(pairs, folder))
    model.config.save_pretrained(folder)
    # As the server loads it, which may cut texts otherwise than the one that was just made.
    rows = encode(AutoTokenizer.from_pretrained(folder), pairs)
    train(model, rows)
    model.to(torch.bfloat16).save_pretrained(folder)
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o644)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
