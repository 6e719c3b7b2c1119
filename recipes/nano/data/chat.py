"""One conversation of the corpus, and the rule that says which ones are held out."""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Chat:
    """Turns of (user, assistant); `exact` says that the last answer is the only right one."""

    kind: str
    turns: tuple[tuple[str, str], ...]
    system: str = ""
    exact: bool = False

    @property
    def question(self) -> str:
        """The first thing the user says."""
        return self.turns[0][0]

    @property
    def answer(self) -> str:
        """The last thing the assistant says."""
        return self.turns[-1][1]


def single(kind: str, question: str, answer: str, exact: bool = True) -> Chat:
    """A chat of one question and one answer."""
    return Chat(kind, ((question, answer),), exact=exact)


def held_out(chat: Chat, share: float = 0.04) -> bool:
    """True for a fixed share of all chats, decided by what the user asks first."""
    digest = hashlib.blake2b(f"{chat.kind}\n{chat.question}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") < share * 2**32
