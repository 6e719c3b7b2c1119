"""`tinkex bench` on a real server."""

from __future__ import annotations

from tests.matrix.serving import Served

from .conftest import Command

SMALL = (
    "--steps",
    "2",
    "--batch-size",
    "2",
    "--length",
    "16",
    "--samples",
    "2",
    "--max-tokens",
    "4",
    "--rank",
    "4",
)


def test_rates_are_measured(real: Command, served: Served):
    done = real("bench", *SMALL, "--json")
    assert (done.code, done.err) == (0, "")
    data = done.data
    assert (data["model"], data["base_url"]) == (served.model, served.url)
    assert (
        min(
            data["request_seconds"], data["train"]["tokens_per_second"], data["sample"]["tokens_per_second"]
        )
        > 0
    )
    assert data["train"]["length"] == 16
    assert 0 < data["sample"]["first_token_seconds"]


def test_for_people(real: Command, served: Served):
    done = real("bench", *SMALL, "--model", served.model)
    assert done.code == 0
    for word in ("request", "training", "sampling", "tokens/s", "alone, the first token after"):
        assert word in done.out
    assert len(real("bench", *SMALL, "-q").out.split()) == 2


def test_what_cannot_be_measured(real: Command):
    done = real("bench", "--max-tokens", "8191")
    assert done.code == 1
    assert "a context of 8192 has no room" in done.err
    assert real("bench", "--model", "huge").code == 1
    assert real("bench", "--steps", "0").code == 2
