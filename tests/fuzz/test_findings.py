"""What fuzzing has found: each input that once failed in a way nobody had said it would."""

from __future__ import annotations

import asyncio
import base64
import gzip
import io
import json
import os
import sqlite3
import struct
import tarfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.server.client import Client
from tests.server.live_requests import GRAPH
from tests.server.machine import Machine, running
from tinkex.cli.output import CommandError
from tinkex.cli.training_data import read_chats
from tinkex.client.archives import unpack
from tinkex.client.file_fetch import Mark, _announced, _continues, _sha256
from tinkex.client.plain_tokenizer import PlainTokenizer
from tinkex.config import Secret
from tinkex.errors import (
    APIConnectionError,
    BadRequestError,
    DownloadError,
    InvalidArgumentError,
    ResultDecodeError,
    TinkerError,
    TokenizerError,
)
from tinkex.models.facts import read_facts
from tinkex.models.package_index import _listed
from tinkex.net import http1_transport
from tinkex.net.answers import error_from
from tinkex.net.auth import _life_of
from tinkex.net.credentials import CredentialStore, StoredKey
from tinkex.net.sse import SseDecoder
from tinkex.net.transport import Request, Response
from tinkex.server.assembly import pages
from tinkex.server.sqlite_store import SqliteStore
from tinkex.server.state_archive import BadArchive, read_list
from tinkex.server.state_check import look
from tinkex.server.store import StoreFailed
from tinkex.types import EncodedTextChunk, TensorData
from tinkex.wire import results
from tinkex.wire import tinker_public_pb2 as pb
from tinkex.wire.headers import JSON, PROTOBUF
from tinkex.wire.passes import decode_output

from . import net_targets, state_targets
from .file_targets import model

NESTED = b'{"a":' + b"[" * 60_000
LONG_DIGITS = "9" * 5000


# ---- tensors


@pytest.mark.parametrize("shape", [[1] * 101, [2**63 - 1] * 300, [0, 2**62, 2**62], [0, 2**70]])
def test_a_shape_no_array_has_is_refused(shape: list[int]):
    data = [1.0] if 0 not in shape else []
    with pytest.raises(InvalidArgumentError, match="shape"):
        TensorData(data, "float32", shape)


@running()
async def test_a_sample_with_such_a_shape_is_refused_and_no_mistake_of_the_server(server: Machine):
    ann = server.ann
    sampler = await ann.sampler(await ann.session())
    targets = {"data": [1], "dtype": "int64", "shape": [1] * 101}
    text = await ann.refused("asample", ann.sample_body(sampler, 0, target_prompt_logprobs=targets), 422)
    assert "shape" in text


def test_indices_that_are_infinite_are_refused_without_a_warning(recwarn: pytest.WarningsRecorder):
    with pytest.raises(InvalidArgumentError, match="whole numbers"):
        TensorData([1.0], "float32", [1, 1], [0, float("inf")], [0])  # type: ignore[list-item]
    assert not recwarn.list


# ---- results


def _output(**batch: Any) -> bytes:
    message = pb.ForwardBackwardOutput(loss_fn_output_type="x")
    record = message.loss_fn_outputs.add(num_datums=batch.pop("num_datums", 0))
    for name, value in batch.items():
        record.fields["a"].MergeFrom(pb.BatchedTensor(**{name: value}))
    return message.SerializeToString()


def _offsets(*places: int) -> bytes:
    return struct.pack(f"<{len(places)}q", *places)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (_output(data=bytes(8), dtype=1, offsets=bytes(12)), "int64"),
        (_output(data=bytes(16), dtype=1, offsets=_offsets(0, 16), trailing_shape=[5]), "rows of"),
        (_output(data=b"", dtype=1, offsets=_offsets(0, 0), trailing_shape=[0] + [1] * 80), "rows of"),
        (_output(num_datums=2**31 - 1), "2147483647 examples"),
    ],
)
def test_outputs_that_do_not_fit_together_are_refused(body: bytes, words: str):
    with pytest.raises(InvalidArgumentError, match=words):
        decode_output(body)


