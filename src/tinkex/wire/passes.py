"""Forward and backward passes in protobuf: requests written straight from arrays, results read lazily."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._lazy import np
from ..errors import InvalidArgumentError
from ..types.arrays import INT32_MAX, INT32_MIN, Array
from ..types.chunks import DmelChunk, EncodedTextChunk, ImageChunk
from ..types.datum import Datum
from ..types.forward_backward_output import ForwardBackwardOutput, LossFnOutput
from ..types.losses import check_loss
from ..types.model_input import ModelInput
from ..types.provenance_spans import PromptProvenanceSpan, ProvenanceSpans, SampledProvenanceSpan
from ..types.tensor_data import TensorData, TensorDtype
from .buffers import BufferPool
from .fields import Writer, varint
from .tensors import dtype_name, from_message, take_buffer, write_named

if TYPE_CHECKING:
    from . import tinker_public_pb2 as pb

__all__ = [
    "PassBody",
    "PassRequest",
    "decode_output",
    "decode_request",
    "encode_output",
    "encode_request",
    "estimate_bytes",
]


@dataclass(frozen=True, slots=True)
class PassRequest:
    """A forward (and unless `forward_only`, backward) pass as it travels."""

    model_id: str
    seq_id: int
    data: Sequence[Datum]
    loss_fn: str
    loss_fn_config: Mapping[str, float | str] | None = None
    forward_only: bool = False


# ---- requests


def encode_request(request: PassRequest) -> bytes:
    """The body of `POST /forward_backward`."""
    _check_seq_id(request.seq_id)
    message = Writer()
    message.text(1, request.model_id)
    message.integer(2, request.seq_id)
    _write_pass(message, request)
    return message.bytes()


def _check_seq_id(seq_id: int) -> None:
    if not 0 <= seq_id <= INT32_MAX:
        raise InvalidArgumentError(f"seq_id: {seq_id} is outside 0 to {INT32_MAX}")


class PassBody:
    """An encoded pass whose number is filled in when its turn to be sent has come.

    The number is the last field, as a varint padded to five bytes, so that filling it in moves
    nothing; the arrays were copied when the body was made.  `release` gives its memory to later
    bodies, once nobody will send it again.
    """

    __slots__ = ("_buffer", "_view", "datums")

    def __init__(self, request: PassRequest) -> None:
        message = Writer()
        message.text(1, request.model_id)
        _write_pass(message, request)
        message.raw(b"\x10" + bytes(_NUMBER_BYTES))
        self._buffer: bytearray | None = _buffers.take(message.length)
        self._view = memoryview(self._buffer)[: message.length]
        message.write_into(self._view)
        self.datums: int = len(request.data)

    def __len__(self) -> int:
        return len(self._view)

    def numbered(self, seq_id: int) -> memoryview:
        """The body with its number."""
        _check_seq_id(seq_id)
        groups = [seq_id >> (7 * i) & 0x7F for i in range(_NUMBER_BYTES)]
        padded = [group | 0x80 for group in groups[:-1]] + groups[-1:]
        self._view[-_NUMBER_BYTES:] = bytes(padded)
        return self._view

    def release(self) -> None:
        """The server has it: its memory may be used for another body."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            self._view = memoryview(b"")
            _buffers.give(buffer)


_buffers = BufferPool()
_NUMBER_BYTES = 5
_MOST_EMPTY = 1 << 20
"""Examples without any output that a result may announce: they take no bytes on the wire, but here."""


def _write_pass(message: Writer, request: PassRequest) -> None:
    check_loss(request.loss_fn, request.loss_fn_config)
    for index, datum in enumerate(request.data):
        message.message(3, _write_datum(datum, index))
    message.text(4, request.loss_fn)
    config = request.loss_fn_config or {}
    for key, value in config.items():
        if not isinstance(value, str):
            entry = Writer()
            entry.text(1, key)
            entry.double(2, float(value))
            message.message(5, entry)
    message.integer(6, request.forward_only)
    for key, value in config.items():
        entry = Writer()
        entry.text(1, key)
        held = Writer()
        if isinstance(value, str):
            held.text(2, value)
        else:
            held.double(1, float(value))
        entry.message(2, held)
        message.message(7, entry)


def _write_datum(datum: Datum, index: int) -> Writer:
    message = Writer()
    for position, chunk in enumerate(datum.model_input.chunks):
        message.message(1, _write_chunk(chunk, f"data[{index}].model_input.chunks[{position}]"))
    for name, tensor in datum.loss_fn_inputs.items():
        write_named(message, 2, name, tensor)
    for number, spans in ((3, datum.model_input_spans), (4, datum.loss_fn_input_spans)):
        for span in spans or ():
            message.message(number, _write_span(span))
    return message


