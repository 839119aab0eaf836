"""Probes of the running client's own gate and code, by its answer and its files.

The three checks complete each other: files can be read without asking the process, but do not show what the process
has changed since; the answer of a process is as trustworthy as its code; and the aggregator counts what leaves in any
case.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
from pydantic import ValidationError

from audit.evidence.evidence import ProbeResult, make_result
from audit.probes.part import PartLocation
from client_service.boundary.gate_self_test import (
    CODE_PACKAGES,
    CONTROL,
    FORBIDDEN,
    STARTUP_FILES,
    GateOut,
    digest_code,
    digest_folder,
    package_folder,
)

GATE, WORD, CODE = "its own gate", "its code, by its own word", "its code, by its files"
PROBE_PATH = "/v1/gate/probe"
SHORT = 12  # characters of a digest
STEERING = ("PYTHON", "LD_")  # variables that begin so change which code runs
MOST_BYTES = 1 << 20


async def probe_own_gate(client: httpx.AsyncClient, here: PartLocation) -> list[ProbeResult]:
    """Probes the client's gate and code; a probe without an answer has not held."""
    expected = digest_code()
    report = await _fetch_gate(client)
    files = list(_file_probes(here, expected)) if here.is_other_process else []
    return [*_gate_probes(report), *_word_probes(report, expected), *files]


async def _fetch_gate(client: httpx.AsyncClient) -> GateOut | None:
    try:
        return GateOut.model_validate_json((await client.post(PROBE_PATH)).content)
    except (httpx.HTTPError, ValidationError):
        return None


def _gate_probes(report: GateOut | None) -> Iterator[ProbeResult]:
    verdicts: Mapping[str, str] = {} if report is None else report.verdicts
    for name in (CONTROL, *FORBIDDEN):
        expected, observed = "passed" if name == CONTROL else "refused", verdicts.get(name, "no answer")
        yield make_result(GATE, name, expected, observed[:60], held=expected == observed)


def _word_probes(report: GateOut | None, expected: Mapping[str, str]) -> Iterator[ProbeResult]:
    code: Mapping[str, str] = {} if report is None else report.code
    for package in CODE_PACKAGES:
        yield _digest_probe(WORD, package, expected[package], code.get(package, "no answer"))


def _file_probes(here: PartLocation, expected: Mapping[str, str]) -> Iterator[ProbeResult]:
    """Yields probes of the process's code and of files that could replace it."""
    root = here.process / "root"
    for package in CODE_PACKAGES:
        folder = root / package_folder(package).relative_to("/")
        yield _digest_probe(CODE, package, expected[package], _folder_digest(folder))
    more = sorted(_steering_variables(here.process))
    observed = f"other than here: {', '.join(more)}" if more else "as here"
    yield make_result(CODE, "its environment", "as here", observed, held=not more)
    strange = sorted({str(path) for place in sys.path if place for path in _startup_files(root, Path(place))})
    observed = f"also {', '.join(strange)}" if strange else "none"
    yield make_result(CODE, "what runs before it", "none", observed, held=not strange)


def _folder_digest(folder: Path) -> str:
    try:
        return digest_folder(folder)
    except OSError as error:
        return error.strerror or "closed to it"


def _digest_probe(kind: str, name: str, expected: str, observed: str) -> ProbeResult:
    shortened = observed if len(observed) != len(expected) else observed[:SHORT]
    return make_result(kind, name, expected[:SHORT], shortened[:60], held=expected == observed)


def _steering_variables(process: Path) -> Iterator[str]:
    """Yields Python's and the linker's variables that differ from this process's."""
    try:
        lines = (process / "environ").read_bytes()[:MOST_BYTES].split(b"\0")
    except OSError:
        yield "all, closed to it"
        return
    theirs = dict(line.decode("utf-8", "replace").partition("=")[::2] for line in lines if line)
    for name in {*theirs, *os.environ}:
        if name.startswith(STEERING) and theirs.get(name) != os.environ.get(name):
            yield name


def _startup_files(root: Path, place: Path) -> Iterator[Path]:
    """Yields files that Python runs at its start and that differ from this process's."""
    there = root / place.relative_to(place.anchor)
    for path in (*there.glob("*.pth"), *(there / name for name in STARTUP_FILES)):
        own = place / path.name
        if path.is_file() and not (own.is_file() and own.read_bytes() == path.read_bytes()):
            yield own
