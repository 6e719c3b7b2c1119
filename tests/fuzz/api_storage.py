"""What owners do with saved weights: save, load, share, copy, fetch, delete, let them expire."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import urlsplit

from tests.server.client import Answer

from .api_books import CheckpointBook, ModelBook, Owner, Ticket, marks_in
from .api_machine import ApiMachine, Whose

Right = Literal["yes", "no", "maybe"]


def lives(m: ApiMachine, book: CheckpointBook) -> Right:
    """Whether a checkpoint is there."""
    if book.expires is not None and m.server.clock.passed > book.expires - 1:
        return "maybe" if m.server.clock.passed < book.expires + 1 else "no"
    return "yes" if book.sure else "maybe"


def find(m: ApiMachine, path: str) -> CheckpointBook | None:
    """A checkpoint of anybody."""
    return next((owner.checkpoints[path] for owner in m.owners if path in owner.checkpoints), None)


def pick_checkpoint(m: ApiMachine, me: Owner, kinds: tuple[str, ...]) -> tuple[str, Right]:
    """A path, and whether this owner may read it."""
    path, whose = m.pick(me, "checkpoints", 0.35)
    book = find(m, path)
    if book is None:
        return path, "no"
    there = lives(m, book)
    if whose == "other" and not book.public:
        return path, "no"
    if whose == "other" and m.at_once:
        return path, "maybe"
    return path, "maybe" if book.kind not in kinds or there == "maybe" else there


def take_over(me: Owner, book: CheckpointBook) -> None:
    """What is public was used: its words may come back from what was made of it."""
    me.known |= book.marks


async def save(m: ApiMachine, me: Owner) -> None:
    """Save weights: to train on, to sample from, to take away; under new names and taken ones."""
    from .api_operations import operate, remember, settle, usable

    id, whose = m.pick(me, "models", 0.05)
    model = me.models.get(id) if whose == "own" else None
    route, segment = m.rng.choice(
        (
            ("save_weights", "weights"),
            ("save_weights", "weights"),
            ("save_weights_for_sampler", "sampler_weights"),
            ("save_weights_external", "external_weights"),
        )
    )
    name, mark = me.word(), me.word()
    taken = [each.split("/")[-1] for each in me.checkpoints if each.startswith(f"tinker://{id}/{segment}/")]
    again = bool(taken) and m.rng.random() < 0.3
    if again:
        name = m.rng.choice(taken)
    body: dict[str, Any] = {"model_id": id, "seq_id": model.next if model else 3, "path": name}
    overwrite = route == "save_weights" and m.rng.random() < 0.5
    if overwrite:
        body["overwrite"] = True
    if route != "save_weights_external":
        body["user_metadata"] = {"w": mark}
    seconds = m.rng.choice((None, None, None, 90, 3600))
    if seconds:
        body["ttl_seconds"] = seconds
    path = f"tinker://{id}/{segment}/{name}"
    before = usable(m, me, id)
    if again and (known := me.checkpoints.get(path)) is not None:
        known.sure = False
    if before is not None and again:
        before.sure, was = False, True  # a taken name may be refused: then or later
    else:
        was = False
    ticket = await operate(m, me, route, id, whose, body, body["seq_id"])
    if was and before is not None:
        before.sure = True
    if ticket is None or model is None or path.split("/")[-1] != name:
        return
    ticket.kind, ticket.path = "?" if again else route, path
    if not again:
        me.maybe.add(path)
    if m.rng.random() < 0.7 or again:
        began = m.server.clock.passed
        found = await m.result(me, ticket)
        if found and "error" not in found:
            expires = None if seconds is None else began + seconds
            book = remember(me, path, model.steps if model.sure else None, mark, expires)
            book.sure = not again and (seconds is None or m.server.clock.passed - began < 0.5)
        elif found and "error" in found and not again and before is not None and not model.ended:
            await settle(m, me, ticket)


async def freeze(m: ApiMachine, me: Owner) -> None:
    """Unnamed weights to sample from."""
    from .api_operations import operate

    id, whose = m.pick(me, "models", 0.05)
    model = me.models.get(id) if whose == "own" else None
    number = me.number()
    body = {"model_id": id, "seq_id": model.next if model else 3, "sampling_session_seq_id": number}
    ticket = await operate(m, me, "save_weights_for_sampler", id, whose, body, body["seq_id"])
    if ticket and model:
        found = await m.result(me, ticket)
        if found and "error" not in found:
            me.samplers.setdefault(found["sampling_session_id"], 0)


async def load(m: ApiMachine, me: Owner) -> None:
    """Load weights into a model, or make a model of them."""
    from .api_operations import of, operate

    path, right = pick_checkpoint(m, me, ("training",))
    book = find(m, path)
    optimizer = m.rng.random() < 0.6
    if m.rng.random() < 0.5:
        session, whose = m.pick(me, "sessions", 0.05)
        number = 50 + sum(each.session == session for each in me.models.values())
        id, mark = f"{session}:train:{number}", me.word()
        body: dict[str, Any] = {"session_id": session, "model_seq_id": number, "path": path}
        body |= {"optimizer": optimizer, "user_metadata": {"w": mark}}
        whose = "none" if right == "no" else whose
        sure = right == "yes" and m.alive(me, session)
        answer = await m.call(me, "load_weights", body)
        if of(m, answer, whose, sure and id not in me.models, "load_weights") and id not in me.models:
            model = me.models[id] = ModelBook(id, session, mark)
            me.tickets[f"{id}:0"] = Ticket(f"{id}:0", "?" if right == "maybe" else "load_weights", model)
            _loaded(model, book, optimizer, right, me)
        return
    id, whose = m.pick(me, "models", 0.05)
    own = me.models.get(id) if whose == "own" else None
    number = own.next if own else 3
    sure = own is not None and own.sure
    if own is not None and right != "yes":
        own.sure = False  # it may be refused, which is no fault
    body = {"model_id": id, "seq_id": number, "path": path, "optimizer": optimizer}
    ticket = await operate(m, me, "load_weights", id, whose, body, number)
    if own is None:
        return
    if ticket is None:
        own.sure = sure
        return
    m.agree(right != "no", f"{path} is not {me.name}'s to load")
    ticket.kind = "?" if right == "maybe" else "load_weights"
    _loaded(own, book, optimizer, right, me)


def _loaded(
    model: ModelBook, book: CheckpointBook | None, optimizer: bool, right: Right, me: Owner
) -> None:
    if book is None or right != "yes" or (optimizer and book.steps is None):
        model.sure = False
    else:
        model.steps = int(book.steps or 0) if optimizer else 0
    if book is not None:
        take_over(me, book)


# ---- one checkpoint


def place(path: str) -> dict[str, str]:
    """A path as parameters of a route."""
    run, _, rest = path.removeprefix("tinker://").partition("/")
    return {"training_run_id": run or "x", "checkpoint_id": rest or "x"}


async def change(m: ApiMachine, me: Owner) -> None:
    """Publish, unpublish, delete, or say when it expires."""
    path, whose = m.pick(me, "checkpoints", 0.3)
    name = m.rng.choice(("publish_checkpoint",) * 3 + ("unpublish_checkpoint", "delete_checkpoint", "ttl"))
    seconds = m.rng.choice((60, 3600, None, 1, -1, 10**12))
    body = {"ttl_seconds": seconds} if name == "ttl" else None
    route = "set_checkpoint_ttl" if name == "ttl" else name
    book = me.checkpoints.get(path) if whose == "own" else None
    there = lives(m, book) if book else "no"
    answer = await m.call(me, route, body, **place(path))
    wrong = name == "ttl" and seconds is not None and not 60 <= seconds <= 10 * 366 * 24 * 3600
    if there == "no" or wrong:
        m.agree(400 <= answer.status < 500, f"{name} of {path}: {answer}")
        return
    if there == "yes":
        m.agree(answer.status == 200, f"{name} of {path}: {answer}")
    if answer.status != 200 or book is None:
        return
    if name == "ttl":
        book.expires = None if seconds is None else m.server.clock.passed + seconds
    elif name == "delete_checkpoint":
        del me.checkpoints[path]
        m.words.public -= book.marks
    else:
        book.public = name == "publish_checkpoint"
        run = path.removeprefix("tinker://").split("/")[0]
        described = {run, *marks_in(run), *book.marks}
        if (model := me.models.get(run)) is not None:
            described.add(model.mark)
        if book.public:
            m.words.public |= described
        else:  # what was public may be known by now
            for owner in m.owners:
                owner.known |= described if owner is not me else set()
            if not any(each.public for each in me.checkpoints.values() if f"//{run}/" in each.path):
                m.words.public -= described


async def look_at_checkpoints(m: ApiMachine, me: Owner) -> None:
    """Every checkpoint that is there is listed, and no other."""
    answer = await m.call(me, "list_user_checkpoints", query="limit=100000", headers=NEW)
    listed = {each["tinker_path"]: each for each in answer.json["checkpoints"]}
    for path, book in list(me.checkpoints.items()):
        there = lives(m, book)
        m.checked["checkpoints listed"] += there == "yes"
        m.checked["checkpoints expired"] += there == "no"
        m.agree(there != "yes" or path in listed, f"{path} is not listed")
        m.agree(there != "no" or path not in listed, f"{path} has expired and is listed")
        if path in listed:
            m.agree(listed[path]["public"] == book.public or not book.sure, f"{path}: {listed[path]}")
        elif there != "yes":
            del me.checkpoints[path]
    strange = set(listed) - set(me.checkpoints) - me.maybe
    m.agree(not strange, f"checkpoints nobody saved: {strange}")
    run, _ = m.pick(me, "models", 0.2)
    await m.call(me, "list_checkpoints", headers=NEW, training_run_id=run)


NEW = {"x-stainless-package-version": "0.36.0"}


async def read(m: ApiMachine, me: Owner) -> None:
    """What a checkpoint is, and where its files are."""
    path, right = pick_checkpoint(m, me, ("training", "sampler", "external"))
    answer = await m.call(me, "weights_info", {"tinker_path": path})
    _as_allowed(m, answer, right, f"weights_info of {path}")
    name = m.rng.choice(("external_weights_urls", "checkpoint_archive"))
    answer = await m.call(me, name, **place(path))
    if right == "no":
        m.agree(400 <= answer.status < 500, f"{name} of {path}: {answer}")
    elif answer.status == 200 and name == "external_weights_urls":
        for url in answer.json["urls"].values():
            me.urls.setdefault(url, None)
            del_oldest(me.urls)


def del_oldest(urls: dict[str, Any]) -> None:
    """Keep the newest few."""
    while len(urls) > 12:
        del urls[next(iter(urls))]


def _as_allowed(m: ApiMachine, answer: Answer, right: Right, what: str) -> None:
    if right == "yes":
        m.agree(answer.status == 200, f"{what}: {answer}")
    elif right == "no":
        m.agree(400 <= answer.status < 500, f"{what}: {answer}")


async def fetch(m: ApiMachine, me: Owner) -> None:
    """A file, whole or in part; an address that was changed opens nothing."""
    if not me.urls:
        return
    url = m.rng.choice(list(me.urls))
    path = urlsplit(url).path
    if m.rng.random() < 0.2:
        at = m.rng.randrange(len("/files/"), len(path))
        path = path[:at] + chr((ord(path[at]) - 32) % 94 + 33) + path[at + 1 :]
        if path == urlsplit(url).path or "/" in path[at : at + 1] or path[at] in "%?#":
            return
        answer = await m.send(me, "file", "GET", path, headers=m.rng.choice(({}, {"range": "bytes=0-"})))
        m.agree(answer.status in (403, 404, 410), f"a changed address opened something: {path} {answer}")
        return
    wanted = m.rng.choice((None, "bytes=0-3", "bytes=-5", "bytes=4-", "bytes=9-2", "bytes=999999-", "x"))
    answer = await m.send(me, "file", "GET", path, headers={"range": wanted} if wanted else {})
    m.agree(answer.status in (200, 206, 410, 416), f"{path}: {answer}")
    if answer.status == 200:
        before = me.urls[url]
        m.agree(before is None or before == answer.body, f"{path} has changed")
        me.urls[url] = answer.body
    elif answer.status == 206 and me.urls[url] is not None:
        first, _, rest = answer.headers["content-range"].removeprefix("bytes ").partition("-")
        whole = me.urls[url]
        m.agree(whole[int(first) : int(rest.split("/")[0]) + 1] == answer.body, f"{path}: a wrong part")


async def copy(m: ApiMachine, me: Owner) -> None:
    """A copy of a checkpoint, of one's own or of what is public."""
    path, right = pick_checkpoint(m, me, ("training", "sampler", "external"))
    book = find(m, path)
    body: dict[str, Any] = {"source_path": path, "destination_project_id": me.word()}
    session, whose = m.pick(me, "sessions", 0.1)
    if m.rng.random() < 0.5:
        body = {"source_path": path, "session_id": session, "model_seq_id": 900 + m.rng.randrange(5)}
        if whose != "own":
            right = "no"
        right = "maybe" if right == "yes" else right
    headers = {"x-idempotency-key": me.word()}
    answer = await m.call(me, "copy_weights", body, headers=headers)
    if right == "yes" and answer.status != 404:
        m.agree(answer.status == 200, f"a copy of {path}: {answer}")
    elif right == "no":
        m.agree(400 <= answer.status < 500, f"a copy of {path}: {answer}")
    if answer.status == 200 and book is not None:
        take_over(me, book)
        made = answer.json["tinker_path"]
        again = await m.call(me, "copy_weights", body, headers=headers)
        m.agree(again.json == answer.json, f"the same copy asked for again is another: {again}")
        me.checkpoints[made] = CheckpointBook(
            made, book.kind, marks_in(made) | book.marks, book.steps, sure=book.sure
        )


OPERATIONS = [
    (save, 7), (freeze, 2), (load, 4), (change, 4), (look_at_checkpoints, 1.5), (read, 3), (fetch, 3),
    (copy, 2),
]  # fmt: skip

__all__ = ["OPERATIONS", "Whose", "look_at_checkpoints", "pick_checkpoint"]
