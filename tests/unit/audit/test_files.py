"""Others' shards and ledgers are found wherever they are mounted; one's own and the kernel's folders do not count."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from audit.evidence.evidence import ProbeResult
from audit.probes import files, part
from audit.probes.part import PartLocation


def made(root: Path, *paths: str) -> Path:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("")
    return root


def probed(root: Path, *own: Path) -> list[ProbeResult]:
    return part.probe_location(PartLocation(root, own))


def told(probes: list[ProbeResult]) -> dict[str, bool]:
    return {f"{one.kind}: {one.name}": one.held for one in probes}


def test_a_client_has_its_own_files_and_no_others(tmp_path: Path) -> None:
    root = made(tmp_path, "shard/interactions.parquet", "state/ledger.jsonl", "usr/lib/x", "proc/1/ledger.jsonl")
    found = probed(root, root / "shard", root / "state")
    assert set(told(found).values()) == {True} and len(found) == 4
    assert "none; 8 entries looked at" in {one.observed for one in found}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("shards/client-2/interactions.parquet", "interactions.parquet"),
        ("shard-of-another/interactions.parquet", "interactions.parquet"),
        ("backup/deep/er/ledger.jsonl", "ledger.jsonl"),
    ],
)
def test_what_is_another_s_is_found_wherever_it_is(tmp_path: Path, path: str, name: str) -> None:
    root = made(tmp_path, "shard/interactions.parquet", path)
    found = probed(root, root / "shard")
    assert [one.name for one in found if not one.held] == [name]
    assert all("client-2" not in one.observed for one in found)


@pytest.mark.parametrize("folder", ["run", "shard"])
def test_an_engine_s_socket_is_found_by_its_name_even_if_it_does_not_answer(tmp_path: Path, folder: str) -> None:
    root = made(tmp_path, "shard/interactions.parquet", f"{folder}/x")
    with pytest.MonkeyPatch.context() as here, socket.socket(socket.AF_UNIX) as one:
        here.chdir(root / folder)
        one.bind("docker.sock")
        found = probed(root, root / "shard")
    assert [one.name for one in found if not one.held] == ["a container engine's"]


def test_who_has_no_folder_of_its_own_may_have_nothing(tmp_path: Path) -> None:
    found = told(probed(made(tmp_path, "state/blobs/x", "shard/interactions.parquet")))
    assert found == {
        "files: interactions.parquet": False,
        "files: ledger.jsonl": True,
        "files: a container engine's": True,
    }


def test_a_search_that_does_not_find_what_is_there_says_so(tmp_path: Path) -> None:
    found = told(probed(made(tmp_path, "other/x"), tmp_path / "shard"))
    assert found["control: its own files: interactions.parquet"] is False


def test_links_are_not_followed_and_a_search_without_end_claims_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path, "root/a", "away/ledger.jsonl")
    (tmp_path / "root" / "link").symlink_to(tmp_path / "away")
    (tmp_path / "root" / "round").symlink_to(tmp_path / "root")
    assert set(told(probed(tmp_path / "root")).values()) == {True}
    monkeypatch.setattr(files, "MOST_ENTRIES", 2)
    found = probed(tmp_path / "root")
    assert {one.held for one in found if one.name.startswith(("interactions", "ledger"))} == {
        False
    } and "and more left" in found[0].observed


def test_a_folder_that_may_not_be_read_is_counted(tmp_path: Path) -> None:
    assert files.walk_entries(tmp_path / "nowhere", []).closed == 1
