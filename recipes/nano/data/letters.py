"""Tasks on words and letters: repeat, reverse, change case, count, spell."""

import random
from collections.abc import Callable

from .chat import Chat, single

Maker = Callable[[random.Random, list[str]], Chat]


def repeat(rng: random.Random, words: list[str]) -> Chat:
    """Say a word or a few words again."""
    phrase = " ".join(rng.choices(words, k=rng.randint(1, 4)))
    ask = rng.choice(
        [
            "Repeat: {}",
            "Repeat after me: {}",
            "Say {}",
            "Say this: {}",
            "Please repeat the words: {}",
            "Echo: {}",
        ]
    )
    return single("repeat", ask.format(phrase), phrase)


def repeat_times(rng: random.Random, words: list[str]) -> Chat:
    """Say a word two to five times."""
    word, times = rng.choice(words), rng.randint(2, 5)
    name = ["", "", "two", "three", "four", "five"][times]
    ask = rng.choice(["Say {w} {n} times.", "Repeat the word {w} {n} times.", "Write {w} {n} times."])
    return single(
        "repeat times", ask.format(w=word, n=rng.choice([name, str(times)])), " ".join([word] * times)
    )


def reverse(rng: random.Random, words: list[str]) -> Chat:
    """Spell a short word backwards."""
    word = rng.choice([w for w in rng.choices(words, k=12) if len(w) <= 6] or ["cat"])
    ask = rng.choice(
        [
            "Reverse the word {}.",
            "Spell {} backwards.",
            "Write {} backwards.",
            "What is {} spelled backwards?",
            "Reverse: {}",
        ]
    )
    return single("reverse", ask.format(word), word[::-1])


def reverse_list(rng: random.Random, words: list[str]) -> Chat:
    """Turn the order of a few words around."""
    some = rng.sample(words, rng.randint(2, 4))
    ask = rng.choice(["Reverse the order of these words: {}", "Say these words in reverse order: {}"])
    return single("reverse words", ask.format(", ".join(some)), ", ".join(some[::-1]))


def upper(rng: random.Random, words: list[str]) -> Chat:
    """Put words in capital letters, or back in small letters."""
    phrase = " ".join(rng.choices(words, k=rng.randint(1, 3)))
    if rng.random() < 0.6:
        ask = rng.choice(
            [
                "Write {} in upper case.",
                "Write {} in capital letters.",
                "Upper-case: {}",
                "Make this loud: {}",
            ]
        )
        return single("upper case", ask.format(phrase), phrase.upper())
    ask = rng.choice(["Write {} in lower case.", "Write {} in small letters.", "Lower-case: {}"])
    return single("lower case", ask.format(phrase.upper()), phrase)


def capitalise(rng: random.Random, words: list[str]) -> Chat:
    """Give each word a capital first letter."""
    phrase = " ".join(rng.choices(words, k=rng.randint(1, 3)))
    ask = rng.choice(["Capitalise: {}", "Start each word with a capital letter: {}"])
    return single("capitalise", ask.format(phrase), phrase.title())


def edge_letter(rng: random.Random, words: list[str]) -> Chat:
    """First or last letter of a word."""
    word = rng.choice(words)
    place = rng.choice(["first", "last"])
    ask = rng.choice(
        [
            "What is the {p} letter of {w}?",
            "Which letter is the {p} in {w}?",
            "Give me the {p} letter of {w}.",
        ]
    )
    return single(
        "first and last letter", ask.format(p=place, w=word), word[0] if place == "first" else word[-1]
    )


def length(rng: random.Random, words: list[str]) -> Chat:
    """Count the letters of a word."""
    word = rng.choice(words)
    ask = rng.choice(
        ["How many letters are in {}?", "How many letters does {} have?", "Count the letters in {}."]
    )
    return single("count letters", ask.format(word), str(len(word)))


def spell(rng: random.Random, words: list[str]) -> Chat:
    """Spell a word letter by letter."""
    word = rng.choice(words)
    ask = rng.choice(["Spell {}.", "How do you spell {}?", "Spell the word {} with dashes.", "Spell: {}"])
    return single("spell", ask.format(word), "-".join(word))


