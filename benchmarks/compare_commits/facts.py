"""The folder of a simulation -> everything in it that a seed fixes, as texts by name."""

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
    """Digests of shards, updates as uploaded (open mode), the states, kept sums and served models; all figures.

    Masked updates are as random as their masks, so that of a secure run only what follows from their sum is told.
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
    """sha256 of each update's body, as the clients' ledgers hold it."""
    for path in sorted(folder.glob("*/ledger.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            entry = json.loads(line)
            if (entry["kind"], entry.get("call")) == ("intent", "update"):
                yield f"update {path.parent.name} round {entry['round']}", entry["sha256"]


def _figure_facts(folder: Path, report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every figure that is no time, in all its digits."""
    yield from flatten_value({name: report[name] for name in FIGURES}, "report")
    for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines():
        entry = json.loads(line)
        for name in OF_A_ROUND:
            yield f"round {entry['round']} {entry['client']} {name}", json.dumps(entry[name])


def flatten_value(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """A JSON value as its leaves, each with its path."""
    if isinstance(value, dict | list) and value:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in pairs:
            yield from flatten_value(inner, f"{name}.{key}")
    else:
        yield name, json.dumps(value)


def differing_names(base: Facts, head: Facts) -> list[str]:
    """The names at which the two are not the same, or that only one of them has."""
    return sorted(name for name in base.keys() | head.keys() if base.get(name) != head.get(name))


def digest_facts(facts: Facts) -> str:
    """The first 16 digits of one digest over all of them."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
