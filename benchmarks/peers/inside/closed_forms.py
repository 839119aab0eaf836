"""Runs implicit's ALS (128 factors) and EASE in numpy on a shard's training pairs.

closed_forms.py FOLDER MOST, in the environment `serving`: FOLDER has train.npz and gets als.npy and ease.npy, lists
(users, 20); EASE with at most MOST items. The last line printed is JSON: processor seconds of fitting and of ranking
all users, by name.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from implicit.als import AlternatingLeastSquares
from scipy import sparse

K, BLOCK, RIDGE = 20, 256, 300.0


def als(train: Any) -> tuple[Any, float, float]:
    before = time.process_time()
    model = AlternatingLeastSquares(factors=128, random_state=0)
    model.fit(train, show_progress=False)
    fitted = time.process_time()
    lists, _ = model.recommend(np.arange(train.shape[0]), train, N=K)
    return lists, fitted - before, time.process_time() - fitted


def ease(train: Any) -> tuple[Any, float, float]:
    before = time.process_time()
    inverse = np.linalg.inv((train.T @ train).toarray() + RIDGE * np.eye(train.shape[1], dtype=np.float32))
    weights = inverse / -np.diag(inverse)
    np.fill_diagonal(weights, 0.0)
    fitted = time.process_time()
    return rank(train, weights), fitted - before, time.process_time() - fitted


def rank(train: Any, weights: Any) -> Any:
    lists = []
    for first in range(0, train.shape[0], BLOCK):
        rows = train[first : first + BLOCK]
        scores = rows @ weights
        scores[rows.nonzero()] = -np.inf
        best = np.argpartition(-scores, K, axis=1)[:, :K]
        order = np.argsort(-np.take_along_axis(scores, best, 1), axis=1)
        lists.append(np.take_along_axis(best, order, 1))
    return np.concatenate(lists)


def main() -> None:
    folder, most = Path(sys.argv[1]), int(sys.argv[2])
    train = sparse.csr_matrix(sparse.load_npz(folder / "train.npz"), dtype=np.float32)
    told = {}
    for name, fit in {"als": als, "ease": ease}.items():
        if name == "ease" and train.shape[1] > most:
            continue
        lists, fitted, ranked = fit(train)
        np.save(folder / f"{name}.npy", lists)
        told[name] = {"fit": fitted, "rank": ranked}
    print(json.dumps(told))


main()