def test_outputs_without_any_field_are_still_counted():
    assert decode_output(_output(num_datums=3)).loss_fn_outputs == [{}, {}, {}]


@pytest.mark.parametrize(
    "change", [{"logprobs": 2}, {"tokens": -1.0}, {"tokens": [[1]]}, {"logprobs": [[0.5]]}]
)
def test_a_sample_whose_lists_are_none_is_refused(change: dict[str, Any]):
    sequence = {"stop_reason": "stop", "tokens": [1], "logprobs": [-1.0], **change}
    with pytest.raises(InvalidArgumentError, match=next(iter(change))):
        results.read_samples({"sequences": [sequence]})
    with pytest.raises(InvalidArgumentError, match="prompt_logprobs"):
        results.read_samples({"sequences": [], "prompt_logprobs": 0.5})


def test_a_result_nested_too_deep_cannot_be_read():
    for name in ("optim_step", "asample", "forward"):
        with pytest.raises(ResultDecodeError):
            net_targets._poll(name, JSON)(NESTED)


def test_a_refusal_nested_too_deep_is_told_as_text():
    now = datetime(2026, 1, 1, tzinfo=UTC)
    error = error_from(Request("GET", "http://127.0.0.1/"), Response(400, {}, NESTED), now)
    assert isinstance(error, BadRequestError)
    assert '{"a":[[[' in str(error)