def join_letters(rng: random.Random, words: list[str]) -> Chat:
    """Put the letters of a word together."""
    word = rng.choice(words)
    ask = rng.choice(["Which word is {}?", "Put the letters together: {}", "Read this word: {}"])
    return single("join letters", ask.format("-".join(word)), word)


def has_letter(rng: random.Random, words: list[str]) -> Chat:
    """Say whether a letter is in a word."""
    word = rng.choice(words)
    letter = rng.choice(word) if rng.random() < 0.5 else rng.choice("abcdefghijklmnoprstuvwy")
    ask = rng.choice(
        ["Is the letter {c} in {w}?", "Does {w} contain the letter {c}?", "Is there {c} in {w}?"]
    )
    return single("has letter", ask.format(c=letter, w=word), "Yes." if letter in word else "No.")


def count_words(rng: random.Random, words: list[str]) -> Chat:
    """Count a few words."""
    some = rng.sample(words, rng.randint(1, 6))
    ask = rng.choice(["How many words are here: {}", "Count the words: {}", "How many words do I say: {}"])
    return single("count words", ask.format(" ".join(some)), str(len(some)))


def pick_word(rng: random.Random, words: list[str]) -> Chat:
    """Find the first, second, third or last word."""
    some = rng.sample(words, rng.randint(3, 5))
    place = rng.choice(["first", "second", "third", "last"])
    at = {"first": 0, "second": 1, "third": 2, "last": -1}[place]
    ask = rng.choice(
        ["What is the {p} word: {w}", "Give me the {p} word of: {w}", "Which word is the {p} one: {w}"]
    )
    return single("pick word", ask.format(p=place, w=" ".join(some)), some[at])


def alphabet_order(rng: random.Random, words: list[str]) -> Chat:
    """Neighbours in the alphabet, and three words in its order."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    roll = rng.random()
    if roll < 0.35:
        i = rng.randrange(25)
        ask = rng.choice(
            ["Which letter comes after {}?", "What letter follows {}?", "Next letter after {}?"]
        )
        return single("alphabet", ask.format(letters[i]), letters[i + 1])
    if roll < 0.6:
        i = rng.randrange(1, 26)
        return single("alphabet", f"Which letter comes before {letters[i]}?", letters[i - 1])
    some = rng.sample(words, 3)
    if len({w[0] for w in some}) < 3:
        some = ["dog", "apple", "cat"]
    ask = rng.choice(["Put in alphabetical order: {}", "Sort these words: {}", "Sort by alphabet: {}"])
    return single("sort words", ask.format(", ".join(some)), ", ".join(sorted(some)))


def odd_word(rng: random.Random, words: list[str]) -> Chat:
    """Same or different words."""
    a = rng.choice(words)
    b = a if rng.random() < 0.5 else rng.choice(words)
    ask = rng.choice(["Are these words the same: {a}, {b}?", "Is {a} the same word as {b}?"])
    return single("same word", ask.format(a=a, b=b), "Yes." if a == b else "No.")


def join_words(rng: random.Random, words: list[str]) -> Chat:
    """Join words by a given mark."""
    some = rng.sample(words, rng.randint(2, 4))
    name, mark = rng.choice([("commas", ", "), ("dashes", "-"), ("plus signs", "+"), ("and", " and ")])
    return single("join words", f"Join with {name}: {' '.join(some)}", mark.join(some))


MAKERS: tuple[tuple[Maker, float], ...] = (
    (repeat, 2.0),
    (repeat_times, 1.0),
    (reverse, 2.5),
    (reverse_list, 1.0),
    (upper, 2.0),
    (capitalise, 0.7),
    (edge_letter, 1.2),
    (length, 1.2),
    (spell, 1.5),
    (join_letters, 1.0),
    (has_letter, 0.8),
    (count_words, 1.0),
    (pick_word, 1.0),
    (alphabet_order, 1.2),
    (odd_word, 0.5),
    (join_words, 0.6),
)
