"""Centres of updates block by block: the bytes of the whole rule, whatever the blocks, shapes and number of clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggregator_service.aggregation.bodies import pack_state
from shared.errors import ProtocolError
from shared.method.parameters import BLOCK, Array, Parameters, State, Update
from shared.method.settings import MethodSettings
from shared.method.tensors import ITEM_TABLE
from shared.protocol.wire import StoredArrays, encode_body, open_parameters
from shared.strategies import STRATEGIES, blockwise, build_strategy, robust_aggregation
from shared.strategies.aggregation import mean_of_moved_rows, mean_of_updates
from shared.strategies.blockwise import JoinedBlocks, combine_block, combine_by_blocks, has_blocks, plan_blocks
from shared.strategies.robust_aggregation import krum, median, trimmed_mean
from shared.strategies.server_optimisers import combine_with_magnitudes
from shared.strategies.strategy import Combine
from tests.unit.strategies.test_contract import METHOD

RULES: dict[str, Combine] = {
    "mean": mean_of_updates,
    "moved rows": mean_of_moved_rows,
    "median": median,
    "trimmed mean": partial(trimmed_mean, trim=1),
    "mean with magnitudes": partial(combine_with_magnitudes, combine=mean_of_updates),
    "moved rows with magnitudes": partial(combine_with_magnitudes, combine=mean_of_moved_rows),
    "median with magnitudes": partial(combine_with_magnitudes, combine=median),
}
SHAPES = {
    "a.bias": (1,),
    "b.empty": (0, 4),
    "c.weight": (37, 11),
    "d.point": (),
    ITEM_TABLE: (53, 3),
    "z.long": (1001,),
}


@pytest.fixture(params=RULES)
def rule(request: pytest.FixtureRequest) -> Combine:
    return RULES[request.param]


@pytest.fixture(params=[(1, 1), (7, 30), (64, 400), (1 << 14, 1 << 17)], ids=lambda sizes: f"blocks of {sizes[0]}")
def small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    least, most = request.param
    monkeypatch.setattr(blockwise, "LEAST_BLOCK", least)
    monkeypatch.setattr(blockwise, "BLOCK", most)


def draw_round(clients: int, folder: Path | None = None, *, plain: bool = False) -> tuple[State, list[Update]]:
    """A state, and updates with numbers whose sum depends on the order; every client leaves some rows as they were.

    plain: without counts and reports, which have no magnitudes.
    """
    rng = np.random.default_rng(clients)
    before = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    updates = []
    for number in range(clients):
        scale = 10.0 ** rng.integers(-6, 7)
        arrays: dict[str, Array] = {
            name: np.asarray(value + scale * rng.standard_normal(value.shape), dtype=np.float32)
            for name, value in before.items()
        }
        still = rng.random(53) < 0.4
        arrays[ITEM_TABLE][still] = before[ITEM_TABLE][still]
        if not plain:
            arrays["report.sent"] = rng.standard_normal(29).astype(np.float32)
            arrays["u.counts"] = rng.integers(0, 1 << 32, size=(9, 9), dtype=np.uint32)
        scalars = {"rho": float(rng.random())} if number % 2 else {}
        update = Update(f"client-{clients - number:03}", arrays, scalars)
        updates.append(update if folder is None else stored(update, folder))
    counts = {} if plain else {"u.counts": np.zeros((9, 9), np.uint32)}
    return State({**before, **counts}, {"rho": 0.5}, {"old": {"rho": 0.25}}), updates


def is_with_magnitudes(rule: Combine) -> bool:
    return isinstance(rule, partial) and rule.func is combine_with_magnitudes


def stored(update: Update, folder: Path) -> Update:
    path = folder / f"{update.client}.safetensors"
    path.write_bytes(encode_body(Parameters(update.arrays, update.scalars)))
    content = open_parameters(path)[1]
    return Update(update.client, content.arrays, content.scalars)


def content(state: State) -> tuple[bytes, bytes, object]:
    return encode_body(pack_state(state)), encode_body(Parameters(state.reports)), state.latest


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("clients", [3, 4, 17])
def test_blocks_have_the_bytes_of_the_whole_rule(rule: Combine, clients: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robust_aggregation, "PIECE", 40)
    monkeypatch.setattr(blockwise, "PIECE", 40)
    before, updates = draw_round(clients, plain=is_with_magnitudes(rule))
    assert content(combine_by_blocks(rule, before, updates)) == content(rule(before, updates))


@pytest.mark.parametrize("name", ["mean", "moved rows", "median", "mean with magnitudes"])
def test_one_client_has_blocks_too(name: str) -> None:
    before, updates = draw_round(1, plain="magnitudes" in name)
    assert content(combine_by_blocks(RULES[name], before, updates)) == content(RULES[name](before, updates))


def test_stored_bodies_are_summed_by_ranges(rule: Combine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor is read in parts of the block's size alone."""
    before, updates = draw_round(5, tmp_path, plain=is_with_magnitudes(rule))
    wanted = content(rule(before, updates))
    read: list[int] = []

    def note(method: str) -> None:
        real: Callable[..., Array] = getattr(StoredArrays, method)

        def noted(self: StoredArrays, *what: Any) -> Array:
            found = real(self, *what)
            read.append(found.size)
            return found

        monkeypatch.setattr(StoredArrays, method, noted)

    note("part")
    note("parts")
    monkeypatch.setattr(StoredArrays, "__getitem__", lambda *_: pytest.fail("a whole tensor was read"))
    for module in (robust_aggregation, blockwise):
        monkeypatch.setattr(module, "PIECE", 40)
    monkeypatch.setattr(blockwise, "COLUMNS", 320)
    monkeypatch.setattr(blockwise, "LEAST_BLOCK", 60)
    monkeypatch.setattr(blockwise, "BLOCK", 60)
    assert content(combine_by_blocks(rule, before, updates)) == wanted
    assert max(read) <= 64


