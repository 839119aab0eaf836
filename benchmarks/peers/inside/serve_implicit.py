"""Serves implicit's ALS by a short FastAPI application, in the environment `serving`.

serve_implicit.py PORT FOLDER: FOLDER has train.npz (users, items) and ids.json.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from fastapi import Body, FastAPI
from implicit.als import AlternatingLeastSquares
from scipy import sparse

folder = Path(sys.argv[2])
train = sparse.csr_matrix(sparse.load_npz(folder / "train.npz"), dtype=np.float32)
ids = json.loads((folder / "ids.json").read_text())
users, items = ({name: row for row, name in enumerate(ids[kind])} for kind in ("users", "items"))
names = np.array(ids["items"])
began, before = time.perf_counter(), time.process_time()
model = AlternatingLeastSquares(factors=128, random_state=0)
model.fit(train, show_progress=False)
print(f"fitted in {time.perf_counter() - began:.1f} s, {time.process_time() - before:.1f} of the processor", flush=True)
app = FastAPI()


def render_items(rows: Any, scores: Any) -> list[dict[str, Any]]:
    return [{"item": name, "score": score} for name, score in zip(names[rows].tolist(), scores.tolist(), strict=True)]


@app.get("/v1/users/{user}/recommendations")
def recommend(user: str, k: int = 20) -> dict[str, Any]:
    row = users[user]
    return {"user": user, "items": render_items(*model.recommend(row, train[row], N=k))}


@app.post("/v1/recommendations")
def recommend_many(message: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008 - as FastAPI has it
    if "basket" in message:
        rows = sorted({items[name] for name in message["basket"]})
        basket = sparse.csr_matrix((np.ones(len(rows), np.float32), ([0] * len(rows), rows)), (1, len(names)))
        found = model.recommend(0, basket, N=message["k"], recalculate_user=True)
        return {"results": [{"items": render_items(*found)}]}
    rows = np.array([users[user] for user in message["users"]])
    found = zip(*model.recommend(rows, train[rows], N=message["k"]), strict=True)
    results = [{"user": user, "items": render_items(*one)} for user, one in zip(message["users"], found, strict=True)]
    return {"results": results}


uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), access_log=False, log_level="warning")
