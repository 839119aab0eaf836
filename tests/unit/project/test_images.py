"""What builds the images, without an engine: which torch is taken, what is trimmed, what each Dockerfile is made of."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.questions import LONGEST_SECONDS

ROOT = Path(__file__).parents[3]
FILES = {
    name: (ROOT / f"{name}_service" / "Dockerfile").read_text(encoding="utf-8") for name in ("aggregator", "client")
}
PIN = (ROOT / "requirements" / "torch.txt").read_text().split()[-1]
PIP = """#!/bin/sh
echo "$@" >>"$LOG"
for known in $KNOWN; do for word in "$@"; do [ "$word" = "$known" ] && exit 0; done; done
exit 1
"""


def install(folder: Path, known: str, **environment: str) -> tuple[int, list[str], str]:
    """Exit code, each call of a pip that finds these builds alone, and what was said."""
    pip, log = folder / "pip", folder / "log"
    pip.write_text(PIP)
    pip.chmod(0o755)
    given = {"PATH": os.environ["PATH"], "LOG": str(log), "KNOWN": known} | environment
    command = ["sh", str(ROOT / "requirements" / "install_torch.sh"), str(pip), "--python", "there"]
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=LONGEST_SECONDS)
    return done.returncode, log.read_text().splitlines(), done.stderr


def test_the_cpu_build_is_taken_where_there_is_one(tmp_path: Path) -> None:
    code, calls, said = install(tmp_path, f"{PIN}+cpu {PIN}")
    assert (code, calls, said) == (0, [f"--python there install --quiet {PIN}+cpu"], "")


def test_without_one_the_ordinary_build_is_taken_and_that_is_said(tmp_path: Path) -> None:
    code, calls, said = install(tmp_path, PIN, TORCH_INDEX="file:///wheels")
    begin = "--python there install --quiet --extra-index-url file:///wheels"
    assert (code, calls) == (0, [f"{begin} {PIN}+cpu", f"{begin} {PIN}"])
    assert f"pip finds no CPU build ({PIN}+cpu)" in said and "TORCH_INDEX=URL" in said


def test_a_build_that_was_asked_for_by_name_is_taken_or_nothing_is(tmp_path: Path) -> None:
    assert install(tmp_path, f"{PIN}+cu130", TORCH_BUILD="cu130")[0] == 0
    (tmp_path / "log").unlink()
    code, calls, _ = install(tmp_path, PIN, TORCH_BUILD="cu130")
    assert code != 0 and calls == [f"--python there install --quiet {PIN}+cu130"]


def test_trimming_takes_tests_and_what_compilers_need_and_nothing_that_runs(tmp_path: Path) -> None:
    kept = ("torch/lib/libtorch.so", "torch/bin/torch_shm_manager", "scipy/stats/_axis.py", "a/testing/x.py", "a/b.py")
    gone = ("a/tests/test_b.py", "a/b.pyi", "numpy/lib/libnpymath.a", "torch/test/x", "torch/include/x.h")
    programs = ("torch/bin/test_api", "torch/bin/FileStoreTest", "torch/bin/protoc-3.13", "torch/share/cmake/x")
    for name in (*kept, *gone, *programs):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    subprocess.run(["sh", str(ROOT / "requirements" / "trim.sh"), str(tmp_path)], check=True, timeout=LONGEST_SECONDS)
    assert {str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*") if one.is_file()} == set(kept)


@pytest.mark.parametrize("name", FILES)
def test_an_image_is_made_of_its_lock_in_stages_upon_a_base_that_can_be_moved(name: str) -> None:
    text = FILES[name].replace("${LOCK}", "".join(re.findall(r"^ARG LOCK=(.*)$", FILES[name], flags=re.M)))
    assert text.count("FROM ${BASE_IMAGE}") == 2 and re.search(r"^ARG BASE_IMAGE=python:", text, flags=re.M)
    installing = re.findall(r"pip [^&]*? install [^&]*", text.replace("\\\n", " "))
    locked = [words for words in installing if "--require-hashes" in words]
    ours = [words for words in installing if "--no-index --no-deps" in words]
    assert len(locked) + len(ours) == len(installing) and f"requirements/{name}.txt" in locked[0]
    assert "COPY --from=packages /opt/lpsfed /opt/lpsfed" in text and "trim.sh" in text


def test_the_command_line_loads_no_plots_until_it_draws() -> None:
    code = "import sys, simulation.cli; print([m for m in ('matplotlib', 'optuna') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=True
    )
    assert "matplotlib" not in done.stdout
