"""Small facts of everyday life as questions: days, months, colours, sounds, young animals, opposites."""

import random
from collections.abc import Callable

from .chat import Chat, single
from .openings import article

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
MONTH_DAYS = dict(zip(MONTHS, (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31), strict=True))
SEASONS = {
    "winter": ("cold", ("December", "January", "February")),
    "spring": ("mild", ("March", "April", "May")),
    "summer": ("hot", ("June", "July", "August")),
    "autumn": ("cool", ("September", "October", "November")),
}
COLOURS = {
    "grass": "green", "the sky": "blue", "snow": "white", "a banana": "yellow", "a lemon": "yellow",
    "blood": "red", "coal": "black", "the sun": "yellow", "a carrot": "orange", "an orange": "orange",
    "a strawberry": "red", "a tomato": "red", "milk": "white", "the sea": "blue", "a leaf": "green",
    "chocolate": "brown", "a fire truck": "red", "a cucumber": "green", "a frog": "green", "a pig": "pink",
    "an elephant": "grey", "a crow": "black", "a swan": "white", "a plum": "purple", "a pumpkin": "orange",
    "cheese": "yellow", "a polar bear": "white", "a flamingo": "pink", "the night": "black",
    "a cloud": "white",
}  # fmt: skip
SOUNDS = {
    "dog": "woof", "cat": "meow", "cow": "moo", "sheep": "baa", "duck": "quack", "pig": "oink",
    "lion": "roar", "horse": "neigh", "mouse": "squeak", "bee": "buzz", "owl": "hoot", "snake": "hiss",
    "frog": "croak", "rooster": "cock-a-doodle-doo", "crow": "caw", "bird": "tweet", "donkey": "hee-haw",
    "wolf": "howl",
}  # fmt: skip
YOUNG = {
    "dog": "puppy", "cat": "kitten", "cow": "calf", "sheep": "lamb", "duck": "duckling", "pig": "piglet",
    "lion": "cub", "horse": "foal", "hen": "chick", "bear": "cub", "frog": "tadpole", "goat": "kid",
    "deer": "fawn", "goose": "gosling", "kangaroo": "joey", "fox": "cub", "swan": "cygnet",
    "owl": "owlet",
}  # fmt: skip
LEGS = {
    "dog": 4, "cat": 4, "cow": 4, "sheep": 4, "duck": 2, "pig": 4, "lion": 4, "horse": 4, "hen": 2,
    "bird": 2, "spider": 8, "ant": 6, "bee": 6, "snake": 0, "fish": 0, "frog": 4, "goat": 4, "fly": 6,
    "beetle": 6, "crab": 10, "mouse": 4, "bear": 4, "worm": 0, "butterfly": 6, "owl": 2, "chair": 4,
    "table": 4, "person": 2,
}  # fmt: skip
OPPOSITES = [
    pair.split("/")
    for pair in (
        "big/small hot/cold up/down left/right fast/slow day/night happy/sad old/young open/closed "
        "full/empty high/low good/bad light/dark long/short wet/dry hard/soft loud/quiet strong/weak "
        "rich/poor early/late first/last in/out near/far heavy/light clean/dirty new/old wide/narrow "
        "thick/thin true/false yes/no push/pull buy/sell give/take start/stop win/lose love/hate come/go "
        "laugh/cry sweet/sour brave/afraid black/white inside/outside above/below before/after "
        "summer/winter north/south east/west always/never asleep/awake alive/dead friend/enemy "
        "king/queen begin/end find/lose ask/answer rise/fall safe/dangerous easy/difficult "
        "cheap/expensive polite/rude smooth/rough sharp/blunt deep/shallow same/different"
    ).split()
]
PLURALS = {
    "cat": "cats", "dog": "dogs", "box": "boxes", "bus": "buses", "child": "children", "mouse": "mice",
    "foot": "feet", "tooth": "teeth", "man": "men", "woman": "women", "goose": "geese", "leaf": "leaves",
    "knife": "knives", "baby": "babies", "city": "cities", "lady": "ladies", "fish": "fish",
    "sheep": "sheep", "apple": "apples", "tree": "trees", "house": "houses", "star": "stars",
    "fox": "foxes", "wolf": "wolves", "story": "stories", "berry": "berries", "brush": "brushes",
    "dress": "dresses", "book": "books", "potato": "potatoes", "tomato": "tomatoes", "toy": "toys",
    "key": "keys", "day": "days", "party": "parties",
}  # fmt: skip
PAST = {
    "go": "went", "see": "saw", "eat": "ate", "run": "ran", "play": "played", "walk": "walked",
    "sing": "sang", "come": "came", "make": "made", "find": "found", "give": "gave", "take": "took",
    "write": "wrote", "buy": "bought", "think": "thought", "fly": "flew", "swim": "swam",
    "drink": "drank", "sleep": "slept", "jump": "jumped", "look": "looked", "say": "said", "tell": "told",
    "fall": "fell", "grow": "grew", "know": "knew", "read": "read", "break": "broke", "catch": "caught",
    "teach": "taught", "smile": "smiled", "help": "helped", "want": "wanted", "hide": "hid", "win": "won",
    "lose": "lost", "draw": "drew",
}  # fmt: skip
USES = {
    "a knife": "to cut things", "a pen": "to write", "a bed": "to sleep in", "a cup": "to drink from",
    "a chair": "to sit on", "a key": "to open a lock", "a lamp": "to give light",
    "a broom": "to sweep the floor", "a clock": "to tell the time",
    "an umbrella": "to stay dry in the rain", "a book": "to read", "a spoon": "to eat soup",
    "a car": "to drive", "a boat": "to travel on water", "a ladder": "to climb up",
    "a phone": "to talk to people far away", "a towel": "to dry yourself", "a hammer": "to hit nails",
    "scissors": "to cut paper", "a toothbrush": "to clean your teeth", "an oven": "to bake bread",
    "glasses": "to see better", "a kite": "to fly in the wind", "a map": "to find the way",
}  # fmt: skip
JOBS = {
    "bakes bread": "A baker", "helps sick people": "A doctor", "teaches children": "A teacher",
    "puts out fires": "A firefighter", "flies a plane": "A pilot", "grows food": "A farmer",
    "cuts hair": "A barber", "cooks meals in a restaurant": "A chef", "paints pictures": "A painter",
    "writes books": "An author", "fixes cars": "A mechanic", "catches fish": "A fisherman",
    "drives a bus": "A bus driver", "looks after teeth": "A dentist", "brings letters": "A mail carrier",
    "sings songs": "A singer", "builds houses": "A builder", "looks after animals": "A vet",
}  # fmt: skip
TRUE_FACTS = (
    "Is the sun hot?|Is ice cold?|Can birds fly?|Can fish swim?|Is water wet?|Do dogs have tails?|"
    "Is snow white?|Do cows eat grass?|Do bees make honey?|Is the Earth round?|Can a frog jump?|"
    "Do trees have leaves?|Is a lemon sour?|Is sugar sweet?|Does the moon shine at night?|"
    "Do cats have whiskers?|Is a week seven days?|Does a bicycle have two wheels?|"
    "Is a mouse smaller than an elephant?|Do people need water?|Is fire hot?|Do plants need light?|"
    "Can a horse run?|Is milk white?|Does rain fall from clouds?|Do ducks swim?|Is a stone hard?|"
    "Do owls fly at night?|Is winter cold?|Do babies cry?|Does a triangle have three sides?|"
    "Is a feather light?|Can a parrot talk?|Is a kitten a young cat?|Do spiders have eight legs?"
).split("|")
FALSE_FACTS = (
    "Is the sun cold?|Is ice hot?|Can pigs fly?|Can a stone swim?|Is fire cold?|Do fish have legs?|"
    "Is snow black?|Do cows eat stones?|Do cats lay eggs?|Is the Earth flat?|Can a tree walk?|"
    "Do dogs have wings?|Is a lemon sweet?|Is sugar salty?|Does the sun shine at night?|"
    "Do snakes have feet?|Is a week nine days?|Does a car have ten wheels?|"
    "Is an elephant smaller than a mouse?|Do people breathe water?|Is grass red?|"
    "Do birds live under the sea?|Can a table talk?|Is milk blue?|Does rain fall up?|Do chairs sleep?|"
    "Is a pillow hard?|Do penguins live in the desert?|Is summer colder than winter?|Can a shoe sing?|"
    "Does a triangle have four sides?|Is a feather heavy?|Can a snail run fast?|Is a puppy a young cat?|"
    "Do spiders have two legs?"
).split("|")
THINGS_PER = {
    "days are in a week": "7", "months are in a year": "12", "hours are in a day": "24",
    "minutes are in an hour": "60", "seconds are in a minute": "60", "wheels does a bicycle have": "2",
    "wheels does a car have": "4", "fingers are on one hand": "5", "sides does a triangle have": "3",
    "sides does a square have": "4", "letters are in the English alphabet": "26",
    "seasons are in a year": "4", "eyes do you have": "I have none. I am a language model.",
    "toes are on one foot": "5", "eggs are in a dozen": "12", "sides does a hexagon have": "6",
    "days are in a weekend": "2",
}  # fmt: skip


