"""Mounted file systems -> whether this part could read others' shards or ledgers, by the names that these have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from audit.evidence import ProbeResult, make_result
from audit.probes.walk import SeenEntry, WalkResult

KIND = "files"
PRIVATE = ("interactions.parquet", "ledger.jsonl")


@dataclass
class NameObserver:
    """Counts files by their names. A client may have files beneath its `own` folders; a part without such folders may
    have none."""

    own: Sequence[Path]
    mine: Counter[str] = field(default_factory=Counter)
    others: Counter[str] = field(default_factory=Counter)

    def observe_entry(self, entry: SeenEntry) -> None:
        """Count a shard or ledger, apart for the part's own folders."""
        if entry.name in PRIVATE:
            side = self.mine if any(entry.path.is_relative_to(folder) for folder in self.own) else self.others
            side[entry.name] += 1

    def probe_results(self, seen: WalkResult) -> Iterator[ProbeResult]:
        """One result for each searched name, and the control where the part has folders of its own."""
        yield from (_none_of_others(self.others[name], name, seen) for name in PRIVATE)
        if self.own:
            yield _finds_its_own(self.mine[PRIVATE[0]])


def _none_of_others(count: int, name: str, seen: WalkResult) -> ProbeResult:
    observed = f"{count or 'none'}; {seen.summary}"
    return make_result(KIND, name, "none but its own", observed, held=seen.is_conclusive and not count)


def _finds_its_own(count: int) -> ProbeResult:
    """The control: a search that does not find the part's own shard proves nothing by finding no other."""
    name, observed = PRIVATE[0], str(count or "none")
    return make_result("control: its own files", name, "1 or more", observed, held=count > 0)
