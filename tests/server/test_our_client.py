"""Our client on our server: downloads and tokenizers arrive whole, and no hub is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tinkex import types
from tinkex.client import tokenizers as client_tokenizers
from tinkex.errors import ExperimentalWarning, NotFoundError

from .in_process import MODEL, WAIT, InProcess, in_process


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TINKEX_CACHE", str(tmp_path / "cache"))
    client_tokenizers._after_fork()  # nothing was loaded yet
    with in_process(tmp_path) as server:
        yield server


def test_a_tokenizer_comes_from_the_server(
    server: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_hub(*_: Any) -> Any:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(client_tokenizers, "_from_hub", no_hub)
    client = server.client()
    trainer = client.create_lora_training_client(MODEL, rank=8)
    tokenizer = trainer.get_tokenizer()
    assert tokenizer.encode("hi") == [104, 105]
    (folder,) = (tmp_path / "cache" / "tokenizers").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    sampler = client.create_sampling_client(base_model=MODEL)
    assert sampler.get_tokenizer() is tokenizer
    client.close("success").result(WAIT)


def test_checkpoints_of_every_kind_can_be_downloaded(server: InProcess, tmp_path: Path) -> None:
    client = server.client()
    trainer = client.create_lora_training_client(MODEL, rank=8)
    saved = [
        trainer.save_state("state").result(WAIT).path,
        trainer.save_weights_for_sampler("sampler").result(WAIT).path,
        trainer.save_weights_external("export").result(WAIT).path,
    ]
    rest = server.rest()
    for number, path in enumerate(saved):
        got = rest.download_checkpoint(path, tmp_path / f"copy-{number}").result(WAIT)
        assert {"adapter_config.json", "adapter_model.safetensors"} <= set(got.files)
        config = json.loads((got.folder / "adapter_config.json").read_text())
        assert config["base_model_name_or_path"] == MODEL
    urls = rest.get_external_weights_urls(saved[2]).result(WAIT)
    assert set(urls.urls) == {"adapter_config.json", "adapter_model.safetensors"}
    rest.delete_checkpoint_from_tinker_path(saved[0]).result(WAIT)
    with pytest.raises(NotFoundError):
        rest.download_checkpoint(saved[0], tmp_path / "gone").result(WAIT)
    client.close("success").result(WAIT)


def test_the_rest_calls_of_our_client(server: InProcess) -> None:
    client = server.client(user_metadata={"k": "v"}, project_id="p")
    trainer = client.create_lora_training_client(MODEL, rank=8)
    path = trainer.save_state("ck", ttl_seconds=3600).result(WAIT).path
    rest, admin = server.rest(), server.admin()
    runs = rest.list_training_runs().result(WAIT)
    run = runs.training_runs[0]
    assert run.last_checkpoint is not None
    assert (run.base_model, run.last_checkpoint.tinker_path, runs.cursor.total_count) == (MODEL, path, 1)
    assert rest.get_training_run(run.training_run_id).result(WAIT).lora_rank == 8
    assert rest.get_weights_info_by_tinker_path(path).result(WAIT).lora_rank == 8
    rest.publish_checkpoint_from_tinker_path(path).result(WAIT)
    rest.publish_checkpoint_from_tinker_path(path).result(WAIT)
    rest.set_checkpoint_ttl_from_tinker_path(path, None).result(WAIT)
    (listed,) = rest.list_user_checkpoints().result(WAIT).checkpoints
    assert (listed.public, listed.expires_at) == (True, None)
    copy = rest.copy_weights(path, destination_project_id="q").result(WAIT)
    other = server.rest(server.ring.add("second", "bob")[1].reveal())
    assert other.get_weights_info_by_tinker_path(path).result(WAIT).is_lora
    with pytest.raises(NotFoundError):
        other.get_weights_info_by_tinker_path(copy).result(WAIT)
    request = types.SessionSearchRequest(user_metadata={"k": "v"})
    with pytest.warns(ExperimentalWarning):
        found = rest.search_sessions(request).result(WAIT).sessions
    assert [each.checkpoints_count for each in found] == [1]
    assert isinstance(found[0].status, types.SessionActive)
    events = admin.get_audit_log("checkpoints").result(WAIT).entries
    assert [each.event for each in events][:2] == ["checkpoint.created", "checkpoint.published"]
    usage = admin.get_current_checkpoint_storage_usage().result(WAIT).data
    assert {each.project_id for each in usage} == {"p", "q"}
    client.close("success").result(WAIT)
