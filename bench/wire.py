"""Encoding, decoding and import cost, side by side with the official SDK in one run.

    python bench/wire.py [--rounds 7] [--json]

CPU time of this process, medians over the rounds, garbage collector off while timing.  Both sides start
from the same arrays or lists and end with the same bytes or values, which is checked before timing.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tinker
from tinker.proto import tinker_public_pb2 as official_pb
from tinker.proto.request_conv import forward_backward_request_to_proto
from tinker.proto.response_conv import deserialize_forward_backward_output, deserialize_sample_response

import tinkex
from tinkex.wire import jsonbody, passes, samples

DATUMS, LENGTH = 512, 2048
SHORTEST_ROUND = 0.03  # seconds of CPU; quicker calls are repeated within a round


@dataclass(frozen=True)
class Case:
    """One thing both SDKs can do; `target` is the largest ratio we accept."""

    name: str
    official: Callable[[], Any]
    own: Callable[[], Any]
    same: Callable[[Any, Any], bool]
    target: float | None = None


# ---- requests


def _official_sample(tokens: list[int]) -> bytes:
    request = tinker.SampleRequest(
        prompt=tinker.ModelInput.from_ints(tokens),
        sampling_params=tinker.SamplingParams(max_tokens=64, temperature=0.7),
        sampling_session_id="s:sample:0",
        seq_id=1,
    )
    body = request.model_dump(mode="json", exclude_none=True)
    # What httpx makes of it.
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode()


def _own_sample(tokens: Any) -> bytes:
    request = tinkex.SampleRequest(
        prompt=tinkex.ModelInput.from_ints(tokens),
        sampling_params=tinkex.SamplingParams(max_tokens=64, temperature=0.7),
        sampling_session_id="s:sample:0",
        seq_id=1,
    )
    return jsonbody.encode(request)


def _same_json(official: bytes, own: bytes) -> bool:
    return bool(json.loads(official) == json.loads(own))


def sample_requests(rng: np.random.Generator) -> Iterator[Case]:
    for label, size, target in (("100", 100, None), ("32k", 32_768, 0.1), ("128k", 131_072, None)):
        array = rng.integers(0, 150_000, size)
        tokens = array.tolist()
        yield Case(
            f"sample request, {label} tokens, from a list",
            lambda tokens=tokens: _official_sample(tokens),
            lambda tokens=tokens: _own_sample(tokens),
            _same_json,
            target,
        )
        yield Case(
            f"sample request, {label} tokens, from numpy",
            lambda array=array: _official_sample(array.tolist()),
            lambda array=array: _own_sample(array),
            _same_json,
            target,
        )


def _inputs(rng: np.random.Generator) -> tuple[Any, list[dict[str, Any]]]:
    tokens = rng.integers(0, 150_000, (DATUMS, LENGTH))
    return tokens, [
        {
            "target_tokens": np.ascontiguousarray(row),
            "logprobs": rng.normal(size=LENGTH).astype(np.float32),
            "advantages": rng.normal(size=LENGTH).astype(np.float32),
        }
        for row in tokens
    ]


def training_batch(rng: np.random.Generator) -> Case:
    tokens, inputs = _inputs(rng)

    def official() -> bytes:
        data = [
            tinker.Datum(model_input=tinker.ModelInput.from_ints(row.tolist()), loss_fn_inputs=dict(one))
            for row, one in zip(tokens, inputs, strict=True)
        ]
        passed = tinker.types.ForwardBackwardInput(data=data, loss_fn="importance_sampling")
        request = tinker.types.ForwardBackwardRequest(forward_backward_input=passed, model_id="m", seq_id=1)
        return forward_backward_request_to_proto(request).SerializeToString()

    def own() -> bytes:
        data = [
            tinkex.Datum(model_input=tinkex.ModelInput.from_ints(row), loss_fn_inputs=dict(one))
            for row, one in zip(tokens, inputs, strict=True)
        ]
        return passes.encode_request(passes.PassRequest("m", 1, data, "importance_sampling"))

    def same(left: bytes, right: bytes) -> bool:
        read = official_pb.ForwardBackwardRequest.FromString
        return bool(read(left) == read(right))

    return Case(f"training batch, {DATUMS} x {LENGTH}, built and encoded", official, own, same, 0.2)


# ---- results


def sample_result(rng: np.random.Generator) -> Iterator[Case]:
    sequences = [
        tinkex.SampledSequence(
            "stop",
            f"id-{index}",
            rng.integers(0, 150_000, 1024).astype(np.int32),
            rng.normal(size=1024).astype(np.float32),
        )
        for index in range(16)
    ]
    prompt = rng.normal(size=LENGTH).astype(np.float32)
    body = samples.encode_sample_response(tinkex.SampleResponse(sequences, prompt))

    def lists(response: Any) -> Any:
        held = [(one.tokens, one.logprobs) for one in response.sequences]
        return held, response.prompt_logprobs

    yield Case(
        "sample response, 16 x 1024, decoded",
        lambda: deserialize_sample_response(body),
        lambda: samples.decode_sample_response(body),
        lambda left, right: bool(lists(left) == lists(right)),
    )
    yield Case(
        "sample response, 16 x 1024, decoded and read as lists",
        lambda: lists(deserialize_sample_response(body)),
        lambda: lists(samples.decode_sample_response(body)),
        lambda left, right: bool(left == right),
    )


def pass_result(rng: np.random.Generator) -> Case:
    outputs = [
        {
            "logprobs": tinkex.TensorData.from_numpy(rng.normal(size=LENGTH).astype(np.float32)),
            "elementwise_loss": tinkex.TensorData.from_numpy(rng.normal(size=LENGTH).astype(np.float32)),
        }
        for _ in range(DATUMS)
    ]
    body = passes.encode_output(tinkex.ForwardBackwardOutput("ArrayRecord", outputs, {"loss:sum": 1.0}))

    def same(left: Any, right: Any) -> bool:
        return left.metrics == right.metrics and all(
            np.array_equal(theirs[name].to_numpy(), ours[name].to_numpy())
            for theirs, ours in zip(left.loss_fn_outputs, right.loss_fn_outputs, strict=True)
            for name in theirs
        )

    return Case(
        f"forward_backward response, {DATUMS} x {LENGTH}, decoded",
        lambda: deserialize_forward_backward_output(body),
        lambda: passes.decode_output(body),
        same,
        1.0,
    )


# ---- imports


def imports(rounds: int) -> Iterator[dict[str, Any]]:
    """CPU of a fresh interpreter's import with compiled modules at hand, best of the rounds."""
    everything = "ServiceClient", "types.Datum", "types.SamplingParams"
    rows: list[tuple[str, tuple[str, ...], float | None]] = [
        ("import", (), 1 / 8),
        *((f"import and touch {name}", (name,), None) for name in everything),
        ("import and touch all three", everything, 1 / 3),
    ]
    with tempfile.TemporaryDirectory() as cache:
        for name, touched, target in rows:
            best = dict.fromkeys(("tinker", "tinkex"), float("inf"))
            for sdk in best:
                import_seconds(sdk, touched, cache)  # compiles
            for _ in range(rounds):
                for sdk in best:
                    best[sdk] = min(best[sdk], import_seconds(sdk, touched, cache))
            yield row(name, best["tinker"], best["tinkex"], target)


