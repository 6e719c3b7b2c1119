"""Common words, plain definitions and kinds of things, from WordNet 3.0."""

import random
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from .chat import Chat, single
from .openings import article

UNFIT = re.compile(
    r"sex|genital|penis|vagina|breast|slut|whore|prostitut|slur|derogat|offensive|ethnic|racial|race\b|kill|murder|"
    r"rape|drug|nazi|terror|suicid|vulgar|obscen|disparag|slave|naked|erotic|negro|nigg|jew|homosex|gay\b|lesbian|"
    r"bastard|bitch|damn|hell\b|fuck|shit|piss|ass\b|cock\b|dick\b|faggot|intercourse|copulat|excre|urin|feces|"
    r"torture|massacre|execut|corpse|tits|crap|arse|porn|hooker|cunt|retard|cripple|queer|dyke|spic|chink|wog"
)
KINDS = {
    "animal": "00015388",
    "plant": "00017222",
    "food": "07555863",
    "tool": "04451818",
    "fruit": "13134947",
    "bird": "01503061",
    "building": "02913152",
    "vehicle": "04524313",
    "body part": "05220461",
    "piece of furniture": "03405725",
    "garment": "03419014",
}


@dataclass(frozen=True)
class Entry:
    """The most used sense of a word."""

    word: str
    part: str
    gloss: str
    synset: str
    uses: int


class Lexicon:
    """WordNet, cut down to common words and clean first senses."""

    def __init__(self, folder: Path):
        root = folder / "usr" / "share" / "wordnet"
        uses = self.counts(root / "cntlist.rev")
        glosses: dict[tuple[str, str], str] = {}
        parents: dict[str, list[str]] = {}
        firsts: list[Entry] = []
        for part, name in (("noun", "noun"), ("verb", "verb"), ("adjective", "adj")):
            for offset, gloss, up in self.synsets(root / f"data.{name}"):
                glosses[part, offset] = gloss
                if part == "noun":
                    parents[offset] = up
            for line in (root / f"index.{name}").read_text().splitlines():
                if line.startswith(" "):
                    continue
                fields = line.split()
                word, offset = fields[0], fields[6 + int(fields[3])] if len(fields) > 6 else ""
                count = uses[word, part]
                if (
                    not word.isalpha()
                    or not word.islower()
                    or len(word) < 3
                    or (part, offset) not in glosses
                ):
                    continue
                gloss = glosses[part, offset]
                if not UNFIT.search(word) and not UNFIT.search(gloss) and len(gloss) <= 90:
                    firsts.append(Entry(word, part, gloss, offset, count))
        best: dict[str, Entry] = {}
        for entry in firsts:
            if entry.word not in best or best[entry.word].uses < entry.uses:
                best[entry.word] = entry
        self.entries = sorted(best.values(), key=lambda e: (-e.uses, e.word))
        self.parents = parents
        self.words = [e.word for e in self.entries if e.uses >= 4 and len(e.word) <= 8][:3000]
        self.kinds = self.members(firsts)

    @staticmethod
    def counts(path: Path) -> Counter[tuple[str, str]]:
        """How often each word was seen as each part of speech."""
        found: Counter[tuple[str, str]] = Counter()
        names = {"1": "noun", "2": "verb", "3": "adjective", "5": "adjective"}
        for line in path.read_text().splitlines():
            key, _, count = line.split()
            word, sense = key.split("%")
            if sense[0] in names:
                found[word, names[sense[0]]] += int(count)
        return found

    @staticmethod
    def synsets(path: Path) -> list[tuple[str, str, list[str]]]:
        """Offset, cleaned gloss and hypernyms of each synset."""
        found = []
        for line in path.read_text().splitlines():
            if line.startswith(" "):
                continue
            head, _, gloss = line.partition(" | ")
            fields = head.split()
            up = [fields[i + 1] for i, f in enumerate(fields) if f in ("@", "@i")]
            gloss = gloss.split('; "')[0].split(";")[0].strip()
            gloss = re.sub(r"^\([^)]*\) ", "", gloss).replace("`", "'").strip()
            if gloss and gloss.isascii():
                found.append((fields[0], gloss, up))
        return found

    def ancestors(self, synset: str) -> set[str]:
        """Every more general synset."""
        seen: set[str] = set()
        todo = [synset]
        while todo:
            now = todo.pop()
            if now not in seen:
                seen.add(now)
                todo += self.parents.get(now, [])
        return seen

    def members(self, firsts: list[Entry]) -> dict[str, list[str]]:
        """Common nouns of each kind of thing."""
        found: dict[str, list[str]] = defaultdict(list)
        for entry in firsts:
            if entry.part == "noun" and 3 <= len(entry.word) <= 9 and entry.uses >= 1:
                above = self.ancestors(entry.synset)
                for kind, synset in KINDS.items():
                    if synset in above and entry.word != kind:
                        found[kind].append(entry.word)
        return dict(found)

    def definition(self, rng: random.Random) -> Chat:
        """What a word means; common words come more often."""
        top = rng.choice([600, 2500, 6000])
        entry = rng.choice(self.entries[:top])
        ask = rng.choice(
            [
                "What does {} mean?",
                "What does the word {} mean?",
                "Define {}.",
                "What is the meaning of {}?",
                "Explain the word {}.",
            ]
        )
        lead = "To " if entry.part == "verb" else ""
        gloss = lead + entry.gloss
        return single(
            "definitions", ask.format(entry.word), gloss[0].upper() + gloss[1:] + ".", exact=False
        )

    def kind_question(self, rng: random.Random) -> Chat:
        """Whether a thing is of a kind, or which kind it is."""
        kind = rng.choice([k for k, some in self.kinds.items() if len(some) >= 8])
        word = rng.choice(self.kinds[kind])
        other = rng.choice([kind, rng.choice(list(self.kinds))])
        if other != kind and word in self.kinds[other]:
            other = kind
        ask = rng.choice(["Is {w} {k}?", "Would you say {w} is {k}?"])
        return single(
            "kinds of things",
            ask.format(w=article(word), k=article(other)),
            "Yes." if other == kind else "No.",
        )

    def text(self) -> list[str]:
        """Definitions as plain lines for reading."""
        return [f"{e.word} ({e.part}): {e.gloss}." for e in self.entries[:20000]]
