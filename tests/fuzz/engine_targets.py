"""What the engine reads: its own messages, losses from clients, weights and models from files."""

from __future__ import annotations

import functools
import json
import shutil
from importlib.util import find_spec
from random import Random
from typing import Any

import numpy as np

from tinkex.engine import codec, messages
from tinkex.engine.codec import CodecError, Frames

from .file_targets import place
from .mutation import Mutate, headed
from .running import Target

HAS_TORCH = find_spec("torch") is not None
HAS_GGUF = HAS_TORCH and find_spec("gguf") is not None


# ---- messages


def _messages() -> list[bytes]:
    sparse = messages.SparseRows(np.ones(2), np.array([0, 1, 2]), np.array([0, 1]), (2, 2))
    datum = messages.Datum(np.arange(3), {"weights": np.ones(3, np.float32), "target_tokens": sparse})
    part = messages.TrainPart("m", (datum,), "ppo", {"beta": 0.5, "s": "x", "n": None})
    tokens = np.arange(2, dtype=np.int32)
    result = messages.PartResult(({"logprobs": np.ones((2, 2), np.float32)},), {"loss": 1.0})
    params = messages.SamplingParams(3, 1.0, -1, 1.0, 7, (1, "a"))
    made = [
        messages.Train(3, "r", (part, part)),
        messages.Sample(3, "r", "v", tokens, 2, params, messages.ScoreOptions(targets=sparse), "ann"),
        messages.TokenStep(3, tokens, tokens, np.ones(2), tokens, tokens, None, tokens, np.ones(2)),
        messages.TrainDone(3, "r", (result, messages.PartFailure("user", "no"))),
        messages.SampleDone(3, "r", 0, np.ones(2), None, None, sparse),
        messages.CreateAdapter(3, "r", "m"),
        messages.Stats(3, "r", {"a": 1, "b": 0.5}),
        messages.Ready(3, {"context": 5}, tokens),
    ]
    return [codec.encode(each) for each in made]


_MESSAGE = headed("I", codec.MAGIC, "Q")


def _framed(rng: Random, corpus: Any) -> bytes:
    return b"".join(_MESSAGE(rng, corpus) for _ in range(rng.randrange(1, 4)))


def _frames(data: bytes) -> object:
    frames, found = Frames(1 << 12, 1 << 16), []
    cut, at = Random(len(data)), 0
    while at < len(data):
        room = frames.space()
        piece = data[at : at + min(len(room), cut.choice((1, 16, 100, 4096)))]
        room[: len(piece)] = piece
        at += len(piece)
        found += list(frames.filled(len(piece)))
    return found


# ---- losses


@functools.cache
def _graphs() -> tuple[bytes, ...]:
    from tests.engine.test_custom_graph import RANKS, every_pair, graph_of, ppo_like, shapes_and_steps

    return tuple(graph_of(each, **RANKS).encode() for each in (ppo_like, shapes_and_steps, every_pair))


def _graph_changed() -> Mutate:
    """Graphs changed as JSON is, and by naming other operations of the closed list."""
    from tinkex.engine.custom_ops import FUNCTIONS, METHODS

    from .mutation import NUMBERS, change_tree, dumped, json_text

    functions, methods = sorted(FUNCTIONS), sorted(METHODS)

    def mutate(rng: Random, corpus: Any) -> bytes:
        if rng.random() < 0.25:
            return json_text(rng, corpus)
        tree = json.loads(rng.choice(corpus))
        nodes = tree["nodes"]
        for _ in range(rng.randrange(1, 4)):
            node = rng.choice([each for each in nodes if each["op"].startswith("call")])
            refs = [{"ref": each["name"]} for each in nodes[: nodes.index(node)]]
            draw = rng.random()
            if draw < 0.4:
                node["op"], node["target"] = (
                    ("call_function", rng.choice(functions))
                    if draw < 0.25
                    else ("call_method", rng.choice(methods))
                )
            elif draw < 0.7 and node["args"]:
                plain = (
                    rng.choice(NUMBERS),
                    0.5,
                    None,
                    True,
                    [],
                    {"float": "inf"},
                    {"tuple": [64, 64, 64, 64]},
                )
                node["args"][rng.randrange(len(node["args"]))] = rng.choice((*refs, *plain))
            elif draw < 0.85:
                node["args"].append(rng.choice((*refs, rng.choice(NUMBERS), {"slice": [0, 2, 1]}, [1, 2])))
            else:
                change_tree(rng, node["args"], 1)
        return dumped(rng, tree)

    return mutate


@functools.cache
def _bound_data() -> tuple[Any, Any]:
    import torch

    datum = messages.Datum(
        np.arange(4),
        {
            "target_tokens": np.arange(4),
            "old": np.full(4, -1.0, np.float32),
            "advantages": np.array([1, -1, 0.5, 0], np.float32),
        },
    )
    return (datum,), torch.linspace(-2, -1, 4).unsqueeze(1)


