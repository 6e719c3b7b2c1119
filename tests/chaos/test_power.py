"""What is there after a power cut: all that was promised to be, and nothing by half."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tinkex.server.boots import BOOT, this_boot
from tinkex.server.keys import KeyRing
from tinkex.server.records import OperationRow, SessionRow
from tinkex.server.sample_journal import SampleJournal
from tinkex.server.sqlite_store import SqliteStore
from tinkex.server.state_folder import StateFolder

from .power import COMPILER, Power

pytestmark = pytest.mark.skipif(
    COMPILER is None or sys.platform != "linux", reason="a C compiler and Linux are needed"
)
SURVIVES = [0.0, 0.5]
"""How likely it is that something which nobody synced has reached the disk."""
SRC = str(Path(__file__).parents[2] / "src")


@pytest.fixture
def power(tmp_path: Path) -> Power:
    return Power(tmp_path / "state", tmp_path / "aside")


def run(power: Power, script: str) -> None:
    """Run a script in the folder that a power cut will strike; it ends as by a kill."""
    power.root.mkdir(exist_ok=True)
    environment = {**os.environ, **power.environment, "PYTHONPATH": SRC}
    code = f"{script}\nimport os\nos._exit(0)\n"
    subprocess.run([sys.executable, "-c", code], cwd=power.root, env=environment, check=True)


FILES = """
import os
from pathlib import Path

def sync(path):
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)

Path("kept").write_text("kept")
Path("cut").write_text("synced")
Path("renamed").write_text("what it says")
for name in ("kept", "cut", "renamed", "."):
    sync(name)
Path("cut").write_text("synced and more")
Path("new").write_text("new")
Path("renamed").rename("otherwise")
"""


def test_only_what_was_synced_is_left(power: Power):
    run(power, FILES)
    power.cut(random.Random(1))
    found = {path.name: path.read_text() for path in power.root.iterdir()}
    assert found == {"kept": "kept", "cut": "synced", "renamed": "what it says"}
    power.cut(random.Random(1))
    assert {path.name: path.read_text() for path in power.root.iterdir()} == found


def test_by_chance_all_is_left_or_some_of_it_and_never_half_a_rename(power: Power, tmp_path: Path):
    seen = set()
    for seed in range(20):
        again = Power(tmp_path / f"state-{seed}", tmp_path / f"aside-{seed}")
        run(again, FILES)
        again.cut(random.Random(seed), 0.5)
        found = {path.name: path.read_text() for path in again.root.iterdir()}
        assert found.pop("kept") == "kept"
        assert [found.pop(name) for name in ("renamed", "otherwise") if name in found] == ["what it says"]
        seen.add(tuple(sorted(found)))
    assert seen == {("cut",), ("cut", "new")}
    run(power, FILES)
    power.cut(random.Random(1), 1.0)
    assert {path.name for path in power.root.iterdir()} == {"kept", "cut", "new", "otherwise"}
    assert (power.root / "cut").read_text() == "synced and more"


NOTE = """
from pathlib import Path
from tinkex.server.boots import forget_boot, note_boot

note_boot(Path(), "process")
{then}
"""


@pytest.mark.parametrize("survives", SURVIVES)
def test_the_note_of_a_server_is_there_and_that_of_one_that_was_stopped_is_not(
    power: Power, survives: float
):
    run(power, NOTE.format(then=""))
    power.cut(random.Random(3), survives)
    assert (power.root / BOOT).read_text() == f"{this_boot()} process\n"
    run(power, NOTE.format(then="forget_boot(Path())"))
    power.cut(random.Random(3), survives)
    assert not (power.root / BOOT).exists()


STORE = """
import asyncio
from pathlib import Path
from tinkex.server.records import OperationRow, SessionRow
from tinkex.server.sqlite_store import SqliteStore
from tinkex.server.state_folder import StateFolder
from tinkex.server.store import Put

async def main():
    state = StateFolder(Path("deep/state"))
    store = await SqliteStore.open(state.store, "{durability}")
    for n in range(20):
        await store.write(Put(SessionRow(f"s-{{n}}", "ann", 1.0, 1.0)))
        body = b"%d" % n * ({size})
        await store.write(Put(OperationRow(f"m:{{n}}", "m", n, "forward", "ann", 1.0, body, "")))

