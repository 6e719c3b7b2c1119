"""Small sums in many wordings; the answer to `What is a + b?` is the bare number."""

import random

from .chat import Chat, single

SMALL = 20
LARGE = 99
CANONICAL = "What is {a} + {b}?"
PLUS = (
    CANONICAL,
    CANONICAL,
    CANONICAL,
    "What is {a} plus {b}?",
    "{a} + {b} = ?",
    "{a} + {b}",
    "Add {a} and {b}.",
    "How much is {a} + {b}?",
    "Calculate {a} + {b}.",
    "What do you get when you add {a} and {b}?",
    "What is the sum of {a} and {b}?",
    "Please add {a} and {b}.",
)
MINUS = ("What is {a} - {b}?", "What is {a} minus {b}?", "{a} - {b} = ?", "Take {b} away from {a}.")
ITEMS = "apples balls books cakes coins cookies eggs flowers hats kites pencils shells stars toys".split()
PEOPLE = "Tom Lily Ben Mia Sam Anna Max Sue Tim Lucy Jack Amy Leo Sara Bob Jane".split()
TALES = (
    "{p} has {a} {i} and gets {b} more. How many {i} does {p} have now?",
    "{p} has {a} {i} and {q} has {b} {i}. How many {i} do they have together?",
    "There are {a} {i} on the table and {b} {i} in the box. How many {i} are there?",
)


def make(rng: random.Random) -> Chat:
    """One sum, difference or tiny word problem; most operands are at most SMALL."""
    top = SMALL if rng.random() < 0.85 else LARGE
    a, b = rng.randint(0, top), rng.randint(0, top)
    roll = rng.random()
    if roll < 0.70:
        return single("sums", rng.choice(PLUS).format(a=a, b=b), str(a + b))
    if roll < 0.78:
        c, d = rng.randint(0, 9), rng.randint(0, 9)
        first, then = (CANONICAL.format(a=x, b=y) for x, y in ((c, d), (a, b)))
        return Chat("sums after an example", ((first, str(c + d)), (then, str(a + b))), exact=True)
    if roll < 0.90:
        a, b = max(a, b), min(a, b)
        return single("differences", rng.choice(MINUS).format(a=a, b=b), str(a - b))
    p, q = rng.sample(PEOPLE, 2)
    return single(
        "sums in words", rng.choice(TALES).format(p=p, q=q, a=a, b=b, i=rng.choice(ITEMS)), str(a + b)
    )


def probes() -> list[tuple[str, str]]:
    """Every pair of operands up to SMALL in the canonical wording, with its answer."""
    pairs = [(a, b) for a in range(SMALL + 1) for b in range(SMALL + 1)]
    return [(CANONICAL.format(a=a, b=b), str(a + b)) for a, b in pairs]
