"""Which recordings are kept."""

from tinkex.engine.graph_recording import Recordings


def test_the_least_recently_used_is_let_go():
    kept, made = Recordings(3), []

    def get(key):
        return kept.get(key, lambda: made.append(key) or key * 2)

    assert [get(key) for key in (1, 2, 3, 1, 4)] == [2, 4, 6, 2, 8]
    assert made == [1, 2, 3, 4]
    assert get(1) == 2
    assert get(2) == 4
    assert made == [1, 2, 3, 4, 2]
    assert len(kept) == 3


def test_one_that_cannot_be_recorded_is_tried_again():
    kept = Recordings(1)
    kept.get("held", lambda: 1)
    for _ in range(2):
        try:
            kept.get("broken", lambda: 1 // 0)
        except ZeroDivisionError:
            continue
        raise AssertionError
    assert kept.get("broken", lambda: 5) == 5
