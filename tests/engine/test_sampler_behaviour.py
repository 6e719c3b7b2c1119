"""Sampling as a service: seeds, stops, sharing, cancelling, full memory, and bits under any load."""

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from tinkex.engine.base_model import BaseModel
from tinkex.engine.faults import UserFault
from tinkex.engine.messages import LENGTH, STOP, ScoreOptions
from tinkex.engine.sampler import Sampler, SamplerOptions

from .sampling_models import Collected, base_model, drain, prompts, request, sample, spell, trained_adapter

PROMPT = prompts(1, 37, 38, seed=1)[0]


@pytest.fixture(scope="module")
def base():
    return base_model("qwen3")[0]


@pytest.fixture(scope="module")
def adapters(base):
    return {"a": trained_adapter(base, 4, seed=1), "b": trained_adapter(base, 8, seed=2)}


def make(base, blocks=400, **options):
    options = {"deterministic": False} | options
    size = 32 if options["deterministic"] else 16
    per_token = 2 * 2 * 2 * 16 * 4
    return Sampler(
        base, options=SamplerOptions(kv_bytes=blocks * size * per_token, **options), detokenise=spell
    )


def test_seeds_repeat_and_samples_differ(base):
    ask = {"max_tokens": 16, "stop": ()}
    got = sample(
        base,
        request("one", PROMPT, 4, seed=5, **ask),
        request("again", PROMPT, 4, seed=5, **ask),
        request("other", PROMPT, 4, seed=6, **ask),
        request("free", PROMPT, 4, **ask),
        request("few", PROMPT, 2, seed=5, **ask),
    )
    answers = {
        name: [got.of(name, i) for i in range(n)]
        for name, n in zip(got.first, (4, 4, 4, 4, 2), strict=True)
    }
    assert answers["one"] == answers["again"]
    assert answers["few"] == answers["one"][:2]
    everything = [tuple(tokens) for name in ("one", "other", "free") for tokens in answers[name]]
    assert len(set(everything)) == 12


def test_seeds_may_be_any_64_bit_number(base):
    got = sample(base, *(request(str(s), PROMPT, max_tokens=3, seed=s) for s in (0, 2**63, 2**64 - 1, -1)))
    assert got.of(str(2**64 - 1)) == got.of("-1")


