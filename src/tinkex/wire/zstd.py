"""Compressed bodies, with a bound on what they unpack to."""

from __future__ import annotations

from ..errors import InvalidArgumentError

__all__ = ["BodyTooLarge", "compress", "decompress"]

_WIDEST_WINDOW = 2**27
# A piece of input this small cannot unpack to more than a few megabytes at once.
_STEP = 128


class BodyTooLarge(InvalidArgumentError):
    """A body unpacks to more than is allowed."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body unpacks to more than the {limit} bytes allowed")


def compress(body: bytes | memoryview) -> bytes:
    """One zstd frame at the default level."""
    import zstandard

    return zstandard.ZstdCompressor().compress(body)


def decompress(body: bytes, limit: int) -> bytes:
    """Unpack one zstd frame, refusing to make more than `limit` bytes of it."""
    import zstandard

    try:
        size = zstandard.frame_content_size(body)
        if size > limit:
            raise BodyTooLarge(limit)
        if size > 0:  # the library does not look past the header of a frame that says 0
            unpacker = zstandard.ZstdDecompressor(max_window_size=_WIDEST_WINDOW)
            return unpacker.decompress(body, allow_extra_data=False)
        return _stepwise(body, limit)
    except zstandard.ZstdError as problem:
        raise InvalidArgumentError(f"the body is not one whole zstd frame: {problem}") from None


def _stepwise(body: bytes, limit: int) -> bytes:
    """Unpack a frame that does not tell its size."""
    import zstandard

    unpacker = zstandard.ZstdDecompressor(max_window_size=_WIDEST_WINDOW).decompressobj()
    pieces: list[bytes] = []
    left = limit
    for start in range(0, len(body), _STEP):
        if unpacker.eof:
            raise zstandard.ZstdError("data follows its end")
        pieces.append(unpacker.decompress(body[start : start + _STEP]))
        left -= len(pieces[-1])
        if left < 0:
            raise BodyTooLarge(limit)
    if not unpacker.eof or unpacker.unused_data:
        raise zstandard.ZstdError("it is cut off, or data follows its end")
    return b"".join(pieces)
