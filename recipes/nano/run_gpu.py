"""The whole training in one command: sample stories, mix, train, evaluate, write the model folder."""

import time

BEGAN = time.monotonic()

import argparse  # noqa: E402
import gzip  # noqa: E402
import json  # noqa: E402
import multiprocessing  # noqa: E402
import os  # noqa: E402
import random  # noqa: E402
import shutil  # noqa: E402
import tarfile  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402

import card  # noqa: E402
import hf  # noqa: E402
import numpy as np  # noqa: E402
import stories15m  # noqa: E402
import tokenizer as bpe  # noqa: E402
import torch  # noqa: E402
from data import openings, story_chats  # noqa: E402
from evaluate import evaluate, read_tests  # noqa: E402
from model import Decoder, Shape  # noqa: E402
from rows import LONG, PACK, SHORT, Marks, pack, pad  # noqa: E402
from train import Options, Rows, Streams, train  # noqa: E402

HERE = Path(__file__).parent
WORKER: dict = {}


def start_worker(folder: str) -> None:
    """Give a worker process its tokenizer and the vocabulary of stories15M."""
    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    WORKER["tokenizer"] = bpe.load(Path(folder) / "tokenizer")
    with np.load(Path(folder) / "stories15m.npz") as stored:
        ends = np.cumsum(stored["lengths"].astype(np.int64)).tolist()
        raw = stored["pieces"].tobytes()
        words = [raw[b - n : b] for b, n in zip(ends, stored["lengths"].tolist(), strict=True)]
        WORKER["pieces"] = stories15m.Pieces(words, stored["scores"])


