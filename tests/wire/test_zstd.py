"""Compressed bodies: what was packed comes out, never more than is allowed, and only whole frames."""

from __future__ import annotations

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tinkex.errors import InvalidArgumentError
from tinkex.wire.zstd import BodyTooLarge, compress, decompress

from ..strategies import examples

BODIES = st.binary(max_size=2000) | st.tuples(st.binary(max_size=5), st.integers(0, 4000)).map(
    lambda made: made[0] * made[1]
)


def stream(body: bytes, level: int = 3) -> bytes:
    """A frame that does not tell its size, as streaming writers make it."""
    packer = zstandard.ZstdCompressor(level=level, write_content_size=False).compressobj()
    return packer.compress(body) + packer.flush()


FORMS = pytest.mark.parametrize("pack", [compress, stream], ids=["sized", "streamed"])


@FORMS
def test_the_forms_are_what_they_say(pack):
    size = zstandard.frame_content_size(pack(b"12345"))
    assert size == (5 if pack is compress else -1)


@FORMS
@examples(60)
@given(body=BODIES)
def test_a_body_comes_back(pack, body: bytes):
    assert decompress(pack(body), max(len(body), 1)) == body
    assert decompress(pack(body), len(body)) == body


@FORMS
@examples(40)
@given(body=BODIES.filter(bool), data=st.data())
def test_no_more_than_the_limit_comes_out(pack, body: bytes, data: st.DataObject):
    limit = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(BodyTooLarge, match=f"more than the {limit} bytes"):
        decompress(pack(body), limit)


@FORMS
@examples(60)
@given(body=BODIES, data=st.data())
def test_a_cut_frame_is_refused(pack, body: bytes, data: st.DataObject):
    packed = pack(body)
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(InvalidArgumentError, match="not one whole zstd frame"):
        decompress(packed[:cut], 10_000_000)


@FORMS
@examples(30)
@given(body=BODIES, rest=st.binary(min_size=1, max_size=300))
def test_data_after_the_frame_is_refused(pack, body: bytes, rest: bytes):
    with pytest.raises(InvalidArgumentError):
        decompress(pack(body) + rest, 10_000_000)
    with pytest.raises(InvalidArgumentError):
        decompress(pack(body) + pack(body), 10_000_000)


@examples(60)
@given(body=st.binary(max_size=200))
def test_garbage_is_refused(body: bytes):
    if not body.startswith(b"\x28\xb5\x2f\xfd"):
        with pytest.raises(InvalidArgumentError, match="not one whole zstd frame"):
            decompress(body, 1000)


@FORMS
def test_a_bomb_is_stopped_early(pack, monkeypatch: pytest.MonkeyPatch):
    packed = pack(bytes(200_000_000))
    assert len(packed) < 50_000
    made = _count_output(monkeypatch)
    with pytest.raises(BodyTooLarge):
        decompress(packed, 1_000_000)
    # One step of input may overshoot the limit, not the whole bomb.
    assert sum(made) < 30_000_000


def _count_output(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Watch how much the real decompressor hands out."""
    made: list[int] = []
    real = zstandard.ZstdDecompressor

    class Counting:
        def __init__(self, **options):
            self.inner = real(**options)

        def decompress(self, body, **options):
            out = self.inner.decompress(body, **options)
            made.append(len(out))
            return out

        def decompressobj(self):
            return CountingObject(self.inner.decompressobj())

    class CountingObject:
        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def decompress(self, body):
            out = self.inner.decompress(body)
            made.append(len(out))
            return out

    monkeypatch.setattr(zstandard, "ZstdDecompressor", Counting)
    return made


def test_a_frame_that_lies_about_its_size_is_refused():
    packed = bytearray(compress(bytes(300)))
    assert zstandard.frame_content_size(bytes(packed)) == 300
    at = bytes(packed).index((300 - 256).to_bytes(2, "little"))
    packed[at : at + 2] = (100).to_bytes(2, "little")
    with pytest.raises(InvalidArgumentError):
        decompress(bytes(packed), 10_000)


def test_too_wide_a_window_is_refused():
    parameters = zstandard.ZstdCompressionParameters(window_log=30, write_content_size=0)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = packer.compress(b"x" * 100) + packer.flush()
    with pytest.raises(InvalidArgumentError, match="not one whole zstd frame"):
        decompress(packed, 1000)