def test_a_packed_answer_is_not_unpacked_beyond_measure(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(net_targets, "_UNPACKED", 1 << 20)
    for size in (1 << 20, (1 << 20) + 1):
        body = gzip.compress(bytes(size))
        head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
        if size == 1 << 20:
            assert net_targets._http(head + body).body == bytes(size)
        else:
            with pytest.raises(APIConnectionError, match="gzip"):
                net_targets._http(head + body)
    monkeypatch.undo()
    assert http1_transport._MOST_UNPACKED == 1 << 20  # set by the target, for its own inputs


# ---- requests


@running()
async def test_a_length_of_many_digits_is_too_large(server: Machine):
    headers = server.ann.headers({"content-length": LONG_DIGITS})
    answer = await server.send("POST", "/api/v1/optim_step", [b"{}"], headers)
    assert answer.status == 413


@running()
async def test_a_number_that_another_kind_of_work_has_is_not_taken_for_it(server: Machine):
    """A step after an unload got the unload's ticket, and its client a step that was never made."""
    ann = server.ann
    model = await ann.model()
    await ann.done(await ann.train(model, 1))
    step = {"model_id": model, "seq_id": 1, "adam_params": {}}
    assert "forward_backward already" in await ann.refused("optim_step", step)
    unload = ann.ticket(await ann("unload_model", {"model_id": model}))
    number = int(unload.rpartition(":")[2])
    text = await ann.refused("optim_step", {**step, "seq_id": number})
    assert "unload_model already" in text
    await ann.done(unload)
    assert "unload_model already" in await ann.refused("optim_step", {**step, "seq_id": number})
    again = Client.train_body(model, 1)[0]
    assert (
        ann.ticket(await ann("forward_backward", again, headers={"content-type": PROTOBUF})) == f"{model}:1"
    )


@pytest.mark.parametrize("turns", range(12))
def test_a_model_whose_client_left_while_it_was_made_is_there_or_can_be_made(turns: int, tmp_path: Path):
    """Its row was written and it was not in memory: it was there for good, and could not be used."""

    @running()
    async def scenario(server: Machine) -> None:
        ann = server.ann
        body = {"session_id": await ann.session(), "model_seq_id": 0, "base_model": "tiny"}
        left = server.open("POST", "/api/v1/create_model", Client.raw(body), ann.headers())
        await server.turns(turns)
        left.close()
        await server.settle()
        made = await ann.ok("create_model", body)
        await ann.done(made["request_id"])
        await ann.done(await ann.train(made["model_id"], 1))

    scenario(tmp_path=tmp_path)


@pytest.mark.parametrize("turns", range(8))
def test_a_loss_whose_client_left_while_it_was_made_can_be_used(turns: int, tmp_path: Path):
    @running()
    async def scenario(server: Machine) -> None:
        ann = server.ann
        session = await ann.session()
        model = await ann.model(session)
        body = {"session_id": session, "custom_loss_seq_id": 0, "name": "sum", "graph": GRAPH}
        body["inputs"] = [{"name": "logprobs", "rank": 1}]
        left = server.open("POST", "/api/v1/create_custom_loss", Client.raw(body), ann.headers())
        await server.turns(turns)
        left.close()
        await server.settle()
        made = await ann.done(ann.ticket(await ann("create_custom_loss", body)))
        config = {"loss_id": made["loss_id"]}
        await ann.done(await ann.train(model, 1, loss="custom", config=config))

    scenario(tmp_path=tmp_path)


@running(kind="sqlite")
async def test_a_state_folder_with_a_custom_loss_is_whole(server: Machine):
    """A loss belongs to a session and has no model: it was taken for damage, and stopped every export."""
    ann = server.ann
    body = {"session_id": await ann.session(), "custom_loss_seq_id": 0, "name": "sum", "graph": GRAPH}
    body["inputs"] = [{"name": "logprobs", "rank": 1}]
    await ann.done(ann.ticket(await ann("create_custom_loss", body)))
    assert look(server.state, os.getpid()).damaged == []


def test_a_token_that_is_half_a_letter_is_refused():
    with pytest.raises(InvalidArgumentError, match="tokens"):
        EncodedTextChunk(tokens=[5, "\ud800"])


# ---- what a server may answer


def test_an_event_of_empty_lines_is_not_endless():
    decoder = SseDecoder(1000)
    for _ in range(9):
        assert decoder.feed(b"data:\n" * 100) == []
    with pytest.raises(ValueError, match="longer than 1000"):
        decoder.feed(b"data:\n" * 200)
    assert SseDecoder(10).feed(b"data: 0123456789\n\n")[0].data == "0123456789"


def test_an_interim_answer_before_the_end_is_no_answer():
    with pytest.raises(APIConnectionError, match="closed"):
        net_targets._http(b"HTTP/1.1 128 OK\r\nTransfer-Encoding: odd\r\n\r\n5\r\n")


def test_lengths_of_thousands_of_digits_are_not_taken_for_lengths():
    assert _announced(Response(200, {"content-length": LONG_DIGITS, "etag": '"a"'})) == (None, '"a"')
    told = Response(206, {"content-range": f"bytes 5-{LONG_DIGITS}/{LONG_DIGITS}"})
    assert not _continues(told, 5, Mark(None, '"a"'))


@pytest.mark.parametrize("name", ["x-amz-checksum-sha256", "repr-digest"])
def test_a_digest_of_odd_letters_is_none(name: str):
    assert _sha256({name: "\xe9" * 44}) is None


# ---- files


def test_an_archive_with_a_member_longer_than_memory_is_refused(tmp_path: Path):
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2**63 + 5
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    (tmp_path / "out").mkdir()
    with pytest.raises(DownloadError, match=r"damaged|too large"):
        unpack(tmp_path / "a.tar", tmp_path / "out", 1 << 20)


def test_an_archive_with_a_record_longer_than_memory_is_refused(tmp_path: Path):
    record = b"1318446744073709551615 path=x\n"
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, len(record)
    data = info.tobuf() + record.ljust(512, b"\0") + tarfile.TarInfo("x").tobuf() + bytes(1024)
    (tmp_path / "a.tar").write_bytes(data)
    (tmp_path / "out").mkdir()
    with pytest.raises(DownloadError, match="damaged"):
        unpack(tmp_path / "a.tar", tmp_path / "out", 1 << 20)


def _model_with(tmp_path: Path, name: str, data: bytes) -> Any:
    folder = tmp_path / "m"
    folder.mkdir()
    for each in model().iterdir():
        (folder / each.name).write_bytes(each.read_bytes())
    (folder / name).write_bytes(data)
    return read_facts("m", folder)


@pytest.mark.parametrize(
    "header",
    [
        b"3",
        b"[]",
        NESTED,
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[]}}',
        b'{"a":{"dtype":"F32","shape":[[2],9223372036854775807],"data_offsets":[0,0]}}',
        b'{"a":{"dtype":"F32","shape":["",18446744073709551615],"data_offsets":[0,0]}}',
        b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,0]}}',
        b'{"a":{"dtype":"F32","shape":[%b9],"data_offsets":[0,0]}}' % (b"9223372036854775807," * 300),
    ],
)
def test_weights_whose_header_is_none_are_told_of(tmp_path: Path, header: bytes):
    facts = _model_with(tmp_path, "model.safetensors", struct.pack("<Q", len(header)) + header)
    assert "safetensors" in str(facts.problem)
    assert facts.parameters is None


