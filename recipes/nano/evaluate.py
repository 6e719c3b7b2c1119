"""Measure a nano: held-out loss and accuracy by kind of task, sums, stories, sample chats."""

import argparse
import gzip
import json
import random
from collections import defaultdict
from pathlib import Path

import hf
import tokenizer as bpe
import torch
from data import story_chats, sums
from data.chat import Chat
from model import Decoder, decode, loss_sums
from rows import LONG, Marks, answers, pad
from tokenizers import Tokenizer

TALKS: tuple[tuple[str, ...], ...] = (
    ("Hello!", "Who are you?", "What is the capital of France?", "Thank you!"),
    ("My name is Mia.", "Reverse the word cat.", "What is my name?"),
    ("What is 3 + 4?", "What is 12 + 9?", "Which is larger, 8 or 15?", "Sort these numbers: 9, 2, 5"),
    ("Is the sun hot?", "What colour is grass?", "Which day comes after Monday?", "What does brave mean?"),
    ("Write hello in capital letters.", "Spell house.", "How many letters are in tree?", "Bye!"),
    ("Tell me a story about a dragon.", "Tell me a short story."),
)


def ask(tokenizer: Tokenizer, questions: list[str]) -> list[list[int]]:
    """Prompts of single questions, ready to be answered."""
    return [
        e.ids for e in tokenizer.encode_batch_fast([bpe.prompt(Chat("", ((q, ""),))) for q in questions])
    ]


def stops(marks: Marks) -> tuple[int, int]:
    """What ends an answer."""
    return marks.end, marks.end_of_text


def right(tokenizer: Tokenizer, made: list[list[int]], wanted: list[str]) -> list[bool]:
    """Which answers are exactly the wanted ones."""
    return [text.strip() == want for text, want in zip(tokenizer.decode_batch(made), wanted, strict=True)]


def sum_accuracy(
    model: Decoder, tokenizer: Tokenizer, temperature: float, repeats: int = 1, top: int = sums.SMALL
) -> float:
    """Share of right answers over all pairs of operands up to `top`, in the canonical wording."""
    pairs = [(a, b) for a in range(top + 1) for b in range(top + 1)]
    if len(pairs) > 1000:
        pairs = random.Random(0).sample(pairs, 1000)
    questions = [sums.CANONICAL.format(a=a, b=b) for a, b in pairs] * repeats
    wanted = [str(a + b) for a, b in pairs] * repeats
    made = decode(model, ask(tokenizer, questions), 5, stops(Marks.of(tokenizer)), temperature)
    good = right(tokenizer, made, wanted)
    return sum(good) / len(good)


@torch.inference_mode()
def loss_by_kind(model: Decoder, tokenizer: Tokenizer, chats: list[Chat]) -> dict[str, float]:
    """Mean negative log-likelihood of an answer token, by kind of task."""
    marks, device = Marks.of(tokenizer), model.embed.weight.device
    groups: dict[str, list[list[int]]] = defaultdict(list)
    for chat, encoded in zip(
        chats, tokenizer.encode_batch_fast([bpe.render(c) for c in chats]), strict=True
    ):
        groups[chat.kind].append(encoded.ids)
    found = {}
    for kind, encoded in sorted(groups.items()):
        rows = pad(encoded, LONG, marks.end_of_text)
        counted = answers(rows, marks)
        width = max(2, int(counted.any(0).nonzero()[0].max()) + 1)
        total, count = 0.0, 0.0
        for start in range(0, len(rows), 64):
            ids = torch.from_numpy(rows[start : start + 64, :width].astype("int64")).to(device)
            mask = torch.from_numpy(counted[start : start + 64, :width]).to(device)
            a, b = loss_sums(model, ids, mask)
            total, count = total + float(a), count + float(b)
        found[kind] = total / max(count, 1.0)
    return found


def accuracy_by_kind(
    model: Decoder, tokenizer: Tokenizer, chats: list[Chat], temperature: float
) -> dict[str, float]:
    """Share of exactly right answers of the kinds that have only one."""
    chats = [c for c in chats if c.exact]
    prompts = [e.ids for e in tokenizer.encode_batch_fast([bpe.prompt(c) for c in chats])]
    made = decode(model, prompts, 48, stops(Marks.of(tokenizer)), temperature)
    groups: dict[str, list[bool]] = defaultdict(list)
    for chat, good in zip(chats, right(tokenizer, made, [c.answer for c in chats]), strict=True):
        groups[chat.kind].append(good)
    return {kind: sum(some) / len(some) for kind, some in sorted(groups.items())}


