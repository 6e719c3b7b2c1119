"""First words of stories, so that sampled stories cover many heroes and places."""

import random

NAMES = (
    "Tom Lily Ben Mia Sam Anna Max Sue Tim Lucy Jack Amy Leo Sara Bob Jane Finn Ella Kim Nora Pete Rosie "
    "Zoe Billy Daisy Jimmy Molly Freddy Polly Spot Fluffy Mittens Bella Charlie Oliver Ruby Toby Penny "
    "Henry Grace"
).split()
HEROES = (
    "boy girl cat dog bird frog bear rabbit mouse fox duck fish lion elephant monkey turtle pig cow "
    "horse sheep squirrel bunny dragon princess prince king queen farmer baker doctor teacher robot "
    "fairy giant wizard knight owl bee butterfly ant snail kitten puppy penguin whale dolphin tiger "
    "zebra giraffe hedgehog goat hen"
).split()
TRAITS = (
    "little big small brave happy sad kind lazy clever shy funny curious hungry lonely tiny old young "
    "friendly silly gentle proud quiet noisy playful strong"
).split()
PLACES = (
    "in a small house|in the forest|near a big lake|on a farm|by the sea|in a tall tower|in a garden|"
    "under a big tree|in a quiet village|on a hill|in a castle|in a cave|in the city|next to a river"
).split("|")
THINGS = (
    "ball kite boat hat cake apple book box car train drum flower key lamp map tree bike balloon blanket "
    "candle cookie coat shell stone ring star moon snowman tent toy umbrella puzzle rope ladder mirror "
    "pencil bell"
).split()
SCENES = (
    "One sunny day|One rainy day|One cold morning|One day|One night|In the summer|In the winter|"
    "Every morning|Last week|Today"
).split("|")


def article(word: str) -> str:
    """`a` or `an` with the word."""
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def openings(count: int, seed: int) -> list[str]:
    """As many first words as asked for; half of them are empty, so the model starts by itself."""
    rng = random.Random(f"openings:{seed}")
    made = []
    for _ in range(count):
        name, hero, trait = rng.choice(NAMES), rng.choice(HEROES), rng.choice(TRAITS)
        place, thing, scene = rng.choice(PLACES), rng.choice(THINGS), rng.choice(SCENES)
        made.append(
            rng.choice(
                [
                    f"Once upon a time, there was {article(trait)} {hero} named {name}.",
                    f"Once upon a time, there was {article(trait)} {hero} who lived {place}.",
                    f"{name} was {article(trait)} {hero}. {name} had {article(thing)}.",
                    f"{scene}, {name} found {article(thing)}",
                    f"{scene}, {article(trait)} {hero}",
                    f"There was once {article(hero)} who loved",
                    f"{name} and {rng.choice(NAMES)} were friends. {scene}, they",
                    *[""] * 7,
                ]
            )
        )
    return made
