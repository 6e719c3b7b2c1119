"""What docs/cookbook.md says: its commands, and the figures it promises."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cookbook.md"

_SECTION = re.compile(r"^#{2,3} (.+)$", re.MULTILINE)
_BASH = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
_ROW = re.compile(
    r"^\| `(\w+)` \| `([\w/]+)` \| (?:about ([\d.]+)|([\d.]+) to ([\d.]+)) \| (above|below) ([\d.]+) \|$",
    re.MULTILINE,
)


def sections() -> dict[str, list[str]]:
    """The commands of each section, one text for each block."""
    _, *parts = _SECTION.split(PAGE.read_text())
    return {
        title.strip("`"): _BASH.findall(text) for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


@dataclass(frozen=True)
class Promise:
    """How a metric of a recipe begins and ends."""

    recipe: str
    metric: str
    first: tuple[float, float]
    last: float
    above: bool

    def kept(self, values: list[float]) -> bool:
        """Whether a run was like that."""
        began = self.first[0] <= values[0] <= self.first[1]
        return began and (values[-1] > self.last if self.above else values[-1] < self.last)


def promises() -> list[Promise]:
    """Every row of the table of figures; "about" is to one part in fifty."""
    found = []
    for recipe, metric, about, least, most, which, last in _ROW.findall(PAGE.read_text()):
        off = max(0.001, float(about) / 50) if about else 0.0
        first = (float(about) - off, float(about) + off) if about else (float(least), float(most))
        found.append(Promise(recipe, metric, first, float(last), which == "above"))
    return found


def recipes() -> dict[str, str]:
    """The recipes of the page: name -> what to type."""
    return {
        name: blocks[0] for name, blocks in sections().items() if name in {p.recipe for p in promises()}
    }


def log_folder(command: str) -> str:
    """Where the (last) recipe of a command writes."""
    return re.findall(r"log_path=(\S+)", command)[-1]


def serving() -> tuple[dict[str, str], list[str]]:
    """The variables and the words of the command that starts the server."""
    words = shlex.split(sections()["The server"][0])
    program = words.index("tinkex")
    return dict(word.split("=", 1) for word in words[:program]), words[program:]


def with_our_client(command: str) -> str:
    """The same command with `import tinker` resolved to this package."""
    return command.replace("python -m tinker_cookbook.", "python -m tinkex.as_tinker -m tinker_cookbook.")