def test_stops(base):
    free = sample(base, request("free", PROMPT, seed=2, max_tokens=30, stop=())).of("free")
    assert len(free) == 30
    token = free[9]
    first = free.index(token)
    text = spell(free)
    string = text[10:13]
    end = text.index(string) + 3
    got = sample(
        base,
        request("token", PROMPT, seed=2, max_tokens=30, stop=(token,)),
        request("string", PROMPT, seed=2, max_tokens=30, stop=(string,)),
        request("length", PROMPT, seed=2, max_tokens=end - 1, stop=(string,)),
        request("context", PROMPT, seed=2, stop=()),
    )
    assert got.of("token") == free[: first + 1]
    assert got.of("string") == free[:end]
    assert (got.reason("token"), got.reason("string")) == (STOP, STOP)
    assert got.of("length") == free[: end - 1]
    assert got.reason("length") == LENGTH
    assert len(got.of("context")) == base.context_length - len(PROMPT)
    assert got.reason("context") == LENGTH


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"prompt": np.array([], np.int32)}, "no tokens"),
        ({"prompt": np.array([3, 96])}, "outside 0 to 95"),
        ({"prompt": np.array([3, 1 << 32])}, "outside 0 to 95"),
        ({"prompt": np.array([3.5])}, "outside 0 to 95"),
        ({"prompt": np.zeros((2, 2), np.int32)}, "2 dimensions"),
        ({"max_tokens": 400}, "prompt 37 \\+ max_tokens 400 > context 256"),
        ({"num_samples": 0}, "num_samples must be between 1 and 16384, got 0"),
        ({"num_samples": 10**9}, "num_samples"),
        ({"temperature": -0.5}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"media": ("image",)}, "image input; this model reads text only"),
        ({"scores": ScoreOptions(prompt_logprobs=True, last_n=37)}, "last_n must be between 1 and 36"),
        ({"scores": ScoreOptions(topk_sample=97)}, "topk_sample_logprobs"),
        ({"scores": ScoreOptions(targets=np.zeros((3, 1), np.int64))}, "\\[36, K\\]"),
        ({"scores": ScoreOptions(targets=np.full((36, 1), 96))}, "outside"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_sampled_is_refused_with_a_reason(base, change, text):
    sampler = make(base)
    with pytest.raises(UserFault, match=text):
        sampler.submit(request("x", **({"prompt": PROMPT} | change)), None)
    assert not sampler.busy


def test_the_memory_may_be_smaller_than_the_context(base):
    sampler = make(base, blocks=4)
    with pytest.raises(UserFault, match="prompt 37 \\+ max_tokens 60 > context 64"):
        sampler.submit(request("x", PROMPT, max_tokens=60), None)
    got = sample(base, request("x", PROMPT, stop=()), sampler=sampler)
    assert len(got.of("x")) == 64 - 37


@pytest.mark.parametrize("deterministic", [False, True], ids=["fast", "exact"])
def test_a_cached_prefix_changes_nothing(base, adapters, deterministic):
    scores = ScoreOptions(prompt_logprobs=True, last_n=2)
    ask = {"version": "a", "seed": 3, "max_tokens": 12, "stop": (), "scores": scores}
    sampler = make(base, deterministic=deterministic)
    miss = sample(base, request("miss", PROMPT, 2, **ask), adapters=adapters, sampler=sampler)
    hit = sample(base, request("hit", PROMPT, 2, **ask), adapters=adapters, sampler=sampler)
    assert miss.done["miss"].cache_hit_tokens == 0
    assert hit.done["hit"].cache_hit_tokens == 32
    for i in range(2):
        assert miss.of("miss", i) == hit.of("hit", i)
    same = np.array_equal if deterministic else lambda x, y: np.allclose(x, y, atol=1e-4)
    assert same(miss.logprobs_of("miss"), hit.logprobs_of("hit"))
    assert same(miss.done["miss"].prompt_logprobs[-2:], hit.done["hit"].prompt_logprobs[-2:])


@pytest.mark.parametrize("drawn", [26, 27, 28, 30])
def test_the_next_turn_finds_the_last_one(base, drawn):
    sampler = make(base)
    first = sample(base, request("first", PROMPT, seed=1, max_tokens=drawn, stop=()), sampler=sampler)
    longer = np.concatenate([PROMPT, first.of("first"), [5, 6, 7]])
    second = sample(base, request("second", longer, temperature=0.0, max_tokens=9), sampler=sampler)
    # The last token was drawn and not read: a block that ends with it is not whole.
    assert second.done["second"].cache_hit_tokens == (37 + drawn - 1) // 16 * 16
    fresh = sample(base, request("fresh", longer, temperature=0.0, max_tokens=9))
    assert second.of("second") == fresh.of("fresh")


def test_other_owners_and_versions_find_nothing(base, adapters):
    sampler = make(base)
    for name, version, owner, hit in [
        ("1", "a", "ann", 0),
        ("2", "a", "ann", 32),
        ("3", "a", "bob", 0),
        ("4", "b", "ann", 0),
    ]:
        ask = request(name, PROMPT, version=version, owner=owner, max_tokens=2)
        got = sample(base, ask, adapters=adapters, sampler=sampler)
        assert got.done[name].cache_hit_tokens == hit


def test_samples_of_one_prompt_share_its_blocks(base):
    sampler = make(base)
    sampler.submit(request("x", PROMPT, 8, max_tokens=8, stop=()), None)
    before = sampler.pool.free
    sampler.step()
    sampler.step()
    assert before - sampler.pool.free == 2 + 8
    drain(sampler, Collected())
    assert sampler.pool.free == before


def test_equal_prompts_that_arrive_together_are_computed_once(base):
    sampler = make(base)
    got = Collected()
    for i in range(4):
        got.first[str(i)] = sampler.submit(
            request(str(i), PROMPT, max_tokens=4, seed=i, stop=()), None
        ).first_stream
    drain(sampler, got)
    assert [got.done[str(i)].cache_hit_tokens for i in range(4)] == [0, 32, 32, 32]


@pytest.mark.parametrize("when", [0, 1, 2, 5])
def test_cancel_frees_rows_and_blocks_at_once(base, when):
    sampler = make(base, pass_tokens=16)
    whole = sampler.pool.free
    sampler.submit(request("x", PROMPT, 4, max_tokens=50, stop=()), None)
    for _ in range(when):
        sampler.step()
    assert sampler.cancel("x")
    assert not sampler.cancel("x")
    assert not sampler.busy
    assert sampler.pool.free == whole
    assert sampler.step() == []


def test_cancelling_one_leaves_the_others_alone(base):
    ask = {"max_tokens": 20, "stop": ()}
    alone = sample(base, request("keep", PROMPT, 2, seed=1, **ask))
    sampler = make(base)
    got = Collected()
    for name in ("drop", "keep"):
        got.first[name] = sampler.submit(request(name, PROMPT, 2, seed=1, **ask), None).first_stream
    for _ in range(6):
        got.take(sampler.step())
    sampler.cancel("drop")
    drain(sampler, got)
    assert [got.of("keep", i) for i in range(2)] == [alone.of("keep", i) for i in range(2)]
    assert "drop" not in got.done


@pytest.mark.parametrize("deterministic", [False, True], ids=["fast", "exact"])
@pytest.mark.parametrize("max_rows", [3, 16])
def test_running_out_of_blocks_changes_no_token(base, adapters, deterministic, max_rows):
    asks = [
        request(str(i), p, 3, version="ab"[i % 2], seed=i, max_tokens=60, stop=())
        for i, p in enumerate(prompts(6, 10, 50, seed=4))
    ]
    roomy = sample(base, *asks, adapters=adapters, deterministic=deterministic)
    sampler = make(base, blocks=12 if deterministic else 16, deterministic=deterministic, max_rows=max_rows)
    tight = sample(base, *asks, adapters=adapters, sampler=sampler)
    if max_rows == 16:
        assert sampler.scheduler.preemptions > 0
    for i in range(6):
        for n in range(3):
            assert tight.of(str(i), n) == roomy.of(str(i), n)
            if deterministic:
                assert tight.logprobs_of(str(i), n) == roomy.logprobs_of(str(i), n)
    assert sampler.pool.free == sampler.pool.count


def test_exact_bits_do_not_depend_on_load(base, adapters):
    asks = [
        request(
            str(i), p, 1 + i % 3, version=["a", "b", ""][i % 3], seed=i, max_tokens=5 + 7 * i % 40, stop=()
        )
        for i, p in enumerate(prompts(9, 3, 90, seed=8))
    ]
    together = sample(base, *asks, adapters=adapters, deterministic=True)
    for ask in asks:
        alone = sample(base, ask, adapters=adapters, deterministic=True)
        for n in range(ask.num_samples):
            assert alone.of(ask.request_id, n) == together.of(ask.request_id, n)
            assert alone.logprobs_of(ask.request_id, n) == together.logprobs_of(ask.request_id, n)


def test_more_samples_than_rows(base):
    ask = {"seed": 4, "max_tokens": 7, "stop": ()}
    few = sample(base, request("x", PROMPT, 11, **ask), max_rows=3)
    many = sample(base, request("x", PROMPT, 11, **ask))
    assert [few.of("x", i) for i in range(11)] == [many.of("x", i) for i in range(11)]


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_request_of_many_samples_does_not_keep_another_owner_waiting(base, deterministic):
    options = SamplerOptions(kv_bytes=8 << 20, max_rows=4, deterministic=deterministic)
    sampler, got = Sampler(base, options=options), Collected()
    many = request("many", PROMPT, num_samples=60, owner="a", max_tokens=8, stop=(), seed=1)
    one = request("one", PROMPT, owner="b", max_tokens=8, stop=(), seed=1)
    got.first["many"] = sampler.submit(many, None).first_stream
    for _ in range(3):
        got.take(sampler.step())
    got.first["one"] = sampler.submit(one, None).first_stream
    while "one" not in got.done:
        got.take(sampler.step())
    assert got.steps < 30
    assert "many" not in got.done
    drain(sampler, got)
    assert got.of("many", 0) == got.of("one"), "the same seed: the same tokens, whoever is there"


def test_rows_join_between_steps(base):
    sampler = make(base)
    got = Collected()
    alone = sample(base, request("late", PROMPT, seed=2, max_tokens=9, stop=()))
    for i in range(5):
        name = f"early{i}"
        got.first[name] = sampler.submit(
            request(name, PROMPT[: 20 + i], max_tokens=40, stop=()), None
        ).first_stream
    for _ in range(7):
        got.take(sampler.step())
    got.first["late"] = sampler.submit(
        request("late", PROMPT, seed=2, max_tokens=9, stop=()), None
    ).first_stream
    drain(sampler, got)
    assert got.of("late") == alone.of("late")
    assert all(len(got.of(f"early{i}")) == 40 for i in range(5))


def test_one_message_a_step_for_all_rows(base):
    got = sample(base, *(request(str(i), p, 2, max_tokens=10, stop=()) for i, p in enumerate(prompts(5))))
    assert got.steps <= 12
    assert sum(map(len, got.tokens.values())) == 100


def test_diverged_weights_fail_the_request_and_no_other(base, adapters):
    broken = trained_adapter(base, 4, seed=7)
    broken.master.flat.fill_(float("nan"))
    broken.refresh()
    got = sample(
        base,
        request("bad", PROMPT, version="bad", seed=1, max_tokens=5),
        request("good", PROMPT, version="a", seed=1, max_tokens=5, stop=()),
        adapters=adapters | {"bad": broken},
    )
    assert got.failed["bad"].category == "user"
    assert "not finite" in got.failed["bad"].text
    assert len(got.of("good")) == 5


@pytest.mark.parametrize("exact", [False, True], ids=["usual", "deterministic"])
def test_diverged_weights_leave_nothing_in_blocks_others_get(base, exact):
    broken = trained_adapter(base, 4, seed=7)
    broken.master.flat.fill_(float("nan"))
    broken.refresh()
    sampler = make(base, blocks=60, deterministic=exact, pass_tokens=64)
    if not exact:
        sampler.runner.slots.dense = None  # whole blocks are read, the places behind a row's end too
    got = Collected()
    for i, prompt in enumerate(prompts(8, 90, 91, seed=3)):
        scores = ScoreOptions(prompt_logprobs=True)
        sampler.submit(request(f"bad {i}", prompt, version="bad", max_tokens=0, scores=scores), broken)
    got.take(sampler.step())
    sampler.cancel("bad 7")
    drain(sampler, got)
    assert set(got.failed) == {f"bad {i}" for i in range(7)}
    assert {each.category for each in got.failed.values()} == {"user"}
    assert torch.isfinite(sampler.cache.pool_y2pkd).all()
    assert sampler.pool.cached == 0
    asked = [request(f"good {i}", x, owner="o", max_tokens=9, stop=()) for i, x in enumerate(prompts(9))]
    assert not sample(base, *asked, sampler=sampler).failed


def test_a_tokenizer_that_fails_fails_its_request_alone(base):
    def picky(tokens):
        if len(tokens) > 1:
            raise KeyError("no such token")
        return spell(tokens)

    sampler = Sampler(base, options=SamplerOptions(kv_bytes=4 << 20), detokenise=picky)
    got = sample(
        base,
        request("text", PROMPT, 2, seed=1, max_tokens=20, stop=("never appears",)),
        request("plain", PROMPT, seed=1, max_tokens=20, stop=()),
        sampler=sampler,
    )
    assert got.failed["text"].category == "server"
    assert len(got.of("plain")) == 20
    assert sampler.pool.free == sampler.pool.count


def test_a_pass_that_breaks_fails_its_requests_and_the_next_works(base, monkeypatch):
    sampler = make(base)
    sampler.submit(request("x", PROMPT, 2, max_tokens=20), None)
    sampler.step()
    monkeypatch.setattr(base, "hidden_states", lambda *_: 1 / 0)
    (answer,) = sampler.step()
    assert (answer.category, answer.request_id) == ("server", "x")
    assert "ZeroDivisionError" in answer.text
    monkeypatch.undo()
    assert not sampler.busy
    assert sampler.pool.free == sampler.pool.count
    assert len(sample(base, request("y", PROMPT, max_tokens=4, stop=()), sampler=sampler).of("y")) == 4


@pytest.mark.slow
def test_exact_bits_do_not_depend_on_load_with_several_threads():
    torch.manual_seed(0)
    shape = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 2, "head_dim": 32}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 4096}
    base = BaseModel(Qwen3ForCausalLM(Qwen3Config(**shape, **heads, max_position_embeddings=512)).eval())
    adapters = {str(rank): trained_adapter(base, rank, seed=rank) for rank in (4, 8)}
    asks = [
        request(str(i), p, version=["4", "8"][i % 2], seed=i, max_tokens=20 + i, stop=())
        for i, p in enumerate(prompts(14, 3, 60, seed=8))
    ]
    torch.set_num_threads(2)
    try:
        together = sample(base, *asks, adapters=adapters, deterministic=True, kv_bytes=64 << 20)
        for ask in asks:
            alone = sample(base, ask, adapters=adapters, deterministic=True, kv_bytes=64 << 20)
            assert alone.of(ask.request_id) == together.of(ask.request_id)
            assert alone.logprobs_of(ask.request_id) == together.logprobs_of(ask.request_id)
    finally:
        torch.set_num_threads(1)
