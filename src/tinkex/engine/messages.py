"""What goes into the engine and what comes out of it: frozen records of str, int, float and numpy arrays.

Every record carries the epoch of the engine it belongs to; a record of another epoch is refused (`codec`
turns them into bytes). The control plane owns names (`model`, `owner`, `path`), the engine owns `version`
(what a set of frozen sampler weights is called, from its content) and `stream` (one number for each
sequence being sampled). This module imports nothing of the engine, so a process without torch can read it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

Scalar = float | int | str | bool | None
Array = npt.NDArray[np.generic]

BASE_VERSION = ""
"""The version that names the bare base model, without an adapter."""

STOP, LENGTH = 0, 1
"""Why a sequence ended: at a stop token or string, or at its length."""


@dataclass(frozen=True, slots=True)
class SparseRows:
    """A two-dimensional array in CSR form; cells that are not listed are zero (in targets: absent)."""

    values: Array
    crow: Array
    col: Array
    shape: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Datum:
    """One training sequence: its input tokens and the loss's inputs, each aligned to the tokens."""

    tokens: Array
    inputs: dict[str, Array | SparseRows]
    media: tuple[str, ...] = ()
    """Kinds of the parts that are not text ("image"): the engine names them when it refuses them."""


@dataclass(frozen=True, slots=True)
class Start:
    """The first message to an engine in a process of its own: what to load and how to run it."""

    epoch: int
    folder: str
    """The base model's files."""
    state: str | None = None
    """Where the engine keeps cold training states and unnamed sampler weights; None: in memory."""
    device: str | None = None
    dtype: str | None = None
    threads: int | None = None
    """Threads on a CPU; None: one for small models, else one for each core."""
    deterministic: bool = False
    trust_remote_code: bool = False
    log_level: str = "info"
    training: dict[str, Scalar] = field(default_factory=dict)
    """Fields of the engine's options by name, where they differ from the defaults."""
    sampling: dict[str, Scalar] = field(default_factory=dict)
    """The same for the sampler's options."""
    pulse: float = 5.0
    """Seconds between two looks at whether there is anything new to tell of what the engine does."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """What an engine in a process of its own is at; it is asked for by nobody, and sent when it is news."""

    epoch: int
    doing: str
    """For people."""
    steps: int
    """Micro-batches, decode steps and other pieces of work done since the engine was started."""
    taken: int
    """Messages taken in since then."""
    busy: bool
    """Whether it is at work; else it waits for messages."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The first message from an engine: it takes requests now, and these are its facts."""

    epoch: int
    facts: dict[str, Scalar]
    eos: Array
    """Tokens that end a text, unless a request names its own."""


@dataclass(frozen=True, slots=True)
class TrainPart:
    """What one model contributes to a joined pass."""

    model: str
    data: tuple[Datum, ...]
    loss: str
    config: dict[str, Scalar] = field(default_factory=dict)
    forward_only: bool = False


@dataclass(frozen=True, slots=True)
class Train:
    """Run forward (and backward) passes of several models as one; each part succeeds or fails alone."""

    epoch: int
    request_id: str
    parts: tuple[TrainPart, ...]


@dataclass(frozen=True, slots=True)
class CreateAdapter:
    """Make a fresh adapter for a model name."""

    epoch: int
    request_id: str
    model: str
    rank: int = 32
    seed: int | None = None
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True
    optimizer: str = "adamw"


@dataclass(frozen=True, slots=True)
class LoadState:
    """Put a saved state, or a PEFT adapter folder, in place of a model's weights (made if not there).

    With the optimizer, a gradient saved with it comes back too.
    """

    epoch: int
    request_id: str
    model: str
    path: str
    with_optimizer: bool = False


@dataclass(frozen=True, slots=True)
class OptimStep:
    """Consume a model's accumulated gradients with these hyperparameters."""

    epoch: int
    request_id: str
    model: str
    params: dict[str, Scalar]


@dataclass(frozen=True, slots=True)
class SaveState:
    """Write a model's weights and optimizer (and the gradient collected so far) to a folder."""

    epoch: int
    request_id: str
    model: str
    path: str
    with_optimizer: bool = True
    with_gradient: bool = False
    background: bool = False
    """Whether later messages may be worked on, and answered, before it is written."""


@dataclass(frozen=True, slots=True)
class SaveSampler:
    """Freeze a model's weights for sampling; with a path they are written too, without one ephemeral.

    The answer's facts are `version` and `path`: the folder they are in, or will be in soon; None if the
    engine has no folder for ephemeral ones; and `bytes`, the size of named ones.
    """

    epoch: int
    request_id: str
    model: str
    path: str | None = None


@dataclass(frozen=True, slots=True)
class LoadSampler:
    """Bring sampler weights back from a folder."""

    epoch: int
    request_id: str
    path: str
    version: str | None = None
    """What they must turn out to be; others are refused as a fault of the server."""
    ephemeral_of: str | None = None
    """The model they were frozen from without a name: they are dropped when stale, as before. Of several
    the oldest is loaded first.
    """