def days(rng: random.Random) -> Chat:
    """Neighbours among days."""
    i = rng.randrange(7)
    ask, answer = rng.choice(
        [
            ("Which day comes after {}?", DAYS[(i + 1) % 7]),
            ("What day is after {}?", DAYS[(i + 1) % 7]),
            ("Which day comes before {}?", DAYS[i - 1]),
            ("If today is {}, what day is tomorrow?", DAYS[(i + 1) % 7]),
            ("If today is {}, what day was yesterday?", DAYS[i - 1]),
            ("Today is {}. What day is tomorrow?", DAYS[(i + 1) % 7]),
            ("Is {} a weekend day?", "Yes." if i > 4 else "No."),
        ]
    )
    return single("days", ask.format(DAYS[i]), answer if answer[-1] == "." else answer + ".")


def months(rng: random.Random) -> Chat:
    """Neighbours among months, their lengths and seasons."""
    i = rng.randrange(12)
    season = next(s for s, (_, some) in SEASONS.items() if MONTHS[i] in some)
    ask, answer = rng.choice(
        [
            ("Which month comes after {}?", MONTHS[(i + 1) % 12]),
            ("Which month comes before {}?", MONTHS[i - 1]),
            ("What month follows {}?", MONTHS[(i + 1) % 12]),
            ("How many days does {} have?", str(MONTH_DAYS[MONTHS[i]])),
            ("In the north, which season is {} in?", season.capitalize()),
        ]
    )
    return single("months", ask.format(MONTHS[i]), answer + ".")


