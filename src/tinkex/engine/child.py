"""An engine in a process of its own: `python -m tinkex.engine.child FD [PARENT]`, FD a socketpair's end.

The first message is a `Start`; once the model is loaded the answer is `Ready`, or `Failed` and exit code 3.
From then on requests come in and answers go out until the other end closes the socket or dies. Nothing is
kept for a server that is gone: what it had asked for it asks again. Ctrl-C and a service manager's stop
reach the whole process group; they are the server's to handle, so this process ignores them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from .codec import CodecError, Frames, packed
from .faults import EngineFault, ServerFault
from .host import Loop, Steppable
from .messages import Answer, Failed, Message, Pulse, Ready, Request, Start, TokenStep
from .model_folder import check_folder, stored_parameters
from .pulse import Heart

if TYPE_CHECKING:
    from .engine import Engine

log = logging.getLogger(__name__)
SMALL = 50_000_000
"""Models of fewer parameters run on one thread: several would spend their time waiting for each other."""
WAITING = {"GOMP_SPINCOUNT": "2000", "KMP_BLOCKTIME": "0"}
"""How OpenMP's threads wait for each other: hardly any time awake.

By their defaults they keep a core busy for milliseconds, and where other programs want it too, those
they wait for do not get on: a model of 135M parameters decoded fifteen times slower.
"""
NOT_STARTED, BAD_MESSAGE, BROKEN = 3, 4, 1
"""Exit codes, beside 0 for a server that closed the socket."""
_BUFFERS = 512
_REQUESTS = get_args(Request)
_DIE_WITH_PARENT = 1


class Wire:
    """Messages over one end of a socket."""

    def __init__(self, end: socket.socket) -> None:
        self._socket, self._frames = end, Frames()
        self._writing = threading.Lock()

    def arriving(self) -> Iterator[Message]:
        """Every message, until the other end is gone."""
        yield from self._frames.filled(0)
        while True:
            try:
                count = self._socket.recv_into(self._frames.space())
            except ConnectionError:
                return
            if not count:
                return
            yield from self._frames.filled(count)

    def send(self, answers: Sequence[Answer | Ready | Pulse]) -> None:
        """Write messages, all of them in as few system calls as the socket allows, from any thread."""
        left = [memoryview(buffer) for buffer in packed(answers)]
        with self._writing:
            while left:
                sent = self._socket.sendmsg(left[:_BUFFERS])
                while left and sent >= len(left[0]):
                    sent -= len(left.pop(0))
                if sent:
                    left[0] = left[0][sent:]

    def answer(self, answers: list[Answer]) -> None:
        """Write answers; one that cannot be written becomes a failure of its request."""
        try:
            self.send(answers)
        except CodecError:
            self.send([_writable(answer) for answer in answers])


def _writable(answer: Answer) -> Answer:
    try:
        packed([answer])
    except CodecError as error:
        if isinstance(answer, TokenStep):
            raise
        log.error("the answer to %s cannot be sent: %s", answer.request_id, error)
        return Failed(answer.epoch, answer.request_id, "server", f"the answer cannot be sent: {error}")
    return answer


def main(arguments: Sequence[str]) -> int:
    """Serve one engine on the socket given by its number, for the process given after it; the exit code."""
    _leave_signals_to_the_server()
    if len(arguments) > 1 and os.getppid() != int(arguments[1]):
        return 0  # it was gone before it could be asked to take this process along
    logging.basicConfig(stream=sys.stderr, level="INFO", format="%(levelname)s %(name)s: %(message)s")
    end = socket.socket(fileno=int(arguments[0]))
    end.set_inheritable(False)
    wire = Wire(end)
    try:
        start = next(wire.arriving(), None)
    except CodecError as error:
        log.error("what arrived is no message: %s", error)
        return BAD_MESSAGE
    if start is None:
        return 0
    if not isinstance(start, Start):
        log.error("the first message must be Start, not %s", type(start).__name__)
        return BAD_MESSAGE
    logging.getLogger().setLevel(logging.getLevelNamesMapping().get(start.log_level.upper(), "INFO"))
    heart = Heart(start.epoch, start.pulse, lambda pulse: wire.send([pulse]))
    heart.start()
    with contextlib.suppress(ConnectionError):
        try:
            engine = open_engine(start)
        except Exception as error:
            log.debug("the engine could not be started", exc_info=True)
            wire.send([Failed(start.epoch, "", "server", _readable(error))])
            return NOT_STARTED
        # What was made while loading lives as long as the process: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        return serve(engine, wire, heart)
    return 0


def serve(engine: Steppable, wire: Wire, heart: Heart | None = None) -> int:
    """Run an engine until the wire's other end is gone; the exit code."""
    loop = Loop(engine, wire.answer)
    if heart is not None:
        heart.watch(loop)
    code = 0

    def read() -> None:
        nonlocal code
        try:
            for message in wire.arriving():
                if not isinstance(message, _REQUESTS):
                    raise CodecError(f"{type(message).__name__} is no request")
                loop.put(message)
        except Exception as error:
            log.error("what arrived is no message: %s", error)
            code = BAD_MESSAGE
        loop.stop()

    wire.send([engine.ready()])
    threading.Thread(target=read, name="tinkex-reader", daemon=True).start()
    try:
        loop.run()
    except ConnectionError:
        log.info("the server is gone")
    except Exception:
        log.exception("the engine ended")
        code = BROKEN
    engine.close()
    return code


def open_engine(start: Start) -> Engine:
    """Load the base model and put an engine on it."""
    check_folder(start.folder)
    if start.state is not None:
        _claim(Path(start.state))
    threads = start.threads or _threads(start)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    if "OMP_WAIT_POLICY" not in os.environ:
        for name, value in WAITING.items():
            os.environ.setdefault(name, value)
    import torch
    from transformers.utils import logging as transformers_logging

    from .base_model import BaseModel
    from .engine import STATES, Engine, EngineOptions
    from .sampler import SamplerOptions

    torch.set_num_threads(threads)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    if start.state is not None:
        shutil.rmtree(Path(start.state) / STATES, ignore_errors=True)
    training: dict[str, Any] = dict(start.training)
    sampling: dict[str, Any] = dict(start.sampling)
    options = EngineOptions(
        deterministic=start.deterministic,
        folder=None if start.state is None else Path(start.state),
        sampler=SamplerOptions(**sampling),
        **training,
    )
    base = BaseModel.load(
        start.folder,
        device=start.device,
        dtype=start.dtype,
        trust_remote_code=start.trust_remote_code,
    )
    text = None
    try:
        from .detokenise import detokeniser

        text = detokeniser(start.folder, trust_remote_code=start.trust_remote_code)
    except Exception as error:
        log.warning("no tokenizer, so stop strings will be refused: %s", _readable(error))
    return Engine(base, epoch=start.epoch, options=options, detokenise=text)


def _claim(folder: Path) -> None:
    """Make sure that no other engine works in a folder, for as long as this process lives."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / "engine.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ServerFault(f"another engine works in {folder}") from None


def _threads(start: Start) -> int:
    if start.device not in (None, "cpu"):
        return 1
    return 1 if stored_parameters(start.folder) < SMALL else _cores()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _readable(error: BaseException) -> str:
    text = str(error).strip()
    return text if isinstance(error, EngineFault) else f"{type(error).__name__}: {text}"


def _leave_signals_to_the_server() -> None:
    for name in ("SIGINT", "SIGTERM"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    logging.shutdown()
    # Libraries' threads and destructors have nothing left to do and can take seconds over it.
    os._exit(status)
