"""Token ids to text with a model folder's own tokenizer, for stop strings; encoding is not done here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import AutoTokenizer

from .stopping import Detokenise


def detokeniser(folder: str | Path) -> Detokenise:
    """What turns ids into text, special tokens spelled out; ids the tokenizer lacks give nothing."""
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    known = len(tokenizer)

    def text(ids: Sequence[int]) -> str:
        found: str = tokenizer.decode(
            [i for i in ids if i < known], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return found

    return text
