"""A list of items that is not the one that the operator gave fits nowhere, and costs nobody his memory.

Who: an aggregator that tells silos of another list than their invitations carry, so that each column of a silo's
statistics would be read as another item's; and whoever can change an invitation on its way to the silo.
"""

from __future__ import annotations

import base64
import hashlib
import json
import resource
import zlib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from aggregator_service.app import create_app
from shared.errors import ProtocolError, SettingsError
from shared.protocol.item_list import LONGEST_LIST, pack_item_list
from shared.protocol.signing.enrolment import registered_keys
from shared.protocol.signing.invitation import LONGEST_INVITATION
from simulation.cli import app
from simulation.joining.invite import write_invitations
from tests.support.serving import serve
from tests.support.small import small_aggregator

ITEMS = [f"i{number}" for number in range(6)]


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = (f"u{user},i{(user + item) % 6}\n" for user in range(9) for item in range(4))
    Path("data.csv").write_text("user,item\n" + "".join(rows))
    Path("items.txt").write_text("\n".join(ITEMS) + "\n")
    Path("turned.txt").write_text("\n".join(reversed(ITEMS)) + "\n")


def join() -> Result:
    words = ("join", "north.invite", "--data", "data.csv", "--accept", "sums", "--no-start")
    return CliRunner().invoke(app, words)


def summing(tmp_path: Path, catalogue: str) -> Any:
    return small_aggregator(tmp_path / "aggregator", share="sums", catalogue=tmp_path / catalogue)


def test_an_aggregator_that_has_another_list_than_the_invitation_is_refused(tmp_path: Path) -> None:
    """As long as the invitation's, so that every shape fits."""
    lying = summing(tmp_path, "turned.txt")
    with serve(create_app(lying)) as url:
        write_invitations(summing(tmp_path, "items.txt"), ["north", "south", "west"], url, tmp_path)
        refused = join()
        assert isinstance(refused.exception, ProtocolError), (refused.output, refused.exception)
        assert "items_sha256: expected" in str(refused.exception) and not Path("north/silo.toml").exists()
        write_invitations(lying, ["east"], url, tmp_path)
    told = {name: json.loads(Path(f"{name}.invite").read_text()) for name in ("south", "east")}
    Path("north.invite").write_text(json.dumps(told["south"] | {"items": told["east"]["items"], "name": "north"}))
    assert "its federation names" in str(join().exception)


@pytest.mark.parametrize("how", ["a bomb", "no end of ids", "a huge file"])
def test_an_invitation_made_to_fill_the_memory_is_refused_before_it_does(tmp_path: Path, how: str) -> None:
    chosen = summing(tmp_path, "items.txt")
    write_invitations(chosen, ["north", "south", "west"], "http://127.0.0.1:9", tmp_path)
    told = json.loads(Path("north.invite").read_text())
    if how == "a bomb":
        squeezer, blank = zlib.compressobj(9), b" " * (1 << 24)
        content = b"".join(squeezer.compress(blank) for _ in range(128)) + squeezer.flush()  # 2 GiB
        told["items"]["packed"] = base64.b64encode(content).decode()
    elif how == "no end of ids":
        told["items"] |= pack(b"".join(b"%d\n" % number for number in range(1 << 22)))
        told["federation"]["items_sha256"] = told["items"]["sha256"]
    else:
        told["items"]["packed"] = "a" * LONGEST_INVITATION
    Path("north.invite").write_text(json.dumps(told))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = join()
    assert isinstance(refused.exception, SettingsError), (refused.output, refused.exception)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 6 * LONGEST_LIST
    assert registered_keys(chosen.registry) == {} and not Path("north/silo.toml").exists()


def pack(content: bytes) -> dict[str, object]:
    return pack_item_list(ITEMS).model_dump() | {
        "sha256": hashlib.sha256(content).hexdigest(),
        "packed": base64.b64encode(zlib.compress(content)).decode(),
    }