@pytest.mark.parametrize("architectures", [64, {"a": 1}, "Llama", [], None])
def test_odd_architectures_are_left_out(tmp_path: Path, architectures: object):
    config = json.loads((model() / "config.json").read_bytes())
    data = json.dumps({**config, "architectures": architectures}).encode()
    assert _model_with(tmp_path, "config.json", data).architecture == "qwen3"


def test_a_models_config_nested_too_deep_is_told_of(tmp_path: Path):
    assert "config.json" in str(_model_with(tmp_path, "config.json", NESTED).problem)


def test_a_note_nested_too_deep_is_no_note(tmp_path: Path):
    assert _model_with(tmp_path, "added.json", NESTED).source is None


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("tokenizer.json", b'{"version": false}'),
        ("tokenizer.json", b"\xff"),
        ("tokenizer_config.json", b"[]"),
        ("tokenizer_config.json", b'{"eos_token": {}}'),
        ("tokenizer_config.json", b'{"eos_token": "\\ud800"}'),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "default"}]}'),
        ("tokenizer_config.json", NESTED),
        ("chat_template.jinja", b"\xfb"),
    ],
)
def test_a_tokenizer_with_a_damaged_file_cannot_be_loaded(tmp_path: Path, name: str, data: bytes):
    for each in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / each).write_bytes((model() / each).read_bytes())
    (tmp_path / name).write_bytes(data)
    with pytest.raises(TokenizerError, match="cannot be read"):
        PlainTokenizer.from_folder(str(tmp_path))


HALF = b'{"messages": [{"role": "user", "content": "\\ud800"}]}'


@pytest.mark.parametrize("line", [b'{"messages": "\xff"}', NESTED, HALF, HALF.replace(b"user", b"\\udfff")])
def test_conversations_that_are_no_text_are_refused(tmp_path: Path, line: bytes):
    (tmp_path / "a.jsonl").write_bytes(line)
    with pytest.raises(CommandError, match=r"UTF-8|JSON|no text"):
        read_chats(tmp_path / "a.jsonl")


# ---- state, logins, tokens, package indexes


def test_rows_of_odd_kinds_are_told_of_and_not_opened(tmp_path: Path):
    (tmp_path / "store" / "bodies").mkdir(parents=True)
    for statement, words in (
        ("UPDATE samplers SET version = x'ff', folder = x'ff'", "never written"),
        ("UPDATE models SET watermark = 'x'", "never written"),
        ("UPDATE migrations SET name = x'ff'", "never written"),
    ):
        path = tmp_path / "store" / "store.db"
        path.write_bytes(state_targets._databases()[0])
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute(statement)
        problems = [text for _, text in look(tmp_path, None).rows.problems]
        assert any(words in text for text in problems), (statement, problems)
    with pytest.raises(StoreFailed, match="newer version"):
        asyncio.run(SqliteStore.open(tmp_path / "store"))


def test_a_database_whose_fault_cannot_be_told_in_text_is_told_of(tmp_path: Path):
    """SQLite quotes the damaged bytes of a schema in its message."""
    (tmp_path / "store" / "bodies").mkdir(parents=True)
    whole = state_targets._databases()[0]
    spoilt = whole.replace(b"indexlosses_of_session", b"index\x80osses_of_session")
    assert spoilt != whole
    (tmp_path / "store" / "store.db").write_bytes(spoilt)
    assert look(tmp_path, None).damaged
    with pytest.raises(StoreFailed):
        asyncio.run(SqliteStore.open(tmp_path / "store"))


