"""Fill nano's model card with the figures of eval.json."""

import argparse
import json
from pathlib import Path

TEMPLATE = Path(__file__).with_name("MODEL_CARD.md")


def percent(value: float) -> str:
    """A share as a whole percentage."""
    return f"{100 * value:.0f} %"


def fill(figures: dict, samples: str) -> str:
    """The card's text; every `{{name}}` in the template is replaced."""
    sums, stories, training = figures["sums"], figures["stories"], figures["training"]
    kinds = sorted(figures["loss"])
    rows = [
        f"| {kind} | {figures['loss'][kind]:.3f} | "
        + " | ".join(
            percent(figures[name][kind]) if kind in figures[name] else "–"
            for name in ("greedy accuracy", "sampled accuracy")
        )
        + " |"
        for kind in kinds
    ]
    values = {
        "parameters": f"{figures['parameters']:,}",
        "sums_operands": sums["operands"],
        "sums_sampled": percent(sums["sampled"]),
        "sums_greedy": percent(sums["greedy"]),
        "sums_small": percent(sums["sampled 0-9"]),
        "sums_large": percent(sums["sampled 0-99"]),
        "stories_ended": percent(stories["ended"]),
        "stories_topic": percent(stories["on topic"]),
        "stories_clean": percent(stories["clean"]),
        "stories_words": f"{stories['mean words']:.0f}",
        "steps": f"{training['steps']:,}",
        "tokens": f"{training['tokens'] / 1e6:,.0f} million",
        "story_count": f"{training['stories']:,}",
        "seconds": str(training["seconds"]),
        "device": training["device"],
        "sum_goal": percent(training["options"]["sum_goal"]),
        "kinds": "\n".join(rows),
        "samples": samples.split("--- story")[0].split("--- temperature")[0].strip(),
    }
    text = TEMPLATE.read_text()
    for name, value in values.items():
        text = text.replace("{{" + name + "}}", value)
    if "{{" in text:
        raise ValueError(f"the card has an unknown place: {text[text.index('{{') :][:40]}")
    return text


def main() -> None:
    """Write a card from an eval.json and a samples.txt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("eval", type=Path, help="eval.json")
    parser.add_argument("samples", type=Path, help="samples.txt")
    parser.add_argument("out", type=Path, help="the MODEL_CARD.md to write")
    args = parser.parse_args()
    args.out.write_text(fill(json.loads(args.eval.read_text()), args.samples.read_text()))


if __name__ == "__main__":
    main()
