"""A user's program: trains, samples, saves and loads, and knows nothing of servers that die.

    python workload.py tinker|tinkex STEPS

The address and the key come from TINKER_BASE_URL and TINKER_API_KEY.  Each line printed is a JSON document:
`{"step": N}` once step N is done, and at the end `{"seen": ...}` with all the numbers that came back.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

MODEL = "tiny/model"
PROMPT = [5, 6, 7, 8, 9]
LONG = 10_000
"""Tokens of a pass whose body is kept in a file of its own."""


class Program:
    """The program with whichever SDK it was told to use."""

    def __init__(self, sdk: Any) -> None:
        self.sdk, self.types = sdk, sdk.types
        self.seen: dict[str, Any] = {}
        self.service = sdk.ServiceClient(
            base_url=os.environ["TINKER_BASE_URL"], api_key=os.environ["TINKER_API_KEY"]
        )

    def run(self, steps: int) -> None:
        """The whole of it."""
        client = self.service.create_lora_training_client(MODEL, rank=4, seed=7)
        plain = self.service.create_sampling_client(base_model=MODEL)
        under_way = self.begin(client, 0)
        sampling: list[tuple[str, Any]] = []
        for step in range(steps):
            passes, stepped = under_way
            sampling.append((f"base {step}", self.draw(plain, step)))
            if step + 1 < steps and not self.pauses(step):
                under_way = self.begin(client, step + 1)
            self.note(f"losses {step}", [each.result().metrics["loss:sum"] for each in passes])
            self.note(f"step {step}", dict(stepped.result().metrics or {}))
            if self.pauses(step):
                sampling += self.look(client, step)
                if step + 1 < steps:
                    under_way = self.begin(client, step + 1)
            while len(sampling) > 4:
                self.settle(*sampling.pop(0))
            say({"step": step})
        for name, future in sampling:
            self.settle(name, future)
        client.save_state("end").result()
        self.note("end", self.logprobs(client))

    @staticmethod
    def pauses(step: int) -> bool:
        """Whether nothing is sent ahead, so that weights are those after this step."""
        return step % 2 == 1

    def look(self, client: Any, step: int) -> list[tuple[str, Any]]:
        """Save, load and sample between two steps."""
        found = []
        unnamed = client.save_weights_and_get_sampling_client()
        found += [(f"unnamed {step}.{n}", self.draw(unnamed, 100 * step + n)) for n in range(2)]
        if step % 4 == 3:
            path = client.save_state(f"at-{step}").result().path
            self.note(f"forward {step}", self.logprobs(client))
            client.forward_backward(self.data(step, 2), "cross_entropy").result()
            client.load_state_with_optimizer(path).result()
            self.note(f"loaded {step}", self.logprobs(client))
        if step % 6 == 5:
            path = client.save_weights_for_sampler(f"for-{step}").result().path
            named = self.service.create_sampling_client(model_path=path)
            found.append((f"named {step}", self.draw(named, step)))
        return found

    def begin(self, client: Any, step: int) -> tuple[list[Any], Any]:
        """Two passes and an optimizer step, all on their way at once."""
        passes = [client.forward_backward(self.data(step, part), "cross_entropy") for part in range(2)]
        adam = self.types.AdamParams(learning_rate=1e-3 / (1 + step % 3), beta1=0.9, beta2=0.95, eps=1e-8)
        return passes, client.optim_step(adam)

    def data(self, step: int, part: int) -> list[Any]:
        """The examples of a pass."""
        rows, length = (5, LONG // 5) if (step % 8, part) == (2, 1) else (3, 12 + step % 5)
        return [self.datum(7 * step + 3 * part + row, length) for row in range(rows)]

    def datum(self, number: int, length: int) -> Any:
        """One example."""
        tokens = [(number * 5 + place * 3 + place * place) % 250 for place in range(length)]
        weights = [1.0 + 0.25 * (place % 3) for place in range(length)]
        return self.types.Datum(
            model_input=self.types.ModelInput.from_ints(tokens),
            loss_fn_inputs={"target_tokens": [*tokens[1:], number % 250], "weights": weights},
        )

    def draw(self, sampler: Any, seed: int) -> Any:
        """A sample under way."""
        params = self.types.SamplingParams(max_tokens=24, seed=seed, temperature=1.0, stop=[])
        return sampler.sample(self.types.ModelInput.from_ints(PROMPT), 2, params)

    def settle(self, name: str, future: Any) -> None:
        """Wait for a sample."""
        self.note(
            name,
            [
                [[int(token) for token in row.tokens], [float(value) for value in row.logprobs]]
                for row in future.result().sequences
            ],
        )

    def logprobs(self, client: Any) -> list[list[float]]:
        """What the model as it is thinks of a fixed batch."""
        output = client.forward(self.data(0, 0), "cross_entropy").result()
        return [[float(value) for value in row["logprobs"].data] for row in output.loss_fn_outputs]

    def note(self, name: str, value: Any) -> None:
        """Keep what came back, by name."""
        self.seen[name] = value


def say(line: dict[str, Any]) -> None:
    """Print one line at once."""
    print(json.dumps(line), flush=True)


def main() -> None:
    """Run the program."""
    program = Program(importlib.import_module(sys.argv[1]))
    program.run(int(sys.argv[2]))
    say({"seen": program.seen})


if __name__ == "__main__":
    main()
    # An SDK's threads have nothing left to do.
    sys.stdout.flush()
    os._exit(0)
