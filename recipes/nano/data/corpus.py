"""The whole CPU-made corpus: every source, in fixed shares, from one seed."""

import random
from collections.abc import Callable
from pathlib import Path

from . import conversation, everyday, letters, numbers, reasoning, sums, talk, world
from .chat import Chat, held_out
from .lexicon import Lexicon

SHARES = {
    "letters": 0.30,
    "numbers": 0.19,
    "everyday": 0.13,
    "world": 0.09,
    "definitions": 0.08,
    "kinds": 0.03,
    "small talk": 0.13,
    "remember": 0.05,
}


def build(sources: Path, count: int, sum_count: int, seed: int) -> dict[str, list[Chat]]:
    """Chats by split: `train` and `joined`, `sums` apart so that they can be rationed, and `test`."""
    rng = random.Random(f"corpus:{seed}")
    lexicon = Lexicon(sources / "wordnet")
    rows = world.countries(sources / "countryinfo")
    weights = world.weights(rows)
    letter_makers, letter_shares = zip(*letters.MAKERS, strict=True)
    number_makers, number_shares = zip(*numbers.MAKERS, strict=True)
    everyday_makers, everyday_shares = zip(*everyday.MAKERS, strict=True)
    talk_makers = (talk.fixed, talk.fixed, talk.greeting, talk.likes)
    makers: dict[str, Callable[[], Chat]] = {
        "letters": lambda: rng.choices(letter_makers, letter_shares)[0](rng, lexicon.words),
        "numbers": lambda: rng.choices(number_makers, number_shares)[0](rng),
        "everyday": lambda: rng.choices(everyday_makers, everyday_shares)[0](rng),
        "world": lambda: world.make(rng, rows, weights),
        "definitions": lambda: lexicon.definition(rng),
        "kinds": lambda: lexicon.kind_question(rng),
        "small talk": lambda: rng.choice(talk_makers)(rng),
        "remember": lambda: talk.remember(rng),
    }
    chats = [makers[name]() for name, share in SHARES.items() for _ in range(round(share * count))]
    chats += reasoning.make(max(4, count // 60), seed)
    chats += talk.chatter(sources / "chatterbot") * max(1, count // 25000)
    rng.shuffle(chats)
    test = [c for c in chats if held_out(c)]
    train = [c for c in chats if not held_out(c)]
    joined = [conversation.join(rng, train) for _ in range(count // 6)]
    drawn = [sums.make(rng) for _ in range(sum_count)]
    return {
        "train": [conversation.dress(rng, c) for c in train],
        "joined": joined,
        "sums": [conversation.dress(rng, c) for c in drawn if not held_out(c)],
        "test": list(dict.fromkeys(test)) + list(dict.fromkeys(c for c in drawn if held_out(c))),
    }


def reading(sources: Path) -> list[str]:
    """Plain text beside the stories: definitions."""
    return Lexicon(sources / "wordnet").text()
