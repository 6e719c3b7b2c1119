"""`tinkex state check`: what is wrong with a state folder is found, what is right is not accused."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tinkex.server import state_check, state_files
from tinkex.server.checkpoint_files import files_in
from tinkex.server.records import CheckpointRow, ModelRow, SessionRow
from tinkex.server.state_check import NoState, check, check_and_fix
from tinkex.server.state_folder import StateFolder, holder
from tinkex.server.state_weights import wrong_weights
from tinkex.server.store import Delete, Put

from .made_states import (
    CHECKPOINT,
    RUN,
    SAMPLER,
    SNAPSHOT,
    add_checkpoints,
    changed,
    make_state,
    put_weights,
    weights,
)
from .rows import checkpoint, model, operation, sampler

posix = pytest.mark.skipif(os.name == "nt", reason="modes and locks of POSIX")


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_check, "PAUSE", 0.02)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return make_state(tmp_path / "state")


def sql(state: Path, *statements: str) -> None:
    with sqlite3.connect(state / "store" / "store.db") as database:
        for statement in statements:
            database.execute(statement)
    database.close()


def body_file(state: Path) -> Path:
    (path,) = (state / "store" / "bodies").iterdir()
    return path


def everything(state: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(path.relative_to(state)): (
            path.stat().st_mode,
            path.stat().st_mtime_ns,
            b"" if path.is_dir() else path.read_bytes(),
        )
        for path in state.rglob("*")
    }


def test_a_folder_as_a_server_leaves_it_is_whole_and_stays_as_it_is(state: Path):
    before = everything(state)
    report = check(state)
    assert report.findings == []
    assert report.notes == []
    assert report.server is None
    assert report.rows.migrations == ["first"]
    assert report.rows.counts == {
        "sessions": 2, "models": 2, "samplers": 1, "checkpoints": 1, "operations": 3,
    }  # fmt: skip
    assert everything(state) == before


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


DAMAGE: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "a checkpoint is gone": (lambda s: shutil.rmtree(s / CHECKPOINT), CHECKPOINT, "has no weights here"),
    "a checkpoint is cut off": (
        lambda s: cut(s / CHECKPOINT / "adapter.safetensors"), CHECKPOINT, "were saved",
    ),
    "an unnamed sampler is cut off": (
        lambda s: cut(s / SAMPLER / "adapter.safetensors"),
        f"{SAMPLER}/adapter.safetensors",
        "its header says",
    ),
    "a snapshot is gone": (lambda s: shutil.rmtree(s / SNAPSHOT), SNAPSHOT, "after operation 2 has no"),
    "a snapshot is cut off": (
        lambda s: cut(s / SNAPSHOT / "adapter.safetensors"),
        f"{SNAPSHOT}/adapter.safetensors",
        "its header says",
    ),
    "a snapshot's header is damaged": (
        lambda s: (s / SNAPSHOT / "adapter.safetensors").write_bytes(weights().replace(b'"', b"'")),
        f"{SNAPSHOT}/adapter.safetensors",
        "header cannot be read",
    ),
    "a snapshot is newer than the operations": (
        lambda s: sql(s, "UPDATE models SET watermark = 1 WHERE state = 'live'"), RUN, "newer than",
    ),
    "a body was forgotten too early": (
        lambda s: sql(s, "UPDATE operations SET body = NULL, body_file = NULL WHERE seq = 3"),
        f"{RUN}:3",
        "must be replayed",
    ),
    "the body of what waits is gone": (
        lambda s: (changed(s, Put(operation(4))), sql(s, "UPDATE operations SET body = NULL WHERE seq=4")),
        f"{RUN}:4",
        "waits to be done",
    ),
    "a model has no session": (lambda s: changed(s, Delete(SessionRow, "old")), "old:train:0", "its sess"),
    "operations have no model": (lambda s: changed(s, Delete(ModelRow, RUN)), f"{RUN}:1", "its model"),
    "a sampler has no session": (
        lambda s: changed(s, Put(sampler("x:sample:0", "x"))), "x:sample:0", "session is not on record",
    ),
    "a run is corrupted and nobody knows why": (
        lambda s: changed(s, Put(model("old:train:0", "old", state="corrupted"))), "old:train:0", "says w",
    ),
    "a row leads out of the folder": (
        lambda s: changed(s, Put(checkpoint("tinker://a/weights/x", folder="checkpoints/../../x/y"))),
        "tinker://a/weights/x",
        "is not one of ours",
    ),
    "a row leads to the keys": (
        lambda s: changed(s, Put(checkpoint("tinker://a/weights/x", folder="keys.json"))),
        "tinker://a/weights/x",
        "is not one of ours",
    ),
    "a sampler leads out of the folder": (
        lambda s: changed(s, Put(sampler("s:sample:1", model_id=RUN, version="../../x"))),
        "s:sample:1",
        "are called",
    ),
    "there is a trigger in the database": (
        lambda s: sql(s, "CREATE TRIGGER t AFTER INSERT ON models BEGIN DELETE FROM models; END"),
        "store/store.db",
        "trigger t is not ours",
    ),
    "an index is missing": (lambda s: sql(s, "DROP INDEX models_of_session"), "store/store.db", "missing"),
    "the database is of a newer version": (
        lambda s: sql(s, "INSERT INTO migrations VALUES ('from the future', 9)"),
        "store/store.db",
        "newer version",
    ),
    "the keys are damaged": (lambda s: (s / "keys.json").write_text("{"), "keys.json", "not JSON"),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_found_where_it_is_and_not_removed(state: Path, what: str):
    harm, place, said = DAMAGE[what]
    harm(state)
    found = check(state).damaged
    assert any(each.place == place and said in each.text for each in found), found
    again = check_and_fix(state)
    assert again.damaged == found
    assert not again.clean


def test_a_body_that_is_missing_or_cut_off_is_found(state: Path):
    path = body_file(state)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert len(check(state).damaged) == 1
    path.write_bytes(whole)
    assert check(state).clean
    cut(path)
    (found,) = check(state).findings
    assert (found.kind, found.place) == ("damage", f"store/bodies/{path.name}")
    assert f"the body of {RUN}:3 cannot be read" in found.text
    path.unlink()
    (found,) = check(state).findings
    assert "is missing" in found.text


def test_pages_of_the_database_that_are_overwritten_are_found(state: Path):
    path = state / "store" / "store.db"
    data = bytearray(path.read_bytes())
    data[4096:8192] = b"\xff" * 4096
    path.write_bytes(data)
    assert any(each.place == "store/store.db" for each in check(state).damaged)
    path.write_bytes(b"no database at all")
    assert any("SQLite" in each.text for each in check(state).damaged)
    path.unlink()
    assert any("no database" in each.text for each in check(state).damaged)


LEFTOVERS = [
    f"checkpoints/{RUN.replace(':', '%3A')}/training/b-9",
    f"checkpoints/{RUN.replace(':', '%3A')}/training/.b-9.123456789.part",
    "checkpoints/x%3Atrain%3A0/sampler/c-1",
    f"snapshots/{RUN.replace(':', '%3A')}/99",
    "snapshots/gone%3Atrain%3A0/4",
    "engine/tiny-0123456789ab/sampler/" + "cd" * 16,
    "engine/tiny-0123456789ab/states/61",
    "exports/" + "0" * 32,
    "tmp/leftovers-1",
]


def test_what_nothing_refers_to_is_found_and_removed(state: Path):
    before = everything(state)
    for place in LEFTOVERS:
        put_weights(state / place)
    files = ["store/bodies/abc-1", "samples.new", ".keys-x", ".boot-x", "traces/x.part"]
    for place in files:
        (state / place).parent.mkdir(exist_ok=True)
        (state / place).write_text("x")
    report = check(state)
    assert {each.place for each in report.findings} == {*LEFTOVERS, *files}
    assert {each.kind for each in report.findings} == {"leftover"}
    fixed = check_and_fix(state)
    assert fixed.clean
    assert {*fixed.removed, "tmp/leftovers-1"} == {*LEFTOVERS, *files}
    assert check(state).findings == []
    kept = {place: content for place, (*_, content) in everything(state).items()}
    assert {place: kept[place] for place in before} == {
        place: content for place, (*_, content) in before.items()
    }
    assert not (state / "snapshots/gone%3Atrain%3A0").exists()


def test_checkpoints_of_every_name_are_ours(state: Path):
    names = [f"{first}best" for first in "aZ0_.:=@+,~-"] + ["...", "+" * 66]
    folders = add_checkpoints(state, names)
    assert check(state).findings == []
    assert check_and_fix(state).removed == []
    assert all((state / folder / "adapter.safetensors").is_file() for folder in folders)


def test_what_a_row_names_is_never_left_over(state: Path):
    (folder,) = add_checkpoints(state, ["odd"])
    odd = state / "checkpoints" / "a b" / "training" / "odd-11"
    odd.parent.mkdir(parents=True)
    (state / folder).rename(odd)
    sql(state, f"UPDATE checkpoints SET folder = '{odd.relative_to(state)}' WHERE name = 'odd'")
    report = check_and_fix(state)
    assert [each.kind for each in report.findings] == ["damage"]
    assert odd.is_dir()


def test_what_is_not_ours_is_told_and_left_alone(state: Path):
    (state / "lost+found").mkdir()
    (state / "store" / "notes.txt").write_text("mine")
    report = check_and_fix(state)
    assert report.clean
    assert report.notes == ["lost+found is not ours", "store/notes.txt is not ours"]
    assert (state / "store" / "notes.txt").read_text() == "mine"


def test_a_corrupted_run_that_is_explained_is_no_finding(state: Path):
    changed(state, Put(model("old:train:0", "old", state="corrupted", note="another loss")))
    report = check(state)
    assert report.clean
    assert report.notes == ["run old:train:0 is corrupted: another loss"]


def test_unnamed_weights_that_are_made_again_are_not_missed(state: Path):
    shutil.rmtree(state / SAMPLER)
    report = check(state)
    assert report.clean
    assert report.notes == ["the unnamed weights of 1 open sampling sessions are no longer kept"]
    row = operation(4, kind="save_weights_for_sampler", body=b"{}")
    row.state, row.result, row.ended = "done", b'{"sampling_session_id": "s:sample:0"}', 3.0
    changed(state, Put(row))
    assert check(state).notes == []


@posix
def test_what_others_may_read_is_found(state: Path):
    state.chmod(0o755)
    (state / "keys.json").chmod(0o644)
    found = {each.place: each.text for each in check(state).findings}
    assert set(found) == {".", "keys.json"}
    assert "755, not 700" in found["."]


def test_a_database_of_an_earlier_version_is_not_judged(state: Path):
    sql(state, "DELETE FROM migrations")
    report = check(state)
    assert report.clean
    assert "earlier version" in report.notes[0]


def test_there_must_be_a_state_folder(tmp_path: Path):
    for look in (check, check_and_fix):
        with pytest.raises(NoState, match="is no state folder"):
            look(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []


# ---- while a server runs


@posix
def test_a_running_server_is_known_and_nothing_is_removed_under_it(state: Path):
    put_weights(state / "tmp-not", 2)
    with StateFolder(state):
        put_weights(state / "snapshots/gone%3Atrain%3A0/4")
        (state / "tmp" / "at-hand").write_text("x")
        report = check(state)
        assert report.server == os.getpid()
        assert [each.place for each in report.findings] == ["snapshots/gone%3Atrain%3A0/4"]
        with pytest.raises(NoState, match="while a server runs"):
            check_and_fix(state)
        assert (state / "snapshots/gone%3Atrain%3A0/4").is_dir()
    assert holder(state) is None


@posix
def test_folders_in_the_making_are_left_to_their_maker(state: Path):
    run = f"checkpoints/{RUN.replace(':', '%3A')}/training"
    with StateFolder(state):
        put_weights(state / run / f".b-9.{os.getpid()}.part")
        assert check(state).clean
        put_weights(state / run / ".b-9.99999999.part")
        assert [each.place for each in check(state).findings] == [f"{run}/.b-9.99999999.part"]


@posix
def test_what_moves_while_it_is_looked_at_is_not_accused(state: Path):
    """A writer that never stops: there is always a file without its row, and never the same one."""
    going = threading.Event()

    def write() -> None:
        number = 10
        while not going.is_set():
            folder = f"checkpoints/{RUN.replace(':', '%3A')}/training/c-{number}"
            size = put_weights(state / folder)
            path = f"tinker://{RUN}/weights/c-{number}"
            changed(state, Put(checkpoint(path, folder=folder, size=size)))
            changed(state, Delete(CheckpointRow, path))
            shutil.rmtree(state / folder)
            number += 1

    with StateFolder(state):
        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(5):
                assert check(state).findings == []
        finally:
            going.set()
            writer.join()
    assert check(state).clean


@posix
@pytest.mark.parametrize("quick", [False, True])
def test_weights_that_go_in_the_middle_of_a_look_are_not_accused(
    state: Path, quick: bool, monkeypatch: pytest.MonkeyPatch
):
    def listed(folder: Path) -> dict[str, int]:
        found = files_in(folder)
        if folder == state / CHECKPOINT:  # as a server does: the row, then the files
            changed(state, Delete(CheckpointRow, checkpoint().path))
            shutil.rmtree(folder)
        return found

    with StateFolder(state):
        monkeypatch.setattr(state_files, "files_in", listed)
        assert check(state, quick=quick).findings == []
    assert not (state / CHECKPOINT).exists()


# ---- weights against their checksums


def checked_weights() -> bytes:
    """A file as the engine writes one."""
    numbers = {"weights": b"\x01\x02\x03\x04" * 4, "exp_avg": b"\x05\x06" * 3}
    tensors = {
        "weights": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
        "exp_avg": {"dtype": "BF16", "shape": [3], "data_offsets": [16, 22]},
    }
    facts = {"format": "1", "rank": "4"}
    found = zlib.crc32(json.dumps(facts, sort_keys=True).encode())
    for name, about in (
        ("exp_avg", b"exp_avg torch.bfloat16 [3]"),
        ("weights", b"weights torch.float32 [2, 2]"),
    ):
        found = zlib.crc32(numbers[name], zlib.crc32(about, found))
    header = json.dumps({"__metadata__": {**facts, "checksum": f"{found:08x}"}, **tensors}).encode()
    return len(header).to_bytes(8, "little") + header + numbers["weights"] + numbers["exp_avg"]


def test_one_wrong_bit_in_weights_is_found_unless_it_is_a_quick_look(state: Path):
    path = state / SNAPSHOT / "adapter.safetensors"
    whole = checked_weights()
    path.write_bytes(whole)
    assert check(state).clean
    for place in (-1, -10, whole.index(b'"rank": "4"') + 9):
        bad = bytearray(whole)
        bad[place] ^= 1
        path.write_bytes(bad)
        (found,) = check(state).findings
        assert found.text.endswith("its numbers are not those that were saved")
        assert check(state, quick=True).clean


def test_checksums_are_the_engine_s(tmp_path: Path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tinkex.engine.base_model import BaseModel
    from tinkex.engine.checkpoints import FILE, save_sampler
    from tinkex.testing import make_tiny_model

    base = BaseModel.load(make_tiny_model(tmp_path / "model"), device="cpu")
    save_sampler(tmp_path / "saved", base.new_adapter(rank=2, seed=1))
    path = tmp_path / "saved" / FILE
    assert wrong_weights(path) == ""
    bad = bytearray(path.read_bytes())
    bad[-1] ^= 1
    path.write_bytes(bad)
    assert wrong_weights(path) != ""
