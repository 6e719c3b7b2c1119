"""What needs no GPU: build the corpus, train the tokenizer, encode, and fill one folder to carry."""

import argparse
import gzip
import json
import random
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import stories15m
import tokenizer as bpe
from data import corpus, story_chats
from data.chat import Chat
from tokenizers import Tokenizer

HERE = Path(__file__).parent
SCRIPTS = ("*.py", "*.jinja", "*.md")


def encode(tokenizer: Tokenizer, texts: list[str]) -> dict[str, np.ndarray]:
    """Ids of all texts after one another, with the length of each."""
    rows = [e.ids for e in tokenizer.encode_batch_fast(texts)]
    return {
        "ids": np.concatenate([np.array(r, dtype=np.uint16) for r in rows]),
        "lengths": np.array([len(r) for r in rows], dtype=np.uint16),
    }


def texts_for_bpe(chats: dict[str, list[Chat]], stories: list[str], reading: list[str]) -> list[str]:
    """A balanced sample: the stories, about as much chat, a few definitions."""
    some = chats["train"][:25000] + chats["joined"][:3000] + chats["sums"][:1000]
    return stories * 2 + [bpe.render(c, thought=i % 9 == 0) for i, c in enumerate(some)] + reading[:5000]


def main() -> None:
    """Build the folder that the GPU run needs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=Path, required=True, help="the folder filled by fetch.py")
    parser.add_argument("--stories", type=Path, required=True, help="some sampled stories, one a line")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--chats", type=int, default=300_000)
    parser.add_argument("--sums", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    chats = corpus.build(args.sources, args.chats, args.sums, args.seed)
    reading = corpus.reading(args.sources)
    lines = args.stories.read_text().splitlines()
    stories = [s for line in lines if (s := story_chats.clean(line.replace("\\n", "\n")))]
    print({name: len(some) for name, some in chats.items()}, "stories", len(stories), flush=True)

    tokenizer = bpe.train(texts_for_bpe(chats, stories, reading))
    bpe.save(tokenizer, args.out / "tokenizer")
    rng = random.Random(f"thought:{args.seed}")
    packed: dict[str, np.ndarray] = {}
    for split in ("train", "joined", "sums"):
        texts = [bpe.render(c, thought=rng.random() < 0.12) for c in chats[split]]
        packed |= {f"{split}_{key}": value for key, value in encode(tokenizer, texts).items()}
    packed |= {f"reading_{key}": value for key, value in encode(tokenizer, reading).items()}
    np.savez_compressed(args.out / "corpus.npz", **packed)
    rng.shuffle(chats["test"])
    kinds: dict[str, list[Chat]] = {}
    for chat in chats["test"]:
        if len(some := kinds.setdefault(chat.kind, [])) < 150:
            some.append(chat)
    with gzip.open(args.out / "test.json.gz", "wt") as out:
        json.dump([asdict(c) for some in kinds.values() for c in some], out)
    with gzip.open(args.out / "stories.json.gz", "wt") as out:
        json.dump(stories, out)
    weights = args.out / "stories15m.npz"
    if not weights.exists():
        stories15m.convert(args.sources / "stories15m/package/src/llama2.data", weights)
    for pattern in SCRIPTS:
        for path in HERE.glob(pattern):
            shutil.copyfile(path, args.out / path.name)
    shutil.copytree(
        HERE / "data", args.out / "data", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    for name, value in packed.items():
        print(name, len(value))
    for path in sorted(args.out.iterdir()):
        if path.is_file():
            print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
