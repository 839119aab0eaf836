"""The most likely next items of a visit, by a frozen session model."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from client_service.data.sessions import LONGEST_PREFIX, TRAIN, Int64, Prefixes, SessionShard
from client_service.evaluation.session_ranking import score_by_popularity, score_by_successors
from client_service.model_store.model_server import FrozenModel, ModelServer
from client_service.models.sequence.srgnn import SRGNN
from client_service.models.top_items import top_columns
from client_service.serving.messages import NEXT_SCORE, NextFallback, NextIn, NextItemOut, NextListOut, NextOut
from client_service.training.session_trainer import SessionTrainer
from client_service.training.transition_scores import VisitScores, network_share, probabilities
from shared.method.parameters import Float32


@dataclass(frozen=True)
class Visits:
    """S sessions. seen: all clicks on known items, in their order, repeats and all. last: the LONGEST_PREFIX last of
    these, by which is answered. unknown: clicks on items that the shard has not, (S,)."""

    seen: Prefixes
    last: Prefixes
    unknown: Int64

    @property
    def has_known(self) -> NDArray[np.bool_]:
        """Which sessions have a known item, (S,)."""
        return self.seen.lengths > 0


def read_visits(sessions: Sequence[Sequence[str]], rows: Mapping[str, int]) -> Visits:
    """rows: of each known item."""
    lengths = np.fromiter(map(len, sessions), dtype=np.int64, count=len(sessions))
    found = np.fromiter((rows.get(item, -1) for one in sessions for item in one), dtype=np.int64, count=lengths.sum())
    owners = np.repeat(np.arange(len(sessions)), lengths)
    counts = np.bincount(owners[found >= 0], minlength=len(sessions))
    ends = np.cumsum(counts)
    clicks = np.append(found[found >= 0], 0)  # one more: what comes after the last click is not known
    seen = Prefixes(clicks, ends - counts, ends)
    last = Prefixes(clicks, np.maximum(seen.begin, ends - LONGEST_PREFIX), ends)
    return Visits(seen, last, lengths - counts)


SCORES = 1 << 22  # that are computed at a time
SESSIONS = 256  # whose graphs are computed at a time: some 200 kB each, however few items there are


@dataclass(frozen=True)
class ServedSessions(FrozenModel):
    """A session model. own: the rows of its table that are the shard's items', (N,). vectors: these rows, (N, d).

    transitions: what it is fused with, where there is such; share: of the network in the probability of an item.
    """

    model: SRGNN
    own: Tensor = field(kw_only=True)
    vectors: Tensor = field(kw_only=True)
    transitions: VisitScores | None = field(default=None, kw_only=True)
    share: float = field(default=1.0, kw_only=True)

    def score(self, examples: Prefixes) -> Float32:
        """Scores (B, N) of the shard's items after each prefix, on the CPU: with transitions, logarithms of
        probabilities."""
        if self.transitions is None:
            return self.score_by_model(examples)
        found = self.transitions.score(examples)
        if self.share > 0.0:
            found = self.share * probabilities(self.score_by_model(examples)) + (1.0 - self.share) * found
        mixed: Float32 = np.log(np.maximum(found, np.float32(1e-30)))
        return mixed

    @torch.no_grad()
    def score_by_model(self, examples: Prefixes) -> Float32:
        """Scores of the network alone, (B, N)."""
        clicks, lengths = (torch.from_numpy(part).to(self.own.device) for part in examples.pad())
        found: Float32 = self.model.score(*self.model.encode(self.own[clicks], lengths), self.vectors).cpu().numpy()
        return found


def freeze_sessions(version: str, training: SessionTrainer) -> ServedSessions:
    """A copy of the model as it is now."""
    model = copy.deepcopy(training.model).requires_grad_(False)
    table = model.item.table.detach()
    own = torch.from_numpy(training.own).to(table.device)
    vectors = table if len(own) == len(table) else table[own]
    served = ServedSessions(version, model, own=own, vectors=vectors)
    known = training.transitions
    if known is None:
        return served

    def trained(examples: Prefixes) -> Float32:
        return probabilities(served.score_by_model(examples))

    share = network_share(training.shard, trained, known.score, training.interrupt) if training.is_trained else 0.0
    return replace(served, transitions=known, share=share)


class NextItems(ModelServer):
    """Answers from one `ServedSessions` at a time. Without a model it counts what followed in the shard's sessions.
    Nobody's list is kept: a visit is all that is known of who asks."""

    score_meaning = NEXT_SCORE

    def __init__(self, shard: SessionShard) -> None:
        super().__init__()
        self._shard = shard
        self.served: ServedSessions | None = None
        clicks, starts = shard.split_sessions(TRAIN)
        self._popularity = score_by_popularity(clicks, self.shown_items)
        self._successors = score_by_successors(clicks, starts, self.shown_items)

    @property
    def shown_items(self) -> int:
        """How many items can be answered."""
        return len(self._shard.item_ids)

    def answer(self, asked: NextIn) -> NextListOut:
        """A list for each session, in the order of the request."""
        return NextListOut(results=tuple(self._answer_sessions(asked.all_sessions, asked)))

    def answer_all(self, asked: Sequence[NextIn]) -> list[NextListOut]:
        """Requests in their order; those that ask for lists of one kind are computed together."""
        alike: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
        for place, one in enumerate(asked):
            alike[one.k, one.exclude_seen, one.exclude].append(place)
        found: dict[int, NextListOut] = {}
        for places in alike.values():
            sessions = [asked[place].all_sessions for place in places]
            results = iter(self._answer_sessions(list(chain.from_iterable(sessions)), asked[places[0]]))
            found |= {
                p: NextListOut(results=tuple(islice(results, len(own))))
                for p, own in zip(places, sessions, strict=True)
            }
        return [found[place] for place in range(len(asked))]

    def _answer_sessions(self, sessions: Sequence[Sequence[str]], asked: NextIn) -> Iterable[NextOut]:
        """asked: what lists they get."""
        visits = read_visits(sessions, self._shard.rows)
        banned = [row for item in asked.exclude if (row := self._shard.rows.get(item)) is not None]
        found = np.empty(len(sessions), dtype=object)
        for places in self._blocks(visits.has_known):
            found[places] = self._answer_block(asked, visits, places, np.array(banned, dtype=np.int64))
        return found

    def title_or_id(self, item: str) -> str:
        """The item's title where one is known."""
        return self._title(self._shard.rows.get(item)) or item

    def _blocks(self, known: NDArray[np.bool_]) -> Iterator[Int64]:
        """Sessions that have known items, and those that have none, so many at a time as scores fit."""
        step = max(1, min(SESSIONS, SCORES // max(1, self.shown_items)))
        for kind in (np.flatnonzero(known), np.flatnonzero(~known)):
            yield from (kind[first : first + step] for first in range(0, len(kind), step))

    def _answer_block(self, asked: NextIn, visits: Visits, places: Int64, banned: Int64) -> list[NextOut]:
        served = self.served
        fallback, scores = self._score(served, visits.last.select(places))
        scores[:, banned] = -np.inf
        if asked.exclude_seen:
            clicks, lengths = visits.seen.select(places).pad()
            inside = np.arange(clicks.shape[1]) < lengths[:, None]
            scores[np.nonzero(inside)[0], clicks[inside]] = -np.inf
        version = None if fallback or served is None else served.version
        rows, best = (part.tolist() for part in top_columns(scores, asked.k))
        unknown = visits.unknown[places].tolist()
        return [
            NextOut(model=version, fallback=fallback, unknown_items=unknown[place], items=self._write(rows[place], own))
            for place, own in enumerate(best)
        ]

    def _score(self, served: ServedSessions | None, examples: Prefixes) -> tuple[NextFallback | None, Float32]:
        """Probabilities (B, N), and why they are no model's; all sessions have known items, or none has."""
        if not len(examples.lengths) or not examples.lengths[0]:
            return "no known item in the session", _shares(self._popularity(examples))
        if served is None:
            return "no model yet", _shares(self._successors_or_popular(examples))
        scores = served.score(examples)
        if not np.isfinite(scores).all():
            return "the model's scores are no numbers", _shares(self._successors_or_popular(examples))
        return None, probabilities(scores)

    def _successors_or_popular(self, examples: Prefixes) -> Float32:
        """Counts of what followed the last click; beneath one such count, popular items."""
        popular = self._popularity(examples)
        found: Float32 = self._successors(examples) + popular / (1.0 + popular.max())
        return found

    def _write(self, rows: Sequence[int], scores: Sequence[float]) -> tuple[NextItemOut, ...]:
        ids = self._shard.item_ids
        return tuple(
            NextItemOut(item=ids[row], score=score, title=self._title(row))
            for row, score in zip(rows, scores, strict=True)
            if score >= 0.0  # what is left out has -inf
        )

    def _title(self, row: int | None) -> str | None:
        return None if row is None or self._shard.titles is None else self._shard.titles[row]


def _shares(counts: Float32) -> Float32:
    found: Float32 = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
    return found
