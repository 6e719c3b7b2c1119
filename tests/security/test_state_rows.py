"""Rows of a state folder somebody else wrote into: they lead to nothing outside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.rig import Rig, served
from tinkex.server.state_folder import is_inside

PARAMS = "training_runs/s-1:train:0/checkpoints/external_weights/ck"


@pytest.mark.parametrize("where", ["../outside", "checkpoints/../../outside", "absolute"])
def test_a_row_that_leads_out_shows_and_deletes_nothing(where: str, tmp_path: Path):
    @served
    async def scenario(rig: Rig) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "secret").write_text("mine")
        folder = str(outside) if where == "absolute" else where
        await rig.session()
        await rig.run()
        await rig.checkpoint(kind="external", folder=folder)
        listed = await rig.get(f"{PARAMS}/external_weights_urls")
        for url in listed.json.get("urls", {}).values():
            got = await rig.fetch(url)
            assert got.status == 410
            assert b"mine" not in got.body
        assert (await rig.ask("DELETE", PARAMS)).status == 200
        await rig.clock.forward(100)
        assert (outside / "secret").read_text() == "mine"

    scenario(tmp_path=tmp_path)


@pytest.mark.parametrize(
    ("folder", "inside"),
    [
        ("a", True), ("a/b", True), ("", False), (".", False), ("..", False), ("a/..", False),
        ("a/../b", True), ("../state2", False), ("a/../../state/b", True),
    ],
)  # fmt: skip
def test_inside_is_below(tmp_path: Path, folder: str, inside: bool):
    state = tmp_path / "state"
    assert is_inside(state, state / folder) is inside