def test_blocks_may_come_in_any_order_and_are_all_needed() -> None:
    before, updates = draw_round(3)
    blocks = plan_blocks(median, before, updates, fewest=6)
    joined = JoinedBlocks(median, before, updates, blocks)
    for block in reversed(blocks[1:]):
        joined.add_block(block, combine_block(median, before, updates, block))
    with pytest.raises(ProtocolError, match="spans are missing"):
        joined.finish()
    joined.add_block(blocks[0], combine_block(median, before, updates, blocks[0]))
    assert content(joined.finish()) == content(median(before, updates))


def test_a_block_of_another_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockwise, "LEAST_BLOCK", 100)
    before, updates = draw_round(3)
    blocks = plan_blocks(mean_of_updates, before, updates, fewest=6)
    assert len(blocks) > 6
    parts = [combine_block(mean_of_updates, before, updates, block) for block in blocks]
    joined = JoinedBlocks(mean_of_updates, before, updates, blocks)
    with pytest.raises(ProtocolError, match="given sizes"):
        joined.add_block(blocks[0], parts[1])
    cut = {span: {name: value[:-1] for name, value in some.items()} for span, some in parts[-1].items()}
    with pytest.raises(ProtocolError, match="given sizes"):
        joined.add_block(blocks[-1], cut)


def test_blocks_hold_a_bounded_number_of_values() -> None:
    updates = [Update(f"c{one}", {"w": np.zeros((1 << 10, 1 << 10), np.float32)}, {}) for one in range(3)]
    before = State({"w": np.zeros((1 << 10, 1 << 10), np.float32)})
    sizes = [sum(span.end - span.begin for span in block) for block in plan_blocks(mean_of_updates, before, updates)]
    assert max(sizes) <= BLOCK and sum(sizes) == 1 << 20
    many = [Update(f"c{one:05}", updates[0].arrays, {}) for one in range(10_000)]
    sizes = [sum(span.end - span.begin for span in block) for block in plan_blocks(median, before, many)]
    assert 10_000 * max(sizes) <= robust_aggregation.COLUMNS and sum(sizes) == 1 << 20


def test_rules_that_look_at_whole_updates_have_none() -> None:
    """Each is computed as it always was."""
    without = {name for name in STRATEGIES if not has_blocks(build_strategy(name, METHOD).combine or mean_of_updates)}
    assert without == {"fedgsp", "fedpub"}
    assert not has_blocks(partial(krum, tolerated=0, kept=1))
    clipped = build_strategy("fedavg", MethodSettings(clip_factor=2.0)).combine
    assert clipped is not None and not has_blocks(clipped)
    before, updates = draw_round(5)
    rule = partial(krum, tolerated=1, kept=1)
    assert content(combine_by_blocks(rule, before, updates)) == content(rule(before, updates))


@pytest.mark.parametrize("rule", [mean_of_updates, median], ids=["mean", "median"])
def test_sums_over_groups_of_names_would_round_otherwise(rule: Combine) -> None:
    """Why blocks are spans of coordinates: halves of the clients do not add up to the same bytes."""
    before, updates = draw_round(8)

    def half(some: Sequence[Update]) -> Array:
        return np.asarray(rule(before, some).arrays["z.long"])

    halves = (half(updates[:4]) + half(updates[4:])) / np.float32(2)
    assert halves.tobytes() != half(updates).tobytes()
