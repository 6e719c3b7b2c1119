"""Chat templates are somebody's code: they reach nothing, end, and make nothing that fills the memory."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("jinja2")

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tinkex.client import chat_templates
from tinkex.client.chat_templates import render
from tinkex.errors import TokenizerError

TALK = [
    {"role": "system", "content": "  Be brief.\n"},
    {"role": "user", "content": "hi <b>there</b>", "tools": [{"name": "größe", "n": 1.5}]},
    {"role": "assistant", "content": None, "parts": ["a", "b", ["c", ["d"]]]},
]
REACHING = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__ }}",
    "{{ messages[0].__init__.__globals__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__['json'] }}",
    "{{ strftime_now.__code__ }}",
    "{{ cycler.__init__.__globals__.os.popen('true').read() }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context.eval_ctx.environment }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ ''|attr('__class__') }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ '%s'.__mod__.__class__ }}",
    "{% set x = messages.append(1) %}",
    "{{ messages[0].update(role='x') }}",
    "{{ messages[0].clear() }}",
    "{% include '/etc/passwd' %}",
    "{% import '/etc/passwd' as x %}",
    "{% extends '../x' %}",
]
ENDLESS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops that print": "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "recursion": "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "branching": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "filters": "{% for a in range(99999) %}{% set s = range(99999)|sum %}{% endfor %}",
    "looking": "{% set l = range(99999)|list %}{% for a in l %}{% if 'x' in l %}{% endif %}{% endfor %}",
    "letters": "{% for a in range(99999) %}{% for b in 'x' * 99999 %}{% endfor %}{% endfor %}",
}
DOUBLED = "{%% set ns = namespace(x=%s) %%}{%% for i in range(60) %%}%s{%% endfor %%}"
LARGE = {
    "times": "{{ 'x' * 10000000000 }}",
    "times, the other way": "{{ 10000000000 * 'x' }}",
    "a list": "{{ ([0] * 10000000000)|length }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "factors": "{% set x = namespace(v=2**4000) %}{{ x.v * x.v }}",
    "doubling with +": DOUBLED % ("'x'", "{% set ns.x = ns.x + ns.x %}"),
    "doubling with ~": DOUBLED % ("'x'", "{% set ns.x = ns.x ~ ns.x %}"),
    "doubling a block": DOUBLED % ("'x'", "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"),
    "doubling a list": DOUBLED % ("[0]", "{% set ns.x = ns.x + ns.x %}"),
    "a wide field": "{{ '%10000000000d' % 1 }}",
    "a wide field from elsewhere": "{{ '%*d' % (10000000000, 1) }}",
    "the filter": "{{ '%10000000000d'|format(1) }}",
    "format": "{{ '{:>10000000000}'.format(1) }}",
    "format from elsewhere": "{{ '{:{w}}'.format(1, w='10000000000') }}",
    "center": "{{ 'x'|center(10000000000) }}",
    "the method": "{{ 'x'.center(10000000000) }}",
    "zeros": "{{ 'x'.zfill(10000000000) }}",
    "indent": "{{ ('\n' * 1000000)|indent(1000000) }}",
    "join": "{{ range(99999)|join('x' * 1000000) }}",
    "the method join": "{{ ('x' * 1000000).join(['a'] * 1000000) }}",
    "replace": "{{ ('x' * 1000000)|replace('x', 'y' * 1000000) }}",
    "the method replace": "{{ ('x' * 1000000).replace('x', 'y' * 1000000) }}",
    "a date": "{{ strftime_now('%100000000Y') }}",
    "words": "{{ lipsum(100000) }}",
    "tabs": "{{ ('\t' * 1000000).expandtabs(1000000) }}",
    "a template": "x" * (1 << 20) + "y",
}
USUAL = """
{% for m in messages %}<|{{ m.role }}|>{{ m['content'] }}{% if not loop.last %}|{% endif %}{% endfor %}
===
{% for m in messages %}{{ loop.index }}/{{ loop.length }} {{ loop.revindex }} {{ loop.first }}
{{ loop.previtem.role if loop.previtem }}{{ loop.nextitem.role if loop.nextitem }};{% endfor %}
===
{% for m in messages[::-1] %}{{ m.role|upper }}{% if m.role == 'user' %}{% break %}{% endif %}
{% endfor %}
===
{% set ns = namespace(n=0, text='') %}{% for m in messages if m.content %}{% set ns.n = ns.n + 1 %}
{% set ns.text = ns.text ~ m.content|trim ~ ns.n %}{% endfor %}{{ ns.n }}{{ ns.text }}
===
{% macro show(m, sep='-') %}[{{ m.role }}{{ sep }}{{ caller() if caller }}]{% endmacro %}
{{ show(messages[0]) }}{% call show(messages[1], sep='+') %}in{% endcall %}
===
{% set x %}block {{ messages|length }}{% endset %}{{ x|replace('block', 'B') }}
===
{{ messages[1].tools[0]|tojson }}{{ messages|map(attribute='role')|join(', ') }}
===
{{ messages|selectattr('content')|list|length }}{{ messages|rejectattr('content')|first }}
===
{%- for k, v in messages[0].items() %}{{ k }}={{ v|default('none', true) }};{% endfor -%}
===
{% for p in messages[2].parts recursive %}{% if p is string %}{{ p }}{% else %}({{ loop(p) }}){% endif %}
{% endfor %}
===
{{ '%s has %03d' % (messages[0].role, 7) }}{{ '{} {:>5}'.format('a', 1) }}{{ 2 ** 10 }}{{ 7 * 6 }}
{{ 'ab' * 3 }}
===
{{ messages[1].content.split('<')[0].strip() }}{{ messages[1].content.startswith('hi') }}
===
{% if 'tools' in messages[1] and messages[1].tools is iterable %}yes{% else %}no{% endif %}{{ missing }}
===
{% for m in [] %}x{% else %}nothing{% endfor %}{{ range(3)|list }}{{ dict(a=1) }}{{ 'x'|indent(2, true) }}
===
{% filter upper %}loud{% endfilter %}{{ [1, 2] + [3] }}{{ ('a', 'b')|last }}{{ 5 % 3 }}
""".split("===")  # noqa: SIM905


def plainly(template: str, given: dict[str, Any]) -> str:
    """What Jinja's own sandbox makes of it."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = chat_templates._tojson
    text: str = environment.from_string(template).render(given)
    return text


