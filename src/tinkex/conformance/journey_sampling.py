"""A user's journey with our own client: sample from trained weights, and ask what they think of a text."""

from __future__ import annotations

from ..types import ModelInput, SamplingParams
from ..wire.paths import parse
from .checks import Skipped, check, expect, widest
from .examples import EXAMPLES, PROMPT, Example
from .surroundings import Surroundings

_CLOSE = 2e-2  # a sampler may compute in another precision than the trainer
_TEXT: list[int] = [9, 1, 9, 1, 9, 4, 6, 8]
_AS_EXAMPLE: list[Example] = [(_TEXT[:-1], _TEXT[1:], [1.0] * (len(_TEXT) - 1))]
_MOST_STEPS = 12
_CLEAR = 0.3  # logprobs that differ by this much are not the same weights


@check("journey/2.4/unnamed-sampler")
def unnamed_sampler(here: Surroundings) -> str:
    """Weights without a name can be sampled from at once."""
    sampler = here.traveller.unnamed_sampler
    (sequence,) = here.traveller.draw(sampler, stop=[])
    expect(len(sequence.tokens) == 6, f"asked for 6 tokens, got {sequence.tokens}")
    return f"{sampler.sampling_session_id}: {sequence.tokens}"


@check("journey/2.4/named-sampler")
def named_sampler(here: Surroundings) -> str:
    """Weights saved under a name are sampled from by their path, and are the same weights."""
    traveller = here.traveller
    path = traveller.sampler_path
    expect(parse(path).checkpoint_id == "sampler_weights/conformance-sampler", f"saved as {path}")
    named = traveller.service.create_sampling_client(model_path=path)
    unnamed = traveller.trainer.save_weights_and_get_sampling_client()
    apart = widest(traveller.scores(named, _TEXT), traveller.scores(unnamed, _TEXT))
    expect(apart <= _CLOSE, f"named and unnamed weights differ by {apart:.2g}")
    return f"{path}, within {apart:.1g} of the unnamed ones"


@check("journey/2.5/sample")
def sample(here: Surroundings) -> str:
    """A sample has as many tokens as asked for, each with its logprob."""
    sequences = here.traveller.draw(here.traveller.base_sampler, 2, stop=[], max_tokens=5)
    expect(len(sequences) == 2, f"{len(sequences)} sequences, not 2")
    for each in sequences:
        expect(len(each.tokens) == 5, f"{len(each.tokens)} tokens, not 5")
        expect(each.logprobs is not None and len(each.logprobs) == 5, f"logprobs: {each.logprobs}")
        expect(all(value <= 1e-3 for value in each.logprobs), f"logprobs: {each.logprobs}")
        expect(each.stop_reason == "length", f"stop_reason {each.stop_reason}")
    return f"{sequences[0].tokens}, {sequences[1].tokens}"


@check("journey/3.6/stop")
def stop(here: Surroundings) -> str:
    """A stop token ends a sample, and is its last token."""
    traveller = here.traveller
    (free,) = traveller.draw(traveller.base_sampler, stop=[], temperature=0.0)
    end = free.tokens[2]
    (ended,) = traveller.draw(traveller.base_sampler, stop=[end], temperature=0.0)
    expected = free.tokens[: free.tokens.index(end) + 1]
    expect(ended.tokens == expected, f"stopped at {end}: {ended.tokens}, not {expected}")
    expect(ended.stop_reason == "stop", f"stop_reason {ended.stop_reason}")
    return f"{free.tokens} ended at {end}"


@check("journey/3.6/seed")
def seed(here: Surroundings) -> str:
    """The same seed gives the same tokens, another seed others."""
    traveller = here.traveller
    drawn = [
        [
            each.tokens
            for each in traveller.draw(traveller.base_sampler, 2, stop=[], max_tokens=12, seed=number)
        ]
        for number in (11, 11, 12)
    ]
    expect(drawn[0] == drawn[1], f"seed 11 gave {drawn[0]}, then {drawn[1]}")
    expect(drawn[0] != drawn[2], f"seeds 11 and 12 both gave {drawn[0]}")
    return f"{drawn[0][0][:4]}… twice, then {drawn[2][0][:4]}…"


@check("journey/3.6/several-samples")
def several_samples(here: Surroundings) -> str:
    """Several samples of one prompt differ from each other, with and without a seed."""
    traveller = here.traveller
    for settings in ({}, {"seed": 3}):
        drawn = traveller.draw(
            traveller.base_sampler, 4, stop=[], max_tokens=16, temperature=1.0, **settings
        )
        different = len({tuple(each.tokens) for each in drawn})
        expect(different > 1, f"4 samples {settings or 'without a seed'} are all {drawn[0].tokens}")
    return f"{different} of 4 differ"


