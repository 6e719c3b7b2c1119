"""`/metrics`: read by the official parser, right in its numbers, silent about owners, closed to others."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkex.engine.messages import OptimStep, Sample, Train
from tinkex.server.assembly import pages
from tinkex.server.metrics import SHORT, Histogram
from tinkex.server.metrics_page import METRICS_PAGE
from tinkex.wire.routes import ROUTES

from .client import Answer
from .machine import Machine, running

parser = pytest.importorskip("prometheus_client.parser")
PATH = f"/{METRICS_PAGE}"


class Figures:
    """What a scraper made of the text."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in parser.text_string_to_metric_families(text)}
        self.samples = [sample for family in self.families.values() for sample in family.samples]

    def __call__(self, name: str, **labels: str) -> float:
        found = [
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert found, f"no {name} {labels}"
        return sum(found)


async def look(server: Machine, path: str = PATH, method: str = "GET", **headers: str) -> Answer:
    given = headers or {"x-api-key": server.key["ann"]}
    return await server.send(method, path, headers=given)


async def scrape(server: Machine, **headers: str) -> Figures:
    answer = await look(server, **headers)
    assert answer.status == 200, answer
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    text = answer.body.decode()
    assert text.endswith("\n")
    return Figures(text)


@running(pages=pages())
async def test_what_was_done_is_counted(server: Machine):
    ann = server.ann
    model = await ann.model()
    await ann.done(await ann.train(model, 1))
    await ann.done(await ann.step(model, 2))
    assert (await look(server, "/api/v1/nothing")).status == 404
    found = await scrape(server)
    assert found("tinkex_operations_total", kind="forward_backward", outcome="done") == 1
    assert found("tinkex_operation_engine_seconds_count", kind="optim_step") == 1
    assert found("tinkex_operation_queue_seconds_count") == 3  # with the model's creation
    assert found("tinkex_http_requests_total", route="optim_step", status="200") == 1
    assert found("tinkex_http_requests_total", route="none", status="404") == 1
    assert found("tinkex_tokens_total", kind="trained") == 3
    assert found("tinkex_live", what="models") == 1
    assert found("tinkex_live", what="sessions") == 1
    assert found("tinkex_engine_up") == 1
    assert found("tinkex_engine_restarts_total") == 0
    assert found("tinkex_ready") == 1
    assert found("tinkex_build_info") == 1
    assert found("tinkex_disk_free_bytes") > 0
    assert found("tinkex_state_bytes", room="store") >= 0


@running(pages=pages())
async def test_what_waits_is_seen(server: Machine):
    ann = server.ann
    model = await ann.model()
    server.engine.hold(Train, OptimStep)
    ticket = await ann.train(model, 1)
    await server.settle()
    await ann.train(model, 2)
    polling = ann.begin_poll(ticket)
    await server.settle()
    found = await scrape(server)
    assert found("tinkex_operations_under_way") + found("tinkex_operations_queued") == 2
    assert found("tinkex_queued_bytes") > 0
    assert found("tinkex_polls_held") == 1
    server.engine.release()
    assert (await polling).status == 200
    await ann.done(f"{model}:2")
    assert (await scrape(server))("tinkex_queued_bytes") == 0


@running(pages=pages())
async def test_failures_are_counted_by_whose_fault_they_are(server: Machine):
    ann = server.ann
    model = await ann.model()
    server.engine.fail_next(OptimStep, "no gradient")
    await ann.result(await ann.step(model, 1))
    found = await scrape(server)
    failed = [
        sample
        for sample in found.samples
        if sample.name == "tinkex_operations_total" and sample.labels["kind"] == "optim_step"
    ]
    assert [(sample.labels["outcome"] in ("user", "server"), sample.value) for sample in failed] == [
        (True, 1)
    ]


@running(pages=pages())
async def test_samples_and_their_tokens_are_counted(server: Machine):
    ann = server.ann
    sampler = await ann.sampler(await ann.session())
    await ann.done(await ann.sample(sampler, 0))
    found = await scrape(server)
    assert found("tinkex_samples_total", outcome="done") == 1
    assert found("tinkex_sample_seconds_count") == 1
    assert found("tinkex_sample_first_token_seconds_count") == 1
    assert found("tinkex_tokens_total", kind="sampled") > 0
    assert found("tinkex_tokens_total", kind="prompt") == 3
    server.engine.hold(Sample)
    await ann.sample(sampler, 1)
    await server.settle()
    assert (await scrape(server))("tinkex_samples_under_way") == 1


@running(pages=pages())
async def test_labels_are_names_of_ours_and_never_of_owners_or_things(server: Machine):
    ann = server.ann
    model = await ann.model()
    await ann.done(await ann.train(model, 1))
    await ann.done(await ann.save(model, 2, "secret-name"))
    text = (await look(server)).body.decode()
    for private in ("ann", "bob", model, "secret-name", model.partition(":")[0], server.key["ann"]):
        assert private not in text.replace("channel", "").replace("planned", "")
    known = {*ROUTES, "none", "front", *pages()}
    routes = {sample.labels["route"] for sample in Figures(text).samples if "route" in sample.labels}
    assert routes <= known


@running(pages=pages())
async def test_strangers_are_not_told(server: Machine):
    assert (await look(server, accept="*/*")).status == 401
    assert (await look(server, **{"x-api-key": "tml-nobody-knows-this-one"})).status == 401
    assert (await look(server, authorization=f"Bearer {server.key['bob']}")).status == 200
    assert (await look(server, authorization="Bearer tml-nobody-knows-this-one")).status == 401
    assert (await look(server, f"{PATH}/more")).status == 404
    assert (await look(server, method="POST")).status == 404


@running(pages=pages(), options={"metrics_open": True})
async def test_it_can_be_opened_to_scrapers(server: Machine):
    assert (await look(server, accept="*/*")).status == 200
    assert (await look(server, "/api/v1/training_runs", accept="*/*")).status == 401


@running(pages=pages())
async def test_an_engine_that_is_away_or_silent_holds_nothing_up(server: Machine):
    found = await scrape(server)
    assert found("tinkex_engine_models") == 0
    server.refuse_engines = "gone"
    server.kill_engine()
    await server.settle()
    found = await scrape(server)
    assert found("tinkex_engine_up") == 0
    assert found("tinkex_engine_restarts_total") == 1
    assert found("tinkex_ready") == 0


@given(st.lists(st.floats(0, 1e6), max_size=50))
def test_buckets_hold_what_was_seen(values: list[float]):
    seen = Histogram()
    for value in values:
        seen.see(value)
    assert seen.count == len(values)
    assert seen.total == pytest.approx(sum(values))
    for place, bound in enumerate((*SHORT, math.inf)):
        assert sum(seen.counts[: place + 1]) == sum(value <= bound for value in values)


@running(pages=pages(), kind="sqlite")
async def test_every_figure_on_the_page_about_servers_is_told(server: Machine):
    found = await scrape(server)
    page = (Path(__file__).parent.parent.parent / "docs" / "server.md").read_text()
    named = set(re.findall(r"`(tinkex_[a-z_]+)`", page))
    assert len(named) > 25
    told = {
        f"{name}_total" if family.type == "counter" else name for name, family in found.families.items()
    }
    assert named <= told
