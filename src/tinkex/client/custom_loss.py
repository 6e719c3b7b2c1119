"""Custom losses made once and used by handle: traced here, run on the server where it offers that."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import InvalidArgumentError
from ..losses.tracing import check_inputs, encode_graph, loss_name, run_graph, trace
from ..types.custom_loss import (
    CreateCustomLossRequest,
    CreateCustomLossResponse,
    CustomLossInput,
    CustomLossInputRank,
)
from ..types.datum import Datum
from ..types.futures import UntypedAPIFuture
from ..wire.jsonbody import encode
from ..wire.routes import route
from .future import Future, Progress
from .polling import wait_for_result
from .session import Session

if TYPE_CHECKING:
    from torch.fx import GraphModule

__all__ = ["LossHandle", "PerDatumLossFn", "create_custom_loss"]

# (logprobs, *inputs) of one example -> (scalar loss, scalar metrics by name), all of them tensors.
PerDatumLossFn: TypeAlias = Callable[..., tuple[Any, Mapping[str, Any]]]

_ROUTE = route("create_custom_loss")


@dataclass(frozen=True)
class LossHandle:
    """A traced loss; pass it to `TrainingClient.forward_backward_custom` in place of a function.

    `inputs` are the logprobs and then the `loss_fn_inputs` it reads, in order; without a `loss_id`
    the loss runs here.
    """

    name: str
    inputs: tuple[CustomLossInput, ...]
    session_id: str
    graph: GraphModule = field(repr=False, compare=False)
    loss_id: str | None = None

    @property
    def key(self) -> str:
        """What the loss computes, as a digest: the same for the same code and inputs."""
        digest = hashlib.sha256(self.graph.code.encode())
        digest.update(repr([(each.name, each.rank) for each in self.inputs]).encode())
        return digest.hexdigest()

    @property
    def input_names(self) -> tuple[str, ...]:
        """The `loss_fn_inputs` the loss reads, in order."""
        return tuple(each.name for each in self.inputs[1:])

    def inputs_of(self, data: Sequence[Datum]) -> list[Datum]:
        """The examples, each with all the loss reads; others are refused."""
        checked = list(data)
        check_inputs(self.name, self.inputs, checked)
        return checked

    def local(self) -> Callable[[list[Datum], list[Any]], tuple[Any, dict[str, float]]]:
        """The loss as a function of examples and their logprobs, to run here."""
        return lambda data, logprobs: run_graph(self.name, self.graph, self.input_names, data, logprobs)


def create_custom_loss(
    session: Session, fn: PerDatumLossFn, input_ranks: Mapping[str, CustomLossInputRank]
) -> Future[LossHandle]:
    """Trace a loss, and register it with the server where that can run it."""
    inputs, graph = trace(fn, input_ranks)
    future: Future[LossHandle] = Future()
    return session.start(_create(session, loss_name(fn), inputs, graph, future.progress), future=future)


async def _create(
    session: Session,
    name: str,
    inputs: tuple[CustomLossInput, ...],
    graph: GraphModule,
    progress: Progress,
) -> LossHandle:
    handle = LossHandle(name, inputs, await session.id(), graph)
    key = handle.key
    if key in session.losses:
        raise InvalidArgumentError(
            f"create_custom_loss: this session already has the same loss as {session.losses[key]!r}; "
            "use its LossHandle"
        )
    session.losses[key] = name
    try:
        settings = await session.connection.settings()
        return await _register(session, handle, progress) if settings.custom_loss_server_side else handle
    except BaseException:
        del session.losses[key]
        raise


async def _register(session: Session, handle: LossHandle, progress: Progress) -> LossHandle:
    request = CreateCustomLossRequest(
        session_id=handle.session_id,
        custom_loss_seq_id=session.next_loss(),
        name=handle.name,
        inputs=list(handle.inputs),
        graph=encode_graph(handle.name, handle.graph),
    )
    connection = session.connection
    started = connection.clock.monotonic()
    ticket: UntypedAPIFuture = await connection.caller.read(UntypedAPIFuture, _ROUTE, encode(request))
    answer: CreateCustomLossResponse = await wait_for_result(
        connection, _ROUTE, ticket.request_id,
        progress=progress, submit_seconds=connection.clock.monotonic() - started,
    )  # fmt: skip
    return replace(handle, loss_id=answer.loss_id)