asyncio.run(main())
"""


async def left(power: Power) -> tuple[int, list[OperationRow]]:
    """How many sessions and which operations a store has after a power cut."""
    with StateFolder(power.root / "deep/state") as state:
        store = await SqliteStore.open(state.store, "power")
        try:
            sessions = [await store.get(SessionRow, f"s-{n}") for n in range(20)]
            return sum(each is not None for each in sessions), await store.queued("m")
        finally:
            await store.close()


@pytest.mark.parametrize("survives", SURVIVES)
def test_with_power_durability_everything_written_is_there(power: Power, survives: float):
    run(power, STORE.format(durability="power", size=200_000))
    power.cut(random.Random(3), survives)
    sessions, operations = asyncio.run(left(power))
    assert sessions == 20
    assert [row.body for row in operations] == [b"%d" % n * 200_000 for n in range(20)]


@pytest.mark.parametrize("survives", SURVIVES)
def test_with_process_durability_the_database_is_whole_and_lacks_what_came_last(
    power: Power, survives: float
):
    run(power, STORE.format(durability="process", size=2_000))
    power.cut(random.Random(3), survives)
    sessions, operations = asyncio.run(left(power))
    assert 0 <= sessions - len(operations) <= 1
    assert [row.seq for row in operations] == list(range(len(operations)))
    assert all(row.body == b"%d" % row.seq * 2_000 for row in operations)


def test_a_key_that_was_revoked_stays_revoked(power: Power):
    script = """
from pathlib import Path
from tinkex.server.boots import BOOT, this_boot
from tinkex.server.keys import KeyRing
ring = KeyRing(Path("state/keys.json"))
ring.add("ann", "ann")
ring.revoke("ann")
"""
    run(power, script)
    power.cut(random.Random(1))
    (info,) = KeyRing(power.root / "state/keys.json").list()
    assert info.revoked is not None


def test_a_copied_checkpoint_is_there(power: Power):
    script = """
import asyncio
from pathlib import Path
from tinkex.engine.durable import make_folders
from tinkex.server.checkpoint_files import copy_folder
source = Path("checkpoints/a/weights/one-1")
make_folders(source)
(source / "file").write_bytes(b"x" * 10_000)
with open(source / "file") as file:
    import os
    os.fsync(file.fileno())
asyncio.run(copy_folder(source, Path("checkpoints/b/weights/one-2")))
"""
    run(power, script)
    power.cut(random.Random(1))
    assert (power.root / "checkpoints/b/weights/one-2/file").read_bytes() == b"x" * 10_000


def test_a_folder_an_engine_wrote_is_there(power: Power):
    script = """
from pathlib import Path
from tinkex.engine.fresh_folder import fresh_folder
for text in ("first", "second"):
    with fresh_folder(Path("snapshots/model/3")) as place:
        (place / "file").write_text(text)
"""
    run(power, script)
    power.cut(random.Random(1))
    assert (power.root / "snapshots/model/3/file").read_text() == "second"


def test_samples_whose_clients_wait_are_known_with_power_durability(power: Power):
    script = """
import asyncio
from pathlib import Path
from tinkex.server.sample_journal import SampleJournal

async def main():
    journal = SampleJournal(Path("samples.log"), sync=True)
    journal.open()
    for n in range(5):
        journal.add(f"s:{n}")
        await journal.on_disk()

asyncio.run(main())
"""
    run(power, script)
    power.cut(random.Random(1))
    assert SampleJournal(power.root / "samples.log").open() == [f"s:{n}" for n in range(5)]


def test_the_folder_an_engine_is_given_is_there(power: Power):
    script = """
import asyncio
from pathlib import Path
from tinkex.server.child_process import ChildProcess

async def main():
    child = ChildProcess("this", [], name="engine")
    child.start(fds=[], folder=Path("engine/model"), extra={})
    await child.read_log()
    await child.ended()

asyncio.run(main())
"""
    run(power, script)
    power.cut(random.Random(1))
    assert (power.root / "engine/model").is_dir()