@running(pages=dict(pages()))
async def test_an_address_changed_in_its_last_letter_opens_nothing(server: Machine):
    """The last letter of a signature has bits that mean nothing: four letters stood for the same."""
    ann = server.ann
    model = await ann.model()
    body = {"model_id": model, "seq_id": 1, "path": "e"}
    await ann.done(ann.ticket(await ann("save_weights_external", body)))
    where = {"training_run_id": model, "checkpoint_id": "external_weights/e"}
    url = next(iter((await ann.ok("external_weights_urls", **where))["urls"].values()))
    head, _, name = url.removeprefix("http://here").rpartition("/")
    opened = [
        letter
        for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
        if (await server.send("GET", f"{head[:-1]}{letter}/{name}")).status == 200
    ]
    assert opened == [head[-1]]


def test_a_backup_whose_list_is_no_text_is_refused():
    with pytest.raises(BadArchive, match="list cannot be read"):
        read_list(io.BytesIO(b'{"format": 1, "tinkex": "\xff"}'))


@pytest.mark.parametrize("keys", [b'"k"', b"[]", b"5", b"null"])
def test_a_login_is_kept_where_the_file_holds_something_else(tmp_path: Path, keys: bytes):
    (tmp_path / "credentials.json").write_bytes(b'{"version": 1, "keys": %b}' % keys)
    store = CredentialStore(tmp_path / "credentials.json")
    assert store.default() is None
    store.save(StoredKey("k", Secret("tml-a")))
    held = store.default()
    assert held is not None
    assert held.key.reveal() == "tml-a"


def test_a_login_file_nested_too_deep_cannot_be_read(tmp_path: Path):
    (tmp_path / "credentials.json").write_bytes(NESTED)
    with pytest.raises(TinkerError, match="cannot be read"):
        CredentialStore(tmp_path / "credentials.json").default()


@pytest.mark.parametrize(
    "claims", [NESTED, b'{"exp": 1e999}', b'{"exp": 1%b}' % (b"0" * 400), b'{"exp": NaN}']
)
def test_a_token_with_odd_claims_has_the_usual_life(claims: bytes):
    token = f"eyJ.{base64.urlsafe_b64encode(claims).decode()}.x"
    assert _life_of(token, 2000.0) == _life_of("eyJ", 2000.0) > 0


def test_a_package_index_with_odd_entries_has_the_others():
    right = {"filename": "a.whl", "url": "http://127.0.0.1/a.whl"}
    for odd in ({}, 5, None, {"filename": 1, "url": 2}, {"filename": "b"}):
        assert list(_listed(json.dumps({"files": [odd, right]}).encode(), "json")) == [
            ("a.whl", "http://127.0.0.1/a.whl")
        ]
    for page in (b"[]", b"5", b'{"files": 5}'):
        assert list(_listed(page, "json")) == []
    with pytest.raises(ValueError, match="nested"):
        list(_listed(NESTED, "json"))


# ---- the engine's files


def _torch() -> Any:
    return pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (b"{", "JSON"),
        (b"\xff", "JSON"),
        (NESTED, "JSON"),
        (b"[]", "object"),
        (b'{"r": "LORA", "lora_alpha": 1}', "whole number"),
        (b'{"r": 2.5, "lora_alpha": 1}', "whole number"),
        (b'{"r": 0, "lora_alpha": 1}', "whole number"),
        (b'{"r": 2, "lora_alpha": []}', "lora_alpha a number"),
        (b'{"r": 2, "lora_alpha": NaN}', "lora_alpha a number"),
        (b'{"r": 4294967296, "lora_alpha": 1}', "rank 4294967296"),
    ],
)
def test_an_adapter_with_a_damaged_config_is_the_users_fault(config: bytes, words: str):
    _torch()
    from tinkex.engine.faults import UserFault

    from .engine_targets import _peft

    with pytest.raises(UserFault, match=words):
        _peft("adapter_config.json")(config)


