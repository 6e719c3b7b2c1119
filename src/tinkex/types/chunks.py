"""The pieces of a model's input: text tokens, images, audio, and kinds not known yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeAlias

import msgspec

from ..errors import InvalidArgumentError
from .arrays import INT32_MAX, INT32_MIN, Array, is_numpy, token_array
from .compounds import OneOf
from .frozen import Frozen
from .record import Duck, OpenRecord, Record, refuse_unknown
from .rules import Mismatch, Schema, shown

__all__ = [
    "DmelChunk",
    "EncodedTextChunk",
    "ImageAssetPointerChunk",
    "ImageChunk",
    "ModelInputChunk",
    "UnknownChunk",
]

# msgspec checks a list of ints against bounds in C, ten times faster than a Python loop.
_Token = Annotated[int, msgspec.Meta(ge=INT32_MIN, le=INT32_MAX)]


class EncodedTextChunk(Frozen, Duck):
    """A run of token ids, given as a list or any integer array."""

    __slots__ = ("_array", "_list")
    _array: Array | None
    _list: list[int] | None
    type: Literal["encoded_text"] = "encoded_text"
    __tag__ = "encoded_text"

    def __init__(self, *, tokens: Any, type: str = "encoded_text", **unknown: Any) -> None:
        if unknown:
            refuse_unknown("EncodedTextChunk", unknown, ("tokens", "type"))
        if type != "encoded_text":
            raise InvalidArgumentError(f"EncodedTextChunk.type: must be 'encoded_text', got {type!r}")
        if isinstance(tokens, (list, tuple)):
            try:
                self._set(_list=msgspec.convert(tokens, list[_Token]), _array=None)
                return
            except (msgspec.ValidationError, UnicodeEncodeError):
                pass  # numpy scalars pass below; anything else gets a precise refusal there
        if isinstance(tokens, (str, bytes, Mapping)) or not hasattr(tokens, "__len__"):
            raise InvalidArgumentError(
                f"EncodedTextChunk.tokens: expected a list or array of integers, got {shown(tokens)}"
            )
        self._set(_array=token_array(tokens, "EncodedTextChunk.tokens"), _list=None)

    @property
    def tokens(self) -> list[int]:
        """The token ids as a list."""
        if self._list is None:
            assert self._array is not None
            self._set(_list=self._array.tolist())
        assert self._list is not None
        return self._list

    @property
    def tokens_np(self) -> Array:
        """The token ids as an int32 array."""
        if self._array is None:
            self._set(_array=token_array(self._list, "EncodedTextChunk.tokens"))
        assert self._array is not None
        return self._array

    @property
    def length(self) -> int:
        """How many tokens there are."""
        held = self._list if self._list is not None else self._array
        assert held is not None
        return len(held)

    def raw_tokens(self) -> Sequence[int] | Array:
        """The token ids in whichever form is at hand."""
        if self._array is not None:
            return self._array
        return self.tokens

    def _items(self) -> Iterator[tuple[str, Any]]:
        yield "tokens", self.tokens
        yield "type", self.type

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EncodedTextChunk) and self.tokens == other.tokens

    def __hash__(self) -> int:
        return hash(tuple(self.tokens))

    def __repr__(self) -> str:
        return f"EncodedTextChunk(tokens={self.tokens!r}, type='encoded_text')"

    @classmethod
    def __take__(cls, value: Any, lenient: bool = False) -> Self:
        if isinstance(value, cls):
            return value
        tokens = value.get("tokens") if isinstance(value, Mapping) else None
        if tokens is None or not (isinstance(tokens, (list, tuple)) or is_numpy(tokens)):
            raise Mismatch(f"expected a list of integers, got {shown(tokens)}", "tokens")
        known = value if not lenient else {"tokens": tokens}
        try:
            return cls(**known)
        except InvalidArgumentError as problem:
            whole = _whole(tokens) if lenient else tokens
            if whole is tokens:
                raise Mismatch(str(problem)) from None
        return cls(tokens=whole)

    @classmethod
    def __schema__(cls, definitions: Schema) -> Schema:
        bounds = {"minimum": INT32_MIN, "maximum": INT32_MAX}
        return {
            "type": "object",
            "title": "EncodedTextChunk",
            "properties": {
                "tokens": {"type": "array", "items": {"type": "integer", **bounds}},
                "type": {"const": "encoded_text"},
            },
            "required": ["tokens"],
        }


def _whole(tokens: Any) -> Any:
    """Token ids that some JSON writer turned into floats, as integers again."""
    if not isinstance(tokens, list) or not all(isinstance(token, (int, float)) for token in tokens):
        return tokens
    if any(isinstance(token, float) and not token.is_integer() for token in tokens):
        return tokens
    whole = [int(token) for token in tokens]
    return whole if all(INT32_MIN <= token <= INT32_MAX for token in whole) else tokens


def _old_image(value: Any) -> Any:
    """SDKs before 0.6 sent an image's token count as `tokens`."""
    if isinstance(value, Mapping) and "expected_tokens" not in value and "tokens" in value:
        return {**value, "expected_tokens": value["tokens"]}
    return value


