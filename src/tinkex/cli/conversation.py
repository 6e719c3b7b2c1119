"""One conversation with a model: its messages, its weights, and an answer shown as it comes."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from .chats import ChatFormat, TextStream
from .output import CommandError, Output
from .weights import Weights, sampling_params

__all__ = ["Conversation"]


class Conversation:
    """What was said so far, and to whom."""

    def __init__(self, arguments: argparse.Namespace, out: Output, weights: Weights, usual: int) -> None:
        self.arguments, self.out, self.usual = arguments, out, usual
        self.messages: list[dict[str, str]] = []
        self.turns: list[dict[str, Any]] = []
        self.switch(weights)
        self.system(arguments.system or "")

    def switch(self, weights: Weights) -> None:
        """Go on with other weights."""
        self.chats = ChatFormat(weights.sampler.get_tokenizer())
        self.weights = weights

    def system(self, text: str) -> None:
        """Set the system message, or take it away."""
        self.messages = [each for each in self.messages if each["role"] != "system"]
        if text:
            self.messages.insert(0, {"role": "system", "content": text})

    def undo(self) -> None:
        """Forget the last question and its answer."""
        while self.messages and self.messages[-1]["role"] != "system":
            if self.messages.pop()["role"] == "user":
                return

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = [each for each in self.messages if each["role"] == "system"]

    def save(self, path: Path) -> None:
        """Add the conversation to a file of conversations."""
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"messages": self.messages}, ensure_ascii=False) + "\n")
        except OSError as error:
            raise CommandError(f"{path}: {error.strerror}", "name another file") from None

    def say(self, text: str) -> None:
        """Ask, and show the answer as it comes; what fails leaves the conversation as it was."""
        asked = [*self.messages, {"role": "user", "content": text}]
        prompt = self.chats.prompt(asked)
        room = self.weights.room(len(prompt), self.arguments.max_tokens, self.usual)
        answer = self._answer(prompt, room)
        self.messages = [*asked, {"role": "assistant", "content": answer}]

    def _answer(self, prompt: list[int], room: int) -> str:
        from ..types.model_input import ModelInput

        params = sampling_params(self.arguments, room, self.chats)
        stream = self.weights.sampler.sample_stream(ModelInput.from_ints(prompt), params)
        text, pieces, count, reason = TextStream(self.chats.tokenizer), [], 0, "stopped by hand"
        began = time.perf_counter()
        try:
            with stream:
                for item in stream:
                    count += len(item.tokens)
                    reason = str(item.stop_reason or reason)
                    pieces.append(text.add(item.tokens, last=item.stop_reason is not None))
                    self._show(pieces[-1])
        except KeyboardInterrupt:  # enough of this answer
            pass
        seconds = time.perf_counter() - began
        self._show("\n")
        rate = round(count / seconds, 1) if seconds else 0.0
        self.turns.append(
            {
                "model": self.weights.name,
                "tokens": count,
                "seconds": round(seconds, 3),
                "tokens_per_second": rate,
                "stop_reason": reason,
            }
        )
        self.out.say(f"[{count:,} tokens, {rate:,.1f} tokens/s]")
        return "".join(pieces)

    def _show(self, text: str) -> None:
        if self.out.mode != "json":
            self.out.stdout.write(harmless(text) if self.out.stdout.isatty() else text)
            self.out.stdout.flush()


def harmless(text: str) -> str:
    """A model's words without what would move the cursor or change the terminal."""
    return "".join(each if each.isprintable() or each in "\n\t" else "\ufffd" for each in text)
