"""Runs the same small seeded runs at two commits and compares every fact.

python -m benchmarks.compare_commits BASE [HEAD]

Without HEAD the working tree is compared. With --state HEAD opens the state that BASE has written instead:
directories with a finished run and with an interrupted one, open and secure. Exits with 1 if anything differs or
fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from benchmarks.compare_commits.cases import all_cases, strategy_names
from benchmarks.compare_commits.facts import differing_names, digest_facts
from benchmarks.compare_commits.runs import FAILED, FINISHED, ComparedRun, run_cases
from benchmarks.compare_commits.state import state_complaints
from benchmarks.compare_commits.trees import Tree, commit_tree, working_tree

REPOSITORY = Path(__file__).parents[2]
MOST_LINES = 12  # printed differences of one run


def main() -> int:
    """Returns 0 if both commits give the same, 1 if they differ."""
    arguments = _parse_arguments()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = commit_tree(REPOSITORY, arguments.base, folder / "base")
        head = commit_tree(REPOSITORY, arguments.head, folder / "head") if arguments.head else working_tree(REPOSITORY)
        if arguments.state:
            return _print_state(state_complaints(base, head, folder / "state", _print_progress))
        pairs = compare_trees(base, head, arguments.only, folder)
    if arguments.json:
        print(json.dumps({name: [asdict(base), asdict(head)] for name, (base, head) in pairs.items()}, indent=1))
    else:
        print("\n".join(comparison_lines(pairs)))
    return int(not pairs or any(run_complaints(*pair) for pair in pairs.values()))


def compare_trees(base: Tree, head: Tree, only: str, folder: Path) -> dict[str, tuple[ComparedRun, ComparedRun]]:
    """Runs the cases of both commits side by side.

    A strategy that one of them lacks fails there.
    """
    names = [strategy_names(tree) for tree in (base, head)]
    cases = [case for case in all_cases(list(dict.fromkeys([*names[0], *names[1]]))) if only in case.name]

    def run_all(tree: Tree, place: str) -> dict[str, ComparedRun]:
        return run_cases(tree, cases, folder / place, _print_progress)

    with ThreadPoolExecutor(2) as both:
        first, second = both.submit(run_all, base, "base-runs"), both.submit(run_all, head, "head-runs")
        return {name: (run, second.result()[name]) for name, run in first.result().items()}


def run_complaints(base: ComparedRun, head: ComparedRun) -> list[str]:
    """Lists a different end, a failure, and each fact that differs."""
    if base.end != head.end or FAILED in (base.end, head.end):
        return [f"base {base.end} {base.output}", f"head {head.end} {head.output}"]
    return [
        f"{name}: {base.facts.get(name)} -> {head.facts.get(name)}" for name in differing_names(base.facts, head.facts)
    ]


def comparison_lines(pairs: dict[str, tuple[ComparedRun, ComparedRun]]) -> list[str]:
    """Formats one line per run with digests, and the facts that differ."""
    lines = [f"{'run':32} {'base':16} {'head':16} facts"]
    for name, (base, head) in pairs.items():
        wrong = run_complaints(base, head)
        marks = (digest_facts(run.facts) if run.end == FINISHED else run.end for run in (base, head))
        verdict = "DIFFERS" if wrong else "same"
        lines.append(" ".join([f"{name:32}", *(f"{mark:16}" for mark in marks), f"{len(base.facts):5}", verdict]))
        lines += [f"    {complaint}" for complaint in wrong[:MOST_LINES]]
        lines += [f"    and {len(wrong) - MOST_LINES} more"] if len(wrong) > MOST_LINES else []
    return lines


def _print_state(complaints: dict[str, list[str]]) -> int:
    for mode, wrong in complaints.items():
        print(f"state of {mode} federations: {'DIFFERS' if wrong else 'opens, and resumes as before'}")
        print("".join(f"    {complaint}\n" for complaint in wrong[:MOST_LINES]), end="")
    return int(any(complaints.values()))


def _print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare_commits", description=__doc__)
    parser.add_argument("base", help="commit")
    parser.add_argument("head", nargs="?", help="commit; by default the working tree")
    parser.add_argument("--only", default="", metavar="NAME", help="runs whose name holds this")
    parser.add_argument("--state", action="store_true", help="open the state that BASE has written")
    parser.add_argument("--json", action="store_true", help="print every fact of both as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