class _Image:
    """What both kinds of image share."""

    __slots__ = ()
    expected_tokens: int | None

    @property
    def length(self) -> int:
        """How many tokens the image stands for; needs `expected_tokens`."""
        if self.expected_tokens is None:
            raise InvalidArgumentError(
                f"{type(self).__name__}.expected_tokens: must be set to know the length"
            )
        return self.expected_tokens

    @classmethod
    def __take__(cls, value: Any, lenient: bool = False) -> Self:
        taken: Self = super().__take__(  # type: ignore[misc]
            _old_image(value) if lenient else value, lenient
        )
        return taken


class ImageChunk(_Image, Record):
    """An image, as the bytes of a PNG or JPEG file."""

    data: bytes
    format: Literal["png", "jpeg"]
    expected_tokens: int | None = None
    type: Literal["image"] = "image"
    __tag__ = "image"


class ImageAssetPointerChunk(_Image, Record):
    """An image the server can find at a location."""

    format: Literal["png", "jpeg"]
    location: str
    expected_tokens: int | None = None
    type: Literal["image_asset_pointer"] = "image_asset_pointer"
    __tag__ = "image_asset_pointer"


class DmelChunk(Record):
    """Audio, as a serialized TensorContainer of DMel tokens."""

    dmel: bytes
    type: Literal["dmel"] = "dmel"
    __tag__ = "dmel"

    @property
    def length(self) -> int:
        """How many positions the audio takes: the container's first dimension."""
        shape = container_shape(self.dmel)
        if not shape:
            raise InvalidArgumentError("DmelChunk.dmel: the TensorContainer has no dimension")
        return shape[0]


class UnknownChunk(OpenRecord):
    """A kind of chunk this version does not know; kept as it came."""

    type: str

    @property
    def length(self) -> int:
        """Not known."""
        raise InvalidArgumentError(f"a chunk of type {self.type!r} has no known length")


_CONSTANT = 254
_DTYPES = range(8)


def container_shape(data: bytes) -> tuple[int, ...]:
    """The shape in a TensorContainer's header: an optional marker, a dtype byte, LEB128 dimensions."""
    start = 1 if data[:1] == bytes([_CONSTANT]) else 0
    if start >= len(data):
        raise InvalidArgumentError("DmelChunk.dmel: the TensorContainer header is cut off")
    if data[start] not in _DTYPES:
        raise InvalidArgumentError(f"DmelChunk.dmel: {data[start]} is no TensorContainer dtype (0 to 7)")
    rank, position = _varint(data, start + 1)
    shape = []
    for _ in range(rank):
        length, position = _varint(data, position)
        shape.append(length)
    return tuple(shape)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if position >= len(data):
            raise InvalidArgumentError("DmelChunk.dmel: the TensorContainer header is cut off")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise InvalidArgumentError("DmelChunk.dmel: a TensorContainer number is too long")


def _infer(value: Mapping[str, Any]) -> str | None:
    """The kind of a chunk sent without `type`; old images carry an integer `tokens`, so it is last."""
    for key, kind in (
        ("location", "image_asset_pointer"),
        ("data", "image"),
        ("dmel", "dmel"),
        ("tokens", "encoded_text"),
    ):
        if value.get(key) is not None:
            return kind
    return None


ModelInputChunk: TypeAlias = Annotated[
    EncodedTextChunk | ImageAssetPointerChunk | ImageChunk | DmelChunk,
    OneOf("type", infer=_infer, unknown=UnknownChunk),
]
