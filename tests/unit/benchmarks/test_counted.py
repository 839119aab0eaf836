"""A cell whose anchor is as large as the clients' counts: every silo has agreed upon that size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.harness.measure import CountedExperiment
from client_service.data.interaction_files import load_shard
from shared.method.settings import AnchorSettings, MethodSettings


def test_each_silo_names_the_mean_of_all_counts(silos: Callable[..., tuple[Path, ...]], tmp_path: Path) -> None:
    one = CountedExperiment(silos(2), tmp_path, MethodSettings(anchor=AnchorSettings(size="counts")), device="cpu")
    policies = [one.make_client_settings(shard, aggregator_url="http://127.0.0.1").policy for shard in one.shards]
    edges = [load_shard(shard).train.nnz for shard in one.shards]
    assert len(edges) == 2 and all(policy.counts for policy in policies)
    assert [policy.anchor_size.edges for policy in policies if policy.anchor_size] == [round(sum(edges) / 2)] * 2
