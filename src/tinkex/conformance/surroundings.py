"""What a check is given: the server, the model to use, plain requests, and a traveller with our client."""

from __future__ import annotations

import logging
from typing import Any

from ..config import Config
from ..errors import TinkerError
from .plain_http import PlainHttp
from .plain_work import PlainWork
from .traveller import Traveller

__all__ = ["Surroundings"]


class Surroundings:
    """One server as checks see it."""

    def __init__(self, config: Config, model: str | None = None) -> None:
        quick = config.with_(retry_seconds=min(config.retry_seconds, 15.0), telemetry=False)
        self.config = quick
        self.http = PlainHttp(quick)
        self.base_model = model or self._offered()
        self.work = PlainWork(self.http, self.base_model)
        self.traveller = Traveller(quick, self.http, self.base_model)

    def _offered(self) -> str:
        """The first model the server says can be trained."""
        answer = self.http.get("/get_server_capabilities")
        if answer.status in (401, 403):
            raise TinkerError(f"{self.config.base_url} does not accept the API key: {answer}")
        listed: Any = answer.json.get("supported_models") if answer.status == 200 else None
        for each in listed or ():
            if each.get("model_name") and each.get("trainable") is not False:
                return str(each["model_name"])
        raise TinkerError(
            f"{self.config.base_url} names no model that can be trained ({answer}); say which with --model"
        )

    def close(self) -> None:
        """Take down what is left of the checks."""
        self.http.until = float("inf")
        quiet = logging.getLogger("tinkex")
        level = quiet.level
        quiet.setLevel(logging.CRITICAL)  # a server that is gone was told of already
        try:
            self.work.tidy()
            self.traveller.close()
            self.http.close()
        finally:
            quiet.setLevel(level)
