"""The state folder: who has it, where things lie in it, and that no name leads out of it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkex.server.state_folder import LONGEST_NAME, ROOMS, StateFolder, StateInUse, file_name

names = (
    st.text(max_size=12)
    | st.text("./\\:%~ aA\x00", max_size=8)
    | st.sampled_from([".", "..", "CON", "a/../b"])
)
posix = pytest.mark.skipif(os.name == "nt", reason="modes and processes of POSIX")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> StateFolder:
    return StateFolder(tmp_path_factory.mktemp("state"))


# ---- names


@given(names)
def test_a_file_name_is_one_plain_part_and_can_be_read_back(name: str):
    try:
        encoded = file_name(name)
    except ValueError:
        assert name in ("", ".", "..")
        return
    assert set(encoded) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-%")
    assert encoded not in ("", ".", "..")
    assert unquote_to_bytes(encoded) == name.encode("utf-8", "surrogatepass")


@given(names, names)
def test_different_names_stay_different(one: str, other: str):
    def encoded(name: str) -> str | None:
        try:
            return file_name(name)
        except ValueError:
            return None

    if one != other and None not in (encoded(one), encoded(other)):
        assert encoded(one) != encoded(other)


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_names_that_mean_something_to_the_system_are_refused(name: str):
    with pytest.raises(ValueError, match="cannot be the name of a file"):
        file_name(name)


def test_names_too_long_for_a_file_are_shortened_and_stay_different():
    assert file_name("a" * LONGEST_NAME) == "a" * LONGEST_NAME
    long = [
        "a" * (LONGEST_NAME + 1),
        "a" * (LONGEST_NAME + 2),
        "a" * LONGEST_NAME + "b",
        "ü" * 40,
        "=" * 255,
    ]
    encoded = [file_name(name) for name in long]
    assert {len(each) for each in encoded} == {LONGEST_NAME}
    assert len(set(encoded)) == len(long)
    assert all("%%" in each for each in encoded), "which no other name has"
    assert encoded == [file_name(name) for name in long]


def test_ids_of_models_are_readable():
    assert file_name("0f3c:train:0") == "0f3c%3Atrain%3A0"
    assert file_name("a%3Ab") == "a%253Ab"
    assert file_name("step-0.5_x") == "step-0.5_x"
    assert file_name("\ud800") == "%ED%A0%80"


# ---- paths


@given(run=names, kind=names, name=names, seq=st.integers(-1, 10**9))
def test_no_name_leads_out_of_the_folder(shared: StateFolder, run: str, kind: str, name: str, seq: int):
    try:
        checkpoint, snapshot = shared.checkpoint(run, kind, name, seq), shared.snapshot(run, seq)
    except ValueError:
        assert {run, kind, name} & {"", ".", ".."}
        return
    for path, room, depth in ((checkpoint, "checkpoints", 3), (snapshot, "snapshots", 2)):
        inside = Path(os.path.normpath(path)).relative_to(shared.path / room)
        assert len(inside.parts) == depth
        assert path.resolve() == path
    checkpoint.mkdir(parents=True, exist_ok=True)
    assert checkpoint.is_dir()


saves = st.tuples(names, st.sampled_from(["training", "sampler"]), names, st.integers(0, 30))


@given(saves, saves)
def test_every_save_has_a_folder_of_its_own(
    shared: StateFolder, one: tuple[str, str, str, int], other: tuple[str, str, str, int]
):
    try:
        paths = [shared.checkpoint(*each) for each in (one, other)]
    except ValueError:
        return
    assert (paths[0] == paths[1]) == (one == other)


@given(st.lists(st.sampled_from(["a", "b", "ü", "a b", "..", "%2e"]), min_size=1, max_size=4))
def test_the_engine_of_a_folder_has_a_place(shared: StateFolder, parts: list[str]):
    place = shared.engine(Path("/models", *parts))
    assert place.parent == shared.path / "engine"
    assert place == shared.engine(Path("/models", *parts))
    assert place != shared.engine(Path("/models", *parts, "c"))


def test_a_save_of_a_number_that_is_none_is_refused(shared: StateFolder):
    with pytest.raises(ValueError, match="invalid literal"):
        shared.snapshot("m", "../x")  # type: ignore[arg-type]


# ---- the folder itself


@posix
def test_it_is_made_for_its_owner_alone(tmp_path: Path):
    before = os.umask(0)
    try:
        with StateFolder(tmp_path / "deep" / "state") as state:
            found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in state.path.iterdir()}
    finally:
        os.umask(before)
    assert found == {**dict.fromkeys(ROOMS, 0o700), "lock": 0o600}
    assert stat.S_IMODE(state.path.stat().st_mode) == 0o700


def test_what_was_there_for_a_moment_is_gone_at_the_next_start(tmp_path: Path):
    with StateFolder(tmp_path) as state:
        (state.tmp / "half").write_bytes(b"x")
        (state.tmp / "folder").mkdir()
        (state.tmp / "folder" / "file").write_bytes(b"x")
        kept = state.snapshot("m", 1)
        kept.mkdir(parents=True)
    with StateFolder(tmp_path) as state:
        assert list(state.tmp.iterdir()) == []
        assert kept.is_dir()


@posix
def test_emptying_follows_no_links(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "dear").write_bytes(b"x")
    with StateFolder(tmp_path / "state") as state:
        (state.tmp / "link").symlink_to(tmp_path / "elsewhere")
    with StateFolder(tmp_path / "state") as state:
        assert list(state.tmp.iterdir()) == []
    assert (tmp_path / "elsewhere" / "dear").exists()


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        StateFolder(tmp_path / "file" / "state")
    (tmp_path / "checkpoints").write_text("in the way")
    with pytest.raises(OSError, match="checkpoints"):
        StateFolder(tmp_path)
    (tmp_path / "checkpoints").unlink()
    StateFolder(tmp_path).close()


def test_usage_counts_what_lies_there(tmp_path: Path):
    with StateFolder(tmp_path) as state:
        empty = state.usage()
        assert set(empty) == {*ROOMS, "free"}
        assert [empty[room] for room in ROOMS] == [0] * len(ROOMS)
        assert empty["free"] > 0
        folder = state.checkpoint("m", "training", "a", 1)
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(os.urandom(100_000))
        (folder / "more").write_bytes(os.urandom(50_000))
        if os.name != "nt":
            (folder / "link").symlink_to(sys.executable)
        used = state.usage()
        assert 150_000 <= used["checkpoints"] < 180_000
        assert used["snapshots"] == 0


# ---- one server at a time


def test_a_second_server_is_refused_with_the_number_of_the_first(tmp_path: Path):
    with StateFolder(tmp_path) as state:
        with pytest.raises(StateInUse) as caught:
            StateFolder(tmp_path)
        assert str(state.path) in str(caught.value)
        if os.name != "nt":
            assert f"in use by process {os.getpid()}:" in str(caught.value)
        state.snapshot("m", 1)
    StateFolder(tmp_path).close()


def test_closing_twice_closes_once(tmp_path: Path):
    first = StateFolder(tmp_path)
    first.close()
    with StateFolder(tmp_path):
        first.close()
        with pytest.raises(StateInUse):
            StateFolder(tmp_path)


HOLD = """
import sys
from pathlib import Path
from tinkex.server.state_folder import StateFolder
state = StateFolder(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@posix
def test_a_killed_server_holds_nothing(tmp_path: Path):
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(StateInUse, match=f"process {other.pid}:"):
            StateFolder(tmp_path)
        other.kill()
        other.wait()
    StateFolder(tmp_path).close()
