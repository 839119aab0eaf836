"""The most likely next items of a visit, by a compiled session model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_service.compiled.publication import Publication
from client_service.compiled.sessions import (
    CompiledNextModel,
    CompiledSessions,
    open_next_model,
    open_sessions,
    probabilities,
)
from client_service.compiled.texts import IdIndex
from client_service.compiled.top_items import top_columns
from client_service.data.prefixes import LONGEST_PREFIX, Int64, Prefixes
from client_service.serving.messages import NEXT_SCORE, NextFallback, NextIn, NextItemOut, NextListOut, NextOut
from client_service.serving.model_server import ModelServer

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Visits:
    """Known part of S sessions.

    seen: all clicks on known items in order, with repeats. last: the LONGEST_PREFIX last of these, from which the
    answer is computed. unknown: clicks on items that the shard does not have, (S,).
    """

    seen: Prefixes
    last: Prefixes
    unknown: Int64

    @property
    def has_known(self) -> NDArray[np.bool_]:
        """Mask of the sessions that have a known item, (S,)."""
        return self.seen.lengths > 0


def read_visits(sessions: Sequence[Sequence[str]], ids: IdIndex) -> Visits:
    """Finds the known items of each session.

    ids: of the known items.
    """
    lengths = np.fromiter(map(len, sessions), dtype=np.int64, count=len(sessions))
    rows = (-1 if (row := ids.row(item)) is None else row for one in sessions for item in one)
    found = np.fromiter(rows, dtype=np.int64, count=lengths.sum())
    owners = np.repeat(np.arange(len(sessions)), lengths)
    counts = np.bincount(owners[found >= 0], minlength=len(sessions))
    ends = np.cumsum(counts)
    clicks = np.append(found[found >= 0], 0)  # one more: what comes after the last click is not known
    seen = Prefixes(clicks, ends - counts, ends)
    last = Prefixes(clicks, np.maximum(seen.begin, ends - LONGEST_PREFIX), ends)
    return Visits(seen, last, lengths - counts)


SCORES = 1 << 22  # that are computed at a time
SESSIONS = 256  # whose graphs are computed at a time: some 200 kB each, however few items there are


class NextItems(ModelServer):
    """Answers visits from one `CompiledNextModel` at a time.

    Without a model it counts what followed in the shard's sessions. No list is kept: a visit is all that is known of
    the visitor.
    """

    score_meaning = NEXT_SCORE

    def __init__(
        self, sessions: CompiledSessions, compile_model: Callable[[Any], CompiledNextModel] | None = None
    ) -> None:
        """Opens answers to visits, without a model yet.

        compile_model: compiles a model that is assigned to `served`; None: an assigned model answers as it is.
        """
        super().__init__()
        self._sessions, self._compile_model = sessions, compile_model
        self._served: CompiledNextModel | None = None

    @property
    def served(self) -> CompiledNextModel | None:
        """Model that answers, or None before there is one."""
        return self._served

    @served.setter
    def served(self, model: Any) -> None:
        self._served = model if model is None or self._compile_model is None else self._compile_model(model)

    def with_model(self, serving: Path, published: Publication) -> NextItems:
        """Replaces the model by another published one of the same visits.

        Raises DataError for a damaged folder, or one of other visits.
        """
        folder = published.model
        self._served = None if folder is None else open_next_model(serving / folder, self._sessions)
        return self

    @property
    def shown_items(self) -> int:
        """Number of items that can be answered."""
        return len(self._sessions.item_ids)

    def answer(self, asked: NextIn) -> NextListOut:
        """Computes a list for each session, in the order of the request."""
        return NextListOut(results=tuple(self._answer_sessions(asked.all_sessions, asked)))

    def answer_all(self, asked: Sequence[NextIn]) -> list[NextListOut]:
        """Answers requests in their order; computes together those that ask for one kind of list."""
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
        """Answers sessions in their order.

        asked: the kind of lists; its own sessions are not used.
        """
        ids = self._sessions.item_ids
        visits = read_visits(sessions, ids)
        banned = [row for item in asked.exclude if (row := ids.row(item)) is not None]
        found = np.empty(len(sessions), dtype=object)
        for places in self._blocks(visits):
            found[places] = self._answer_block(asked, visits, places, np.array(banned, dtype=np.int64))
        return found

    def title_or_id(self, item: str) -> str:
        """Returns the title of an item, or its id where it has none."""
        return self._sessions.title(self._sessions.item_ids.row(item)) or item

    def _blocks(self, visits: Visits) -> Iterator[Int64]:
        """Splits the sessions into blocks whose scores fit into memory.

        Sessions with known items come first, those of similar length together; sessions without follow in blocks of
        their own.
        """
        step = max(1, min(SESSIONS, SCORES // max(1, self.shown_items)))
        order, known = np.argsort(visits.last.lengths, kind="stable"), visits.has_known
        for kind in (order[known[order]], np.flatnonzero(~known)):
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

    def _score(self, served: CompiledNextModel | None, examples: Prefixes) -> tuple[NextFallback | None, Float32]:
        """Computes probabilities (B, N), and the reason where they are no model's.

        All sessions of the block have known items, or none has.
        """
        if not len(examples.lengths) or not examples.lengths[0]:
            return "no known item in the session", _shares(self._popularity(examples))
        if served is None:
            return "no model yet", _shares(self._successors_or_popular(examples))
        scores = served.score(examples)
        if not np.isfinite(scores).all():
            return "the model's scores are no numbers", _shares(self._successors_or_popular(examples))
        found: Float32 = probabilities(scores)
        return None, found

    def _successors_or_popular(self, examples: Prefixes) -> Float32:
        """Counts what followed the last click, with popularity below any single count."""
        popular = self._sessions.popularity
        found: Float32 = self._sessions.count_successors(examples.last) + popular / (1.0 + popular.max())
        return found

    def _popularity(self, examples: Prefixes) -> Float32:
        popular = self._sessions.popularity
        return np.broadcast_to(popular, (len(examples), len(popular)))

    def _write(self, rows: Sequence[int], scores: Sequence[float]) -> tuple[NextItemOut, ...]:
        ids, title = self._sessions.item_ids, self._sessions.title
        return tuple(
            NextItemOut(item=ids[row], score=score, title=title(row))
            for row, score in zip(rows, scores, strict=True)
            if score >= 0.0  # what is left out has -inf
        )


def _shares(counts: Float32) -> Float32:
    found: Float32 = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
    return found


def open_next_items(serving: Path, published: Publication) -> NextItems:
    """Opens the answers to visits from the published folders.

    Raises DataError for a damaged folder, or one that is not of the published visits.
    """
    sessions = open_sessions(serving / published.shard)
    found = NextItems(sessions)
    return found.with_model(serving, published)
