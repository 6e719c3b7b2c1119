"""One user of our own client: what one stage of the journey made is there for the next."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from ..client.future import Future
from ..client.rest import RestClient
from ..client.sampling import SamplingClient
from ..client.service import ServiceClient
from ..client.training import TrainingClient
from ..config import Config
from ..errors import TinkerError
from ..types import ModelInput, SamplingParams
from .checks import Failed, Skipped
from .examples import ADAM, EXAMPLES, PROMPT, RANK, SEED, Example, datums, logprobs
from .plain_http import PlainHttp

__all__ = ["Traveller", "made_once"]

T = TypeVar("T")


def made_once(make: Callable[[Traveller], T]) -> functools.cached_property[T]:
    """A thing that is made when first asked for; if that fails, later checks are skipped."""
    name = make.__name__

    def made(traveller: Traveller) -> T:
        if name in traveller.missing:
            raise Skipped(f"needs a {name.replace('_', ' ')}: {traveller.missing[name]}")
        try:
            return make(traveller)
        except Skipped:
            raise
        except Exception as error:
            traveller.missing[name] = str(error)[:160]
            raise

    made.__doc__ = make.__doc__
    return functools.cached_property(made)


class Traveller:
    """A user of the client, and what they have made so far."""

    def __init__(self, config: Config, http: PlainHttp, base_model: str) -> None:
        self.config, self.http, self.base_model = config, http, base_model
        self.missing: dict[str, str] = {}
        """What could not be made, and why."""
        self._paths: list[str] = []

    # ---- waiting, within the time the check has

    def wait(self, future: Future[T]) -> T:
        """A future's result."""
        try:
            return future.result(max(self.http.left(), 0.001))
        except TimeoutError:
            raise Failed("no result came in time") from None

    def saved(self, future: Future[Any]) -> str:
        """The path of something saved; it is deleted at the end."""
        path = str(self.wait(future).path)
        self._paths.append(path)
        return path

    # ---- what stages make

    @made_once
    def service(self) -> ServiceClient:
        """The way in."""
        return ServiceClient(config=self.config)

    @made_once
    def rest(self) -> RestClient:
        """Listings."""
        return RestClient(config=self.config)

    @made_once
    def trainer(self) -> TrainingClient:
        """A model of its own, not yet trained."""
        return self.train()

    @made_once
    def checkpoint(self) -> str:
        """The path of saved weights and optimizer state, of a model that made a step."""
        self.step(self.trainer)
        return self.saved(self.trainer.save_state("conformance"))

    @made_once
    def unnamed_sampler(self) -> SamplingClient:
        """A sampler of the weights the model had when this was first asked for."""
        return self.trainer.save_weights_and_get_sampling_client()

    @made_once
    def sampler_path(self) -> str:
        """The path of weights saved under a name to sample from."""
        return self.saved(self.trainer.save_weights_for_sampler("conformance-sampler"))

    @made_once
    def base_sampler(self) -> SamplingClient:
        """A sampler of the base model."""
        return self.service.create_sampling_client(base_model=self.base_model)

    # ---- what travellers do

    def train(self) -> TrainingClient:
        """A new model; all are alike at first."""
        return self.service.create_lora_training_client(self.base_model, rank=RANK, seed=SEED)

    def look(self, trainer: TrainingClient, examples: list[Example] = EXAMPLES) -> list[list[float]]:
        """The logprobs of examples with the weights of now."""
        return logprobs(self.wait(trainer.forward(datums(examples), "cross_entropy")))

    def step(self, trainer: TrainingClient, examples: list[Example] = EXAMPLES, rate: float = 0.0) -> Any:
        """One pass and one step; the step's result."""
        params = ADAM.model_copy(update={"learning_rate": rate}) if rate else ADAM
        passed = trainer.forward_backward(datums(examples), "cross_entropy")
        stepped = trainer.optim_step(params)
        self.wait(passed)
        return self.wait(stepped)

    def scores(self, sampler: SamplingClient, tokens: list[int]) -> list[float | None]:
        """The logprob of each token of a prompt, by a sampler."""
        return self.wait(sampler.compute_logprobs(ModelInput.from_ints(tokens)))

    def draw(self, sampler: SamplingClient, count: int = 1, **settings: Any) -> list[Any]:
        """Sampled sequences."""
        params = SamplingParams(**{"max_tokens": 6, **settings})
        return list(self.wait(sampler.sample(ModelInput.from_ints(PROMPT), count, params)).sequences)

    def close(self) -> None:
        """Delete what was saved and end the session; what cannot be taken down is left."""
        rest: RestClient | None = self.__dict__.get("rest")
        for path in self._paths if rest is not None or self._paths else ():
            try:
                (rest or self.rest).delete_checkpoint_from_tinker_path(path).result(10)
            except (TinkerError, TimeoutError, Skipped):
                continue
        service: ServiceClient | None = self.__dict__.get("service")
        if service is not None:
            service.close().result(20)
