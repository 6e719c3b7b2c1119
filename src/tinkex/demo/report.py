"""The demo as one HTML file that needs nothing else: figures, curves, answers, and the code that did it."""

from __future__ import annotations

import inspect
import platform
import time
from collections.abc import Sequence
from html import escape

from .._version import __version__
from . import rl_loop, sft_loop
from .lessons import Lesson, Plan
from .screen import figures

__all__ = ["code_of", "report"]

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 220, 48, 28
_STYLE = """
:root { color-scheme: light dark; --line: #0b7285; --soft: #8883; --text: #888; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
.figures { font-size: 1.05rem; padding: .6rem .9rem; background: var(--soft); }
.figures { border-left: 4px solid var(--line); }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: var(--text); }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; }
th, td { border-bottom: 1px solid var(--soft); }
pre { font: .82rem/1.45 ui-monospace, monospace; overflow-x: auto; }
pre { background: var(--soft); padding: .8rem; }
small { color: var(--text); }
"""


def code_of(task: str) -> str:
    """The loop of a task, as it ran."""
    return inspect.getsource(sft_loop if task == "sft" else rl_loop)


def report(lessons: Sequence[Lesson], plan: Plan, seconds: float) -> str:
    """The whole page."""
    made = time.strftime("%Y-%m-%d %H:%M")
    about = (
        f"{plan.model}, seed {plan.seed}, LoRA rank {plan.rank}; {seconds:.0f} s in all on "
        f"{platform.machine()}, Python {platform.python_version()}, tinkex {__version__}; {made}"
    )
    parts = "\n".join(_section(lesson) for lesson in lessons)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>tinkex demo</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>A small model learned something</h1>\n<p><small>{escape(about)}</small></p>\n{parts}\n"
        "<p><small>Intervals are bootstraps over unseen questions; figures before and after are measured "
        "on the same ones. Where a question was asked several times, ✓ marks the right answers."
        "</small></p>\n</body></html>\n"
    )


def _section(lesson: Lesson) -> str:
    rows = "".join(
        f"<tr><td>{escape(each.question)}</td><td>{escape(each.before)}</td><td>{escape(each.after)}</td></tr>"
        for each in lesson.shown
    )
    return (
        f"<h2>{escape(lesson.title)}</h2>\n"
        f'<p class="figures">{escape(figures(lesson))}</p>\n'
        f"{_curve(lesson)}\n"
        f"<table><tr><th>unseen question</th><th>before</th><th>after</th></tr>{rows}</table>\n"
        f"<p><small>{lesson.seconds:.0f} s; the weights are {escape(lesson.checkpoint)}</small></p>\n"
        f"<details><summary>the loop</summary><pre>{escape(code_of(lesson.task))}</pre></details>"
    )


def _curve(lesson: Lesson) -> str:
    """The curve with its axes, and a smoother one over it where it jumps."""
    values = lesson.curve
    top = 1.0 if lesson.task == "rl" else max(values)
    lines = "".join(
        f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{_y(part * top, top):.1f}" y2="{_y(part * top, top):.1f}" '
        f'stroke="var(--soft)"/><text x="{_LEFT - 6}" y="{_y(part * top, top) + 4:.1f}" text-anchor="end">'
        f"{part * top:.2f}</text>"
        for part in (0, 0.25, 0.5, 0.75, 1)
    )
    smooth = _smooth(values) if lesson.task == "rl" else values
    thin = f'<polyline points="{_points(values, top)}" fill="none" stroke="var(--line)" opacity=".35"/>'
    thick = f'<polyline points="{_points(smooth, top)}" fill="none" stroke="var(--line)" stroke-width="3"/>'
    label = escape(f"{lesson.measure} over {len(values)} steps")
    return (
        f'<svg viewBox="0 0 {_WIDTH + 8} {_HEIGHT + _BOTTOM}" role="img" aria-label="{label}">'
        f'{lines}{thin}{thick}<text x="{_LEFT}" y="{_HEIGHT + 22}">1</text>'
        f'<text x="{(_LEFT + _WIDTH) / 2:.0f}" y="{_HEIGHT + 22}" text-anchor="middle">{label}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 22}" text-anchor="end">{len(values)}</text></svg>'
    )


def _points(values: Sequence[float], top: float) -> str:
    step = (_WIDTH - _LEFT) / max(1, len(values) - 1)
    return " ".join(f"{_LEFT + step * at:.1f},{_y(value, top):.1f}" for at, value in enumerate(values))


def _y(value: float, top: float) -> float:
    return _HEIGHT - (_HEIGHT - 12) * value / (top or 1.0)


def _smooth(values: Sequence[float], reach: int = 2) -> list[float]:
    windows = [values[max(0, at - reach) : at + reach + 1] for at in range(len(values))]
    return [sum(window) / len(window) for window in windows]
