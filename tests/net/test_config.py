"""Settings: where they come from, which server they mean, and what they never show."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from typing import Any

import pytest

from tinkex.config import DEFAULT_BASE_URL, Config, Secret, normalize_url
from tinkex.errors import InvalidArgumentError

KEY = "tml-very-secret-4711"


def resolve(environ: Mapping[str, str] | None = None, **settings: Any) -> Config:
    return Config.resolve(environ=environ or {}, **settings)


# ---- argument, environment, default


@pytest.mark.parametrize(
    ("setting", "argument", "variable", "text", "read", "default"),
    [
        (
            "base_url",
            "http://a.test",
            "TINKER_BASE_URL",
            "http://b.test",
            "http://b.test",
            DEFAULT_BASE_URL,
        ),
        ("project_id", "one", "TINKER_PROJECT_ID", "two", "two", None),
        ("credential_command", "one", "TINKER_CREDENTIAL_CMD", "two", "two", None),
        ("tags", ("x",), "TINKER_TAGS", "y,,z", ("y", "z"), ()),
        ("telemetry", True, "TINKER_TELEMETRY", "0", False, True),
        ("ca_file", "a.pem", "TINKEX_CA_FILE", "b.pem", "b.pem", None),
        ("ca_file", "a.pem", "SSL_CERT_FILE", "b.pem", "b.pem", None),
        ("proxy", "http://a:1", "HTTPS_PROXY", "http://b:1", "http://b:1", None),
        ("proxy", "http://a:1", "all_proxy", "http://b:1", "http://b:1", None),
        ("no_proxy", "a", "NO_PROXY", "b", "b", ""),
        ("tokenizer_dir", "a", "TINKER_TOKENIZER_DIR", "b", "b", None),
        ("offline", False, "TINKEX_OFFLINE", "1", True, False),
        ("offline", False, "HF_HUB_OFFLINE", "yes", True, False),
    ],
)
def test_an_argument_wins_over_the_environment_and_that_over_the_default(
    setting: str, argument: Any, variable: str, text: str, read: Any, default: Any
) -> None:
    environ = {variable: text}
    assert getattr(resolve(environ, **{setting: argument}), setting) == argument
    assert getattr(resolve(environ), setting) == read
    assert getattr(resolve(), setting) == default
    assert getattr(resolve({variable: ""}), setting) == default, "an empty variable counts as unset"


def test_the_key_is_taken_in_the_same_order_and_without_blanks_around_it() -> None:
    environ = {"TINKER_API_KEY": "tml-environment\n"}
    assert resolve(environ, api_key=KEY).api_key == Secret(KEY)
    assert resolve(environ).api_key == Secret("tml-environment")
    assert resolve(environ, api_key="").api_key == Secret("tml-environment")
    assert resolve({"TINKER_API_KEY": " \n"}).api_key is None
    assert resolve().api_key is None


def test_an_empty_switch_falls_back_to_the_next_one() -> None:
    assert resolve({"TINKEX_OFFLINE": "", "HF_HUB_OFFLINE": "1"}).offline
    assert not resolve({"TINKEX_OFFLINE": "0", "HF_HUB_OFFLINE": "1"}).offline
    assert resolve({"TINKEX_CA_FILE": "", "SSL_CERT_FILE": "b.pem"}).ca_file == "b.pem"


@pytest.mark.parametrize("text", ["0", "false", "No", " off ", "nonsense"])
def test_telemetry_is_off_by_any_word_that_does_not_mean_on(text: str) -> None:
    assert not resolve({"TINKER_TELEMETRY": text}).telemetry


def test_the_environment_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", "http://first.test")
    monkeypatch.setenv("TINKER_API_KEY", "tml-first")
    config = Config.resolve()
    monkeypatch.setenv("TINKER_BASE_URL", "http://second.test")
    monkeypatch.setenv("TINKER_API_KEY", "tml-second")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:1")
    monkeypatch.setenv("NO_PROXY", "*")
    assert config.base_url == "http://first.test"
    assert config.api_key == Secret("tml-first")
    assert config.proxied is None
    assert Config.resolve().base_url == "http://second.test"


def test_headers_of_the_environment_and_of_the_caller_are_joined() -> None:
    environ = {"CLOUDFLARE_ACCESS_CLIENT_ID": "me", "CLOUDFLARE_ACCESS_CLIENT_SECRET": "hush"}
    config = resolve(environ, headers={"X-Mine": "1", "CF-Access-Client-Id": "other"})
    assert config.headers == {
        "CF-Access-Client-Id": "other",
        "CF-Access-Client-Secret": "hush",
        "X-Mine": "1",
    }


def test_a_setting_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="tiemout"):
        resolve(tiemout=3)


def test_a_config_cannot_be_changed_but_varied() -> None:
    config = resolve()
    with pytest.raises(AttributeError):
        config.timeout = 1.0  # type: ignore[misc]
    assert config.with_(timeout=1.0).timeout == 1.0
    assert config.timeout == 60.0


# ---- one spelling per server

SPELLINGS = [
    "http://example.com",
    "http://example.com/",
    "HTTP://example.com",
    "http://EXAMPLE.com",
    "http://example.com:80",
    "http://example.com:80//",
    " http://example.com\n",
    "http://someone:password@Example.com:80/?query=1#part",
]


def test_eight_spellings_are_one_server() -> None:
    assert {normalize_url(each) for each in SPELLINGS} == {"http://example.com"}


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("https://example.com:443/a/b/", "https://example.com/a/b"),
        ("https://example.com:80", "https://example.com:80"),
        ("http://example.com:443", "http://example.com:443"),
        ("http://example.com:8080/A", "http://example.com:8080/A"),
        ("http://[::1]:80/", "http://[::1]"),
        ("http://[FE80::1]:8000/x", "http://[fe80::1]:8000/x"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://example.com/api/v1/", "http://example.com"),
        ("http://example.com/tinker/api/v1", "http://example.com/tinker"),
        ("http://example.com/api/v1/more", "http://example.com/api/v1/more"),
        ("local", "local"),
    ],
)
def test_addresses_are_normalised(url: str, normal: str) -> None:
    assert normalize_url(url) == normal
    assert normalize_url(normal) == normal


def test_different_servers_stay_different() -> None:
    servers = [
        "http://example.com",
        "https://example.com",
        "http://example.com:8080",
        "http://www.example.com",
        "http://example.com/a",
        "http://example.com/A",
        "http://127.0.0.1",
        "http://[::1]",
    ]
    assert len({normalize_url(each) for each in servers}) == len(servers)


@pytest.mark.parametrize(
    "url",
    [
        "example.com",
        "ftp://x.test",
        "http://",
        "",
        "http://[::1",
        "http://x.test:port",
        "http://x.test:70000",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="base_url"):
        normalize_url(url)


def test_a_login_in_an_address_is_never_shown() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        normalize_url("ftp://someone:hush-hush@x.test/")
    assert "hush" not in str(caught.value)
    assert "x.test" in str(caught.value)
    assert "hush" not in repr(resolve(base_url="http://someone:hush-hush@x.test/"))


# ---- secrets


def test_nothing_secret_is_shown_or_pickled() -> None:
    config = resolve(
        {"CLOUDFLARE_ACCESS_CLIENT_SECRET": "hush-1", "HTTPS_PROXY": "http://me:hush-2@proxy:1"},
        api_key=KEY,
        headers={"Authorization": "hush-3"},
        credential_command="print hush-4",
    )
    for text in (repr(config), str(config), f"{config}", repr(config.api_key), str(config.api_key)):
        assert KEY not in text
        assert "hush" not in text
    for value in (config, config.api_key, config.with_(api_key=None)):
        with pytest.raises(TypeError, match="not pickled"):
            pickle.dumps(value)
    with pytest.raises(TypeError, match="not pickled"):
        copy.deepcopy(config)


def test_a_config_without_secrets_travels() -> None:
    config = resolve(base_url="http://x.test", tags=("a",), timeout=3.0)
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_secret_can_be_told_apart_without_being_known() -> None:
    one, same, other = Secret(KEY), Secret(KEY), Secret(KEY + "x")
    assert one == same
    assert one != other
    assert one != KEY
    assert hash(one) == hash(same)
    assert one.digest == same.digest != other.digest
    assert KEY not in one.digest
    assert one.reveal() == KEY


# ---- NO_PROXY

EXEMPT = [
    ("http://a.test", "*"),
    ("http://a.test", "a.test"),
    ("http://a.test", ".a.test"),
    ("http://b.a.test", "a.test"),
    ("http://b.a.test", "*.a.test"),
    ("http://A.TEST", "x.test, A.test"),
    ("http://a.test", "x.test a.test"),
    ("http://a.test:8080", "a.test:8080"),
    ("http://a.test", "a.test:80"),
    ("https://a.test", "a.test:443"),
    ("http://127.0.0.1:9", "127.0.0.1"),
    ("http://10.1.2.3", "10.0.0.0/8"),
    ("http://[::1]:9", "::1"),
    ("http://[::1]:9", "[::1]"),
    ("http://[::1]:9", "[::1]:9"),
    ("http://[fe80::5]", "fe80::/10"),
]
PROXIED = [
    ("http://a.test", ""),
    ("http://a.test", ", ,"),
    ("http://a.test", "b.test"),
    ("http://aa.test", "a.test"),
    ("http://a.test", "b.a.test"),
    ("http://a.test:8081", "a.test:8080"),
    ("http://11.1.2.3", "10.0.0.0/8"),
    ("http://[::1]:9", "[::1]:8"),
    ("http://a.test", "10.0.0.0/8"),
]


@pytest.mark.parametrize(("url", "listed"), EXEMPT)
def test_servers_on_the_list_are_reached_directly(url: str, listed: str) -> None:
    assert resolve(base_url=url, proxy="http://proxy:1", no_proxy=listed).proxied is None


@pytest.mark.parametrize(("url", "listed"), PROXIED)
def test_all_others_go_through_the_proxy(url: str, listed: str) -> None:
    assert resolve(base_url=url, proxy="http://proxy:1", no_proxy=listed).proxied == "http://proxy:1"


@pytest.mark.parametrize(
    ("url", "environ", "proxy"),
    [
        ("http://a.test", {"HTTP_PROXY": "http://p:1"}, "http://p:1"),
        ("http://a.test", {"HTTP_PROXY": "http://p:1", "http_proxy": "http://q:1"}, "http://q:1"),
        ("http://a.test", {"HTTPS_PROXY": "http://p:1"}, None),
        ("https://a.test", {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        ("https://a.test", {"HTTPS_PROXY": "", "ALL_PROXY": "http://p:1"}, "http://p:1"),
        ("https://a.test", {"HTTPS_PROXY": "http://p:1", "no_proxy": "a.test"}, None),
        (
            "https://a.test",
            {"HTTPS_PROXY": "http://p:1", "no_proxy": "", "NO_PROXY": "b.test"},
            "http://p:1",
        ),
    ],
)
def test_the_proxy_comes_from_the_variable_for_the_scheme(
    url: str, environ: dict[str, str], proxy: str | None
) -> None:
    assert resolve(environ, base_url=url).proxied == proxy
