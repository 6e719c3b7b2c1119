"""A user's journey with our own client: train, save, load, go on."""

from __future__ import annotations

from ..client.connection import Connection
from ..client.portal import portal
from ..client.session import Session
from ..client.training import TrainingClient
from ..wire.paths import parse
from .checks import check, expect, widest
from .examples import ADAM, EXAMPLES, RANK, datums, logprobs, weighted_loss
from .surroundings import Surroundings

_CLOSE = 2e-3


@check("journey/2.1/capabilities")
def capabilities(here: Surroundings) -> str:
    """The client reads what the server offers."""
    offered = here.traveller.service.get_server_capabilities().supported_models
    names = [each.model_name for each in offered]
    expect(here.base_model in names or not names, f"{here.base_model} is not among {names}")
    return f"{len(names)} models; {here.base_model} is used"


@check("journey/2.2/create-model")
def create_model(here: Surroundings) -> str:
    """A model is created, and the server knows what it is."""
    trainer = here.traveller.trainer
    info = trainer.get_info()
    expect(info.model_id == trainer.model_id, f"asked about {trainer.model_id}, told of {info.model_id}")
    expect(info.model_data.model_name, "model_data.model_name is missing: get_tokenizer() needs it")
    expect(info.is_lora in (None, True), f"is_lora is {info.is_lora}")
    expect(info.lora_rank in (None, RANK), f"the rank is {info.lora_rank}, not {RANK}")
    return f"{trainer.model_id}, rank {info.lora_rank} on {info.model_data.model_name}"


@check("journey/2.3/forward-backward")
def forward_backward(here: Surroundings) -> str:
    """A pass gives a logprob for every target, and the loss is minus their weighted sum."""
    trainer = here.traveller.train()
    output = here.traveller.wait(trainer.forward_backward(datums(), "cross_entropy"))
    rows = logprobs(output)
    lengths = [len(targets) for _, targets, _ in EXAMPLES]
    expect(
        [len(row) for row in rows] == lengths, f"logprobs of {[len(row) for row in rows]}, not {lengths}"
    )
    worst = max(value for row in rows for value in row)
    expect(worst <= 1e-3, f"a logprob of {worst}")
    expected, said = weighted_loss(rows), output.metrics["loss:sum"]
    expect(abs(said - expected) <= _CLOSE * max(abs(expected), 1), f"loss:sum {said}, by hand {expected}")
    apart = widest(rows, here.traveller.look(trainer))
    expect(apart <= _CLOSE, f"a forward pass right after it gives other logprobs, by {apart:.2g}")
    return f"loss:sum {said:.4f}, by hand {expected:.4f}"


@check("journey/2.3/optim-step")
def optim_step(here: Surroundings) -> str:
    """Steps lower the loss of the examples they are made for."""
    traveller = here.traveller
    trainer = traveller.train()
    losses = [weighted_loss(traveller.look(trainer))]
    for _ in range(3):
        traveller.step(trainer)
        losses.append(weighted_loss(traveller.look(trainer)))
    expect(losses[-1] < losses[0], f"the loss went {', '.join(f'{each:.4f}' for each in losses)}")
    return f"loss {losses[0]:.4f} → {losses[-1]:.4f} in 3 steps"


@check("journey/6.3/pipelining")
def pipelining(here: Surroundings) -> str:
    """Steps sent without waiting end where steps waited for one by one end."""
    traveller = here.traveller
    slow, quick = traveller.train(), traveller.train()
    for _ in range(2):
        traveller.step(slow)
    under_way = []
    for _ in range(2):
        under_way += [quick.forward_backward(datums(), "cross_entropy"), quick.optim_step(ADAM)]
    last = quick.forward(datums(), "cross_entropy")
    rows = logprobs(traveller.wait(last))
    for future in under_way:
        traveller.wait(future)  # type: ignore[arg-type]
    apart = widest(traveller.look(slow), rows)
    expect(apart <= _CLOSE, f"weights differ by {apart:.2g}")
    return f"5 operations under way at once, weights within {apart:.1g}"


