"""The README's commands, each as a process of its own, on files of three shops, end with what joining has brought."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner, Result

from simulation.cli import app
from simulation.datasets.chain import generate_chain
from simulation.ports import free_ports
from tests.support.questions import LONGEST_SECONDS

SHOPS = ("shop-1", "shop-2", "shop-3")
LATE = "late"  # it joins after the run


def write_shops(folder: Path) -> None:
    """The three smaller shops of a chain, a file each; one of 20 users of the largest; and what the items are."""
    made = generate_chain(0, 4)
    assert made.dataset.titles is not None
    made.dataset.titles.write_csv(folder / "items.csv")
    pairs = made.dataset.events.join(made.shops, on="user").select("user", "item", "shop")
    for number in range(1, len(SHOPS) + 1):
        pairs.filter(shop=number).drop("shop").write_csv(folder / f"shop{number}.csv")
    large = pairs.filter(shop=0)
    few = large["user"].unique().sort().head(20)
    large.filter(pl.col("user").is_in(few.implode())).drop("shop").write_csv(folder / "late.csv")


class Terminal:
    """A shell in one folder, without a terminal. Services that a command leaves behind are ended with it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.left = folder, list[int]()

    def lpsfed(self, *words: object, fails: bool = False) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "simulation.cli", *map(str, words)]
        done = subprocess.run(
            command,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST_SECONDS,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        self.left += map(int, re.findall(r"until `kill (\d+)`", done.stderr))
        assert (done.returncode != 0) == fails, (words, done.stdout, done.stderr)
        return done

    def close(self) -> None:
        for pid in self.left:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    shell = Terminal(tmp_path)
    try:
        yield shell
    finally:
        shell.close()


def test_who_follows_the_readme_is_told_what_joining_has_brought(terminal: Terminal, tmp_path: Path) -> None:
    write_shops(tmp_path)
    port, *ports = free_ports(5)
    url = f"http://127.0.0.1:{port}"
    begin = ("aggregator", "--state-directory", "operator", "--port", port, "--detach")
    invited = [word for name in SHOPS for word in ("--invite", name)]
    started = terminal.lpsfed(*begin, "--share", "sums", *invited)
    assert "this federation shares sums, masked: first which hashed ids silos have in common" in started.stderr
    assert "then which features of items occur together" in started.stderr
    for number, name in enumerate(SHOPS):
        joined = terminal.lpsfed(
            *("join", f"{name}.invite", "--data", f"shop{number + 1}.csv"),
            *("--accept", "sums", "--port", ports[number], "--detach"),
        )
        assert "leaves this silo: which items it has, as hashed ids" in joined.stderr
        assert "leaves this silo: how many of its users have each item" in joined.stderr
        assert "leaves this silo: how features of an item of its catalogue go together" in joined.stderr
        assert 'content = "secure"' in (tmp_path / name / "silo.toml").read_text("utf-8")
    as_operator = ("--operator-token-file", tmp_path / "operator" / "operator.token", "--aggregator-url", url)
    silos = [word for name in SHOPS for word in ("--silo", f"{name}/silo.toml")]

    early = asked("worth", "--silo", tmp_path / "shop-1" / "silo.toml")
    assert "expected a run that has ended" in str(early.exception)
    stood = asked("status", *as_operator, "--silo", tmp_path / "shop-1" / "silo.toml")
    assert "expected a run that has ended" in str(stood.exception)

    done = terminal.lpsfed("run", "--clients", 3, *as_operator, *silos)
    assert "run-1, common items, round 1 of 1" in done.stderr and "run-3, common basis, round 1 of " in done.stderr
    assert "run-2, content sums, round 1 of 1" in done.stderr
    # The keys hide one or two of the shops' 740 items, where two of a shop have one hash.
    assert re.search(r"run-3, common basis: exact sums: 7[34]\d items", done.stderr)
    assert "run-3 has finished after 1 round" in done.stderr
    told = done.stdout.splitlines()
    assert [line.split(":")[0] for line in told] == list(SHOPS)
    for name, line in zip(SHOPS, told, strict=True):
        worth = json.loads(asked("worth", "--silo", tmp_path / name / "silo.toml", "--json").stdout)
        low, mid, high = worth["ratio"]
        assert (worth["silo"], worth["run"], worth["measure"], worth["few"]) == (name, "run-3", "NDCG@20", False)
        assert mid == pytest.approx(worth["together"] / worth["alone"]) and 1 < low < mid < high, worth
        assert f"x {mid:.3f} [{low:.3f}, {high:.3f}] (run-3, {worth['users']} evaluated users)" in line
    other = tmp_path / "shop-2" / "silo.toml"
    stood = asked("status", *as_operator, "--silo", other)
    where, listed, content, why, last = stood.stdout.splitlines()
    assert (where, last) == ("run-3, common basis, round 1 of 1: finished", told[1])
    cost = r"[\d.,]+\s.*B of all silos in \d+\.\d s"
    assert re.fullmatch(rf"run-3, common basis: exact sums: 7[34]\d items.*; {cost}", why)
    assert why in done.stderr and content in done.stderr and listed in done.stderr
    assert re.fullmatch(rf"run-2, content sums: how features of items go together, .*; {cost}", content)
    assert re.fullmatch(rf"run-1, common items: which hashed ids .*; 7[34]\d items in common; {cost}", listed)

    terminal.lpsfed("invite", LATE, "--url", url, *as_operator[:2], "--out", ".")
    joining = ("--data", "late.csv", "--accept", "sums", "--port", ports[3], "--detach")
    terminal.lpsfed("join", f"{LATE}.invite", *joining)
    late, until = tmp_path / LATE / "silo.toml", time.monotonic() + LONGEST_SECONDS
    while (served := asked("worth", "--silo", late, "--json")).exit_code and time.monotonic() < until:
        assert "expected a run that has ended" in str(served.exception), served.exception
        time.sleep(0.2)
    worth = json.loads(served.stdout)
    assert (worth["silo"], worth["run"]) == (LATE, "run-3") and worth["together"] > worth["alone"], worth
    seen = asked("status", *as_operator, "--silo", late).stdout.splitlines()
    assert seen[-1].startswith(f"{LATE}: NDCG@20 alone ") and "(run-3, " in seen[-1]
    assert "run-4" not in asked("status", *as_operator, "--json").stdout
    again = terminal.lpsfed("run", "--clients", 3, *as_operator, *silos)
    assert again.stdout == done.stdout  # what has been summed alike is not summed again
    for name in SHOPS:
        assert_nothing_but_sums_has_left(tmp_path / name)
    kept = other.read_text()
    other.write_text(re.sub(r'aggregator_key = "\w+"', f'aggregator_key = "{"ab" * 32}"', kept))
    assert "another aggregator" in str(asked("run", *as_operator, "--silo", other).exception)
    other.write_text(kept.replace("shop-2/operator.key", "shop-1/operator.key"))
    assert "expected the operator key of shop-2" in str(asked("worth", "--silo", other).exception)
    other.write_text(kept.replace(f"port = {ports[1]}", f"port = {ports[0]}"))
    assert "expected the operator key of shop-2" in str(asked("worth", "--silo", other).exception)


def assert_nothing_but_sums_has_left(silo: Path) -> None:
    """By the ledger: updates of sums, under masks; no scalar; every other body is a message of the protocol."""
    entries = [json.loads(line) for line in (silo / "state" / "ledger.jsonl").read_text("utf-8").splitlines()]
    updates = [entry for entry in entries if entry.get("call") == "update"]
    assert [[one["name"] for one in entry["tensors"]] for entry in updates] == [
        ["items.held", "items.pairs"],
        ["content.items", "content.pairs", "content.profiles"],
        ["basis.degrees", "basis.pairs"],
    ]
    assert all(one["dtype"] != "F32" for entry in updates for one in entry["tensors"])
    assert not any(entry["scalars"] for entry in updates)


def asked(*words: object) -> Result:
    """A command that leaves nothing behind, in this process: it starts sooner."""
    return CliRunner().invoke(app, [str(word) for word in words])
