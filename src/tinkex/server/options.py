"""How a server is run: models, addresses, limits; every field is an option of `tinkex serve` and a key of
its config file."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, TypeAlias

from ..config import Secret

Durability: TypeAlias = Literal["process", "power"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request, one owner and the whole server may take; past one: a 4xx with both numbers."""

    body_bytes: int = 64 << 20
    """Largest request body as it travels."""
    unpacked_bytes: int = 256 << 20
    """Largest request body once decompressed."""
    datums: int = 4096
    """Most examples in one pass."""
    tokens: int = 4 << 20
    """Most tokens in one pass."""
    rank: int = 512
    """Largest rank of an adapter."""
    num_samples: int = 1024
    """Most samples of one prompt."""
    topk: int = 20
    """Most top logprobs asked for at a position."""
    sessions: int = 10_000
    """Open sessions of one owner."""
    models: int = 256
    """Loaded models of one owner."""
    queued_operations: int = 4096
    """Operations of one owner that wait or run."""
    queued_bytes: int = 1 << 30
    """Bytes of one owner's operations that wait or run."""
    samples: int = 4096
    """Samples (sequences) of one owner that wait or run; beyond it the answer is 429."""
    storage_bytes: int = 1 << 40
    """Bytes of one owner's checkpoints."""
    samplers: int = 100_000
    """Open sampling sessions of one owner."""
    metadata_bytes: int = 64 << 10
    """Bytes of the tags, metadata and names given to one session, model or checkpoint."""
    custom_losses: int = 1024
    """Custom losses of one session."""
    shortest_ttl: int = 60
    """Shortest life a checkpoint may be given, in seconds."""
    longest_ttl: int = 10 * 366 * 24 * 3600
    """Longest life a checkpoint may be given, in seconds."""


NO_LIMITS = Limits(**{each.name: 1 << 62 for each in fields(Limits)} | {"shortest_ttl": 0})
"""For what was let in before: the limits of that time held for it."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds the server waits for things."""

    hold: float = 35.0
    """How long a poll is held before the client is told to ask again."""
    hole: float = 10.0
    """How long a missing operation is waited for when requests arrive in order."""
    parallel_hole: float = 300.0
    """The same when clients may send pieces in parallel."""
    session: float = 600.0
    """A session without a heartbeat for so long has ended (time the server was down does not count)."""
    results: float = 24 * 3600.0
    """How long the results of operations are kept."""
    samples: float = 3600.0
    """How long the results of samples are kept, unless the client said that it has them."""
    download: float = 3600.0
    """How long a download address works."""
    drain: float = 30.0
    """How long a stopping server lets running work finish."""
    housekeeping: float = 10.0
    """Between two looks for what has expired."""
    stall: float = 600.0
    """An engine at work that makes no progress for so long is killed and started again."""
    loading: float = 3600.0
    """The same while it loads its model and takes its first steps."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A base model on offer: its name and the folder with its files."""

    name: str
    folder: Path


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Everything a server needs to know to start."""

    models: tuple[ModelSpec, ...]
    """The base models on offer."""
    state: Path
    """The folder with all the server remembers."""
    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = 8787
    """The port to listen on; 0: a free one."""
    public_url: str | None = None
    """The address clients see, path prefix included; download addresses are built from it."""
    tls_cert: Path | None = None
    """The file with the certificate (and those between it and its root) to serve https with."""
    tls_key: Path | None = None
    """The file with the certificate's key."""
    api_key: Secret | None = None
    """One key beside those in the key file; its owner is `owner`."""
    owner: str = "local"
    """Whose things the key given at the start opens."""
    device: str | None = None
    """Where engines run: cpu, cuda, cuda:1; by default a GPU if there is one."""
    dtype: str | None = None
    """What engines compute in: float32, bfloat16; by default what suits the device."""
    threads: int | None = None
    """Threads of an engine on a CPU; by default one for small models."""
    deterministic: bool = False
    """Whether the same work gives the same bits, at some cost in speed."""
    trust_remote_code: bool = False
    """Whether code in a model's folder may be run."""
    durability: Durability = "process"
    """What finished work survives: a killed process, or a power cut too."""
    parallel_chunks: bool = False
    """Whether clients may send the pieces of one pass in parallel."""
    jwt: bool = False
    """Whether keys are traded for short-lived tokens."""
    server_losses: bool = True
    """Whether clients may have their custom losses run here."""
    wait_for_lock: float = 0.0
    """Seconds to wait for a server that still has the state folder; 0: none, it is refused."""
    while_locked: Path | None = None
    """A file: the server stops by itself once no other process holds a lock (flock) on it."""
    in_process: bool = False
    """Run engines in this process (for tests)."""
    snapshot_steps: int = 16
    """A model is snapshotted every so many optimizer steps."""
    snapshot_seconds: float = 1.0
    """But after no fewer seconds: steps so short are done again faster than they are saved."""
    snapshot_bytes: int = 256 << 20
    """And when the operations since the last snapshot hold so many bytes."""
    min_free_bytes: int | None = None
    """Bytes of the disk that are kept free: below it nothing large is begun; by default 256 MiB, and a
    hundredth of a disk larger than 25 GiB, up to 4 GiB.
    """
    log_level: str = "info"
    """How much is logged: debug, info, warning, error."""
    log_format: str = "text"
    """How: text, or json with an object a line."""
    metrics_open: bool = False
    """Whether /metrics answers without a key."""
    rates: dict[str, float] = field(default_factory=dict)
    """Dollars per million tokens by usage kind, of `storage` per gigabyte and month; by default 0."""
    limits: Limits = Limits()
    times: Times = Times()

    def __post_init__(self) -> None:
        # Paths inside it are stored relative to it, and it must not move with the working folder.
        object.__setattr__(self, "state", self.state.absolute())