def tell(job: tuple[int, list[list[int]]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Turn sampled rows into (story ids, chat ids) of nano's tokenizer."""
    seed, rows = job
    return encode_stories(seed, [WORKER["pieces"].decode(row) for row in rows])


def encode_stories(seed: int, texts: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Clean stories as plain text and as one chat each."""
    rng = random.Random(f"tales:{seed}")
    kept = [s for t in texts if (s := story_chats.clean(t))]
    chats = [bpe.render(story_chats.make(rng, s), thought=rng.random() < 0.12) for s in kept]
    tokenizer = WORKER["tokenizer"]
    plain, framed = tokenizer.encode_batch_fast(kept), tokenizer.encode_batch_fast(chats)
    return [
        (np.array(a.ids, dtype=np.uint16), np.array(b.ids, dtype=np.uint16))
        for a, b in zip(plain, framed, strict=True)
    ]


def split(flat: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """The documents of a flat array."""
    return np.split(flat, np.cumsum(lengths.astype(np.int64))[:-1])


class Logbook:
    """Progress lines with the time since the start, to the screen and a file."""

    def __init__(self, path: Path):
        self.file = path.open("w")

    def __call__(self, text: str) -> None:
        """One line."""
        line = f"[{time.monotonic() - BEGAN:6.1f}s] {text}"
        print(line, flush=True)
        self.file.write(line + "\n")
        self.file.flush()


def sample_stories(
    args: argparse.Namespace, pool, device: torch.device, until: float, say: Logbook
) -> list:
    """Sampled and encoded stories; workers clean and encode while the GPU goes on."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    teller, pieces = stories15m.load(HERE / "stories15m.npz", device, dtype)
    known: dict[str, list[int]] = {}
    starts = []
    for text in openings.openings(args.stories, args.seed):
        if text not in known:
            known[text] = pieces.encode(text) if text else [stories15m.BOS]
        starts.append(known[text])
    say(f"{len(starts)} openings, {len(known)} different")
    jobs, count = [], 0
    for rows in stories15m.batches(teller, starts, args.story_batch, until, args.seed):
        for at in range(0, len(rows), 512):
            jobs.append(pool.apply_async(tell, ((len(jobs), rows[at : at + 512]),)))
        count += len(rows)
        say(f"{count} stories sampled")
    made, lost = [], 0
    for job in jobs:
        try:
            made += job.get(timeout=60)
        except Exception as error:
            lost += 1
            say(f"a part of the stories is lost: {error!r}")
    say(f"{len(made)} stories kept, {lost} of {len(jobs)} parts lost")
    del teller
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return made


def build_streams(
    args: argparse.Namespace, told: list, marks: Marks, device: torch.device, say: Logbook
) -> Streams:
    """All token rows on the device."""
    with np.load(HERE / "corpus.npz") as stored:
        docs = {
            name: split(stored[f"{name}_ids"], stored[f"{name}_lengths"])
            for name in ("train", "joined", "sums", "reading")
        }
    random.Random(args.seed).shuffle(told)
    plain = [a for a, _ in told]
    mixed = plain + [np.concatenate([d, [marks.newline]]) for d in docs["reading"]]
    random.Random(args.seed + 1).shuffle(mixed)
    short = [d for d in docs["train"] if len(d) <= SHORT]
    longer = docs["joined"] + [d for d in docs["train"] if len(d) > SHORT]
    end = marks.end_of_text
    made = {
        "pack": (pack(mixed, PACK, end), None),
        "short": (pad(short, SHORT, end), marks),
        "sums": (pad(docs["sums"], SHORT, end), marks),
        "joined": (pad(longer, LONG, end), marks),
        "tales": (pad([b for _, b in told], LONG, end), marks),
    }
    say("rows " + ", ".join(f"{name} {len(rows)}x{rows.shape[1]}" for name, (rows, _) in made.items()))
    return Streams(**{name: Rows(rows, m, device, args.seed) for name, (rows, m) in made.items()})


class Shelf:
    """Writes the model folder as one tar, and weight files, so that a cut-off run leaves a usable model."""

    def __init__(self, out: Path, model: Decoder, tokenizer):
        self.out, self.model, self.tokenizer = out, model, tokenizer
        self.folder = Path(tempfile.mkdtemp()) / "nano"
        bpe.save(tokenizer, self.folder, model.shape.context)

    def __call__(self, name: str) -> None:
        """Save as a named checkpoint, or as the newest model when there is no name."""
        if name:
            hf.save_weights(self.model, self.out / f"checkpoint-{name}.safetensors")
            return
        hf.save(self.model, self.tokenizer, self.folder)
        # A tar is written beside its place and moved there, so a half-written one is never found.
        part = self.folder.parent / "nano.tar"
        with tarfile.open(part, "w") as tar:
            tar.add(self.folder, "nano")
        shutil.copyfile(part, self.out / "nano.tar.part")
        os.replace(self.out / "nano.tar.part", self.out / "nano.tar")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=7.0, help="wall clock of the whole run")
    parser.add_argument(
        "--story-part", type=float, default=0.24, help="part of the time spent on sampling stories"
    )
    parser.add_argument("--eval-seconds", type=float, default=45.0)
    parser.add_argument("--stories", type=int, default=300_000, help="at most so many samples")
    parser.add_argument("--story-batch", type=int, default=8192)
    parser.add_argument(
        "--sum-share", type=float, default=Options.sum_share, help="sums among short rows, on course"
    )
    parser.add_argument(
        "--sum-goal", type=float, default=Options.sum_goal, help="wanted sampled accuracy on sums"
    )
    parser.add_argument("--rate", type=float, default=Options.rate)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the rows of a step")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the script on a CPU")
    return parser.parse_args()


def main() -> None:
    """Run everything within the time."""
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    say = Logbook(args.out / "log.txt")
    deadline = BEGAN + args.minutes * 60
    workers = 1 if args.quick else max(1, min(14, (os.cpu_count() or 2) - 2))
    # Workers are forked before CUDA is touched: a forked CUDA context does not work.
    pool = multiprocessing.get_context("fork").Pool(workers, start_worker, (str(HERE),))
    start_worker(str(HERE))
    tokenizer = WORKER["tokenizer"]
    marks = Marks.of(tokenizer)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    shape = Shape(tokenizer.get_vocab_size())
    options = Options(
        rate=args.rate, sum_share=args.sum_share, sum_goal=args.sum_goal, compile=args.compile
    )
    if args.quick:
        torch.set_num_threads(1)
        args.stories, args.story_batch, args.eval_seconds = 8, 8, 5.0
        shape = Shape(tokenizer.get_vocab_size(), layers=2, width=64, heads=2, kv_heads=1, mlp=128)
        options.pack_rows, options.short_rows, options.long_rows, options.most_steps = 1, 32, 2, 12
        options.check_seconds, options.save_seconds = 0.5, 1.0
    for rows in ("pack_rows", "short_rows", "long_rows"):
        setattr(options, rows, max(1, round(getattr(options, rows) * args.scale)))
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    say(f"torch {torch.__version__} on {name}, {workers} workers")

    until, told = BEGAN + args.story_part * args.minutes * 60, []
    while not told and args.story_batch >= 8:
        try:
            told = sample_stories(args, pool, device, until, say)
        except torch.OutOfMemoryError:
            args.story_batch //= 2
            say(f"out of memory: sampling {args.story_batch} stories at a time")
    with gzip.open(HERE / "stories.json.gz", "rt") as stored:
        extra = json.load(stored)
    told += encode_stories(-1, extra[:200] if args.quick else extra)
    pool.close()
    streams = build_streams(args, told, marks, device, say)
    model = Decoder(shape).to(device)
    say(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    shelf = Shelf(args.out, model, tokenizer)
    options.seconds = max(5.0, deadline - args.eval_seconds - time.monotonic())
    run = train(model, streams, tokenizer, options, say, shelf)
    say(f"trained {run.steps} steps, {run.tokens / 1e6:.1f}M tokens, text rounds {streams.pack.rounds}")
    shelf("")

    final = hf.load(shelf.folder, device)
    figures, samples = evaluate(final, tokenizer, read_tests(HERE / "test.json.gz"), args.quick)
    figures["training"] = {
        "steps": run.steps,
        "tokens": run.tokens,
        "stories": len(told),
        "seconds": round(options.seconds),
        "device": name,
        "options": {k: v for k, v in vars(options).items() if isinstance(v, int | float)},
    }
    figures["checkpoints"] = run.checkpoints
    figures["history"] = run.history
    text = json.dumps(figures, indent=1) + "\n"
    (args.out / "eval.json").write_text(text)
    (args.out / "samples.txt").write_text(samples)
    (shelf.folder / "MODEL_CARD.md").write_text(card.fill(figures, samples))
    shelf("")
    say(samples)
    say(f"sums {figures['sums']}")
    say(f"greedy accuracy {figures['greedy accuracy']}")
    say(f"sampled accuracy {figures['sampled accuracy']}")
    say(f"stories {figures['stories']}, checkpoints {run.checkpoints}")
    say("done")


if __name__ == "__main__":
    main()
