"""Runs RecBole's LightGCN on a shard: some batches of an epoch, and full-sort evaluation.

recbole_lightgcn.py FOLDER BATCHES, in the environment `recbole`: FOLDER has train.npz, valid.npz and test.npz. The
last line printed is JSON: pairs trained and processor seconds; users evaluated and processor seconds.
"""

import json
import sys
import time
from itertools import islice
from pathlib import Path

import torch
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.model.general_recommender import LightGCN
from recbole.trainer import Trainer
from recbole.utils import init_seed
from scipy import sparse

BATCH = 2048
SPLITS = ("train", "valid", "test")


def write_atomic_files(folder: Path) -> None:
    place = folder / "shard"
    place.mkdir()
    for split in SPLITS:
        users, items = sparse.load_npz(folder / f"{split}.npz").nonzero()
        rows = "\n".join(f"{user}\t{item}" for user, item in zip(users, items, strict=True))
        (place / f"shard.{split}.inter").write_text(f"user_id:token\titem_id:token\n{rows}\n")


def main() -> None:
    folder, batches = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    write_atomic_files(folder)
    settings = {
        "data_path": str(folder),
        "checkpoint_dir": str(folder / "saved"),
        "benchmark_filename": list(SPLITS),
        "load_col": {"inter": ["user_id", "item_id"]},
        "eval_args": {"mode": {"valid": "full", "test": "full"}, "order": "RO", "group_by": "user"},
        "embedding_size": 64,
        "n_layers": 2,
        "train_batch_size": BATCH,
        "eval_batch_size": 1 << 22,
        "topk": [20],
        "metrics": ["Recall", "NDCG"],
        "valid_metric": "NDCG@20",
        "use_gpu": False,
        "show_progress": False,
        "state": "ERROR",
    }
    sys.argv = sys.argv[:1]  # RecBole reads the command line too
    config = Config(model="LightGCN", dataset="shard", config_dict=settings)
    init_seed(0, True)
    dataset = create_dataset(config)
    train, _, test = data_preparation(config, dataset)
    model = LightGCN(config, train.dataset)
    trainer = Trainer(config, model)
    pairs, before = 0, time.process_time()
    for batch in islice(train, batches):
        trainer.optimizer.zero_grad()
        loss = model.calculate_loss(batch)
        loss.backward()
        trainer.optimizer.step()
        pairs += len(batch)
    trained = time.process_time()
    trainer.evaluate(test, load_best_model=False, show_progress=False)
    judged = time.process_time() - trained
    users = len(set(sparse.load_npz(folder / "test.npz").nonzero()[0].tolist()))
    print(json.dumps({"pairs": pairs, "train": trained - before, "users": users, "evaluate": judged}))


main()
