"""Cases run at both commits.

Each strategy, open and secure, and settings that branch the code.
"""

from __future__ import annotations

import random
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.compare_commits.trees import Tree

ROUNDS = 2  # the second begins at personalised parameters, and has a margin
SMALL = ("width=16", "cutoff=16", "batch_size=256", "anchor.users=200", "anchor.items=200", "anchor.edges=2000")
GAUSSIAN = ("mechanism=gaussian", "clip_norm=1", "noise_multiplier=2", "delta=1e-5", "budget=1000")
SECURE = "--secure"
USERS, ITEMS, COMMUNITIES = 180, 120, 3


@dataclass(frozen=True)
class Case:
    """One `lpsfed simulate`: its name, its further arguments, and its number of silos."""

    name: str
    arguments: tuple[str, ...]
    clients: int = 3

    @property
    def secure(self) -> bool:
        """Whether masks hide the updates; their bytes are random then."""
        return SECURE in self.arguments

    def command_line(self, data: Path, out: Path) -> list[str]:
        """Returns all arguments of the command line."""
        usual = ["simulate", str(data), "--out", str(out), "--json", "--clients", str(self.clients), "--device", "cpu"]
        small = [word for setting in SMALL for word in ("--set", setting)]
        rounds = () if "--rounds" in self.arguments else ("--rounds", str(ROUNDS))
        return [*usual, *rounds, *small, *self.arguments]


def all_cases(strategies: list[str]) -> list[Case]:
    """Lists every strategy in both modes, then the variants.

    The code itself refuses strategies that cannot be secure.
    """
    plain = [Case(name, ("--strategy", name)) for name in strategies]
    return [*_in_both_modes(plain), *_in_both_modes(_variant_cases()), _privacy_case()]


def _in_both_modes(cases: list[Case]) -> list[Case]:
    secure = (Case(f"{case.name}, secure", (*case.arguments, SECURE), case.clients) for case in cases)
    return [case for pair in zip(cases, secure, strict=True) for case in pair]


def _variant_cases() -> list[Case]:
    """Lists cases for settings that branch the code."""
    return [
        Case("paper", ("--preset", "paper", "--set", "local_epochs=1")),
        _lpsfed_case("ngcf", "model=ngcf"),
        _lpsfed_case("trained signal", "signal=trained", "similarity_floor=0.25"),
        _lpsfed_case("plain averaging", "similarity_floor=1", "loss=bpr", "decay=0.01", "anchor.graph=er"),
        _lpsfed_case("median", "aggregate=median"),
        _lpsfed_case("trimmed mean", "aggregate=trimmed_mean", "tolerated=1", clients=5),
        _lpsfed_case("krum", "aggregate=krum", "tolerated=1", "krum_kept=2", clients=5),
        _lpsfed_case("clipped", "clip_factor=1", "quarantine_factor=50"),
        *_sum_cases(),
    ]


def _sum_cases() -> list[Case]:
    """Lists runs that sum statistics, each with its training run."""
    iterated = ("--common-basis", "iterated", "--rank", "8", "--basis-rounds", "2")
    return [
        Case("exact basis", ("--common-basis", "exact")),
        Case("iterated basis", iterated),
        Case("iterated basis of all rounds", (*iterated, "--set", "basis.words=8")),
    ]


def _lpsfed_case(name: str, *settings: str, clients: int = 3) -> Case:
    return Case(name, tuple(word for setting in settings for word in ("--set", setting)), clients)


def _privacy_case() -> Case:
    return Case("differential privacy", tuple(word for setting in GAUSSIAN for word in ("--privacy", setting)))


def strategy_names(tree: Tree) -> list[str]:
    """Lists the registered strategies from the help of that commit."""
    shown = subprocess.run(
        tree.process_command("simulate", "--help"),
        env=tree.process_environment(),
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    if len(names := read_names(shown)) < 2:
        raise ValueError(f"{tree.name}: expected `simulate --help` to list the strategies, got {shown}")
    return names


def read_names(shown: str) -> list[str]:
    """Parses the strategy names from a help text.

    They are in the option's type, `<a|b>`, or in its description, `a, b`.
    """
    option = re.search(r"--strategy\s+<([a-z0-9_|]+)>(.*?)--", shown, re.DOTALL)
    if option is None:
        return []
    return option[1].split("|") if "|" in option[1] else re.findall(r"[a-z0-9_]+", option[2].partition("[")[0])


def write_small_data(path: Path) -> None:
    """Writes fixed pairs of users and items in three communities, each with popular items."""
    draws, lines = random.Random(7), ["user,item"]
    for user in range(USERS):
        home = range(user % COMMUNITIES, ITEMS, COMMUNITIES)
        popular = draws.choices(home, [1 / (1 + rank) for rank in range(len(home))], k=14)
        items = {*popular, *draws.sample(range(ITEMS), 3)}
        lines += [f"user-{user},item-{item}" for item in sorted(items)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
