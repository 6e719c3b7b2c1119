"""Sessions, models, samplers and their operations by plain requests, and the tidying up afterwards."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import TinkerError
from ..types import AdamParams
from ..wire import tinker_public_pb2 as pb
from ..wire.headers import PROTOBUF
from ..wire.passes import PassRequest, encode_request
from .checks import Failed
from .examples import ADAM, EXAMPLES, RANK, SAMPLE, SEED, Example, datums
from .plain_http import Answer, PlainHttp

__all__ = ["PlainWork", "pass_body"]

_QUICK = 0.2  # a poll answered sooner than this was not held
_PAUSE = 0.05


class PlainWork:
    """Work on one server; what was made is taken down again by `tidy`."""

    def __init__(self, http: PlainHttp, base_model: str) -> None:
        self.http = http
        self.base_model = base_model
        self._sessions: list[str] = []
        self._checkpoints: list[str] = []

    def tidy(self) -> None:
        """Delete the checkpoints and finish the sessions; what cannot be taken down is left."""
        checkpoints, self._checkpoints = self._checkpoints, []
        sessions, self._sessions = self._sessions, []
        end = {"reason": {"type": "success"}, "detail": None}
        calls = [
            *(("DELETE", path) for path in map(checkpoint_route, checkpoints)),
            *(("POST", f"/sessions/{session}/finish") for session in sessions),
        ]
        for method, path in calls:
            try:
                self.http.call(method, path, end if method == "POST" else None)
            except TinkerError:
                return

    # ---- results

    def ticket(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> str:
        """The id under which accepted work is polled for."""
        made = self.http.ok(path, body, headers=headers)
        if not isinstance(made, dict) or not isinstance(made.get("request_id"), str):
            raise Failed(f"POST {path} gave no request_id: {str(made)[:160]}")
        return str(made["request_id"])

    def poll(self, ticket: str, *, binary: bool = False, **more: Any) -> Answer:
        """One poll, whatever comes of it."""
        accept = {"Accept": PROTOBUF} if binary else {}
        return self.http.post("/retrieve_future", {"request_id": ticket, **more}, headers=accept)

    def polls(self, ticket: str, *, binary: bool = False) -> list[Answer]:
        """Every answer until one is final."""
        seen: list[Answer] = []
        while True:
            asked = time.monotonic()
            answer = self.poll(ticket, binary=binary)
            seen.append(answer)
            if not _pending(answer):
                return seen
            if self.http.left() <= 0:
                raise Failed(f"{ticket} is still pending after {len(seen)} polls: {answer}")
            if time.monotonic() - asked < _QUICK:
                time.sleep(_PAUSE)

    def outcome(self, ticket: str) -> Any:
        """The JSON that polling ends with: a result or a failure."""
        last = self.polls(ticket)[-1]
        if last.status != 200:
            raise Failed(f"polling for {ticket} ended with {last}")
        return last.json

    def result(self, ticket: str) -> Any:
        """The JSON of work that must have succeeded."""
        made = self.outcome(ticket)
        if not isinstance(made, dict) or "error" in made:
            raise Failed(f"{ticket} failed: {str(made)[:200]}")
        if isinstance(path := made.get("path"), str) and path.startswith("tinker://"):
            self._checkpoints.append(path)
        return made

    def done(self, path: str, body: Any) -> Any:
        """Submit, wait, and return the result."""
        return self.result(self.ticket(path, body))

    # ---- things to work with

    def session(self, headers: Mapping[str, str] | None = None) -> str:
        """A new session."""
        body = {
            "tags": ["conformance"],
            "user_metadata": {},
            "sdk_version": "0.36.0",
            "type": "create_session",
        }
        made = str(self.http.ok("/create_session", body, headers=headers)["session_id"])
        if made not in self._sessions:
            self._sessions.append(made)
        return made

    def adopt(self, session: str) -> None:
        """Finish a session made elsewhere too."""
        self._sessions.append(session)

    def model_request(self, session: str, number: int = 0) -> dict[str, Any]:
        """The body that creates a model; all models are alike at first."""
        return {
            "session_id": session,
            "model_seq_id": number,
            "base_model": self.base_model,
            "lora_config": {"rank": RANK, "seed": SEED},
            "type": "create_model",
        }

    def model(self, session: str | None = None, number: int = 0) -> str:
        """A new model, ready to train."""
        body = self.model_request(session or self.session(), number)
        return str(self.done("/create_model", body)["model_id"])

    def sampler(self, session: str | None = None, number: int = 0) -> str:
        """A new sampling session on the base model."""
        body = {
            "session_id": session or self.session(),
            "sampling_session_seq_id": number,
            "base_model": self.base_model,
        }
        return str(self.http.ok("/create_sampling_session", body)["sampling_session_id"])

    def submit_pass(
        self, model: str, number: int, examples: Sequence[Example] = EXAMPLES, *, forward_only: bool = False
    ) -> str:
        """Submit a pass in protobuf."""
        body = pass_body(model, number, examples, forward_only=forward_only)
        return self.ticket("/forward_backward", body, {"Content-Type": PROTOBUF})

    def submit_step(self, model: str, number: int, params: AdamParams = ADAM) -> str:
        """Submit an optimizer step."""
        settings = {"learning_rate": params.learning_rate, "beta1": params.beta1, "beta2": params.beta2}
        body = {"model_id": model, "seq_id": number, "adam_params": {**settings, "eps": params.eps}}
        return self.ticket("/optim_step", {**body, "type": "optim_step"})

    def submit_sample(self, sampler: str, number: int = 0, **more: Any) -> str:
        """Submit a sample."""
        return self.ticket("/asample", {**SAMPLE, "sampling_session_id": sampler, "seq_id": number, **more})

    def look(self, model: str, number: int) -> list[list[float]]:
        """The logprobs of all examples with the model's weights of now."""
        return rows_of(self.result(self.submit_pass(model, number, forward_only=True)))


def _pending(answer: Answer) -> bool:
    if answer.status == 408:
        return True
    return answer.status == 200 and not answer.binary and b'"try_again"' in answer.body[:200]


def checkpoint_route(path: str) -> str:
    """Where a checkpoint is found below the API, from its tinker:// path."""
    run, _, checkpoint = path.removeprefix("tinker://").partition("/")
    return f"/training_runs/{run}/checkpoints/{checkpoint}"


def rows_of(result: Any) -> list[list[float]]:
    """The logprobs in a pass's JSON result."""
    try:
        return [list(map(float, row["logprobs"]["data"])) for row in result["loss_fn_outputs"]]
    except (KeyError, TypeError, ValueError):
        raise Failed(f"a pass's result has no logprobs: {str(result)[:200]}") from None


def pass_body(
    model: str,
    number: int,
    examples: Sequence[Example] = EXAMPLES,
    *,
    forward_only: bool = False,
    loss: str | None = None,
) -> bytes:
    """A pass as SDKs from 0.25 on send it; `loss` may be one that does not exist."""
    request = PassRequest(model, number, datums(examples), "cross_entropy", None, forward_only)
    body = encode_request(request)
    if loss is None:
        return body
    message = pb.ForwardBackwardRequest.FromString(body)
    message.loss_fn = loss
    return bytes(message.SerializeToString())
