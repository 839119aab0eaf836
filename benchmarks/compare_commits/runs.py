"""Runs of all cases in a tree, each in its own process with pinned threads."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.compare_commits.cases import Case, write_small_data
from benchmarks.compare_commits.facts import Facts, read_facts
from benchmarks.compare_commits.trees import Tree

LAUNCH = Path(__file__).with_name("launch.py")
SLOW_TO_IMPORT = ("torch._dynamo",)  # imported by the first optimiser in earlier commits
ALL_ROUNDS = {"LPSFED_AGGREGATOR_RETENTION_ROUNDS": "9"}  # no state is deleted before it is read
FINISHED, REFUSED, FAILED = "finished", "refused", "failed"
ENDS = {0: FINISHED, 2: REFUSED}


@dataclass(frozen=True)
class ComparedRun:
    """End of a run, with its facts and output.

    Finished, refused for its settings, or failed.
    """

    end: str
    seconds: float
    facts: Facts = field(default_factory=dict)
    output: str = ""


@dataclass
class Launcher:
    """Process that runs commands of one tree."""

    process: subprocess.Popen[str]

    def read_message(self) -> dict[str, object]:
        """Reads the launcher's next line; raises EOFError if it has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise EOFError("expected a line of the launcher, which has ended; its stderr says why")
        message: dict[str, object] = json.loads(line)
        return message

    def run_command(self, arguments: Sequence[str], folder: Path, *, repeatable: bool) -> dict[str, object]:
        """Runs one command to its end; its stdout and stderr are files in the folder."""
        assert self.process.stdin is not None
        command = {"arguments": list(arguments), "folder": str(folder), "repeatable": repeatable}
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self.read_message()


def run_cases(
    tree: Tree,
    cases: Sequence[Case],
    folder: Path,
    tell: Callable[[str], None],
    modules: Sequence[str] = SLOW_TO_IMPORT,
) -> dict[str, ComparedRun]:
    """Runs all cases in turn, in folders of their own that are removed afterwards."""
    folder.mkdir(parents=True)
    data = folder / "small.csv"
    write_small_data(data)
    results = {}
    with start_launcher(tree, modules) as launcher:
        for case in cases:
            results[case.name] = _run_case(launcher, case, data, folder / "case")
            tell(f"{tree.name}: {case.name}: {results[case.name].end}, {results[case.name].seconds:.1f} s")
    return results


def _run_case(launcher: Launcher, case: Case, data: Path, folder: Path) -> ComparedRun:
    folder.mkdir()
    try:
        ended = launcher.run_command(case.command_line(data, folder / "out"), folder, repeatable=True)
        end, seconds = ENDS.get(int(str(ended["status"])), FAILED), float(str(ended["seconds"]))
        if end == FINISHED:
            return ComparedRun(end, seconds, read_facts(folder / "out", secure=case.secure))
        lines = (folder / "stderr").read_text("utf-8").strip().splitlines()
        return ComparedRun(end, seconds, output=lines[-1] if lines else f"status {ended['status']}")
    finally:
        shutil.rmtree(folder)


@contextmanager
def start_launcher(tree: Tree, modules: Sequence[str] = ()) -> Iterator[Launcher]:
    """Starts a launcher once its entry point is imported from that tree."""
    command = [sys.executable, "-P", str(LAUNCH), tree.entry_point, *modules]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=tree.process_environment() | ALL_ROUNDS, text=True, **pipes) as process:  # type: ignore[call-overload]
        launcher = Launcher(process)
        file = Path(str(launcher.read_message()["file"]))
        if not file.is_relative_to(tree.folder):
            raise ImportError(f"{tree.name}: expected the command line of {tree.folder}, got {file}")
        yield launcher
        process.stdin.close()
