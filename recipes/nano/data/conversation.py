"""Longer conversations put together from single exchanges."""

import random

from . import talk
from .chat import Chat


def dress(rng: random.Random, chat: Chat) -> Chat:
    """The same chat, sometimes with a system message."""
    if chat.system or rng.random() > 0.12:
        return chat
    return Chat(chat.kind, chat.turns, rng.choice(talk.SYSTEMS), chat.exact)


def join(rng: random.Random, pool: list[Chat]) -> Chat:
    """Two to five exchanges in a row, often with a greeting first and thanks last."""
    turns: list[tuple[str, str]] = []
    if rng.random() < 0.4:
        turns += talk.greeting(rng).turns
    for chat in rng.choices(pool, k=rng.randint(1, 4)):
        turns += chat.turns
    roll = rng.random()
    if roll < 0.15:
        turns.append((rng.choice(["Thank you!", "Thanks!", "Thank you."]), "You are welcome!"))
    elif roll < 0.3:
        turns.append((rng.choice(["Bye!", "Goodbye!"]), "Goodbye!"))
    system = rng.choice(talk.SYSTEMS) if rng.random() < 0.3 else ""
    return Chat("conversations", tuple(turns[:6]), system)
