"""Steps that begin before the last one's tokens are read: the same tokens, and nothing computed in vain.

What a GPU replays is done again here, by the same code otherwise.
"""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinkex.engine.runner import Runner
from tinkex.engine.sampler import Sampler, SamplerOptions

from .cpu_stand_ins import Arrived, DoneAgain
from .sampling_models import VOCAB, Collected, base_model, drain, request, sample, spell, trained_adapter

BLOCK = 16


@pytest.fixture
def base(monkeypatch):
    monkeypatch.setattr("tinkex.engine.runner.Recorder", DoneAgain)
    monkeypatch.setattr("tinkex.engine.runner._OnTheWay", Arrived)
    # Adapters are stacked on a CPU alone.
    monkeypatch.setattr("tinkex.engine.runner.AdapterStacks.segment", lambda stacks, adapters: None)
    DoneAgain.replays = 0
    return base_model("qwen3")[0]


def asked(lengths, samples=1, **params):
    random = np.random.default_rng(len(lengths))
    return [
        request(
            f"r{i}",
            random.integers(2, VOCAB, length).astype(np.int32),
            num_samples=samples,
            **({"max_tokens": 3 + 5 * (i % 4), "stop": (), "seed": i} | params),
        )
        for i, length in enumerate(lengths)
    ]


def same(one, other, requests):
    for item in requests:
        for index in range(item.num_samples):
            assert one.of(item.request_id, index) == other.of(item.request_id, index), item.request_id
            found, wanted = (x.logprobs_of(item.request_id, index) for x in (one, other))
            assert np.abs(np.array(found) - np.array(wanted)).max() < 1e-4
            assert one.reason(item.request_id, index) == other.reason(item.request_id, index)


@pytest.mark.parametrize("lengths", [[5], [16], [15, 16, 17, 32, 3], [40, 1, 16, 16, 31, 33, 8, 2, 64]])
@pytest.mark.parametrize("samples", [1, 3])
def test_the_tokens_are_the_same(base, lengths, samples):
    requests = asked(lengths, samples)
    requests += [
        request("greedy", np.arange(2, 20, dtype=np.int32), max_tokens=20, temperature=0.0, seed=1)
    ]
    got = sample(base, *requests, ahead=True)
    assert DoneAgain.replays
    same(got, sample(base, *requests, ahead=False), requests)


def test_the_first_step_after_prompts_is_begun_with_them(base, monkeypatch):
    begun, used = [], []
    begin, take = Runner._begin_next, Runner._take_begun

    def noted(self, batch):
        begin(self, batch)
        begun.append(self._begun is not None and len(batch.rows))

    def taken(self, batch):
        found = take(self, batch)
        used.append(found is not None and len(batch.rows))
        return found

    monkeypatch.setattr(Runner, "_begin_next", noted)
    monkeypatch.setattr(Runner, "_take_begun", taken)
    sample(base, *asked([16, 5, 31], max_tokens=4), ahead=True)
    # The last one is begun in vain: that all rows end is known only when it is under way.
    assert begun == [3, 3, 3, 3]
    assert used == [3, 3, 3]


@pytest.mark.parametrize("samples", [1, 4])
def test_rows_that_follow_others_do_not_hold_the_device_up(base, samples, monkeypatch):
    monkeypatch.setattr("tinkex.engine.scheduler._TOGETHER", 2)
    late, decode, begin = [], Runner._decode, Runner._begin_next

    def noted(self, batch):
        late.append(len(batch.rows))
        return decode(self, batch)

    def begun(self, batch):
        before = len(late)
        begin(self, batch)
        del late[before:]

    monkeypatch.setattr(Runner, "_decode", noted)
    monkeypatch.setattr(Runner, "_begin_next", begun)
    requests = asked([18] * (24 // samples), samples)
    got = sample(base, *requests, ahead=True, max_rows=6)
    assert len(late) <= (samples > 1), "only where several rows begin as soon as their prompt is read"
    same(got, sample(base, *requests, ahead=False, max_rows=6), requests)


def test_a_step_ahead_may_use_the_memory_that_prompts_were_read_in(base, monkeypatch):
    requests = asked([16, 5, 31], max_tokens=4)
    wanted = sample(base, *requests, ahead=False)
    read, begin = Runner._read_prompts, Runner._begin_next
    states = []

    def noted(self, pieces, hidden_tc, start):
        read(self, pieces, hidden_tc, start)
        states.append(hidden_tc)

    def spoilt(self, batch):
        for hidden_tc in states:
            hidden_tc.fill_(float("nan"))
        begin(self, batch)

    monkeypatch.setattr(Runner, "_read_prompts", noted)
    monkeypatch.setattr(Runner, "_begin_next", spoilt)
    got = sample(base, *requests, ahead=True)
    assert states
    same(got, wanted, requests)


def test_rows_that_end_or_come_meanwhile(base):
    versions = {"a": trained_adapter(base, 4, 1), "b": trained_adapter(base, 8, 2)}
    results = []
    for ahead in (True, False):
        sampler = Sampler(base, options=SamplerOptions(kv_bytes=8 << 20, ahead=ahead), detokenise=spell)
        got = Collected()
        requests = asked([20, 16, 3, 48, 7, 30, 16, 12])
        for i, item in enumerate(requests):
            version = [None, "a", "b"][i % 3]
            got.first[item.request_id] = sampler.submit(item, versions.get(version)).first_stream
            for _ in range(i % 3):
                got.take(sampler.step())
        sampler.cancel("r3")
        results.append(drain(sampler, got))
    same(*results, [item for item in requests if item.request_id != "r3"])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 24), st.integers(1, 3)), min_size=1, max_size=10),
    st.integers(6, 40),
    st.integers(1, 5),
)
def test_with_few_blocks_and_rows(base, given_rows, blocks, rows):
    """Rows give their blocks up and come back; prompts are read piece by piece."""
    random = np.random.default_rng(0)
    requests = [
        request(f"r{i}", random.integers(2, VOCAB, length).astype(np.int32), num_samples=samples,
                max_tokens=new, stop=(), seed=i)
        for i, (length, new, samples) in enumerate(given_rows)
    ]  # fmt: skip
    size = 2 * 2 * 2 * 16 * 4 * BLOCK
    options = {"kv_bytes": blocks * size, "max_rows": rows, "pass_tokens": 24}
    one, other = (sample(base, *requests, ahead=ahead, **options) for ahead in (True, False))
    assert one.failed.keys() == other.failed.keys()
    same(one, other, [item for item in requests if item.request_id not in one.failed])
