"""Token ids to text with a model folder's own tokenizer, for stop strings; encoding is not done here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .faults import UserFault
from .stopping import Detokenise

_VOCABULARIES = ("tokenizer.json", "tekken.json", "vocab.*", "*.model", "*.tiktoken")


def detokeniser(folder: str | Path, *, trust_remote_code: bool = False) -> Detokenise:
    """What turns ids into text, special tokens spelled out; ids the tokenizer lacks give nothing."""
    file = Path(folder) / "tokenizer.json"
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return _by_transformers(folder, trust_remote_code)
    if not file.is_file():
        return _by_transformers(folder, trust_remote_code)
    fast = Tokenizer.from_file(str(file))

    def text(ids: Sequence[int]) -> str:
        found: str = fast.decode(list(ids), skip_special_tokens=False)
        return found

    return text


def _by_transformers(folder: str | Path, trust_remote_code: bool) -> Detokenise:
    # Without a vocabulary transformers makes an empty tokenizer for some families, and says nothing.
    if not any(any(Path(folder).glob(pattern)) for pattern in _VOCABULARIES):
        raise UserFault(f"{folder} has no tokenizer")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        folder, local_files_only=True, trust_remote_code=trust_remote_code
    )
    known = len(tokenizer)

    def text(ids: Sequence[int]) -> str:
        found: str = tokenizer.decode(
            [i for i in ids if i < known], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return found

    return text
