"""A fetched block has the values of whole bodies, whatever the tensors, the heads and the blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aggregator_service.aggregation import fetched_blocks
from aggregator_service.aggregation.fetched_blocks import BodyLayout, FormArrays, fetch_block
from aggregator_service.storage.body_parts import BodyRange, DamagedUpdatesError, PartDigests
from aggregator_service.storage.disk import Blobs, Disk
from aggregator_service.storage.records import Receipt, StoredUpdate
from shared.method.parameters import Form, Parameters, State, Update, array_part
from shared.protocol.wire import encode_body
from shared.strategies.aggregation import mean_of_updates
from shared.strategies.blockwise import JoinedBlocks, Span, combine_block, gather_blocks, plan_blocks

FORMS = {
    "wide": Form("F32", (300, 70)),
    "counts": Form("U32", (9000,)),
    "a": Form("F32", (3,)),
    "none": Form("F32", (0, 5)),
    "z": Form("F32", (40_000,)),
}
CLIENTS = ("a", "b", "client-with-a-long-name", "ü")


def arrays_of(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.integers(0, 1 << 32, form.shape, dtype=np.uint32)
        if form.dtype == "U32"
        else rng.standard_normal(form.shape, dtype=np.float32)
        for name, form in FORMS.items()
    }


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Blobs, list[StoredUpdate], list[Update]]:
    """Updates whose heads have different lengths, stored and in memory."""
    blobs, held, whole = Blobs(tmp_path, Disk()), [], []
    for number, client in enumerate(CLIENTS):
        arrays, scalars = arrays_of(number), {"rho": float(f"0.{'1' * (1 + 5 * number)}")}
        body, parts = encode_body(Parameters(arrays, scalars)), PartDigests()
        parts.update(body)
        blob = blobs.save([body])
        receipt = Receipt("run-1", 1, client, blob.digest, blob.size, 0.0)
        held.append(StoredUpdate(receipt, scalars, blob.name, parts.finish()))
        whole.append(Update(client, arrays, scalars))
    return blobs, held, whole


@pytest.mark.parametrize("least", [1, 1 << 14, 1 << 30])
@pytest.mark.parametrize("gathered", [1, 200_000, 1 << 30])
def test_blocks_that_are_fetched_make_the_centre_of_whole_updates(
    stored: tuple[Blobs, list[StoredUpdate], list[Update]], least: int, gathered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetched_blocks, "GATHERED", gathered)
    blobs, held, whole = stored
    before, layout, looks = (
        State({name: value for name, value in arrays_of(9).items() if name != "counts"}),
        BodyLayout(FORMS),
        [],
    )
    known = [Update(one.client, FormArrays(FORMS), one.scalars) for one in whole]
    blocks = gather_blocks(plan_blocks(mean_of_updates, before, known, fewest=4), least)
    assert [span for block in blocks for span in block] == [
        span for block in plan_blocks(mean_of_updates, before, whole, fewest=4) for span in block
    ]
    joined = JoinedBlocks(mean_of_updates, before, known, blocks)
    for block in blocks:
        with fetch_block(blobs, layout, held, block, lambda: looks.append(1)) as fetched:
            assert [one.client for one in fetched] == list(CLIENTS)
            joined.add_block(block, combine_block(mean_of_updates, before, fetched, block))
    found, wanted = joined.finish(), mean_of_updates(before, whole)
    assert found.scalars == wanted.scalars and found.latest == wanted.latest
    for name, value in {**wanted.arrays, **wanted.reports}.items():
        assert {**found.arrays, **found.reports}[name].tobytes() == value.tobytes()
    assert len(looks) == len(blocks) * (len(CLIENTS) if gathered == 1 else 1) or gathered == 200_000


def test_ranges_that_are_near_are_asked_for_together(
    stored: tuple[Blobs, list[StoredUpdate], list[Update]], monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs, held, _ = stored
    asked, read = list[BodyRange](), Blobs.read_ranges

    def noted(self: Blobs, wanted: list[BodyRange]) -> list[memoryview | None]:
        asked.extend(wanted)
        return read(self, wanted)

    monkeypatch.setattr(Blobs, "read_ranges", noted)
    near, far = (Span("z", 0, 5), Span("z", 5, 9)), (Span("a", 0, 3), Span("counts", 0, 9000))
    for block, ranges in ((near, 1), (far, 2)):
        asked.clear()
        with fetch_block(blobs, BodyLayout(FORMS), held, block, lambda: None) as fetched:
            assert len(asked) == ranges * len(held)
            for number, one in enumerate(fetched):
                for span in block:
                    whole = np.ravel(arrays_of(number)[span.name])[span.begin : span.end]
                    assert array_part(one.arrays, *span).tobytes() == whole.tobytes()


def test_values_outside_of_the_block_are_not_there(stored: tuple[Blobs, list[StoredUpdate], list[Update]]) -> None:
    blobs, held, _ = stored
    with fetch_block(blobs, BodyLayout(FORMS), held, (Span("z", 5, 9),), lambda: None) as fetched:
        for outside in (("z", 4, 9), ("z", 5, 10), ("a", 0, 3)):
            with pytest.raises(LookupError):
                array_part(fetched[0].arrays, *outside)
    assert [path.suffix for path in blobs.directory.iterdir()] == [".safetensors"] * len(held)


def test_all_that_are_damaged_are_named(stored: tuple[Blobs, list[StoredUpdate], list[Update]]) -> None:
    blobs, held, _ = stored
    Path(blobs.path(str(held[1].blob))).unlink()
    Path(blobs.path(str(held[3].blob))).write_bytes(b"short")
    with (
        pytest.raises(DamagedUpdatesError) as raised,
        fetch_block(blobs, BodyLayout(FORMS), held, (Span("z", 5, 9),), lambda: None),
    ):
        pass
    assert raised.value.updates == [held[1], held[3]]
    assert len(list(blobs.directory.iterdir())) == len(held) - 1