@pytest.mark.parametrize("template", USUAL)
def test_a_usual_template_gives_what_jinja_gives(template: str):
    assert render(template, {"messages": TALK}) == plainly(template, {"messages": TALK})


@pytest.mark.parametrize("template", REACHING)
def test_a_template_reaches_nothing(template: str):
    talk = [dict(each) for each in TALK]
    try:
        text = render(template, {"messages": talk})
    except (jinja2.exceptions.TemplateError, TokenizerError, TypeError):
        text = ""
    assert text == ""
    assert talk == TALK


@pytest.mark.parametrize("what", ENDLESS)
def test_a_template_ends(what: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chat_templates, "STEPS", 50_000)
    monkeypatch.setattr(chat_templates, "SECONDS", 0.2)
    with pytest.raises(TokenizerError, match=r"steps or|calls itself"):
        render(ENDLESS[what], {"messages": TALK})


@pytest.mark.parametrize("what", LARGE)
def test_a_template_makes_nothing_that_fills_the_memory(what: str):
    with pytest.raises((TokenizerError, jinja2.exceptions.UndefinedError)):
        render(LARGE[what], {"messages": TALK})


def test_a_long_conversation_is_well_within_the_bounds():
    talk = [{"role": "user", "content": "word " * 2000}] * 3000
    template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content|trim }}\n{% endfor %}"
    assert len(render(template, {"messages": talk})) > 3000 * 9000


def test_renderings_at_the_same_time_have_each_their_own_bound(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chat_templates, "STEPS", 30_000)
    made: list[str] = []
    template = "{% for i in range(20000) %}{% endfor %}done"
    threads = [threading.Thread(target=lambda: made.append(render(template, {}))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == ["done"] * 4
