"""A tokenizer from a folder with a `tokenizer.json`, without transformers.

It encodes, decodes and renders chat templates, under the names Hugging Face tokenizers have for
that; nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import TokenizerError
from .chat_templates import render

__all__ = ["PlainTokenizer"]

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class PlainTokenizer:
    """Text to token ids and back."""

    FILES = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json"]

    def __init__(self, tokenizer: Any, settings: Mapping[str, Any], name_or_path: str = "") -> None:
        self.backend_tokenizer = tokenizer
        self.name_or_path = name_or_path
        self.special_tokens_map: dict[str, str] = {
            name: _content(settings[name]) for name in _SPECIAL if settings.get(name) is not None
        }
        self.chat_template: str | dict[str, str] | None = _template(settings.get("chat_template"))

    @classmethod
    def from_folder(cls, folder: str) -> PlainTokenizer:
        """Read `tokenizer.json`, and what else is there: its settings and its chat template."""
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise TokenizerError(
                f"the tokenizer in {folder} needs pip install 'tinkex[tokenizers]' (or transformers)"
            ) from None
        here = Path(folder)
        if not (here / "tokenizer.json").is_file():
            raise TokenizerError(f"{folder} has no tokenizer.json: this tokenizer needs transformers")
        try:
            settings = _read_json(here / "tokenizer_config.json")
            settings |= _read_json(here / "chat_template.json")
            if (here / "chat_template.jinja").is_file():
                settings["chat_template"] = (here / "chat_template.jinja").read_text("utf-8")
            return cls(Tokenizer.from_file(str(here / "tokenizer.json")), settings, folder)
        except Exception as problem:  # the files are foreign, and what the library raises has no kind
            raise TokenizerError(f"the tokenizer in {folder} cannot be read: {problem!r}") from None

    def __repr__(self) -> str:
        return f"PlainTokenizer({self.name_or_path!r}, {len(self)} tokens)"

    def __len__(self) -> int:
        size: int = self.backend_tokenizer.get_vocab_size(with_added_tokens=True)
        return size

    # ---- text and ids

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text."""
        ids: list[int] = self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        """The token ids of a text, and a mask of ones."""
        ids = self.encode(text, add_special_tokens)
        return {"input_ids": ids, "attention_mask": [1] * len(ids)}

    def decode(self, token_ids: Any, skip_special_tokens: bool = False) -> str:
        """The text of token ids (one, a list or an array)."""
        one = isinstance(token_ids, int) or getattr(token_ids, "ndim", None) == 0
        ids = [int(token_ids)] if one else [int(each) for each in token_ids]
        text: str = self.backend_tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """The id of a token, or of several; None where there is none."""
        if isinstance(tokens, str):
            return self.backend_tokenizer.token_to_id(tokens)
        return [self.backend_tokenizer.token_to_id(each) for each in tokens]

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> Any:
        """The token of an id, or of several."""
        if isinstance(ids, int):
            return self.backend_tokenizer.id_to_token(ids)
        return [self.backend_tokenizer.id_to_token(int(each)) for each in ids]

    def get_vocab(self) -> dict[str, int]:
        """All tokens and their ids."""
        vocabulary: dict[str, int] = self.backend_tokenizer.get_vocab(with_added_tokens=True)
        return vocabulary

    def get_added_vocab(self) -> dict[str, int]:
        """The tokens that are not pieces of text: roles, ends, tools."""
        added = self.backend_tokenizer.get_added_tokens_decoder()
        return {token.content: id for id, token in added.items()}

    @property
    def vocab_size(self) -> int:
        """How many tokens there are without the added ones."""
        size: int = self.backend_tokenizer.get_vocab_size(with_added_tokens=False)
        return size

    @property
    def all_special_tokens(self) -> list[str]:
        """The tokens with a role: beginning, end, padding and so on."""
        return list(dict.fromkeys(self.special_tokens_map.values()))

    @property
    def all_special_ids(self) -> list[int]:
        """Their ids."""
        ids = (self.backend_tokenizer.token_to_id(each) for each in self.all_special_tokens)
        return [each for each in ids if each is not None]

    def __getattr__(self, name: str) -> Any:
        # bos_token, eos_token_id and the like; None if the tokenizer has no such token.
        token = name.removesuffix("_id")
        if token not in _SPECIAL:
            raise AttributeError(
                f"PlainTokenizer has no {name!r}; with transformers installed there is more"
            )
        text = vars(self).get(token, self.special_tokens_map.get(token))  # programs set pad_token
        if text is None or token == name:
            return text
        return self.backend_tokenizer.token_to_id(text)

    # ---- conversations

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        documents: Sequence[Any] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        **variables: Any,
    ) -> Any:
        """A conversation as token ids, or (`tokenize=False`) as text, by the model's chat template."""
        if variables.pop("continue_final_message", False):
            raise TokenizerError("continue_final_message needs transformers: pip install transformers")
        given = {**self.special_tokens_map, **variables}
        given |= {
            "messages": conversation,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        text = render(self._chosen(chat_template, tools), given)
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def _chosen(self, wanted: str | None, tools: Sequence[Any] | None) -> str:
        known = self.chat_template
        if isinstance(known, dict):
            if wanted in known:
                return known[wanted]
            if wanted is None:
                known = known.get("tool_use") if tools and "tool_use" in known else known.get("default")
        if wanted is not None:
            return wanted
        if not isinstance(known, str):
            raise TokenizerError(
                f"the tokenizer {self.name_or_path!r} has no chat template: pass chat_template=…"
            )
        return known


def _read_json(path: Path) -> dict[str, Any]:
    held: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return held


def _content(token: Any) -> str:
    text = str(token["content"] if isinstance(token, Mapping) else token)
    text.encode()  # half of a surrogate pair is no token
    return text


def _template(held: Any) -> str | dict[str, str] | None:
    if isinstance(held, list):  # several, by name
        return {each["name"]: each["template"] for each in held}
    return held if isinstance(held, (str, dict)) else None