def import_seconds(sdk: str, touched: tuple[str, ...], cache: str) -> float:
    touch = "; ".join(f"{sdk}.{name}" for name in touched) or "pass"
    clock = "time.process_time()"
    script = f"import time; start = {clock}; import {sdk}; {touch}; print({clock} - start)"
    settings = {**os.environ, "PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=settings)
    return float(done.stdout)


# ---- measuring


def repeats(call: Callable[[], Any]) -> int:
    """How often a call must run to fill the shortest round."""
    count = 1
    while (took := seconds(call, count)) < SHORTEST_ROUND:
        count = max(count + 1, int(count * min(10, 1.2 * SHORTEST_ROUND / max(took, 1e-6))))
    return count


def seconds(call: Callable[[], Any], count: int) -> float:
    start = time.process_time()
    for _ in range(count):
        call()
    return time.process_time() - start


def measure(case: Case, rounds: int) -> dict[str, Any]:
    if not case.same(case.official(), case.own()):
        raise SystemExit(f"{case.name}: the two SDKs do not agree")
    calls = {"official": case.official, "own": case.own}
    times: dict[str, list[float]] = {"official": [], "own": []}
    gc.collect()
    gc.disable()
    try:
        counts = {side: repeats(call) for side, call in calls.items()}
        for _ in range(rounds):
            for side, call in calls.items():
                times[side].append(seconds(call, counts[side]) / counts[side])
    finally:
        gc.enable()
    median = {side: statistics.median(found) for side, found in times.items()}
    return row(case.name, median["official"], median["own"], case.target)


def row(name: str, official: float, own: float, target: float | None) -> dict[str, Any]:
    ratio = own / official
    return {
        "case": name,
        "official_ms": official * 1e3,
        "tinkex_ms": own * 1e3,
        "ratio": ratio,
        "target": target,
        "met": None if target is None else ratio <= target,
    }


def show(rows: list[dict[str, Any]]) -> str:
    width = max(len(found["case"]) for found in rows)
    lines = [f"{'CPU time':{width}}  {'official':>11}  {'tinkex':>11}  {'ratio':>8}  {'target':>8}"]
    for found in rows:
        target = found["target"]
        goal = "" if target is None else f"≤ 1/{1 / target:g}" + ("" if found["met"] else "  MISSED")
        lines.append(
            f"{found['case']:{width}}  {found['official_ms']:8.3f} ms  {found['tinkex_ms']:8.3f} ms"
            f"  {'1/' + format(1 / found['ratio'], '.1f'):>8}  {goal:>8}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    cases = [*sample_requests(rng), training_batch(rng), *sample_result(rng), pass_result(rng)]
    rows = [measure(case, options.rounds) for case in cases]
    rows += imports(options.rounds)
    print(json.dumps(rows, indent=1) if options.json else show(rows))


if __name__ == "__main__":
    main()
