"""Tokenizers: found by a table, loaded once, from a folder first, with or without transformers."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.client.rig import WAIT, Rig
from tinkex import types
from tinkex.client import tokenizers as module
from tinkex.client.plain_tokenizer import PlainTokenizer
from tinkex.client.tokenizers import TokenizerSource, register_tokenizer, resolve_tokenizer
from tinkex.config import Config
from tinkex.errors import InvalidArgumentError, TokenizerError
from tinkex.notices import TinkexWarning, forget_notices

tokenizers = pytest.importorskip("tokenizers")

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% generation %}{{ message['content'] }}{% endgeneration %}<|im_end|>\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TALK = [{"role": "user", "content": "hello world"}, {"role": "assistant", "content": "ünï"}]
MODEL = "Qwen/Qwen3-8B"


def write_tokenizer(folder: Path, *, template: str | None = TEMPLATE, settings: bool = True) -> Path:
    """A tiny byte-level tokenizer with two special tokens."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE(_bytes(), []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    if settings:
        held: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": {"__type": "AddedToken", "content": "<|im_end|>", "special": True},
            "pad_token": "<|im_end|>",
        }
        if template is not None:
            held["chat_template"] = template
        (folder / "tokenizer_config.json").write_text(json.dumps(held))
    return folder


def _bytes() -> dict[str, int]:
    return {each: id for id, each in enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_cache", module._Cache(32))
    monkeypatch.setattr(module, "_registered", [])
    forget_notices()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "tiny")


@pytest.fixture
def without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)


def clients(rig: Rig, **settings: Any) -> tuple[Any, Any]:
    """A trainer and a sampler of its weights."""
    config = Config.resolve(base_url="http://fake.test", api_key="tml-test", telemetry=False, **settings)
    trainer = rig.client(config=config).create_lora_training_client(MODEL)
    return trainer, trainer.save_weights_and_get_sampling_client()


# ---- names


LLAMA = "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer"


@pytest.mark.parametrize(
    ("model", "said", "expected"),
    [
        ("Qwen/Qwen3-8B", None, "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-8B", "", "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-8B:peft:128k", None, "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-tokenizer", "Qwen/Qwen3-tokenizer"),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-tokenizer:v2", "Qwen/Qwen3-tokenizer"),
        ("Qwen/Qwen3-8B/long", None, "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-8B/long:x", None, "Qwen/Qwen3-8B"),
        ("a/b/c/d", None, "a/b/c/d"),
        ("gpt2", None, "gpt2"),
        ("meta-llama/Llama-3.1-8B", None, LLAMA),
        ("meta-llama/Llama-3.3-70B-Instruct", None, LLAMA),
        ("meta-llama/Llama-3.1-8B/fast", None, LLAMA),
        ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("meta-llama/Llama-2-7b", None, "meta-llama/Llama-2-7b"),
        ("openai/gpt-oss-20b", None, "openai/gpt-oss-20b"),
        ("deepseek-ai/DeepSeek-V3.1", None, "deepseek-ai/DeepSeek-V3.1"),
        ("/models/mine", None, "/models/mine"),
    ],
)
def test_names_become_ids(model: str, said: str | None, expected: str) -> None:
    assert resolve_tokenizer(model, said) == TokenizerSource(expected)


@pytest.mark.parametrize(
    ("model", "expected", "revision"),
    [
        ("Kimi-K2-Thinking", "Kimi-K2-Thinking", "612681931a8c906ddb349f8ad0f582cb552189cd"),
        ("Kimi-K2.5", "Kimi-K2.5", "4d01dfe0332d63057c186e0b262165819efb6611"),
        ("Kimi-K2.5-Text-Only:x", "Kimi-K2.5", "4d01dfe0332d63057c186e0b262165819efb6611"),
        ("Kimi-K2.6", "Kimi-K2.6", "b5aabbfb20227ed42becbf5541dbffd213942c58"),
        ("Kimi-K3", "Kimi-K3", "f831ab66814297da540d832a5235f8e904f29d06"),
    ],
)
def test_tokenizers_that_are_code_are_pinned(model: str, expected: str, revision: str) -> None:
    pinned = TokenizerSource(f"moonshotai/{expected}", revision, trust_remote_code=True)
    assert resolve_tokenizer(f"moonshotai/{model}") == pinned
    assert resolve_tokenizer("anything", f"moonshotai/{model}") == pinned