@check("journey/6.4/several-pieces")
def several_pieces(here: Surroundings) -> str:
    """A batch that travels in several requests has the result and the effect of one that does not."""
    traveller = here.traveller
    whole = traveller.train()
    with _SmallPieces(here) as cut:
        outputs = [
            traveller.wait(each.forward_backward(datums(), "cross_entropy")) for each in (whole, cut)
        ]
        for each in (whole, cut):
            traveller.wait(each.optim_step(ADAM))
        apart = widest(logprobs(outputs[0]), logprobs(outputs[1]))
        expect(apart <= _CLOSE, f"logprobs differ by {apart:.2g}")
        losses = [output.metrics["loss:sum"] for output in outputs]
        expect(
            abs(losses[0] - losses[1]) <= _CLOSE * abs(losses[0]), f"loss:sum {losses[0]} and {losses[1]}"
        )
        apart = widest(traveller.look(whole), traveller.look(cut))
        expect(apart <= _CLOSE, f"after a step the weights differ by {apart:.2g}")
    return f"4 requests for 4 examples, weights within {apart:.1g}"


class _SmallPieces:
    """A model whose client sends every example in a request of its own."""

    def __init__(self, here: Surroundings) -> None:
        self._here = here
        told = portal().run(Connection(here.config).settings())
        settings = told.model_copy(update={"fwdbwd_max_chunk_len": 1})
        self._session = Session(Connection(here.config, settings=settings))

    def __enter__(self) -> TrainingClient:
        session = portal().run(self._session.id())
        number = self._session.next_model()
        made = self._here.work.done("/create_model", self._here.work.model_request(session, number))
        return TrainingClient(self._session, number, str(made["model_id"]))

    def __exit__(self, *_: object) -> None:
        portal().run(self._session.finish("success"))


@check("journey/2.4/save-state")
def save_state(here: Surroundings) -> str:
    """Weights and optimizer state are saved under a path that says where they are."""
    path = here.traveller.checkpoint
    parsed = parse(path)
    expect(parsed.checkpoint_id == "weights/conformance", f"saved as {path}")
    expect(parsed.training_run_id == here.traveller.trainer.model_id, f"saved as {path}")
    return path


@check("journey/2.4/load-with-optimizer")
def load_with_optimizer(here: Surroundings) -> str:
    """From a checkpoint with its optimizer, training goes on exactly as it did."""
    traveller = here.traveller
    trainer = traveller.train()
    traveller.step(trainer)
    path = traveller.saved(trainer.save_state("conformance-halfway"))
    at_save = traveller.look(trainer)
    traveller.step(trainer)
    after_save = traveller.look(trainer)
    expect(widest(at_save, after_save) > 10 * _CLOSE, "a step changed nothing: there is nothing to compare")
    traveller.wait(trainer.load_state_with_optimizer(path))
    apart = widest(at_save, traveller.look(trainer))
    expect(apart <= _CLOSE, f"loaded weights differ from the saved ones by {apart:.2g}")
    traveller.step(trainer)
    apart = widest(after_save, traveller.look(trainer))
    expect(apart <= _CLOSE, f"one step after loading, weights differ by {apart:.2g}")
    other = traveller.service.create_training_client_from_state_with_optimizer(path)
    expect(other.model_id != trainer.model_id, "a model made from a checkpoint is the old one")
    traveller.step(other)
    apart = widest(after_save, traveller.look(other))
    expect(apart <= _CLOSE, f"one step after resuming in a new model, weights differ by {apart:.2g}")
    return f"in the same model and in a new one, weights within {apart:.1g}"


@check("journey/2.4/load-weights-alone")
def load_weights_alone(here: Surroundings) -> str:
    """From a checkpoint without its optimizer, the weights are the saved ones and the optimizer is new."""
    traveller = here.traveller
    trainer = traveller.train()
    for _ in range(2):
        traveller.step(trainer)
    path = traveller.saved(trainer.save_state("conformance-weights"))
    at_save = traveller.look(trainer)
    other = traveller.service.create_training_client_from_state(path)
    apart = widest(at_save, traveller.look(other))
    expect(apart <= _CLOSE, f"loaded weights differ from the saved ones by {apart:.2g}")
    # With moments of its own the next step is another one.
    traveller.step(trainer)
    traveller.step(other)
    apart = widest(traveller.look(trainer), traveller.look(other))
    expect(apart > _CLOSE, "a step after loading is the same as with the old optimizer state")
    return f"the next step differs by {apart:.2g}"
