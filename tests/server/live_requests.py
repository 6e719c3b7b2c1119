"""Requests made up from the API's description, about things that are there.

A description says what each field may be. It cannot say that an id is somebody's, that lists have the same
length, or that two fields exclude each other: that is put right here, and nothing else.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tinkex.server.admission import LOSS_INPUTS, LOSS_SETTINGS

from .machine import BASE, CONTEXT, VOCAB, Machine

TOKENS = [5, 6, 7]
GRAPH = {
    "format": 1,
    "nodes": [
        {"op": "placeholder", "name": "logprobs", "target": "logprobs", "args": [], "kwargs": {}},
        {
            "op": "call_method",
            "name": "total",
            "target": "sum",
            "args": [{"ref": "logprobs"}],
            "kwargs": {},
        },
        {
            "op": "output",
            "name": "output",
            "target": "output",
            "args": [{"tuple": [{"ref": "total"}, {"dict": {}}]}],
            "kwargs": {},
        },
    ],
}


@dataclass(frozen=True)
class Live:
    """One of everything a request may be about."""

    session: str
    model: str
    """Its first three operations are done."""
    sampler: str
    ticket: str
    training: str
    frozen: str
    exported: str
    loss: str
    key: str

    @staticmethod
    async def make(server: Machine) -> Live:
        """Fresh ones, all of one owner."""
        ann = server.ann
        session = await ann.session()
        model = await ann.model(session)
        training = (await ann.done(await ann.save(model, 1, "w")))["path"]
        frozen = (await ann.done(await ann.freeze(model, 2, name="s")))["path"]
        body = {"model_id": model, "seq_id": 3, "path": "e"}
        exported = (await ann.done(ann.ticket(await ann("save_weights_external", body))))["path"]
        sampler = await ann.sampler(session)
        ticket = await ann.sample(sampler, 0)
        await ann.done(ticket)
        loss = {"session_id": session, "custom_loss_seq_id": 0, "name": "sum", "graph": GRAPH}
        inputs = [{"name": "logprobs", "rank": 1}]
        made = await ann.done(ann.ticket(await ann("create_custom_loss", {**loss, "inputs": inputs})))
        return Live(session, model, sampler, ticket, training, frozen, exported, made["loss_id"], ann.key)

    # ---- what ids stand for

    def path(self, route: str) -> dict[str, str]:
        """Values of path parameters."""
        kind = "external_weights/e" if route == "external_weights_urls" else "weights/w"
        return {
            "session_id": self.session,
            "training_run_id": self.model,
            "checkpoint_id": kind,
            "sampler_id": self.sampler,
            "model_name": BASE,
            "file": "tokenizer.json",
        }

    def body(self, route: str, made_up: Any) -> Any:
        """A made-up body about things that are there."""
        body = _named(copy.deepcopy(made_up), self._names(route))
        if isinstance(body, dict) and route in _REPAIRS:
            _REPAIRS[route](self, body)
        return body

    def query(self, route: str, made_up: Any) -> Any:
        """A made-up query that makes sense."""
        if route == "billing_usage":  # whole hours, one after the other
            return {"starting_on": "2026-11-15T00:00:00Z", "ending_before": "2026-11-16T00:00:00Z"}
        return made_up

    def _names(self, route: str) -> Mapping[str, str]:
        return {
            "session_id": self.session,
            "model_id": self.model,
            "sampling_session_id": self.sampler,
            "request_id": self.ticket,
            "tinker_path": self.training,
            "source_path": self.training,
            "model_path": self.frozen,
            "weights_access_token": self.key,
            **({"path": self.training} if route == "load_weights" else {}),
        }

    # ---- what a description cannot say

    def _pass(self, body: dict[str, Any]) -> None:
        _numbered(body)
        asked = body.get("forward_input") or body.get("forward_backward_input")
        loss = asked["loss_fn"]
        allowed = LOSS_SETTINGS[loss]
        config = {
            name: value
            for name, value in (asked.get("loss_fn_config") or {}).items()
            if name in allowed and not isinstance(value, str)
        }
        if loss == "custom":
            config = {"loss_id": self.loss}
        if config or asked.get("loss_fn_config") is not None:
            asked["loss_fn_config"] = config
        for datum in asked["data"]:
            length = _text(datum["model_input"])
            inputs = {"target_tokens": _tensor([8] * length, "int64")}
            for name in ("weights", *LOSS_INPUTS[loss]):
                inputs[name] = _tensor([1.0] * length, "float32")
            datum["loss_fn_inputs"] = inputs

    def _sample(self, body: dict[str, Any]) -> None:
        length = _text(body["prompt"])
        if body.get("seq_id") == 0:
            body["seq_id"] = 7
        if not any(body.get(name) for name in ("sampling_session_id", "base_model", "model_path")):
            body["sampling_session_id"] = self.sampler
        params = body["sampling_params"]
        if params.get("max_tokens") is not None:
            params["max_tokens"] = min(int(params["max_tokens"]), 8, CONTEXT - length)
        else:
            params["max_tokens"] = 4  # otherwise it goes on to the end of the context
        body["num_samples"] = min(int(body.get("num_samples") or 1), 4)
        if body.get("target_prompt_logprobs") is not None:
            targets = _tensor([1] * (length - 1), "int64")
            body["target_prompt_logprobs"] = {**targets, "shape": [length - 1, 1]}
        last = body.get("prompt_logprobs_last_n")
        if last is not None:
            body["prompt_logprobs_last_n"] = min(int(last), length - 1)

    def _step(self, body: dict[str, Any]) -> None:
        _numbered(body)
        if body.get("optimizer_params") is not None or body.get("adam_params") is None:
            del body["optimizer_params"]
            body.setdefault("adam_params", {})

    def _load(self, body: dict[str, Any]) -> None:
        if body.get("model_id") is not None:
            _numbered(body)
            return
        body["session_id"] = self.session
        body["model_seq_id"] = 7

    def _copy(self, body: dict[str, Any]) -> None:
        whole = body.get("session_id") is not None and body.get("model_seq_id") is not None
        if not whole and body.get("destination_project_id") is None:
            body["destination_project_id"] = "project"

    def _save(self, body: dict[str, Any]) -> None:
        _numbered(body)

    def _save_for_sampler(self, body: dict[str, Any]) -> None:
        _numbered(body)
        if body.get("path") is None and body.get("sampling_session_seq_id") is None:
            body["sampling_session_seq_id"] = 9
        elif body.get("path") is None and body["sampling_session_seq_id"] == 0:
            body["sampling_session_seq_id"] = 9  # 0 is taken

    def _export(self, body: dict[str, Any]) -> None:
        _numbered(body)
        body.pop("age_encryption_recipients", None)

    def _sampler(self, body: dict[str, Any]) -> None:
        body["sampling_session_seq_id"] = body["sampling_session_seq_id"] or 7
        if body.get("base_model") is None and body.get("model_path") is None:
            body["base_model"] = BASE

    def _model(self, body: dict[str, Any]) -> None:
        body["model_seq_id"] = body["model_seq_id"] or 7  # 0 is there already, whatever else is asked for
        lora = body.get("lora_config") or {}
        if lora and not any(lora.get(name, True) in (None, True) for name in _TRAINED):
            lora["train_attn"] = True

    def _loss(self, body: dict[str, Any]) -> None:
        body["custom_loss_seq_id"] = body["custom_loss_seq_id"] or 7
        body["graph"] = GRAPH
        body["inputs"] = [{"name": "logprobs", "rank": 1}]


_TRAINED = ("train_attn", "train_mlp", "train_unembed")
_REPAIRS: dict[str, Callable[[Live, dict[str, Any]], None]] = {
    "forward": Live._pass,
    "forward_backward": Live._pass,
    "asample": Live._sample,
    "sample_stream": Live._sample,
    "optim_step": Live._step,
    "load_weights": Live._load,
    "copy_weights": Live._copy,
    "save_weights": Live._save,
    "save_weights_for_sampler": Live._save_for_sampler,
    "save_weights_external": Live._export,
    "create_sampling_session": Live._sampler,
    "create_model": Live._model,
    "create_custom_loss": Live._loss,
}


def _numbered(body: dict[str, Any]) -> None:
    """The next number, if it has one at all."""
    if body.get("seq_id") is not None:
        body["seq_id"] = 4


def _named(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {
            key: names[key] if key in names and isinstance(each, str) else _named(each, names)
            for key, each in value.items()
        }
    return [_named(each, names) for each in value] if isinstance(value, list) else value


def _text(prompt: dict[str, Any]) -> int:
    """Make an input text of a length that fits; the length."""
    # Other kinds of chunks may have anything at all by that name.
    known = [each for each in prompt["chunks"] if each.get("type", "encoded_text") == "encoded_text"]
    known = [each for each in known if isinstance(each.get("tokens"), list)]
    tokens = [math.floor(each) % VOCAB for chunk in known for each in chunk["tokens"]][:40]
    prompt["chunks"] = [
        {**(known[0] if known else {}), "tokens": [*TOKENS, *tokens], "type": "encoded_text"}
    ]
    return len(TOKENS) + len(tokens)


def _tensor(data: list[Any], dtype: str) -> dict[str, Any]:
    return {"data": data, "dtype": dtype, "shape": [len(data)]}
