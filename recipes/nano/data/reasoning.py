"""Short procedural tasks from the reasoning-gym package."""

from .chat import Chat, single
from .lexicon import UNFIT

SETS: dict[str, dict[str, int]] = {
    "spell_backward": {"min_word_len": 3, "max_word_len": 6},
    "letter_counting": {"min_words": 1, "max_words": 4},
    "family_relationships": {"min_family_size": 3, "max_family_size": 5},
}


def make(count: int, seed: int) -> list[Chat]:
    """As many tasks of each set as asked for."""
    import reasoning_gym

    found = []
    for name, options in SETS.items():
        for item in reasoning_gym.create_dataset(name, size=count, seed=seed, **options):
            question, answer = " ".join(item["question"].split()), item["answer"]
            text = (question + answer).lower()
            if question.isascii() and not UNFIT.search(text) and len(question) < 300:
                found.append(single(f"gym: {name.replace('_', ' ')}", question, answer))
    return found
