"""What a server or a file says is shown as text: a terminal gets no command from it."""

from __future__ import annotations

import io
import sys

import pytest

from tinkex.cli.asking import confirm
from tinkex.cli.conversation import harmless
from tinkex.cli.output import CommandError, Output

HOSTILE = "ok\x1b]0;owned\x07\x1b[2J\x9b31m\rtinkex: all is well\x08\x7f"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(show) -> str:
    out, problems = Terminal(), Terminal()
    show(Output("table", out, problems))
    return out.getvalue() + problems.getvalue()


def ask(out: Output) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", Terminal("y\n"))
        confirm(out, "deleting it", [HOSTILE], yes=False)


@pytest.mark.parametrize(
    "show",
    [
        ask,
        lambda out: out.aside(HOSTILE),
        lambda out: out.error(CommandError(HOSTILE, HOSTILE)),
        lambda out: out.warn(HOSTILE),
        lambda out: out.line(HOSTILE),
        lambda out: out.say(HOSTILE),
        lambda out: out.record({"name": HOSTILE}, essential="name"),
        lambda out: out.record({"name": HOSTILE}, essential="name", text=HOSTILE),
        lambda out: out.table({"a": "A"}, [{"a": HOSTILE}], name="things", title=HOSTILE),
        lambda out: out.document({HOSTILE: [HOSTILE]}),
        lambda out: out.line(harmless(HOSTILE)),
    ],
)
def test_no_text_commands_a_terminal(show):
    text = shown(show)
    assert "ok" in text
    assert not any((ord(each) < 32 and each not in "\n\t") or 127 <= ord(each) < 160 for each in text)


def test_what_goes_into_a_file_stays_as_it_is():
    out = io.StringIO()
    Output("table", out).line("a\x1b[1mb")
    assert out.getvalue() == "a\x1b[1mb\n"