@pytest.mark.parametrize(
    "model",
    [
        "Qwen/Qwen3-8B:peft",
        "Qwen/Qwen3-8B/long",
        "meta-llama/Llama-3.2-1B",
        "moonshotai/Kimi-K2.5-Text-Only",
        "x",
    ],
)
@pytest.mark.parametrize("said", [None, "some/id", "moonshotai/Kimi-K2.6"])
def test_the_official_sdk_asks_the_hub_for_the_same(
    model: str, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    official = pytest.importorskip("tinker.lib.public_interfaces.sampling_client")
    auto = pytest.importorskip("transformers.models.auto.tokenization_auto").AutoTokenizer
    asked: list[Any] = []
    monkeypatch.setattr(auto, "from_pretrained", lambda id, **options: asked.append((id, options)))
    official._load_tokenizer_from_model_info.cache_clear()
    official._load_tokenizer_from_model_info(model, said)
    source = resolve_tokenizer(model, said)
    ((id, options),) = asked
    assert (source.id, source.revision) == (id, options.get("revision"))
    assert source.trust_remote_code == options.get("trust_remote_code", False)


def test_overrides_come_first_and_the_last_one_counts() -> None:
    overrides = [("my-org/*", TokenizerSource("a/b")), ("my-org/special*", TokenizerSource("c/d"))]
    assert resolve_tokenizer("my-org/model", "said/id", overrides).id == "a/b"
    assert resolve_tokenizer("my-org/special-1:x", None, overrides).id == "c/d"
    assert resolve_tokenizer("other", "my-org/said", overrides).id == "a/b"
    assert resolve_tokenizer("other/model", None, overrides).id == "other/model"


def test_no_name_at_all_is_refused_with_advice() -> None:
    with pytest.raises(TokenizerError, match="register_tokenizer"):
        resolve_tokenizer("", None)


@pytest.mark.parametrize("model", ["TML/thing", "thinkingmachines/thing"])
def test_unpublished_tokenizers_are_refused_with_advice(model: str) -> None:
    rig = Rig()
    with pytest.raises(TokenizerError, match=r"tml-renderers.*register_tokenizer"):
        module.tokenizer_for(rig.client().holder.connection, model, None)


# ---- both clients


@pytest.mark.parametrize("said", [None, "their/own-tokenizer:v3"])
def test_both_clients_use_the_same_tokenizer(said: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(module, "_load", lambda source, *_: asked.append(source) or source)
    rig = Rig()
    trainer, sampler = clients(rig)
    path = trainer.save_weights_for_sampler("mine").result(WAIT).path
    loaded = trainer.create_sampling_client(path)
    data = {"model_name": MODEL, "tokenizer_id": said} if said else {"model_name": MODEL}
    rig.service.faults.add("get_info", body={"model_data": data, "model_id": trainer.model_id})
    expected = TokenizerSource("their/own-tokenizer" if said else MODEL)
    assert [each.get_tokenizer() for each in (trainer, sampler, loaded)] == [expected] * 3
    assert asyncio.run(sampler.get_tokenizer_async()) == expected
    assert asked == [expected]


def test_a_sampler_whose_model_is_gone_goes_by_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_load", lambda source, *_: source)
    rig = Rig(without=["get_info"])
    trainer, _ = clients(rig)
    path = trainer.save_weights_for_sampler("mine").result(WAIT).path
    assert trainer.create_sampling_client(path).get_tokenizer() == TokenizerSource(MODEL)


def test_a_base_model_s_sampler_goes_by_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_load", lambda source, *_: source)
    rig = Rig()
    sampler = rig.client().create_sampling_client(base_model="meta-llama/Llama-3.1-8B")
    assert sampler.get_tokenizer() == TokenizerSource(LLAMA)
    assert rig.service.calls_to("get_info") == []


def test_eight_threads_load_once(monkeypatch: pytest.MonkeyPatch) -> None:
    started, go = threading.Barrier(8), threading.Event()
    loads: list[str] = []

    def load(source: TokenizerSource, *_: object) -> object:
        loads.append(source.id)
        assert go.wait(WAIT)
        return object()

    monkeypatch.setattr(module, "_load", load)
    connection = Rig().client().holder.connection
    got: list[object] = []

    def ask() -> None:
        started.wait(WAIT)
        got.append(module.tokenizer_for(connection, MODEL, None))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for each in threads:
        each.start()
    go.set()
    for each in threads:
        each.join(WAIT)
    assert loads == [MODEL]
    assert len(got) == 8
    assert len({id(each) for each in got}) == 1


def test_a_failed_load_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: list[Any] = [TokenizerError("no network"), "loaded"]

    def load(*_: object) -> Any:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(module, "_load", load)
    connection = Rig().client().holder.connection
    with pytest.raises(TokenizerError, match="no network"):
        module.tokenizer_for(connection, MODEL, None)
    assert module.tokenizer_for(connection, MODEL, None) == "loaded"
    assert module.tokenizer_for(connection, MODEL, None) == "loaded"


# ---- folders, and no network


@pytest.mark.parametrize("layout", [".", "Qwen/Qwen3-8B", "Qwen--Qwen3-8B", "Qwen3-8B"])
def test_a_folder_comes_before_the_network(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_transformers: None
) -> None:
    write_tokenizer(tmp_path / layout)
    monkeypatch.setattr(module, "_from_hub", lambda *_: pytest.fail("the hub was asked"))
    monkeypatch.setenv("TINKER_TOKENIZER_DIR", str(tmp_path))
    for client in clients(Rig(), offline=True):
        assert client.decode(client.encode("hello <|im_end|>")) == "hello <|im_end|>"


def test_the_folder_of_another_model_is_not_used(tmp_path: Path, without_transformers: None) -> None:
    write_tokenizer(tmp_path / "Qwen" / "Qwen3-8B")
    connection = clients(Rig(), tokenizer_dir=str(tmp_path), offline=True)[0].holder.connection
    with pytest.raises(TokenizerError, match="other/model"):
        module.tokenizer_for(connection, "other/model", None)
    with pytest.raises(TokenizerError):
        module.tokenizer_for(connection, "x", "../" + tmp_path.name + "/Qwen/Qwen3-8B")


def test_a_model_name_that_is_a_folder_is_that_folder(folder: Path, without_transformers: None) -> None:
    connection = Rig().client().holder.connection
    assert module.tokenizer_for(connection, str(folder), None).name_or_path == str(folder)


def test_offline_without_a_folder_names_the_id_and_the_way_out(without_transformers: None) -> None:
    trainer, sampler = clients(Rig(), offline=True)
    for client in (trainer, sampler):
        with pytest.raises(TokenizerError, match=r"Qwen/Qwen3-8B.*offline.*TINKER_TOKENIZER_DIR"):
            client.get_tokenizer()


def test_without_any_tokenizer_package_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, without_transformers: None, folder: Path
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    connection = Rig().client().holder.connection
    with pytest.raises(TokenizerError, match=r"pip install 'tinkex\[tokenizers\]'"):
        module.tokenizer_for(connection, MODEL, None)
    with pytest.raises(TokenizerError, match=r"pip install 'tinkex\[tokenizers\]'"):
        module.tokenizer_for(connection, str(folder), None)
    with pytest.raises(TokenizerError, match="pip install transformers"):
        module.tokenizer_for(connection, "moonshotai/Kimi-K3", None)


def test_the_hub_is_asked_for_the_files_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, without_transformers: None
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    asked: list[Any] = []
    monkeypatch.setattr(
        hub, "snapshot_download", lambda id, **options: asked.append((id, options)) or str(folder)
    )
    connection = Rig().client().holder.connection
    assert isinstance(module.tokenizer_for(connection, "Qwen/Qwen3-8B:x", None), PlainTokenizer)
    ((id, options),) = asked
    assert (id, options["local_files_only"]) == (MODEL, connection.config.offline)
    assert "tokenizer.json" in options["allow_patterns"]


def test_a_tokenizer_of_one_s_own(folder: Path, without_transformers: None) -> None:
    connection = Rig().client().holder.connection
    undo = register_tokenizer("my-org/*", folder)
    assert module.tokenizer_for(connection, "my-org/model", None).name_or_path == str(folder)
    ready = PlainTokenizer.from_folder(str(folder))
    register_tokenizer("my-org/ready", ready)
    assert module.tokenizer_for(connection, "my-org/ready", "said/id") is ready
    register_tokenizer("my-org/made", lambda: ready)
    assert module.tokenizer_for(connection, "my-org/made", None) is ready
    undo()
    assert module._registered[0][0] == "my-org/ready"
    with pytest.raises(TokenizerError):
        register_tokenizer("*", 7)


def test_a_bare_tokenizer_json_is_enough_beside_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    bare = write_tokenizer(tmp_path / "bare", settings=False)
    made = module.tokenizer_for(Rig().client().holder.connection, str(bare), None)
    assert made.decode(made.encode("hello")) == "hello"


# ---- text


def test_the_plain_tokenizer_is_the_transformers_one(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    plain = PlainTokenizer.from_folder(str(folder))
    for text in ("hello world", "ünï \n<|im_start|>x", ""):
        assert plain.encode(text) == list(theirs.encode(text))
        assert plain.decode(plain.encode(text)) == theirs.decode(theirs.encode(text)) == text
    assert plain.decode(plain.encode("a<|im_end|>"), skip_special_tokens=True) == "a"
    assert (plain.eos_token, plain.eos_token_id) == (theirs.eos_token, theirs.eos_token_id)
    assert (plain.bos_token, plain.bos_token_id) == (None, None)
    assert plain.get_added_vocab() == theirs.get_added_vocab()
    assert len(plain) == len(theirs)
    assert plain.get_vocab() == theirs.get_vocab()
    with pytest.raises(AttributeError):
        _ = plain.no_such_thing


@pytest.mark.parametrize("generate", [False, True])
@pytest.mark.parametrize("tools", [None, [{"name": "größe"}]])
def test_chat_templates_give_what_the_tokenizer_gives(folder: Path, generate: bool, tools: Any) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("jinja2")
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    options = {"add_generation_prompt": generate, "tools": tools}
    text = theirs.apply_chat_template(TALK, tokenize=False, **options)
    plain = PlainTokenizer.from_folder(str(folder))
    assert plain.apply_chat_template(TALK, tokenize=False, **options) == text
    own = theirs.apply_chat_template(TALK, **options)
    ids = list(own if isinstance(own, list) else own["input_ids"])
    for tokenizer in (plain, theirs):
        rig = Rig()
        register_tokenizer("*", tokenizer)
        for client in clients(rig):
            made = client.apply_chat_template(TALK, **options)
            assert isinstance(made, types.ModelInput)
            assert made.to_ints() == ids
            assert client.decode(made) == text
            assert asyncio.run(client.apply_chat_template_async(TALK, **options)) == made


def test_a_conversation_becomes_tokens_and_nothing_else(folder: Path) -> None:
    pytest.importorskip("jinja2")
    register_tokenizer("*", PlainTokenizer.from_folder(str(folder)))
    trainer, _ = clients(Rig())
    with pytest.raises(InvalidArgumentError, match="tokenize=False"):
        trainer.apply_chat_template(TALK, tokenize=False)
    with pytest.raises(TokenizerError, match="continue_final_message"):
        trainer.apply_chat_template(TALK, continue_final_message=True)


def test_a_tokenizer_without_a_template_says_so(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    plain = PlainTokenizer.from_folder(str(write_tokenizer(tmp_path / "base", template=None)))
    with pytest.raises(TokenizerError, match="chat template"):
        plain.apply_chat_template(TALK)
    assert plain.apply_chat_template(TALK, chat_template="{{ messages | length }}", tokenize=False) == "2"


def test_a_template_may_come_in_a_file_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    here = write_tokenizer(tmp_path / "base", template="old")
    (here / "chat_template.jinja").write_text("new {{ eos_token }}")
    assert (
        PlainTokenizer.from_folder(str(here)).apply_chat_template(TALK, tokenize=False) == "new <|im_end|>"
    )


def test_a_plain_tokenizer_takes_what_programs_do_to_any(tmp_path: Path) -> None:
    plain = PlainTokenizer.from_folder(str(write_tokenizer(tmp_path / "tiny", settings=False)))
    assert (plain.pad_token, plain.pad_token_id) == (None, None)
    plain.pad_token = "<|im_end|>"
    assert plain.pad_token_id == plain.convert_tokens_to_ids("<|im_end|>") is not None
    (one, *_) = ids = plain.encode("abc")
    assert plain.decode(np.int64(one)) == plain.decode(one) == plain.decode([one]) == "a"
    assert plain.decode(np.asarray(ids)) == plain.decode(iter(ids)) == "abc"


def test_a_template_cannot_reach_out_of_its_sandbox(tmp_path: Path) -> None:
    jinja = pytest.importorskip("jinja2")
    plain = PlainTokenizer.from_folder(str(write_tokenizer(tmp_path / "bad")))
    with pytest.raises(jinja.exceptions.SecurityError):
        plain.apply_chat_template(TALK, chat_template="{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(jinja.TemplateError, match="no roles"):
        plain.apply_chat_template(TALK, chat_template="{{ raise_exception('no roles') }}")


def test_decoding_takes_what_sampling_gives(folder: Path) -> None:
    register_tokenizer("*", PlainTokenizer.from_folder(str(folder)))
    _, sampler = clients(Rig())
    prompt = sampler.encode("hello <|im_end|>")
    sequence = sampler.sample(prompt, 1, types.SamplingParams(max_tokens=3)).result(WAIT).sequences[0]
    tokenizer = sampler.get_tokenizer()
    assert sampler.decode(prompt.chunks[0]) == "hello <|im_end|>"
    assert sampler.decode(sequence) == tokenizer.decode([int(each) for each in sequence.tokens])
    assert asyncio.run(sampler.decode_async(prompt, skip_special_tokens=True)) == "hello "
    assert asyncio.run(sampler.encode_async("hello <|im_end|>")) == prompt


@pytest.mark.parametrize(
    ("template", "text", "warned"),
    [(TEMPLATE, "hello", True), (TEMPLATE, "<|im_start|>user\nhello", False), (None, "hello", False)],
)
def test_raw_text_for_a_chat_model_is_noticed_once(
    tmp_path: Path, template: str | None, text: str, warned: bool
) -> None:
    plain = PlainTokenizer.from_folder(str(write_tokenizer(tmp_path / "tiny", template=template)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        types.ModelInput.from_text(text, plain)
        types.ModelInput.from_text(text, plain)
    given = [each for each in caught if issubclass(each.category, TinkexWarning)]
    assert len(given) == int(warned)


def test_plain_tokenizers_are_used_where_they_are_wanted_and_enough(folder: Path) -> None:
    pytest.importorskip("transformers")
    rig = Rig()
    for wanted in (True, False):
        trainer, _ = clients(rig, tokenizer_dir=str(folder), plain_tokenizers=wanted)
        assert isinstance(trainer.get_tokenizer(), PlainTokenizer) is wanted
