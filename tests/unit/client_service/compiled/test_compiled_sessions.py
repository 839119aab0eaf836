"""Compiled sessions: numpy scores visits as torch and scipy do, from folders that are checked."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from client_service.compilation.sessions import compile_next_model, compile_sessions, compile_sessions_in_memory
from client_service.compiled.arrays import save_folder
from client_service.compiled.publication import read_publication
from client_service.compiled.sessions import (
    KIND,
    MODEL_KIND,
    CompiledNextModel,
    CompiledSessions,
    open_next_model,
    open_sessions,
)
from client_service.data.prefixes import LONGEST_PREFIX, Prefixes
from client_service.data.sessions import SessionShard
from client_service.evaluation.session_ranking import score_by_popularity, score_by_successors
from client_service.model_store.session_models import ServedSessions, freeze_sessions
from client_service.serving.messages import NextIn
from client_service.serving.next_items import open_next_items
from client_service.tasks.sessions import answer_visits
from client_service.training.session_trainer import MODELS, SessionTrainer
from client_service.training.transition_scores import TransitionScores, VisitScores, score_visits
from shared.errors import DataError
from shared.method.settings import method_settings

ITEMS, WIDTH = 300, 24
CLOSE = 1e-5
HEAVY = ("torch", "polars", "pandas", "scipy")


def make_shop(items: int = ITEMS) -> SessionShard:
    """400 sessions of five clicks, a few of them for validation."""
    clicks = np.random.default_rng(0).zipf(1.3, 2000) % items
    splits = np.where(np.arange(400) % 8 == 0, 1, 0).astype(np.int8)
    ids = tuple(f"item-{number:04d}" for number in range(items))
    titles = tuple(None if number % 5 else f"Title {number}" for number in range(items))
    return SessionShard("shop", ids, clicks, np.arange(0, 2001, 5), splits, np.arange(items), titles)


def draw_visits(seed: int, items: int = ITEMS) -> Prefixes:
    """Visits of one click, of the most clicks that count, and of few and many items with repeats."""
    rng = np.random.default_rng(seed)
    lengths = np.concatenate([[1, 1, LONGEST_PREFIX, LONGEST_PREFIX], rng.integers(1, LONGEST_PREFIX + 1, 40)])
    spread = rng.integers(1, items + 1, len(lengths))
    clicks = rng.integers(0, np.repeat(spread, lengths))
    ends = np.cumsum(lengths)
    return Prefixes(np.append(clicks, 0), ends - lengths, ends)


def draw_model(kind: str, seed: int, shard: SessionShard) -> ServedSessions:
    method = method_settings("sessions", width=WIDTH, model=kind, catalogue=len(shard.item_ids))
    training = SessionTrainer(shard, method, torch.device("cpu"), kind=kind)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in training.model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return freeze_sessions("run.1", training)


@pytest.fixture(scope="module")
def shop() -> SessionShard:
    return make_shop()


@pytest.fixture(scope="module")
def sessions(shop: SessionShard) -> CompiledSessions:
    return compile_sessions_in_memory(shop)[0]


def compiled(served: ServedSessions, sessions: CompiledSessions, folder: Path) -> CompiledNextModel:
    return open_next_model(save_folder(folder, MODEL_KIND, *compile_next_model(served, sessions)), sessions)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", MODELS)
def test_a_compiled_network_scores_visits_as_torch_does(
    kind: str, seed: int, shop: SessionShard, sessions: CompiledSessions, tmp_path: Path
) -> None:
    served, visits = draw_model(kind, seed, shop), draw_visits(seed)
    model, expected = compiled(served, sessions, tmp_path), served.score(visits)
    found = model.score(visits)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=CLOSE, atol=CLOSE * np.abs(expected).max())
    alone = np.concatenate([model.score(visits.select(np.array([row]))) for row in (0, 2, 9)])
    np.testing.assert_allclose(alone, expected[[0, 2, 9]], rtol=CLOSE, atol=CLOSE * np.abs(expected).max())


@pytest.mark.parametrize("kind", MODELS)
def test_unequal_visits_are_told_apart(
    kind: str, shop: SessionShard, sessions: CompiledSessions, tmp_path: Path
) -> None:
    model = compiled(draw_model(kind, 1, shop), sessions, tmp_path)
    visits = [[3, 4], [4, 3], [3, 4, 3, 4], [3, 3, 4], [3, 4, 5]]
    ends = np.cumsum([len(one) for one in visits])
    clicks = np.array([*np.concatenate(visits), 0])
    found = model.score(Prefixes(clicks, ends - [len(one) for one in visits], ends))
    assert len(np.unique(found.round(4), axis=0)) == len(visits)


CHANGES: tuple[dict[str, float], ...] = (
    {},
    {"decay": 0.0},
    {"repeats": 0.0},
    {"second": 0.0},
    {"second": 0.6, "decay": 0.8},
)


@pytest.mark.parametrize("changes", CHANGES)
def test_compiled_transitions_score_visits_as_scipy_does(
    changes: dict[str, float], shop: SessionShard, sessions: CompiledSessions, tmp_path: Path
) -> None:
    scores = replace(score_visits(shop, None).own, **changes)
    served = replace(draw_model("srgnn", 0, shop), transitions=VisitScores(scores), share=0.0)
    model, visits = compiled(served, sessions, tmp_path), draw_visits(3)
    assert model.network is None
    np.testing.assert_allclose(model.score(visits), served.score(visits), atol=CLOSE)


@pytest.mark.parametrize("from_sums", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("share", [0.0, 0.4])
def test_a_fused_model_scores_as_the_one_that_was_compiled(
    from_sums: float, share: float, shop: SessionShard, sessions: CompiledSessions, tmp_path: Path
) -> None:
    own = score_visits(shop, None).own
    other: TransitionScores = replace(own, decay=0.9, repeats=0.0, popular=own.popular[::-1].copy())
    fused = VisitScores(own, other, from_sums)
    served = replace(draw_model("tagnn", 2, shop), transitions=fused, share=share)
    model, visits = compiled(served, sessions, tmp_path), draw_visits(4)
    np.testing.assert_allclose(model.score(visits), served.score(visits), rtol=CLOSE, atol=CLOSE)
    assert len(model.transitions) == (2 if 0.0 < from_sums < 1.0 else 1)


def test_what_a_visit_falls_back_on_is_counted_in_the_training_visits(
    shop: SessionShard, sessions: CompiledSessions
) -> None:
    clicks, starts = shop.split_sessions(0)
    visits = draw_visits(5)
    np.testing.assert_array_equal(
        sessions.count_successors(visits.last), score_by_successors(clicks, starts, ITEMS)(visits)
    )
    np.testing.assert_array_equal(sessions.popularity, score_by_popularity(clicks, ITEMS)(visits)[0])
    assert tuple(sessions.item_ids) == shop.item_ids and tuple(sessions.titles or ()) == shop.titles


def test_published_folders_answer_as_the_trainer_does(shop: SessionShard, tmp_path: Path) -> None:
    answers = answer_visits(shop, tmp_path)
    asked = NextIn(sessions=[[shop.item_ids[3]], [shop.item_ids[5], shop.item_ids[3]], ["unknown"]], k=7)
    for version in (None, "run.1", "run.2"):
        if version is not None:
            answers.served = replace(draw_model("tagnn", len(version), shop), version=version)
        published = read_publication(tmp_path)
        assert published is not None and published.version == version
        assert open_next_items(tmp_path, published).answer(asked) == answers.answer(asked)
        assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == (1 if version is None else 2)
    answer_visits(shop, tmp_path)  # a restart: what is published answers until there is another model
    assert read_publication(tmp_path) == published
    answer_visits(make_shop(ITEMS - 1), tmp_path)  # another shard: its visits have no model yet
    changed = read_publication(tmp_path)
    assert changed is not None and changed.model is None and changed.shard != published.shard


def test_a_damaged_folder_and_one_of_other_visits_are_refused(shop: SessionShard, tmp_path: Path) -> None:
    sessions = open_sessions(save_folder(tmp_path, KIND, *compile_sessions(shop)))
    other = open_sessions(save_folder(tmp_path, KIND, *compile_sessions(make_shop(ITEMS - 1))))
    folder = save_folder(tmp_path, MODEL_KIND, *compile_next_model(draw_model("srgnn", 0, shop), sessions))
    with pytest.raises(DataError, match="a model of the published visits, got one of other visits"):
        open_next_model(folder, other)
    (folder / "vectors.npy").write_bytes(b"")
    with pytest.raises(DataError, match=r"bytes in vectors\.npy"):
        open_next_model(folder, sessions)
    with pytest.raises(DataError, match=r"expected a file head\.json"):
        open_sessions(tmp_path / "missing")


def test_visits_are_answered_without_heavy_libraries() -> None:
    code = f"import sys, client_service.serving.next_items; print([one for one in {HEAVY!r} if one in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