@check("journey/3.6/greedy")
def greedy(here: Surroundings) -> str:
    """At temperature 0 the likeliest token is taken, so all samples are one."""
    traveller = here.traveller
    drawn = traveller.draw(traveller.base_sampler, 3, stop=[], temperature=0.0)
    expect(len({tuple(each.tokens) for each in drawn}) == 1, f"{[each.tokens for each in drawn]}")
    return f"{drawn[0].tokens}, 3 times"


@check("journey/2.5/sampled-logprobs")
def sampled_logprobs(here: Surroundings) -> str:
    """The logprobs of sampled tokens are those the sampler computes for the same text."""
    traveller = here.traveller
    sampler = traveller.unnamed_sampler
    (drawn,) = traveller.draw(sampler, stop=[], temperature=1.0, seed=5)
    scores = traveller.scores(sampler, [*PROMPT, *drawn.tokens])
    expect(scores[0] is None, f"the first token has a logprob: {scores[0]}")
    apart = widest(drawn.logprobs, scores[len(PROMPT) :])
    expect(apart <= _CLOSE, f"sampled with {drawn.logprobs}, computed {scores[len(PROMPT) :]}")
    return f"within {apart:.1g}"


@check("journey/2.5/compute-logprobs")
def compute_logprobs(here: Surroundings) -> str:
    """The sampler's logprobs of a text are the training pass's."""
    traveller = here.traveller
    trainer = traveller.train()
    traveller.step(trainer)
    trained = traveller.look(trainer, _AS_EXAMPLE)[0]
    scores = traveller.scores(trainer.save_weights_and_get_sampling_client(), _TEXT)
    expect(len(scores) == len(_TEXT), f"{len(scores)} logprobs for {len(_TEXT)} tokens")
    apart = widest(trained, scores[1:])
    expect(apart <= _CLOSE, f"the trainer says {trained}, the sampler {scores[1:]}")
    return f"within {apart:.1g}"


@check("journey/2.5/frozen-sampler")
def frozen_sampler(here: Surroundings) -> str:
    """A sampler keeps its weights while training goes on, and sampling changes no training weight."""
    traveller = here.traveller
    trainer = traveller.train()
    path = traveller.saved(trainer.save_weights_for_sampler("conformance-frozen"))
    old = traveller.service.create_sampling_client(model_path=path)
    unnamed = trainer.save_weights_and_get_sampling_client()
    before = traveller.scores(old, _TEXT)
    start = traveller.look(trainer, _AS_EXAMPLE)
    for _ in range(_MOST_STEPS):
        traveller.step(trainer, [*EXAMPLES, *_AS_EXAMPLE])
        moved = widest(start, now := traveller.look(trainer, _AS_EXAMPLE))
        if moved > _CLEAR:
            break
    else:
        raise Skipped(f"{_MOST_STEPS} steps moved logprobs by {moved:.2g} only: nothing to tell apart")
    for name, sampler in (("named", old), ("unnamed", unnamed)):
        apart = widest(before, traveller.scores(sampler, _TEXT))
        expect(
            apart <= _CLOSE, f"the {name} sampler moved by {apart:.2g} while training moved by {moved:.2g}"
        )
    traveller.draw(old, 2, stop=[])
    apart = widest(now, traveller.look(trainer, _AS_EXAMPLE))
    expect(apart <= _CLOSE, f"sampling from old weights moved the training weights by {apart:.2g}")
    fresh = trainer.save_weights_and_get_sampling_client()
    apart = widest(now[0], traveller.scores(fresh, _TEXT)[1:])
    expect(apart <= _CLOSE, f"a new sampler is {apart:.2g} away from the weights of now")
    return f"training moved by {moved:.2g}, the samplers by less than {_CLOSE}"


@check("journey/2.5/prompt-details")
def prompt_details(here: Surroundings) -> str:
    """The likeliest alternatives at each place of a prompt are given, likeliest first."""
    traveller = here.traveller
    sampler = traveller.base_sampler
    prompt = ModelInput.from_ints(PROMPT)
    made = traveller.wait(
        sampler.sample(
            prompt, 1, SamplingParams(max_tokens=1), include_prompt_logprobs=True, topk_prompt_logprobs=3
        )
    )
    rows = made.topk_prompt_logprobs or []
    expect(len(rows) == len(PROMPT), f"topk_prompt_logprobs: {rows}")
    expect(rows[0] is None, f"the first token has alternatives: {rows[0]}")
    for place, row in enumerate(rows[1:], 1):
        values = [value for _, value in row or ()]
        expect(len(values) == 3 and values == sorted(values, reverse=True), f"place {place}: {row}")
        said = (made.prompt_logprobs or [])[place]
        expect(
            said is not None and said <= values[0] + _CLOSE,
            f"place {place}: {said} above the likeliest {row}",
        )
    return f"3 at each of {len(PROMPT) - 1} places"
