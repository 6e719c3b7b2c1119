"""Every example runs as it is, on the model inside the package, and shows what it promises."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
MOST_LINES = 80
Said = str


def numbers(said: Said, before: str) -> list[float]:
    """The number that follows a text, wherever it stands."""
    return [
        float(found) for found in re.findall(re.escape(before) + r"\s*(-?\d+(?:\.\d+)?(?:e-?\d+)?)", said)
    ]


def a_parrot_speaks(said: Said) -> None:
    assert "before: My name is nano." in said
    losses = [float(each) for each in re.findall(r"step +\d+: ([\d.]+) nats", said)]
    assert len(losses) == 12
    assert losses[-1] < 0.1 < losses[0]
    assert "after:  I am a parrot. I learned this in twelve steps." in said
    assert re.search(r"saved:  tinker://\S+/weights/first-loop", said)


def it_beeps(said: Said) -> None:
    (before,), (after,) = numbers(said, "before:"), numbers(said, "after:")
    assert after < before / 10
    assert said.count("boop!") >= 7  # of eight chats it has not seen


def sums_come_out_right(said: Said) -> None:
    before, after = (int(each) for each in re.findall(r"(\d+)% (?:before|after)", said))
    assert after - before >= 10
    assert len(numbers(said, "reward")) == 16


def answers_get_shorter(said: Said) -> None:
    before, after = (float(each) for each in re.findall(r"([\d.]+) tokens an answer", said))
    assert after < before - 1
    assert numbers(said, "margin")[0] == 0
    assert numbers(said, "margin")[-1] > 0.5
    assert "right 100%" in said.splitlines()[-2]


def the_student_catches_up(said: Said) -> None:
    (teacher,) = numbers(said, "teacher")[:1]
    before, after = numbers(said, "student")
    assert teacher > 90
    assert before + 8 <= after <= 100


def paris_is_forgotten(said: Said) -> None:
    assert "the loss runs on the server" in said
    france, *others = (line for line in said.splitlines() if line.startswith("What is"))
    assert "Paris" not in france.partition("->")[2]
    assert len(others) == 6
    kept = [
        line
        for line in others
        if line.split("?", 1)[1].partition("->")[0].strip() in line.partition("->")[2]
    ]
    assert len(kept) >= 5


def three_ways_to_sample(said: Said) -> None:
    assert "Once upon a time" in said
    assert re.search(r"\(\d+ tokens, stopped by (length|stop)\)", said)
    (right,) = (int(each) for each in re.findall(r"400 answers: (\d+) right", said))
    assert 120 <= right <= 360
    paris, rome = numbers(said, "log p =")
    assert rome < paris - 5


def it_goes_on_where_it_was(said: Said) -> None:
    losses = {
        line.split()[0]: [float(each) for each in line.split()[1:]]
        for line in said.splitlines()
        if line.startswith(("whole", "resumed"))
    }
    whole, resumed = losses["whole"], losses["resumed"]
    assert len(whole) == 8
    assert resumed == pytest.approx(whole, rel=1e-3, abs=2e-3)
    (fresh,) = re.findall(r"memory +(.*)", said)
    assert [float(each) for each in fresh.split()] != pytest.approx(whole[4:], rel=1e-2)
    assert "says    A crow keeps the keys." in said
    assert re.search(r"listed  tinker://\S+ \d+ bytes", said)


def peft_gives_the_same_numbers(said: Said) -> None:
    assert "adapter_model.safetensors" in said
    peft, merged = (float(each) for each in re.findall(r"per token, \w+: (\S+)", said))
    assert peft < 1e-4
    assert merged < 1e-3
    assert numbers(said, "server")[0] > numbers(said, "base")[0] + 10


def three_manners(said: Said) -> None:
    assert "Ann's model answers: Ahoy, captain!" in said
    assert "Bob's model answers: Beep boop." in said
    assert "Cat's model answers: Meow." in said


def otto_answers(said: Said) -> None:
    assert "models: ['nano']" in said
    assert "What is your name? My name is Otto." in said
    assert "Who made you? A loop made me." in said


SHOWN: dict[str, tuple[Callable[[Said], None], bool]] = {
    "first_loop": (a_parrot_speaks, False),
    "sft_chat": (it_beeps, False),
    "rl_sums": (sums_come_out_right, True),
    "dpo": (answers_get_shorter, False),
    "distillation": (the_student_catches_up, True),
    "custom_loss": (paris_is_forgotten, False),
    "sampling": (three_ways_to_sample, False),
    "save_and_resume": (it_goes_on_where_it_was, False),
    "export_and_load_in_peft": (peft_gives_the_same_numbers, False),
    "several_adapters": (three_manners, False),
    "official_sdk": (otto_answers, False),
}
"""Example -> what its output must show, and whether it takes long."""

RUNS = [
    pytest.param(name, check, id=name, marks=[pytest.mark.slow] if long else [])
    for name, (check, long) in SHOWN.items()
]


@pytest.mark.parametrize(("name", "check"), RUNS)
def test_an_example_shows_what_it_promises(
    name: str,
    check: Callable[[Said], None],
    local_state: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if name == "official_sdk":
        pytest.importorskip("tinker")
    if name == "export_and_load_in_peft":
        pytest.importorskip("peft")
    monkeypatch.setenv("TINKEX_STATE", str(local_state))
    for variable in ("TINKER_BASE_URL", "TINKER_API_KEY"):
        monkeypatch.setenv(variable, "")  # what an example sets is undone afterwards
    path = str(EXAMPLES / f"{name}.py")
    monkeypatch.setattr(sys, "argv", [path])
    runpy.run_path(path, run_name="__main__")
    check(capsys.readouterr().out)


def test_every_example_is_run_here_and_on_the_list() -> None:
    names = sorted(path.stem for path in EXAMPLES.glob("*.py"))
    assert sorted(SHOWN) == names
    assert sorted(re.findall(r"^\| \[(\w+)\.py\]", (EXAMPLES / "README.md").read_text(), re.M)) == names


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short_and_says_what_it_is_for(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) < MOST_LINES
    assert text.startswith('"""')
    assert "ServiceClient.local" in text