def colours(rng: random.Random) -> Chat:
    """The colour of a thing."""
    thing, colour = rng.choice(list(COLOURS.items()))
    name = thing[0].upper() + thing[1:]
    if rng.random() < 0.25:
        asked = rng.choice([colour, rng.choice(list(COLOURS.values()))])
        return single(
            "colours", f"Is {thing} {asked}?", "Yes." if asked == colour else f"No, {thing} is {colour}."
        )
    ask = rng.choice(
        ["What colour is {}?", "What color is {}?", "Which colour is {}?", "Tell me the colour of {}."]
    )
    return single("colours", ask.format(thing), f"{name} is {colour}.")


def animals(rng: random.Random) -> Chat:
    """Sounds, young ones and legs."""
    roll = rng.randrange(3)
    if roll == 0:
        name, sound = rng.choice(list(SOUNDS.items()))
        ask = rng.choice(["What does {} say?", "What sound does {} make?", "Which sound does {} make?"])
        return single("animals", ask.format(article(name)), f"{article(name).capitalize()} says {sound}.")
    if roll == 1:
        name, young = rng.choice(list(YOUNG.items()))
        ask = rng.choice(
            ["What is a young {} called?", "What do you call a baby {}?", "What is a baby {}?"]
        )
        return single("animals", ask.format(name), f"A young {name} is called a {young}.")
    name, legs = rng.choice(list(LEGS.items()))
    ask = rng.choice(["How many legs does {} have?", "How many legs has {}?"])
    count = "no legs" if legs == 0 else f"{legs} legs"
    return single("animals", ask.format(article(name)), f"{article(name).capitalize()} has {count}.")


def words(rng: random.Random) -> Chat:
    """Opposites, plurals, past forms."""
    roll = rng.randrange(3)
    if roll == 0:
        a, b = rng.choice(OPPOSITES)
        if rng.random() < 0.5 and (a, b) != ("heavy", "light") and (a, b) != ("new", "old"):
            a, b = b, a
        if a in ("light", "old", "lose"):
            a, b = "big", "small"
        ask = rng.choice(["What is the opposite of {}?", "Opposite of {}?", "Give me the opposite of {}."])
        return single("opposites", ask.format(a), b)
    if roll == 1:
        one, many = rng.choice(list(PLURALS.items()))
        ask = rng.choice(["What is the plural of {}?", "One {}, two ...?", "Write {} in the plural."])
        return single("plurals", ask.format(one), many)
    now, past = rng.choice(list(PAST.items()))
    ask = rng.choice(["What is the past of {}?", "Put {} in the past.", "What is the past tense of {}?"])
    return single("past", ask.format(now), past)


def uses(rng: random.Random) -> Chat:
    """What things are for, who does what, how many."""
    roll = rng.randrange(3)
    if roll == 0:
        thing, use = rng.choice(list(USES.items()))
        plural = thing in ("scissors", "glasses")
        ask = rng.choice(
            ["What are {} for?", "What do you use {} for?"]
            if plural
            else ["What is {} for?", "What do you use {} for?"]
        )
        return single("uses", ask.format(thing), f"You use {thing} {use}.")
    if roll == 1:
        does, who = rng.choice(list(JOBS.items()))
        return single(
            "jobs", rng.choice(["Who {}?", "Tell me who {}."]).format(does).replace("..", "."), f"{who}."
        )
    what, count = rng.choice(list(THINGS_PER.items()))
    return single("how many", f"How many {what}?", count)


def yes_no(rng: random.Random) -> Chat:
    """Facts that are true or false."""
    truth = rng.random() < 0.5
    fact = rng.choice(TRUE_FACTS if truth else FALSE_FACTS)
    lead = rng.choice(["", "", "", "Yes or no: ", "True or not: ", "Tell me, "])
    return single(
        "yes or no", lead + (fact if not lead else fact[0].lower() + fact[1:]), "Yes." if truth else "No."
    )


Maker = Callable[[random.Random], Chat]
MAKERS: tuple[tuple[Maker, float], ...] = (
    (days, 1.2),
    (months, 1.2),
    (colours, 1.0),
    (animals, 1.3),
    (words, 1.6),
    (uses, 1.2),
    (yes_no, 1.2),
)
