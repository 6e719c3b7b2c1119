"""Tasks on numbers that are no sums: compare, sort, count, name, find neighbours."""

import random
from collections.abc import Callable

from .chat import Chat, single

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()


def in_words(n: int) -> str:
    """A number below 100 in words."""
    if n < 20:
        return ONES[n]
    return TENS[n // 10] + (f"-{ONES[n % 10]}" if n % 10 else "")


def any_number(rng: random.Random) -> int:
    """A number below 100, small ones more often."""
    return rng.randint(0, rng.choice([10, 20, 99, 99]))


def compare(rng: random.Random) -> Chat:
    """The larger or smaller of two numbers."""
    a, b = any_number(rng), any_number(rng)
    if a == b:
        b += 1
    asks = [
        ("Which is larger, {a} or {b}?", max(a, b)),
        ("Which number is bigger: {a} or {b}?", max(a, b)),
        ("What is the larger of {a} and {b}?", max(a, b)),
        ("Which is smaller, {a} or {b}?", min(a, b)),
        ("Which number is less: {a} or {b}?", min(a, b)),
    ]
    ask, answer = rng.choice(asks)
    return single("compare numbers", ask.format(a=a, b=b), str(answer))


def more_or_less(rng: random.Random) -> Chat:
    """Yes or no on an order of two numbers."""
    a, b = any_number(rng), any_number(rng)
    word, truth = rng.choice(
        [("larger", a > b), ("bigger", a > b), ("more", a > b), ("smaller", a < b), ("less", a < b)]
    )
    return single("compare yes or no", f"Is {a} {word} than {b}?", "Yes." if truth else "No.")


def extreme(rng: random.Random) -> Chat:
    """Largest or smallest of three or four."""
    some = rng.sample(range(100 if rng.random() < 0.6 else 20), rng.randint(3, 4))
    shown = ", ".join(map(str, some))
    ask, answer = rng.choice(
        [
            ("What is the largest of {}?", max(some)),
            ("Which number is the biggest: {}?", max(some)),
            ("What is the smallest of {}?", min(some)),
            ("Find the smallest number: {}", min(some)),
        ]
    )
    return single("largest and smallest", ask.format(shown), str(answer))


def sort_three(rng: random.Random) -> Chat:
    """Sort three numbers."""
    some = rng.sample(range(rng.choice([10, 20, 100])), 3)
    shown = rng.choice([", ", " "]).join(map(str, some))
    if rng.random() < 0.75:
        ask = rng.choice(
            ["Sort these numbers: {}", "Sort: {}", "Put in order: {}", "Sort from small to large: {}"]
        )
        return single("sort three numbers", ask.format(shown), ", ".join(map(str, sorted(some))))
    return single(
        "sort three numbers", f"Sort from large to small: {shown}", ", ".join(map(str, sorted(some)[::-1]))
    )


def neighbour(rng: random.Random) -> Chat:
    """The number before or after."""
    n = rng.randint(1, 99)
    ask, answer = rng.choice(
        [
            ("Which number comes after {}?", n + 1),
            ("What comes after {}?", n + 1),
            ("Which number comes before {}?", n - 1),
            ("What number is just before {}?", n - 1),
        ]
    )
    return single("next number", ask.format(n), str(answer))


def count_up(rng: random.Random) -> Chat:
    """Count a short way up or down."""
    start, steps = rng.choice([1, 1, rng.randint(0, 40)]), rng.randint(3, 10)
    span = list(range(start, start + steps))
    if rng.random() < 0.6:
        ask = rng.choice(
            ["Count from {a} to {b}.", "Count up from {a} to {b}.", "Please count from {a} to {b}."]
        )
    else:
        span.reverse()
        ask = rng.choice(["Count down from {a} to {b}.", "Count backwards from {a} to {b}."])
    return single("count", ask.format(a=span[0], b=span[-1]), ", ".join(map(str, span)))


def series(rng: random.Random) -> Chat:
    """Go on with a series of equal steps."""
    step = rng.choice([1, 1, 2, 2, 3, 5, 10])
    start = rng.randint(0, 9) * (step if step in (5, 10) else 1)
    some = [start + step * i for i in range(4)]
    ask = rng.choice(["What comes next: {}?", "Continue: {}", "Next number: {}"])
    return single("series", ask.format(", ".join(map(str, some))), str(start + step * 4))


def even_odd(rng: random.Random) -> Chat:
    """Even or odd."""
    n = any_number(rng)
    name = "even" if n % 2 == 0 else "odd"
    if rng.random() < 0.5:
        return single("even or odd", f"Is {n} even or odd?", name.capitalize() + ".")
    asked = rng.choice(["even", "odd"])
    return single("even or odd", f"Is {n} an {asked} number?", "Yes." if asked == name else "No.")


def names(rng: random.Random) -> Chat:
    """Digits to words and back."""
    n = any_number(rng)
    if rng.random() < 0.5:
        ask = rng.choice(["Write {} in words.", "Say {} in words.", "How do you write {} in words?"])
        return single("number words", ask.format(n), in_words(n))
    ask = rng.choice(["Write {} as a number.", "Write {} in digits.", "Which number is {}?"])
    return single("number words", ask.format(in_words(n)), str(n))


def count_marks(rng: random.Random) -> Chat:
    """Count equal marks or words."""
    n = rng.randint(1, 9)
    mark = rng.choice(["*", "x", "o", "#", "ha", "la", "hop", "cat"])
    ask = rng.choice(["How many {m} are here: {s}", "Count: {s}", "Count the {m}: {s}"])
    return single("count things", ask.format(m=mark, s=" ".join([mark] * n)), str(n))


def repeat_number(rng: random.Random) -> Chat:
    """Say numbers again."""
    some = [str(any_number(rng)) for _ in range(rng.randint(1, 4))]
    ask = rng.choice(["Repeat: {}", "Say {}", "Repeat these numbers: {}"])
    return single("repeat numbers", ask.format(" ".join(some)), " ".join(some))


Maker = Callable[[random.Random], Chat]
MAKERS: tuple[tuple[Maker, float], ...] = (
    (compare, 2.0),
    (more_or_less, 1.0),
    (extreme, 1.5),
    (sort_three, 2.0),
    (neighbour, 1.0),
    (count_up, 1.2),
    (series, 0.8),
    (even_odd, 0.8),
    (names, 1.0),
    (count_marks, 1.0),
    (repeat_number, 0.8),
)
