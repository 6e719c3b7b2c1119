"""What is left of samples when their server is gone: the ids that clients still wait for."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinkex.server import sample_journal
from tinkex.server.sample_journal import SampleJournal


def opened(path: Path) -> list[str]:
    journal = SampleJournal(path)
    try:
        return journal.open()
    finally:
        journal.close()


def test_ids_outlive_a_process_that_ends_without_closing(tmp_path: Path):
    journal = SampleJournal(tmp_path / "samples.log")
    assert journal.open() == []
    for number in range(5):
        journal.add(f"s:sample:0:{number}")
    journal.remove(["s:sample:0:1", "s:sample:0:3", "unknown"])
    assert opened(journal.path) == ["s:sample:0:0", "s:sample:0:2", "s:sample:0:4"]
    journal.close()
    journal.add("after")
    assert "after" not in opened(journal.path)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=st.lists(st.tuples(st.booleans(), st.sampled_from("abcdef")), max_size=40))
def test_a_journal_is_what_was_added_and_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, actions: list[tuple[bool, str]]
):
    monkeypatch.setattr(sample_journal, "_SPARE", 3)  # written anew again and again
    (tmp_path / "log").unlink(missing_ok=True)
    journal, wanted = SampleJournal(tmp_path / "log"), dict[str, None]()
    journal.open()
    for adding, id in actions:
        if adding:
            journal.add(id)
            wanted[id] = None
        else:
            journal.remove([id])
            wanted.pop(id, None)
        assert len(journal) == len(wanted)
    assert opened(tmp_path / "log") == list(wanted)
    journal.close()


def test_a_line_cut_off_by_the_end_of_the_process_is_left_out(tmp_path: Path):
    (tmp_path / "log").write_bytes(b"+a\n+b\n-a\n+c")
    assert opened(tmp_path / "log") == ["b"]


def test_the_oldest_ids_go_when_there_are_too_many(tmp_path: Path):
    journal = SampleJournal(tmp_path / "log", most=3)
    journal.open()
    for id in "abcde":
        journal.add(id)
    assert opened(tmp_path / "log") == ["c", "d", "e"]
    journal.close()


def test_a_file_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    journal = SampleJournal(tmp_path / "log")
    journal.open()
    file, journal._file = journal._file, 10_000  # no such file is open
    journal.add("a")
    journal._file = file
    journal.close()
    assert len(journal) == 1
    assert "cannot be written" in caplog.text
