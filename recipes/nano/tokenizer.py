"""Train nano's byte-level BPE and write the tokenizer files; render and encode chats."""

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from data.chat import Chat
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

HERE = Path(__file__).parent
VOCAB = 4096
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
SPLIT = WORDS + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
EMPTY_THOUGHT = "<think>\n\n</think>\n\n"


def train(texts: Iterable[str], vocab: int = VOCAB) -> Tokenizer:
    """A byte-level BPE with Qwen3's split rules; special tokens take the last ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab - len(CONTROL) - len(MARKUP),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Special tokens never reach the merges, so the text around them is learned as it will be split.
    marks = re.compile("|".join(re.escape(t) for t in (*CONTROL, *MARKUP)))
    tokenizer.train_from_iterator((part for text in texts for part in marks.split(text) if part), trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKUP])
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path, context: int = 1024) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    shutil.copyfile(HERE / "chat_template.jinja", folder / "chat_template.jinja")


def load(folder: Path) -> Tokenizer:
    """The tokenizer of a saved folder."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def render(chat: Chat, thought: bool = False) -> str:
    """The chat as the template writes it; `thought` puts Qwen3's empty thought before the last answer."""
    parts = [f"<|im_start|>system\n{chat.system}<|im_end|>\n"] if chat.system else []
    for i, (user, assistant) in enumerate(chat.turns):
        lead = EMPTY_THOUGHT if thought and i == len(chat.turns) - 1 else ""
        parts.append(
            f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n{lead}{assistant}<|im_end|>\n"
        )
    return "".join(parts)


def prompt(chat: Chat) -> str:
    """The chat up to its last answer."""
    return render(chat)[: -len(f"{chat.answer}<|im_end|>\n")]