def test_an_adapter_with_damaged_weights_is_the_users_fault():
    _torch()
    from tinkex.engine.faults import UserFault

    from .engine_targets import _peft

    for data in (b"", b"\xff" * 100, struct.pack("<Q", 2) + b"{}"):
        with pytest.raises(UserFault, match="adapter_model"):
            _peft("adapter_model.safetensors")(data)


@pytest.mark.parametrize(
    "spoilt", [{"op": []}, {"name": {}}, {"target": True}, {"args": {}}, {"kwargs": []}]
)
def test_a_loss_whose_steps_are_none_is_the_users_fault(spoilt: dict[str, Any]):
    _torch()
    from tinkex.engine.faults import UserFault

    from .engine_targets import _graphs, _loss

    graph = json.loads(_graphs()[0])
    graph["nodes"][3] |= spoilt
    with pytest.raises(UserFault, match="cannot be read"):
        _loss(json.dumps(graph).encode())


def test_a_loss_with_an_input_of_infinite_rank_is_the_users_fault():
    _torch()
    from tinkex.engine.faults import UserFault

    from .engine_targets import _graphs, _loss

    graph = json.loads(_graphs()[0])
    graph["inputs"][2]["rank"] = float("inf")
    with pytest.raises(UserFault, match="cannot be read"):
        _loss(json.dumps(graph).encode())


@pytest.mark.parametrize("lost", ["parts", "layout", "rank", "alpha", "seed"])
def test_a_checkpoint_that_lacks_something_is_told_of(lost: str):
    _torch()
    from tinkex.engine.faults import ServerFault

    from .engine_targets import _load_saved, _saved

    data = _saved()[0]
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    del header["__metadata__"][lost]
    raw = json.dumps(header).encode()
    with pytest.raises(ServerFault, match="damaged"):
        _load_saved(struct.pack("<Q", len(raw)) + raw + data[8 + size :])


def test_a_checkpoint_whose_moments_do_not_fit_is_told_of():
    torch = _torch()
    from safetensors.torch import load, save

    from tinkex.engine.faults import ServerFault

    from .engine_targets import _load_saved, _saved

    data = _saved()[1]
    (size,) = struct.unpack_from("<Q", data)
    facts = json.loads(data[8 : 8 + size])["__metadata__"]
    tensors = load(data)
    for name in ("exp_avg", "weights"):
        with pytest.raises(ServerFault, match="damaged"):
            _load_saved(save({**tensors, name: torch.zeros(3)}, metadata=facts))
    del tensors["exp_avg_sq"]
    with pytest.raises(ServerFault, match="damaged"):
        _load_saved(save(tensors, metadata=facts))


def _gguf_with(at: bytes, number: int, width: int = 8, after: int = 0) -> bytes:
    """The tiny model with another number behind some bytes."""
    from .engine_targets import _gguf

    data = bytearray(_gguf()[0])
    place = data.index(at) + len(at) + after
    data[place : place + width] = number.to_bytes(width, "little")
    return bytes(data)


def test_a_gguf_file_that_states_more_than_it_holds_is_the_users_fault():
    _torch()
    pytest.importorskip("gguf")
    from tinkex.engine.faults import UserFault

    from .engine_targets import _convert, _gguf

    whole = _gguf()[0]
    damaged = [
        b"",
        b"GGUF",
        whole[:200],
        whole[:4] + b"\x09" + whole[5:],
        _gguf_with(b"tokenizer.ggml.tokens", 2**60, after=8),  # the array's length: kinds come first
        _gguf_with(b"tokenizer.ggml.token_type", 2**40, after=8),
        _gguf_with(b"llama.block_count", 99, 4),
        _gguf_with(b"GGUF\x03\0\0\0", 2**62),
    ]
    for data in damaged:
        with pytest.raises(UserFault, match=r"GGUF|damaged"):
            _convert(data)
    with pytest.raises(UserFault):
        _convert(whole.replace(b"\x01\0\0\0\0\0\0\0b", b"\x01\0\0\0\0\0\0\0a", 1))  # the same token twice
    _convert(whole)


def test_nothing_above_left_a_loop_running():
    assert not asyncio.all_tasks(net_targets.loop())
