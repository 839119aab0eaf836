"""The head of an update is as long as its declaration makes it, and a longer one is not taken apart.

Who: a registered client. Before, 900,000 tensors without values in an update of 53 MB took 873 MiB and a minute, in
which the aggregator did not even hear that it should end.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shared.method.settings import AnchorSettings, MethodSettings
from tests.support.besieged import MOST_MEBIBYTES, Besieged

WIDE = MethodSettings(width=1024, layers=1, cutoff=12, anchor=AnchorSettings(users=40, items=30, edges=200))
MANY = 400_000  # 24 MB, which an update of this width may have


def many_empty_tensors() -> bytes:
    entries = ",".join(f'"{number:07d}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for number in range(MANY))
    head = f"{{{entries}}}".encode()
    return len(head).to_bytes(8, "little") + head


def test_a_head_of_many_tensors_is_refused_by_its_length(tmp_path: Path) -> None:
    body = many_empty_tensors()
    with Besieged(tmp_path, method=WIDE).running() as besieged, ThreadPoolExecutor(1) as pool:
        besieged.join("ada", "bob")
        assert besieged.start_run(clients=2).status_code == 201
        idle = besieged.forget_peak()
        refused = pool.submit(besieged.put, "ada", "update", body)
        assert besieged.is_answered("bob")
        answer = refused.result()
        assert answer.status_code == 422 and "a head of at most" in answer.json()["detail"]
        assert besieged.peak - idle < MOST_MEBIBYTES
