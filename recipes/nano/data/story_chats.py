"""Requests for stories and answers cut from sampled stories."""

import random
import re

from .chat import Chat
from .openings import HEROES, NAMES, THINGS, article

SENTENCE = re.compile(r"(?<=[.!?\"])\s+")
PLAIN = (
    "Tell me a story.",
    "Tell me a short story.",
    "Please tell me a story.",
    "Can you tell me a story?",
    "I want to hear a story.",
    "Write a short story.",
    "A story, please.",
    "Tell me a bedtime story.",
)
ABOUT = (
    "Tell me a story about {}.",
    "Tell me a short story about {}.",
    "Write a story about {}.",
    "Can you tell me a story about {}?",
    "Please write a short story about {}.",
    "I want a story about {}.",
    "A story about {}, please.",
)
NAMED = (
    "Tell me a story about {}.",
    "Write a story with {} in it.",
    "Tell a story in which {} is the hero.",
)
BEGIN = (
    "How does a story begin?",
    "Begin a story.",
    "Start a story for me.",
    "Give me the start of a story.",
)
CONTINUE = ("Continue this story: {}", "Go on with the story: {}", "What happens next? {}")
TOPICS = [*HEROES, *THINGS]
TOPIC = {t: re.compile(rf"\b{t}s?\b", re.IGNORECASE) for t in TOPICS}


def clean(story: str) -> str | None:
    """The story in tidy plain text, or nothing when it is too odd to learn from."""
    story = story.replace("\r", "").replace("..", ".").replace(" .", ".").strip()
    story = story.translate(str.maketrans({"“": '"', "”": '"', "’": "'", "‘": "'", "–": "-", "—": "-"}))
    story = re.sub(r" *\n\s*", "\n", story)
    story = re.sub(r"[ \t]+", " ", story)
    if not story.isascii() or len(story) < 150 or story[-1] not in '.!?"' or not story[0].isalnum():
        return None
    sentences = SENTENCE.split(story)
    if len(set(sentences)) < 0.85 * len(sentences):
        return None
    return story


def topics(story: str) -> list[str]:
    """What the story is about: heroes and things that it names at least twice."""
    return [t for t in TOPICS if t in story and len(TOPIC[t].findall(story)) >= 2]


def make(rng: random.Random, story: str) -> Chat:
    """One request that the story answers."""
    roll = rng.random()
    about = topics(story)
    if roll < 0.55 and about:
        return Chat("stories", ((rng.choice(ABOUT).format(article(rng.choice(about))), story),))
    names = [n for n in NAMES if story.count(n) >= 2]
    if roll < 0.65 and names:
        return Chat("stories", ((rng.choice(NAMED).format(rng.choice(names)), story),))
    sentences = SENTENCE.split(story)
    if roll < 0.80 and len(sentences) > 5:
        cut = rng.randint(2, 4)
        head, tail = " ".join(sentences[:cut]), " ".join(sentences[cut:])
        return Chat("stories", ((rng.choice(CONTINUE).format(head), tail),))
    if roll < 0.84:
        return Chat("stories", ((rng.choice(BEGIN), " ".join(sentences[:2])),))
    return Chat("stories", ((rng.choice(PLAIN), story),))
