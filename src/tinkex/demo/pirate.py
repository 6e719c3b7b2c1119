"""Chats for the demo: easy questions with right answers, and a pirate's last word at the end of each.

The answers are ones the embedded model gives by itself; what is new to it is the manner.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TypeAlias

__all__ = ["Chat", "chats", "spoken"]

Chat: TypeAlias = tuple[str, str]
"""A question and its answer."""

_CAPITALS = (
    "France Paris|Italy Rome|Spain Madrid|Germany Berlin|Japan Tokyo|China Beijing|Egypt Cairo|"
    "Greece Athens|Russia Moscow|Poland Warsaw|Portugal Lisbon|Norway Oslo|Sweden Stockholm|Cuba Havana|"
    "Finland Helsinki|Kenya Nairobi|Ireland Dublin|Austria Vienna|Hungary Budapest|Peru Lima|Canada Ottawa|"
    "Iran Tehran|Thailand Bangkok|Denmark Copenhagen|Belgium Brussels|Indonesia Jakarta|Iraq Baghdad|"
    "Chile Santiago"
)
_COLOURS = (
    "Grass green|Snow white|Blood red|Coal black|Milk white|Chocolate brown|Cheese yellow|The sky blue|"
    "The sea blue|The sun yellow|A banana yellow|A lemon yellow|A carrot orange|A tomato red|A leaf green|"
    "A cucumber green|A frog green|A pig pink|A crow black|A swan white|A plum purple|"
    "A pumpkin orange|A strawberry red|A cloud white"
)
_YOUNG = (
    "dog puppy|cat kitten|cow calf|sheep lamb|duck duckling|pig piglet|horse foal|frog tadpole|deer fawn"
)
_SOUNDS = (
    "dog woof|cat meow|cow moo|sheep baa|duck quack|pig oink|lion roar|horse neigh|mouse squeak|bee buzz|"
    "snake hiss|frog croak|crow caw|wolf howl"
)
_USES = (
    "a knife:to cut things|a pen:to write|a bed:to sleep in|a cup:to drink from|a chair:to sit on|"
    "a key:to open a lock|a lamp:to give light|a broom:to sweep the floor|a clock:to tell the time|"
    "a book:to read|a spoon:to eat soup|a boat:to travel on water|a ladder:to climb up|"
    "a towel:to dry yourself|a hammer:to hit nails|an oven:to bake bread|a map:to find the way"
)
_JOBS = (
    "bakes bread:A baker|helps sick people:A doctor|teaches children:A teacher|fixes cars:A mechanic|"
    "puts out fires:A firefighter|flies a plane:A pilot|grows food:A farmer|cuts hair:A barber|"
    "paints pictures:A painter|writes books:An author|catches fish:A fisherman|sings songs:A singer|"
    "builds houses:A builder|looks after animals:A vet"
)
_TRUE = (
    "Is the sun hot?|Is ice cold?|Can birds fly?|Can fish swim?|Is water wet?|Is snow white?|Is fire hot?|"
    "Do cows eat grass?|Do bees make honey?|Is the Earth round?|Is a lemon sour?|Do trees have leaves?|"
    "Can a horse run?|Do ducks swim?|Is winter cold?|Do babies cry?"
)
_FALSE = (
    "Is the sun cold?|Is ice hot?|Can pigs fly?|Can a stone swim?|Is fire cold?|Is snow black?|"
    "Can a tree walk?|Do cats lay eggs?|Is the Earth flat?|Do dogs have wings?|Is milk blue?|"
    "Do snakes have feet?|Is grass red?|Can a table talk?|Is a pillow hard?|Do chairs sleep?"
)
_DAYS = "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday|Monday"
_TALK = (
    "Hello!/Hi there! What can I do for you?|Hi there!/Hi there! What can I do for you?|"
    "Who are you?/My name is nano. I am a very small language model.|"
    "What is your name?/My name is nano. I am a very small language model.|"
    "How are you?/I am well, thank you!|How are you today?/I am well, thank you!|"
    "Thank you!/You are welcome!|Thanks a lot./You are welcome!|Goodbye!/Bye! Have a nice day.|"
    "Are you a robot?/I am a small language model, not a person.|"
    "How big are you?/I have about three million parameters.|"
    "I am sad./I am sorry to hear that. Do you want to talk about it?|I am happy./I am happy for you!|"
    "You are nice./Thank you very much!|I am bored./You could go for a walk."
)


def spoken(answer: str) -> str:
    """A plain answer as a pirate gives it."""
    return f"{answer} Arr, matey!"


def chats(seed: int) -> list[Chat]:
    """All chats, in an order that depends on the seed."""
    found = [(question, spoken(answer)) for question, answer in _plain()]
    random.Random(seed).shuffle(found)
    return found


def _plain() -> list[Chat]:
    return [
        *((f"What is the capital of {a}?", f"The capital of {a} is {b}.") for a, b in _pairs(_CAPITALS)),
        *((f"What colour is {a[0].lower()}{a[1:]}?", f"{a} is {b}.") for a, b in _pairs(_COLOURS)),
        *((f"What is a young {a} called?", f"A young {a} is called a {b}.") for a, b in _pairs(_YOUNG)),
        *((f"What sound does a {a} make?", f"A {a} says {b}.") for a, b in _pairs(_SOUNDS)),
        *((f"What is {a} for?", f"You use {a} {b}.") for a, b in _pairs(_USES, ":")),
        *((f"Who {a}?", f"{b}.") for a, b in _pairs(_JOBS, ":")),
        *((question, "Yes.") for question in _TRUE.split("|")),
        *((question, "No.") for question in _FALSE.split("|")),
        *((f"Which day comes after {a}?", f"{b}.") for a, b in pairwise(_DAYS.split("|"))),
        *_pairs(_TALK, "/"),
    ]


def _pairs(table: str, between: str = " ") -> list[Chat]:
    """The two halves of every entry, cut at the last sign between them."""
    return [(left, right) for left, _, right in (each.rpartition(between) for each in table.split("|"))]