@dataclass(frozen=True, slots=True)
class KeepSamplers:
    """Remove the files of ephemeral sampler weights left by an earlier engine, but for these versions."""

    epoch: int
    request_id: str
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Export:
    """Write a model's adapter as a PEFT folder."""

    epoch: int
    request_id: str
    model: str
    path: str
    base_name: str = ""
    """What the folder calls the base model."""


@dataclass(frozen=True, slots=True)
class ExportSaved:
    """Write a PEFT folder from a saved state or from saved sampler weights."""

    epoch: int
    request_id: str
    source: str
    path: str
    base_name: str = ""


@dataclass(frozen=True, slots=True)
class Unload:
    """Forget a model's training state; sampler weights already frozen stay."""

    epoch: int
    request_id: str
    model: str


@dataclass(frozen=True, slots=True)
class DropSampler:
    """Forget frozen sampler weights."""

    epoch: int
    request_id: str
    version: str


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn; the defaults are those of the public API."""

    max_tokens: int | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[int | str, ...] | None = None
    """None: the model's end-of-text tokens. Else exactly these tokens and strings; empty: nothing stops."""


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """Which logprobs come back besides those of the sampled tokens."""

    prompt_logprobs: bool = False
    last_n: int | None = None
    """Score only the last N prompt tokens."""
    topk_prompt: int = 0
    topk_sample: int = 0
    alt_tokens: int = 0
    """Draws from the distribution at every prompt position after the first."""
    targets: Array | SparseRows | None = None
    """Token ids to score, [prompt - 1, K]; -1 asks for nothing."""
    raw: bool = False
    """Sampled tokens' logprobs at temperature 1 in place of the temperature they were drawn at."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Draw sequences after a prompt from frozen weights (`version`, or BASE_VERSION)."""

    epoch: int
    request_id: str
    version: str
    prompt: Array
    num_samples: int = 1
    params: SamplingParams = SamplingParams()
    scores: ScoreOptions = ScoreOptions()
    owner: str = ""
    media: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop a sampling request and free its rows; unknown or finished ones are left alone."""

    epoch: int
    request_id: str


@dataclass(frozen=True, slots=True)
class AskStats:
    """Ask what the engine holds and how busy it is."""

    epoch: int
    request_id: str


@dataclass(frozen=True, slots=True)
class PartResult:
    """One part's outputs: per datum the named arrays, and metrics named `name:reduction`."""

    outputs: tuple[dict[str, Array], ...]
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class PartFailure:
    """One part failed; its weights and gradients are as before the call."""

    category: str
    text: str


@dataclass(frozen=True, slots=True)
class TrainDone:
    """The answer to `Train`, part by part in the order asked."""

    epoch: int
    request_id: str
    parts: tuple[PartResult | PartFailure, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """Any other operation succeeded: what it made (version, path, bytes) and its metrics."""

    epoch: int
    request_id: str
    facts: dict[str, Scalar] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """An operation failed as a whole; `category` is "user" or "server"."""

    epoch: int
    request_id: str
    category: str
    text: str


@dataclass(frozen=True, slots=True)
class SampleAccepted:
    """A sampling request was queued; its sequences are streams `first_stream` and the following ones."""

    epoch: int
    request_id: str
    first_stream: int
    num_samples: int


@dataclass(frozen=True, slots=True)
class TokenStep:
    """The tokens of one decode step, all rows together, and the streams that ended with it."""

    epoch: int
    streams: Array
    tokens: Array
    logprobs: Array
    ended: Array
    """Streams that end with this message."""
    reasons: Array
    """STOP or LENGTH for each of `ended`."""
    top_streams: Array | None = None
    """Streams that asked for top tokens: ids and logprobs are [n, k], -1 fills shorter rows."""
    top_tokens: Array | None = None
    top_logprobs: Array | None = None


@dataclass(frozen=True, slots=True)
class SampleDone:
    """Every sequence of a request ended: how much of the prompt was cached, and the prompt's scores."""

    epoch: int
    request_id: str
    cache_hit_tokens: int
    prompt_logprobs: Array | None = None
    """[prompt] float32, NaN where not computed."""
    topk_prompt_tokens: Array | None = None
    topk_prompt_logprobs: Array | None = None
    """[prompt, k], NaN where not computed."""
    target_logprobs: Array | SparseRows | None = None
    """Shape and layout of the targets asked for, 0 where they were -1."""
    alt_tokens: Array | None = None
    alt_logprobs: Array | None = None
    """[prompt - 1, k]"""


@dataclass(frozen=True, slots=True)
class Stats:
    """What the engine holds and does; the keys are for people and dashboards."""

    epoch: int
    request_id: str
    figures: dict[str, Scalar]


Request = (
    Train
    | CreateAdapter
    | LoadState
    | OptimStep
    | SaveState
    | SaveSampler
    | LoadSampler
    | KeepSamplers
    | Export
    | ExportSaved
    | Unload
    | DropSampler
    | Sample
    | Cancel
    | AskStats
)
Answer = TrainDone | Done | Failed | SampleAccepted | TokenStep | SampleDone | Stats
Message = Request | Answer | Start | Ready | Pulse

StopReason = Literal["stop", "length"]
