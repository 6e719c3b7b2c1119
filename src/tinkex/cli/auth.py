"""`tinkex auth`: the key this machine uses, kept where the official client keeps it too."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from .main import Parser
from .output import CommandError, Output
from .reaching import add_server, config_of, rest

if TYPE_CHECKING:
    from ..config import Config
    from ..wire.bodies import ApiKeyResponse

_LOGIN = {"key_id": "text", "name": "text", "organization": "text?", "email": "text?"}


def register(parser: Parser) -> None:
    """Fill the command's parser."""
    group = parser.commands()
    login = group.add_parser("login", help="keep an API key for this user of this machine")
    login.command(_login, _LOGIN, examples="tinkex auth login\necho $KEY | tinkex auth login")
    logout = group.add_parser("logout", help="forget the key that was kept")
    logout.command(_logout, {"key_id": "text", "name": "text", "deleted_on_server": "bool"})
    status = group.add_parser("status", help="is there a key, and does the server take it?")
    status.command(_status, {"credentials": "bool", "accessible": "bool", "base_url": "text"})
    whoami = group.add_parser("whoami", help="show whose key is in use")
    whoami.command(
        _whoami,
        {
            "user_urn": "text?",
            "org_urn": "text?",
            "email": "text?",
            "key?": {"key_id": "int", "name": "text", "note": "text", "organization": "text"},
        },
    )
    for each in (login, logout, status, whoami):
        add_server(each)


# ---- login and logout


def _login(arguments: argparse.Namespace, out: Output) -> int:
    from ..config import DEFAULT_BASE_URL, Secret
    from ..net.credentials import CredentialStore, StoredKey, check_key

    store = CredentialStore()
    if store.default() is not None:
        raise CommandError("already logged in", "`tinkex auth logout` forgets that key")
    config = config_of(arguments, out)
    if config.base_url == DEFAULT_BASE_URL:
        _say_where(out)
    key = _asked(out)
    check_key(key)
    about = _described(config.with_(api_key=Secret(key), credential_command=None))
    details = about.details.model_dump()
    store.save(StoredKey(str(about.key_id), Secret(key), about.name, "manual", about.note or None, details))
    organization = about.details.org_details.name or None
    email = about.details.user_details.email or None
    out.record(
        {"key_id": str(about.key_id), "name": about.name, "organization": organization, "email": email},
        essential="name",
        text=f"Logged in as {email or organization}. Key {about.name!r} is kept in {store.path}.",
    )
    if os.environ.get("TINKER_API_KEY"):
        out.warn("TINKER_API_KEY is set and counts before the key that is kept")
    return 0


def _say_where(out: Output) -> None:
    import socket

    from ..types.console import new_key_url

    host = socket.gethostname().partition(".")[0] or "unknown"
    out.say(f"Make an API key here: {new_key_url(f'tinkex-{host}')}")


def _asked(out: Output) -> str:
    if sys.stdin.isatty():
        import getpass

        key = getpass.getpass("Paste your API key: ", stream=out.stderr)
    else:
        key = sys.stdin.readline()
    if not key.strip():
        raise CommandError("no key was given", "paste it, or pipe it in: echo $KEY | tinkex auth login")
    return key.strip()


def _described(config: Config) -> ApiKeyResponse:
    """What the server says of a key; one that cannot say must at least take it."""
    from ..client.access import check_access, describe_key
    from ..errors import NotFoundError
    from ..wire.bodies import ApiKeyResponse

    try:
        return describe_key(config)
    except NotFoundError:
        check_access(config)
        return ApiKeyResponse(key_id=0, name="key", note="")


def _logout(arguments: argparse.Namespace, out: Output) -> int:
    from ..client.access import revoke_key
    from ..errors import TinkerError
    from ..net.credentials import CredentialStore

    store = CredentialStore()
    held = store.default()
    if held is None:
        raise CommandError("no key is kept, so there is nothing to forget", "`tinkex auth login` keeps one")
    failed: TinkerError | None = None
    ours = held.type == "generated"  # made by a login, so it ends with that
    if ours:
        try:
            revoke_key(config_of(arguments, out).with_(api_key=held.key, credential_command=None))
        except TinkerError as error:
            failed = error
    store.remove_default()
    if failed is not None:
        raise CommandError(
            f"key {held.name!r} is forgotten here, but could not be deleted on the server: {failed}",
            f"delete key {held.id} there",
        )
    left = (
        "deleted on the server too" if ours else "still good: delete it on the server if it should not be"
    )
    out.record(
        {"key_id": held.id, "name": held.name, "deleted_on_server": ours},
        essential="name",
        text=f"Key {held.name!r} is forgotten. It is {left}.",
    )
    return 0


# ---- looking


def _status(arguments: argparse.Namespace, out: Output) -> int:
    from ..auth import tinker_has_credentials
    from ..client.access import check_access

    config = config_of(arguments, out)
    has = tinker_has_credentials()
    problem: CommandError | None = None
    if not has:
        problem = CommandError("there is no key", "`tinkex auth login` keeps one, TINKER_API_KEY gives one")
    else:
        problem = _refused(check_access, config)
    ok = problem is None
    text = f"Credentials available: {_yes(has)}" + (f"\nTinker accessible: {_yes(ok)}" if has else "")
    out.record(
        {"credentials": has, "accessible": ok, "base_url": config.base_url},
        essential="accessible",
        text=text,
    )
    if problem is not None:
        raise problem
    return 0


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _refused(look: Any, config: Config) -> CommandError | None:
    from ..errors import TinkerError
    from .advice import told

    try:
        look(config)
    except TinkerError as error:
        return told(error)
    return None


def _whoami(arguments: argparse.Namespace, out: Output) -> int:
    from ..client.access import describe_key
    from ..errors import UnsupportedByServerError

    client = rest(arguments, out)
    try:
        who = client.whoami().result()
        data = who.model_dump()
        fields = {"Email": who.email, "User": who.user_urn, "Organization": who.org_urn}
    except UnsupportedByServerError:  # a server of one's own knows keys, not people
        key = describe_key(config_of(arguments, out))
        organization, email = key.details.org_details.name, key.details.user_details.email or None
        about = {"key_id": key.key_id, "name": key.name, "note": key.note, "organization": organization}
        data = {"user_urn": None, "org_urn": None, "email": email, "key": about}
        fields = {"Email": email, "Organization": organization, "Key": key.name}
    out.record(fields, essential="Organization", data=data)
    return 0
