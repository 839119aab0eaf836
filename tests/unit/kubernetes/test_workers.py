"""Workers keep what invitations register where all of them read it, and nowhere else can they write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Document, Pods, Render


@pytest.fixture
def worker(render: Render, pods: Pods) -> Document:
    (found,) = (one for one in pods(render("workers")) if one["metadata"]["name"] == "aggregator")
    return found


def test_an_invitation_needs_no_folder_that_a_worker_can_write(worker: Document) -> None:
    (container,) = worker["spec"]["containers"]
    given = {one["name"].removeprefix("LPSFED_AGGREGATOR_"): one["value"] for one in container["env"]}
    assert given["SHARED"] == "true" and given["DATABASE_FILE"].startswith("/secrets/")
    mounts = {one["mountPath"]: one for one in container["volumeMounts"]}
    assert mounts[given["KEYS_DIRECTORY"]]["readOnly"] is True
    assert {path for path, one in mounts.items() if not one.get("readOnly")} == {"/state", "/tmp"}


def test_a_federation_begins_without_keys_and_without_a_volume(worker: Document) -> None:
    volumes = {one["name"]: one for one in worker["spec"]["volumes"]}
    assert volumes["client-public-keys"]["configMap"]["optional"] is True
    assert not [one for one in volumes.values() if "persistentVolumeClaim" in one]
