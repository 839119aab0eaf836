"""A name in the database must not lead out of the folder of bodies.

Who: whoever can write the database, which with PostgreSQL is on another machine. A body's name was joined to the folder
as it came: after the retention time the file at `../operator.token` was removed, and with a bucket what its owner had
put there was written to any place that the aggregator can write.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator_service.storage.disk import Blobs, Disk
from shared.errors import DataError


@pytest.mark.parametrize(
    "planted", ["../operator.token", "/etc/hostname", "..", "", "a.safetensors", "\0" * 32 + ".part"]
)
def test_no_name_leads_out_of_the_folder(tmp_path: Path, planted: str) -> None:
    blobs, token = Blobs(tmp_path / "blobs", Disk()), tmp_path / "operator.token"
    token.write_text("secret")
    kept = blobs.save([b"a body"])
    for use in (blobs.path, lambda name: blobs.damage(name, kept.digest), lambda name: blobs.remove([name])):
        with pytest.raises(DataError, match="expected the name of a stored body"):
            use(planted)
    assert token.read_text() == "secret"
    assert blobs.damage(kept.name, kept.digest) is None
