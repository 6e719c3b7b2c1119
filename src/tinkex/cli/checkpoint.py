"""`tinkex checkpoint`: saved weights, listed, looked at, published and given an end."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from . import checkpoint_delete, checkpoint_download, checkpoint_push
from .main import Parser
from .output import CommandError, Output, UsageError
from .paging import add_limit, fetch, more
from .paths import add_path, checkpoint_path
from .reaching import add_server, rest
from .readable import ago, plural, size
from .shapes import CHECKPOINT

if TYPE_CHECKING:
    from ..client.rest import RestClient
    from ..types.checkpoint import Checkpoint

_PAGE = 1000
_COLUMNS = {
    "checkpoint_id": "Checkpoint ID",
    "checkpoint_type": "Type",
    "size": "Size",
    "public": "Public",
    "created": "Created",
    "expires": "Expires",
    "tinker_path": "Path",
}


def register(parser: Parser) -> None:
    """Fill the command's parser."""
    group = parser.commands()
    listing = group.add_parser("list", help="show checkpoints, newest first")
    listing.add_argument("--run-id", metavar="RUN_ID", help="those of one training run")
    add_limit(listing, "checkpoints (of one run all are shown)")
    listing.command(_list, {"run_id?": "text", "checkpoints": [CHECKPOINT]})
    info = add_path(group.add_parser("info", help="show one checkpoint"))
    info.command(_info, {**CHECKPOINT, "is_lora": "bool", "lora_rank": "int?"})
    publish = add_path(group.add_parser("publish", help="let everyone on the server load a checkpoint"))
    publish.command(_publish, {"tinker_path": "text", "public": "bool"})
    unpublish = add_path(group.add_parser("unpublish", help="make a checkpoint private again"))
    unpublish.command(_unpublish, {"tinker_path": "text", "public": "bool"})
    ttl = add_path(group.add_parser("set-ttl", help="say when a checkpoint expires"))
    ttl.add_argument(
        "--ttl",
        metavar="SECONDS",
        type=int,
        help="so many seconds from now; the shortest is the server's to say: a minute, or an hour",
    )
    ttl.add_argument("--remove", action="store_true", help="never")
    ttl.command(_set_ttl, {"tinker_path": "text", "ttl_seconds": "int?"})
    delete = group.add_parser("delete", help="delete checkpoints, for good")
    checkpoint_delete.fill(delete)
    download = add_path(group.add_parser("download", help="download a checkpoint's files"))
    checkpoint_download.fill(download)
    push = add_path(
        group.add_parser("push-hf", help="upload a checkpoint to the Hugging Face hub, as a PEFT adapter")
    )
    checkpoint_push.fill(push)
    for each in (listing, info, publish, unpublish, ttl, delete, download, push):
        add_server(each)


def _row(one: Checkpoint) -> dict[str, Any]:
    return {
        **one.model_dump(),
        "size": size(one.size_bytes),
        "created": ago(one.time),
        "expires": ago(one.expires_at) or "Never",
    }


def _list(arguments: argparse.Namespace, out: Output) -> int:
    client, run = rest(arguments, out), arguments.run_id
    if run is not None:
        found = client.list_checkpoints(run).result().checkpoints
        total = len(found)
    else:

        def page(limit: int, offset: int) -> tuple[list[Checkpoint], int]:
            answer = client.list_user_checkpoints(limit, offset).result()
            total = answer.cursor.total_count if answer.cursor else offset + len(answer.checkpoints)
            return answer.checkpoints, total

        found, total = fetch(page, arguments.limit, _PAGE, out, "checkpoints")
    of_run = "" if run is None else f" for run {run}"
    out.table(
        _COLUMNS,
        [_row(one) for one in found],
        name="checkpoints",
        title=plural(len(found), "checkpoint") + of_run + more(len(found), total),
        empty=f"No checkpoints found{of_run}",
        essential="tinker_path",
        data={
            **({} if run is None else {"run_id": run}),
            "checkpoints": [one.model_dump() for one in found],
        },
    )
    return 0


def _info(arguments: argparse.Namespace, out: Output) -> int:
    path = checkpoint_path(arguments)
    client = rest(arguments, out)
    one = _find(client, path.tinker_path, path.training_run_id)
    about = client.get_weights_info_by_tinker_path(one.tinker_path).result()
    fields = {
        "Checkpoint ID": one.checkpoint_id,
        "Type": one.checkpoint_type,
        "Tinker Path": one.tinker_path,
        "Size": size(one.size_bytes),
        "Public": one.public,
        "Created": ago(one.time),
        "Expires": ago(one.expires_at) or "Never",
        "Training Run ID": path.training_run_id,
        "Base Model": about.base_model,
        "LoRA": f"Yes (Rank {about.lora_rank})" if about.is_lora and about.lora_rank else about.is_lora,
    }
    data = {**one.model_dump(), "is_lora": about.is_lora, "lora_rank": about.lora_rank}
    out.record(fields, essential="Tinker Path", data=data)
    return 0


def _find(client: RestClient, path: str, run: str) -> Checkpoint:
    for one in client.list_checkpoints(run).result().checkpoints:
        if one.tinker_path == path:
            return one
    raise CommandError(
        f"Checkpoint not found: {path}", f"`tinkex checkpoint list --run-id {run}` shows what there is"
    )


def _publish(arguments: argparse.Namespace, out: Output) -> int:
    return _set_public(arguments, out, True)


def _unpublish(arguments: argparse.Namespace, out: Output) -> int:
    return _set_public(arguments, out, False)


def _set_public(arguments: argparse.Namespace, out: Output, public: bool) -> int:
    from ..errors import ConflictError

    path, client = checkpoint_path(arguments).tinker_path, rest(arguments, out)
    change = (
        client.publish_checkpoint_from_tinker_path
        if public
        else client.unpublish_checkpoint_from_tinker_path
    )
    already = ""
    try:
        change(path).result()
    except ConflictError:  # it is so already
        already = "already "
    text = f"{path} is {already}{'public: everyone on this server can load it' if public else 'private'}"
    out.record({"tinker_path": path, "public": public}, essential="tinker_path", text=text)
    return 0


def _set_ttl(arguments: argparse.Namespace, out: Output) -> int:
    if (arguments.ttl is None) is not arguments.remove:
        raise UsageError("say either --ttl SECONDS or --remove", "see `tinkex checkpoint set-ttl --help`")
    path, seconds = checkpoint_path(arguments).tinker_path, arguments.ttl
    rest(arguments, out).set_checkpoint_ttl_from_tinker_path(path, seconds).result()
    when = "does not expire" if seconds is None else f"expires in {plural(seconds, 'second')}"
    out.record(
        {"tinker_path": path, "ttl_seconds": seconds}, essential="tinker_path", text=f"{path} {when}"
    )
    return 0
