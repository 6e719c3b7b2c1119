"""A user's journey with our own client: find what was made, share it, delete it, and leave."""

from __future__ import annotations

from typing import Any

from ..client.rest import RestClient
from ..client.service import ServiceClient
from ..errors import TinkerError
from ..types import AdamParams
from ..wire.paths import parse
from .checks import Failed, check, expect
from .examples import RANK
from .surroundings import Surroundings
from .traveller import Traveller


def _listed(traveller: Traveller, path: str) -> Any:
    """A checkpoint as its run lists it."""
    run = parse(path).training_run_id
    found = traveller.wait(traveller.rest.list_checkpoints(run)).checkpoints
    for each in found:
        if each.tinker_path == path:
            return each
    raise Failed(f"{path} is not among {[each.tinker_path for each in found]}")


@check("journey/2.9/training-runs")
def training_runs(here: Surroundings) -> str:
    """A run is listed, and found by its id and by a checkpoint of it."""
    traveller = here.traveller
    path, run = traveller.checkpoint, traveller.trainer.model_id
    page = traveller.wait(traveller.rest.list_training_runs(limit=100))
    expect(
        run in [each.training_run_id for each in page.training_runs], f"{run} is not among the newest 100"
    )
    expect(page.cursor.total_count >= len(page.training_runs), f"total_count {page.cursor.total_count}")
    one = traveller.wait(traveller.rest.get_training_run(run))
    expect(one.is_lora and one.lora_rank in (None, RANK), f"is_lora {one.is_lora}, rank {one.lora_rank}")
    expect(not one.corrupted, "the run is marked as corrupted")
    found = traveller.wait(traveller.rest.get_training_run_by_tinker_path(path))
    expect(found.training_run_id == run, f"{path} leads to {found.training_run_id}")
    return f"{run}, one of {page.cursor.total_count}"


@check("journey/2.9/checkpoints")
def checkpoints(here: Surroundings) -> str:
    """A run's checkpoints are listed, among all of the user's too, and say what they are."""
    traveller = here.traveller
    path = traveller.checkpoint
    listed = _listed(traveller, path)
    expect(listed.checkpoint_id == "weights/conformance", f"checkpoint_id {listed.checkpoint_id}")
    expect(listed.checkpoint_type == "training", f"checkpoint_type {listed.checkpoint_type}")
    sampler = _listed(traveller, traveller.sampler_path)
    expect(sampler.checkpoint_type == "sampler", f"checkpoint_type {sampler.checkpoint_type}")
    everything = traveller.wait(traveller.rest.list_user_checkpoints(limit=100)).checkpoints
    expect(path in [each.tinker_path for each in everything], f"{path} is not among the user's checkpoints")
    return f"{listed.checkpoint_id}, {sampler.checkpoint_id}"


@check("journey/2.4/weights-info")
def weights_info(here: Surroundings) -> str:
    """A checkpoint says what it was trained from."""
    info = here.traveller.wait(
        here.traveller.rest.get_weights_info_by_tinker_path(here.traveller.checkpoint)
    )
    expect(info.is_lora and info.lora_rank == RANK, f"is_lora {info.is_lora}, rank {info.lora_rank}")
    expect(info.base_model == here.base_model, f"base_model {info.base_model}")
    return f"{info.base_model}, rank {info.lora_rank}"


@check("journey/2.9/publish")
def publish(here: Surroundings) -> str:
    """A checkpoint can be published and made private again."""
    traveller, path = here.traveller, here.traveller.checkpoint
    traveller.wait(traveller.rest.publish_checkpoint_from_tinker_path(path))
    expect(_listed(traveller, path).public is True, "published, but not listed as public")
    traveller.wait(traveller.rest.unpublish_checkpoint_from_tinker_path(path))
    expect(_listed(traveller, path).public is False, "made private, but still listed as public")
    return "public, then private"


@check("journey/2.9/ttl")
def time_to_live(here: Surroundings) -> str:
    """A checkpoint can be given an end, and it can be taken back."""
    traveller, path = here.traveller, here.traveller.checkpoint
    traveller.wait(traveller.rest.set_checkpoint_ttl_from_tinker_path(path, 7200))
    expires = _listed(traveller, path).expires_at
    expect(expires is not None, "no expires_at after a time to live was set")
    traveller.wait(traveller.rest.set_checkpoint_ttl_from_tinker_path(path, None))
    expect(_listed(traveller, path).expires_at is None, "expires_at is still there after it was taken back")
    return f"expires {expires}, then never"


@check("journey/2.10/sessions")
def sessions(here: Surroundings) -> str:
    """A session is listed, with its runs and samplers."""
    traveller = here.traveller
    run, sampler = traveller.trainer.model_id, traveller.base_sampler.sampling_session_id
    session = traveller.service.holder.known_id or ""
    listed = traveller.wait(traveller.rest.list_sessions(limit=100)).sessions
    expect(session in listed, f"{session} is not among the newest {len(listed)} sessions")
    known = traveller.wait(traveller.rest.get_session(session))
    expect(run in known.training_run_ids, f"{run} is not among {known.training_run_ids}")
    expect(sampler in known.sampler_ids, f"{sampler} is not among {known.sampler_ids}")
    about = traveller.wait(traveller.rest.get_sampler(sampler))
    expect(about.base_model == here.base_model, f"the sampler's base model is {about.base_model}")
    return f"{session}: {len(known.training_run_ids)} runs, {len(known.sampler_ids)} samplers"


@check("journey/2.9/delete")
def delete(here: Surroundings) -> str:
    """A deleted checkpoint is no longer listed and cannot be loaded."""
    traveller = here.traveller
    trainer = traveller.train()
    path = traveller.wait(trainer.save_state("conformance-deleted")).path
    traveller.wait(traveller.rest.delete_checkpoint_from_tinker_path(path))
    left = traveller.wait(traveller.rest.list_checkpoints(trainer.model_id)).checkpoints
    expect(path not in [each.tinker_path for each in left], f"{path} is still listed")
    try:
        traveller.wait(trainer.load_state(path))
    except TinkerError as error:
        return f"loading it: {str(error)[:100]}"
    raise Failed(f"{path} can still be loaded")


@check("journey/2.1/finish")
def finish(here: Surroundings) -> str:
    """A closed client's session is over, and what it saved stays."""
    traveller = here.traveller
    with ServiceClient(config=here.config) as service:
        trainer = service.create_lora_training_client(here.base_model, rank=RANK)
        path = traveller.saved(trainer.save_state("conformance-left"))
        session = service.holder.known_id or ""
    rest = RestClient(config=here.config)
    expect(path == _listed(traveller, path).tinker_path, "gone")
    known = traveller.wait(rest.get_session(session))
    expect(trainer.model_id in known.training_run_ids, f"{session} has forgotten {trainer.model_id}")
    again = traveller.service.create_training_client_from_state(path)
    traveller.wait(again.optim_step(AdamParams(learning_rate=0.0)))
    return f"{session} is over, {path} is there"