def _loss(data: bytes) -> object:
    import torch

    from tinkex.engine.custom_graph import CustomLoss
    from tinkex.engine.datums import PartData
    from tinkex.engine.packing import Run

    datums, lp = _bound_data()
    loss = CustomLoss.from_config({"graph": data.decode("utf-8", "surrogateescape")})
    bound = loss.bind(datums, torch.device("cpu"), torch.float32)
    tokens = torch.arange(4)
    laid = PartData([4], [0, 4], [(4,)], tokens, tokens, tokens.unsqueeze(1), {})
    total, slope, metrics = bound.run(lp, laid, Run(0, 0, 1))
    assert total.dim() == 0
    assert slope.shape == lp.shape
    return CustomLoss.reduced(metrics)


# ---- weights and models


@functools.cache
def _model() -> Any:
    from tests.engine.training_models import engine_model, plain_model

    return engine_model(plain_model("qwen3"))


def _adapter(name: str) -> list[bytes]:
    from tests.engine.training_models import filled_adapter
    from tinkex.engine.peft_format import export_peft

    folder = place() / "adapter"
    if not folder.is_dir():
        export_peft(folder, filled_adapter(_model(), 2), base_name="b")
    return [(folder / name).read_bytes()]


def _peft(name: str) -> Any:
    def read(data: bytes) -> object:
        from tinkex.engine.peft_format import import_peft

        folder = place() / "foreign"
        if not folder.is_dir():
            _adapter("adapter_config.json")
            shutil.copytree(place() / "adapter", folder)
        kept = (folder / name).read_bytes()
        (folder / name).write_bytes(data)
        try:
            return import_peft(folder, _model())
        finally:
            (folder / name).write_bytes(kept)

    return read


@functools.cache
def _saved() -> tuple[bytes, ...]:
    import torch

    from tests.engine.training_models import filled_adapter
    from tinkex.engine.adamw import AdamState
    from tinkex.engine.checkpoints import FILE, save_sampler, save_state
    from tinkex.engine.trainer import TrainState

    state = TrainState(filled_adapter(_model(), 2))
    moments = torch.zeros_like(state.adapter.master.flat)
    state.moments = AdamState(moments, moments.clone(), 3)
    save_sampler(place() / "sampler", state.adapter)
    save_state(place() / "state", state)
    return tuple((place() / name / FILE).read_bytes() for name in ("sampler", "state"))


def _load_saved(data: bytes) -> object:
    from tinkex.engine.checkpoints import FILE, load_state

    folder = place() / "loaded"
    folder.mkdir(exist_ok=True)
    (folder / FILE).write_bytes(data)
    return load_state(folder, _model())


@functools.cache
def _gguf() -> tuple[bytes, ...]:
    from tests.cli.tiny_gguf import write_gguf

    return (write_gguf(place() / "tiny.gguf").read_bytes(),)


def _convert(data: bytes) -> object:
    from tinkex.engine.gguf import convert_gguf

    (place() / "other.gguf").write_bytes(data)
    convert_gguf(place() / "other.gguf", place() / "converted")
    return None


def _gguf_changed(rng: Random, corpus: Any) -> bytes:
    """Changes where names, kinds and lengths stand: before the weights."""
    from .mutation import changed

    data = rng.choice(corpus)
    head = min(len(data), 8192)
    return (
        changed(rng, data[:head], corpus) + data[head:]
        if rng.random() < 0.9
        else changed(rng, data, corpus)
    )


def _targets() -> list[Target]:
    found = [
        Target("engine message", _messages, codec.decode, (CodecError,), _MESSAGE, 2),
        Target("engine stream", _messages, _frames, (CodecError,), _framed, 1),
    ]
    if HAS_TORCH:
        from tinkex.engine.faults import EngineFault, UserFault

        user = (UserFault,)
        found += [
            Target("custom loss", _graphs, _loss, user, _graph_changed(), 0.02),
            Target(
                "peft config", lambda: _adapter("adapter_config.json"), _peft("adapter_config.json"), user,
                _json, 0.05,
            ),
            Target(
                "peft weights", lambda: _adapter("adapter_model.safetensors"),
                _peft("adapter_model.safetensors"), user, headed("Q"), 0.05,
            ),
            Target("engine checkpoint", _saved, _load_saved, (EngineFault,), headed("Q"), 0.05),
        ]  # fmt: skip
    if HAS_GGUF:
        found.append(Target("gguf", _gguf, _convert, user, _gguf_changed, 0.02))
    return found


def _json(rng: Random, corpus: Any) -> bytes:
    from .mutation import json_text

    return json_text(rng, corpus)


TARGETS = _targets()