def stories(
    model: Decoder, tokenizer: Tokenizer, count: int, new_tokens: int
) -> tuple[dict[str, float], list[str]]:
    """Stories on asked topics at temperature 0.7: how many end, name the topic, repeat no sentence."""
    rng = random.Random(5)
    topics = [rng.choice(story_chats.TOPICS) for _ in range(count)]
    questions = [rng.choice(story_chats.ABOUT).format(story_chats.article(t)) for t in topics]
    made = decode(model, ask(tokenizer, questions), new_tokens, stops(Marks.of(tokenizer)), 0.7)
    texts = tokenizer.decode_batch(made)
    ended = [len(m) < new_tokens for m in made]
    named = [t in text.lower() for t, text in zip(topics, texts, strict=True)]
    clean = [story_chats.clean(t) is not None for t in texts]
    figures = {
        "ended": sum(ended) / count,
        "on topic": sum(named) / count,
        "clean": sum(clean) / count,
        "mean words": sum(len(t.split()) for t in texts) / count,
    }
    return figures, [f"{q}\n{t}" for q, t in zip(questions[:6], texts, strict=False)]


def talk(
    model: Decoder, tokenizer: Tokenizer, questions: tuple[str, ...], temperature: float, limit: int
) -> str:
    """One conversation, turn after turn, with the template's history."""
    said: list[tuple[str, str]] = []
    for question in questions:
        prompt = bpe.prompt(Chat("", (*said, (question, ""))))
        made = decode(model, [tokenizer.encode(prompt).ids], limit, stops(Marks.of(tokenizer)), temperature)
        said.append((question, tokenizer.decode(made[0]).strip()))
    return "\n".join(f"user: {q}\nnano: {a}" for q, a in said)


def evaluate(
    model: Decoder, tokenizer: Tokenizer, chats: list[Chat], quick: bool = False
) -> tuple[dict, str]:
    """All figures as plain values, and sample outputs as text."""
    torch.manual_seed(0)
    if quick:
        chats = chats[::40]
    parameters = sum(p.numel() for p in model.parameters())
    repeats = 1 if quick else 8
    story_figures, told = stories(model, tokenizer, 2 if quick else 64, 16 if quick else 320)
    figures = {
        "parameters": parameters,
        "shape": model.shape.as_dict(),
        "sums": {
            "operands": f"0-{sums.SMALL}",
            "wording": sums.CANONICAL,
            "sampled": sum_accuracy(model, tokenizer, 1.0, repeats),
            "greedy": sum_accuracy(model, tokenizer, 0.0),
            "sampled 0-9": sum_accuracy(model, tokenizer, 1.0, repeats, top=9),
            "sampled 0-99": sum_accuracy(model, tokenizer, 1.0, top=9 if quick else 99),
        },
        "loss": loss_by_kind(model, tokenizer, chats),
        "greedy accuracy": accuracy_by_kind(model, tokenizer, chats, 0.0),
        "sampled accuracy": accuracy_by_kind(model, tokenizer, chats, 1.0),
        "stories": story_figures,
    }
    for name in ("loss", "greedy accuracy", "sampled accuracy"):
        figures[f"mean {name}"] = sum(figures[name].values()) / max(1, len(figures[name]))
    limit = 12 if quick else 320
    parts = [
        f"--- greedy ---\n{talk(model, tokenizer, t, 0.0, limit)}" for t in TALKS[: 1 if quick else None]
    ]
    parts += [
        f"--- temperature 0.7 ---\n{talk(model, tokenizer, t, 0.7, limit)}"
        for t in TALKS[: 1 if quick else None]
    ]
    return figures, "\n\n".join(parts + [f"--- story, temperature 0.7 ---\n{t}" for t in told]) + "\n"


def read_tests(path: Path) -> list[Chat]:
    """The held-out chats of a prepared folder."""
    with gzip.open(path, "rt") as stored:
        return [
            Chat(c["kind"], tuple((a, b) for a, b in c["turns"]), c["system"], c["exact"])
            for c in json.load(stored)
        ]


def main() -> None:
    """Evaluate a saved folder; writes eval.json and samples.txt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="the folder with weights and tokenizer")
    parser.add_argument("--tests", type=Path, required=True, help="test.json.gz made by prepare.py")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, tokenizer = hf.load(args.model, device), bpe.load(args.model)
    figures, samples = evaluate(model, tokenizer, read_tests(args.tests), args.quick)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "eval.json").write_text(json.dumps(figures, indent=1) + "\n")
    (args.out / "samples.txt").write_text(samples)
    print(samples)
    print(json.dumps(figures["sums"]))


if __name__ == "__main__":
    main()
