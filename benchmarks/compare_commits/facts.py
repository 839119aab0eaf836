"""Facts of a simulation's folder that a seed determines, as texts by name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Facts = dict[str, str]
FIGURES = ("edges_kept", "client_mean", "user_mean", "clients", "floors", "untrained", "floors_by_client", "bytes_up")
OF_A_ROUND = ("recall", "ndcg", "loss", "saturated", "rho", "margin")


def read_facts(folder: Path, *, secure: bool) -> Facts:
    """Reads digests of shards, updates, states, sums and models, and all figures.

    Masked updates are as random as their masks, so of a secure run only facts that follow from their sum are read.
    """
    uploads = dict(_upload_facts(folder))
    facts = {} if secure else uploads
    facts |= {f"shard {path.parent.name}": _file_digest(path) for path in sorted(folder.glob("shards/*/*.parquet"))}
    states = {_file_digest(path) for path in folder.glob("aggregator/blobs/*")} - set(uploads.values())
    facts |= {f"state {number}": digest for number, digest in enumerate(sorted(states), 1)}
    facts |= {
        f"model {path.parts[-3]}": _file_digest(path) for path in sorted(folder.glob("*/model/model-*.safetensors"))
    }
    heads = {path.parts[-3]: json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*/basis/basis.json"))}
    facts |= {f"basis {name}": head["digest"] for name, head in heads.items()}
    report = json.loads((folder / "report.json").read_text("utf-8"))
    return facts | {"shared parameters": report["digest"]} | dict(_figure_facts(folder, report))


def _upload_facts(folder: Path) -> Iterator[tuple[str, str]]:
    """Yields sha256 of each update's body from the clients' ledgers."""
    for path in sorted(folder.glob("*/ledger.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            entry = json.loads(line)
            if (entry["kind"], entry.get("call")) == ("intent", "update"):
                yield f"update {path.parent.name} round {entry['round']}", entry["sha256"]


def _figure_facts(folder: Path, report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields every figure except times, in all digits."""
    yield from flatten_value({name: report[name] for name in FIGURES}, "report")
    for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines():
        entry = json.loads(line)
        for name in OF_A_ROUND:
            yield f"round {entry['round']} {entry['client']} {name}", json.dumps(entry[name])


def flatten_value(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yields the leaves of a JSON value with their paths."""
    if isinstance(value, dict | list) and value:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in pairs:
            yield from flatten_value(inner, f"{name}.{key}")
    else:
        yield name, json.dumps(value)


def differing_names(base: Facts, head: Facts) -> list[str]:
    """Lists the names whose facts differ or exist on one side only."""
    return sorted(name for name in base.keys() | head.keys() if base.get(name) != head.get(name))


def digest_facts(facts: Facts) -> str:
    """Returns the first 16 digits of a digest over all facts."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
