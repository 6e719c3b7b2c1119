"""Tokenizer files by model: only those, whole and checkable."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest

from tinkex.server import handlers_tokenizers

from .rig import MODEL, Rig, served

WHERE = f"models/{MODEL}/tokenizer"


@served
async def test_the_files_of_a_tokenizer(rig: Rig):
    facts = rig.service.catalogue.get(MODEL)
    (facts.folder / "model.safetensors").write_bytes(b"secret weights")
    got = (await rig.get(WHERE)).json
    assert got["model_name"] == MODEL
    assert [each["name"] for each in got["files"]] == [
        "tokenizer.json",
        "tokenizer_config.json",
        "config.json",
    ]
    for each in got["files"]:
        data = (facts.folder / each["name"]).read_bytes()
        file = await rig.get(f"{WHERE}/{each['name']}")
        assert (file.status, file.body) == (200, data)
        assert each["size_bytes"] == len(data)
        assert each["sha256"] == hashlib.sha256(data).hexdigest()
        digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
        assert file.headers["repr-digest"] == f"sha-256=:{digest}:"
        assert file.headers["content-type"] == "application/json"
        again = await rig.get(f"{WHERE}/{each['name']}", headers={"if-none-match": file.headers["etag"]})
        assert (again.status, again.body) == (304, b"")


@pytest.mark.parametrize(
    "path",
    [
        f"{WHERE}/model.safetensors",
        f"{WHERE}/vocab.json",
        f"{WHERE}/..%2Fsecret",
        f"{WHERE}/%2E%2E",
        "models/org/other/tokenizer",
        "models/org/other/tokenizer/tokenizer.json",
    ],
)
@served
async def test_nothing_else_can_be_had(rig: Rig, path: str, tmp_path: Path):
    facts = rig.service.catalogue.get(MODEL)
    (facts.folder / "model.safetensors").write_bytes(b"secret weights")
    (tmp_path / "secret").write_bytes(b"secret")
    got = await rig.get(path)
    assert got.status == 404
    assert b"secret weights" not in got.body


@served
async def test_files_need_a_key(rig: Rig):
    for path in (WHERE, f"{WHERE}/tokenizer.json"):
        assert (await rig.get(path, key=None)).status == 401
        assert (await rig.get(path, key="tml-wrong")).status == 401
        assert (await rig.get(path, key="bob")).status == 200


@served
async def test_links_within_a_model_folder_are_followed_and_no_others(rig: Rig, tmp_path: Path):
    facts = rig.service.catalogue.get(MODEL)
    inside, outside, link = facts.folder / "blob", tmp_path / "blob", facts.folder / "tokenizer.json"
    for blob, status in ((inside, 200), (outside, 404)):
        blob.write_bytes(b'{"linked": 1}')
        link.unlink()
        link.symlink_to(blob)
        assert (await rig.get(f"{WHERE}/tokenizer.json")).status == status


@served
async def test_a_file_too_large_for_a_tokenizer_is_none(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(handlers_tokenizers, "LARGEST", 10)
    assert [each["name"] for each in (await rig.get(WHERE)).json["files"]] == ["tokenizer_config.json"]
    assert (await rig.get(f"{WHERE}/tokenizer.json")).status == 404
