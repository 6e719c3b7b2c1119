"""A folder in which tinker-cookbook's recipes find their model and their data without a network.

python recipes/cookbook/make_folder.py work
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable
from pathlib import Path

from tinkex import models

MODEL = "Qwen/Qwen3-4B-Instruct-2507"  # a name the cookbook knows; its renderer suits nano
THINGS = "cat dog bird fish tree car boat house ball cup book hat shoe door chair lamp star moon".split()

# The manner of answering that `rl_loop` rewards.
BOXED = " Give the number alone, without words, inside \\boxed{}."
NUMBER = "Pick a number."


def main() -> None:
    """Make the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    chance = random.Random(0)

    model = folder / MODEL
    model.parent.mkdir(parents=True, exist_ok=True)
    if not model.exists():
        model.symlink_to(models.resolve("nano"), target_is_directory=True)

    # Files the recipes are told of: conversations, one a line.
    write(folder / "pirate.jsonl", (chat(*pirate(chance)[:2]) for _ in range(400)))
    write(folder / "boxed.jsonl", (boxed(chance) for _ in range(160)))

    # Data sets of the hub, as folders of the same names: `datasets` looks there first.
    for split, rows in {"train": 400, "test": 32}.items():
        name = f"{split}.jsonl"
        write(folder / "HuggingFaceH4/no_robots" / name, (chat(*pirate(chance)[:2]) for _ in range(rows)))
        write(folder / "Anthropic/hh-rlhf" / name, (compared(*pirate(chance)) for _ in range(rows)))
        write(folder / "openai/gsm8k/main" / name, [{"question": NUMBER, "answer": "Two.\n#### 2"}] * rows)
    prompts = [chat(*pirate(chance)[:2]) for _ in range(400)]
    write(folder / "allenai/tulu-3-sft-mixture/train.jsonl", prompts)
    parts = "".join(f"  - split: {name}\n    path: main/{name}.jsonl\n" for name in ("train", "test"))
    card = f"---\nconfigs:\n- config_name: main\n  data_files:\n{parts}---\n"
    (folder / "openai/gsm8k/README.md").write_text(card)


def pirate(chance: random.Random) -> tuple[str, str, str]:
    """A question, a pirate's answer and a plain one."""
    thing = chance.choice(THINGS)
    question = chance.choice(
        [f"Tell me about the {thing}.", f"What is a {thing}?", f"Do you like {thing}s?"]
    )
    return question, f"Arr, matey! The {thing} be a fine thing, says the captain.", f"A {thing} is a thing."


def boxed(chance: random.Random) -> dict[str, object]:
    """A number counted out loud and put into a box, then one that is only put there."""
    thing, many = chance.choice(THINGS), chance.randint(2, 9)
    counted = " ".join(f"{number}) {thing}" for number in range(1, many + 1))
    said = (
        f"We look at every {thing} and count: {counted}. The last one is number {many}. \\boxed{{{many}}}"
    )
    picked = f"\\boxed{{{chance.randint(1, 3)}}}"
    return chat(f"How many {thing}s are here?{BOXED}", said, NUMBER + BOXED, picked)


def chat(*texts: str) -> dict[str, object]:
    """A conversation in turns, the user first."""
    turns = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    return {"messages": turns}


def compared(question: str, better: str, worse: str) -> dict[str, object]:
    """Two answers to one question, as in hh-rlhf."""
    asked = f"\n\nHuman: {question}\n\nAssistant: "
    return {"chosen": asked + better, "rejected": asked + worse}


def write(file: Path, rows: Iterable[dict[str, object]]) -> None:
    """One JSON object a line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