def _write_chunk(chunk: object, where: str) -> Writer:
    message, inner = Writer(), Writer()
    if isinstance(chunk, EncodedTextChunk):
        tokens = np.ascontiguousarray(chunk.tokens_np)
        inner.data(1, tokens, tokens.nbytes)
        message.message(1, inner)
    elif isinstance(chunk, ImageChunk):
        inner.data(1, chunk.data, len(chunk.data))
        inner.text(2, chunk.format)
        if chunk.expected_tokens is not None:
            if not INT32_MIN <= chunk.expected_tokens <= INT32_MAX:
                raise InvalidArgumentError(
                    f"{where}.expected_tokens: {chunk.expected_tokens} is outside int32 "
                    f"({INT32_MIN} to {INT32_MAX})"
                )
            inner.raw(b"\x18")
            inner.raw(varint(chunk.expected_tokens))
        message.message(2, inner)
    elif isinstance(chunk, DmelChunk):
        inner.data(1, chunk.dmel, len(chunk.dmel))
        message.message(3, inner)
    else:
        raise InvalidArgumentError(
            f"{where}: {type(chunk).__name__} cannot be trained on; "
            "use EncodedTextChunk, ImageChunk or DmelChunk"
        )
    return message


def _write_span(span: PromptProvenanceSpan | SampledProvenanceSpan) -> Writer:
    message, inner = Writer(), Writer()
    inner.text(1, span.sequence_id)
    inner.integer(2, span.offset)
    inner.integer(3, span.length)
    message.message(2 if isinstance(span, SampledProvenanceSpan) else 1, inner)
    return message


def estimate_bytes(datum: Datum) -> int:
    """The size by which data are split into requests: tokens, files and arrays."""
    size = 0
    for chunk in datum.model_input.chunks:
        if isinstance(chunk, EncodedTextChunk):
            size += 4 * chunk.length
        elif isinstance(chunk, ImageChunk):
            size += len(chunk.data)
        elif isinstance(chunk, DmelChunk):
            size += len(chunk.dmel)
    return size + sum(tensor.nbytes() for tensor in datum.loss_fn_inputs.values())


def decode_request(body: bytes) -> PassRequest:
    """Read the body of `POST /forward_backward`."""
    from google.protobuf.message import DecodeError

    from . import tinker_public_pb2 as pb

    message = pb.ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except (DecodeError, UnicodeDecodeError) as problem:
        raise InvalidArgumentError(f"the body is not a ForwardBackwardRequest: {problem}") from None
    data = []
    for index, datum in enumerate(message.data):
        try:
            data.append(_read_datum(datum))
        except (InvalidArgumentError, TypeError) as problem:
            raise InvalidArgumentError(f"data[{index}].{problem}") from None
    config: dict[str, float | str] = dict(message.loss_fn_config)
    if message.loss_fn_config_v2:
        config = {
            key: value.text if value.WhichOneof("value") == "text" else value.number
            for key, value in message.loss_fn_config_v2.items()
        }
    return PassRequest(
        message.model_id,
        message.seq_id,
        data,
        message.loss_fn,
        config or None,
        message.forward_only,
    )


def _read_datum(message: pb.Datum) -> Datum:
    chunks = [_read_chunk(chunk, i) for i, chunk in enumerate(message.model_input)]
    inputs = {}
    for name, tensor in message.loss_fn_inputs.items():
        try:
            inputs[name] = from_message(tensor)
        except InvalidArgumentError as problem:
            raise InvalidArgumentError(f"loss_fn_inputs[{name!r}]: {problem}") from None
    spans = _read_spans(message.model_input_spans), _read_spans(message.loss_fn_input_spans)
    paired = spans if any(spans) else (None, None)
    return Datum(ModelInput(chunks=chunks), inputs, *paired)


def _read_chunk(message: pb.Chunk, position: int) -> EncodedTextChunk | ImageChunk | DmelChunk:
    kind = message.WhichOneof("chunk")
    if kind == "encoded_text":
        raw = message.encoded_text.tokens
        if len(raw) % 4:
            raise InvalidArgumentError(
                f"model_input.chunks[{position}].tokens: {len(raw)} bytes are no int32 array"
            )
        return EncodedTextChunk(tokens=np.frombuffer(raw, "<i4"))
    if kind == "image":
        image = message.image
        expected = image.expected_tokens if image.HasField("expected_tokens") else None
        return ImageChunk(
            data=image.data,
            format=image.format,  # type: ignore[arg-type]  # checked by the record
            expected_tokens=expected,
        )
    if kind == "dmel":
        return DmelChunk(dmel=message.dmel.dmel)
    raise InvalidArgumentError(
        f"model_input.chunks[{position}]: unknown kind; use encoded_text, image or dmel"
    )


def _read_spans(messages: Sequence[pb.ProvenanceSpan]) -> ProvenanceSpans:
    spans: ProvenanceSpans = []
    for message in messages:
        if message.WhichOneof("span") == "sampled_tokens":
            kind: Any = SampledProvenanceSpan
            held: Any = message.sampled_tokens
        else:
            kind, held = PromptProvenanceSpan, message.prompt_tokens
        spans.append(kind(sequence_id=held.sequence_id, offset=held.offset, length=held.length))
    return spans


# ---- results


def encode_output(output: ForwardBackwardOutput) -> bytes:
    """A pass's result; per-example arrays of one name are stored one after another."""
    from . import tinker_public_pb2 as pb

    message = pb.ForwardBackwardOutput(loss_fn_output_type=output.loss_fn_output_type)
    for name, value in output.metrics.items():
        message.metrics[name] = value
    for group in _groups(output.loss_fn_outputs):
        record = message.loss_fn_outputs.add(type_tag=output.loss_fn_output_type, num_datums=len(group))
        for name in group[0]:
            _write_batch(record.fields[name], [outputs[name] for outputs in group])
    return message.SerializeToString()


def _layout(outputs: LossFnOutput) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    return tuple((name, tensor.dtype, _trailing(tensor)) for name, tensor in outputs.items())


def _trailing(tensor: TensorData) -> tuple[int, ...]:
    shape = tensor.shape if tensor.is_sparse and tensor.shape is not None else tensor._numpy.shape
    return tuple(shape[1:])


def _groups(outputs: Sequence[LossFnOutput]) -> list[list[LossFnOutput]]:
    """Neighbours with the same names, dtypes and trailing shapes share a record."""
    groups: list[list[LossFnOutput]] = []
    last: object = None
    for one in outputs:
        layout = _layout(one)
        if not groups or layout != last:
            groups.append([])
            last = layout
        groups[-1].append(one)
    return groups


def _write_batch(batch: pb.BatchedTensor, tensors: Sequence[TensorData]) -> None:
    from . import tinker_public_pb2 as pb

    arrays = [np.ascontiguousarray(tensor.to_numpy()) for tensor in tensors]
    sizes = [array.nbytes for array in arrays]
    batch.data = b"".join(array.tobytes() for array in arrays)
    batch.offsets = np.concatenate([[0], np.cumsum(sizes)]).astype("<i8").tobytes()
    batch.dtype = pb.DTYPE_FLOAT32 if tensors[0].dtype == "float32" else pb.DTYPE_INT64
    batch.trailing_shape.extend(arrays[0].shape[1:])


def decode_output(body: bytes) -> ForwardBackwardOutput:
    """Read a pass's result; the arrays of all examples share a few buffers."""
    from google.protobuf.message import DecodeError

    from . import tinker_public_pb2 as pb

    message = pb.ForwardBackwardOutput()
    try:
        message.ParseFromString(body)
    except (DecodeError, UnicodeDecodeError) as problem:
        raise InvalidArgumentError(f"the body is not a ForwardBackwardOutput: {problem}") from None
    kind = message.loss_fn_output_type
    kind = kind.rpartition(":")[2] if message.loss_fn_outputs else kind or "ArrayRecord"
    outputs: list[LossFnOutput] = []
    for record in message.loss_fn_outputs:
        fields = {name: _read_batch(name, batch) for name, batch in record.fields.items()}
        longest = max((len(field) for field in fields.values()), default=0)
        count = record.num_datums or longest
        short = [name for name, tensors in fields.items() if len(tensors) < count]
        if short:
            raise InvalidArgumentError(
                f"loss_fn_outputs: {count} examples announced, fewer found in {', '.join(short)}"
            )
        if not fields and count > _MOST_EMPTY:
            raise InvalidArgumentError(f"loss_fn_outputs: {count} examples announced without a field")
        if len(fields) == 1:
            ((name, tensors),) = fields.items()
            outputs += [{name: tensor} for tensor in tensors[:count]]
        else:
            outputs += [{name: tensors[i] for name, tensors in fields.items()} for i in range(count)]
    return ForwardBackwardOutput(kind, outputs, dict(message.metrics))


def _read_batch(name: str, batch: pb.BatchedTensor) -> list[TensorData]:
    dtype: TensorDtype = dtype_name(batch.dtype)
    array: Array = take_buffer(batch.data, batch.dtype)
    if len(batch.offsets) % 8:
        raise InvalidArgumentError(f"loss_fn_outputs[{name!r}]: the offsets are no int64 array")
    offsets = np.frombuffer(batch.offsets, "<i8")
    itemsize = len(batch.data) // array.size if array.size else 1
    trailing = list(batch.trailing_shape)
    width = 1
    for length in trailing:
        width *= length
    cuts = (offsets // itemsize).tolist()
    if cuts and (min(cuts) < 0 or cuts != sorted(cuts) or cuts[-1] > array.size):
        raise InvalidArgumentError(f"loss_fn_outputs[{name!r}]: the offsets do not fit the data")
    wrap = TensorData.wrap
    if not trailing:
        return [wrap(array[start:end], dtype, [end - start]) for start, end in itertools.pairwise(cuts)]
    tensors = []
    for start, end in itertools.pairwise(cuts):
        shape = [(end - start) // width if width else 0, *trailing]
        try:
            tensors.append(wrap(array[start:end].reshape(shape), dtype, shape))
        except (ValueError, OverflowError):
            raise InvalidArgumentError(
                f"loss_fn_outputs[{name!r}]: {end - start} values do not make rows of {trailing}"
            ) from None
    return tensors
