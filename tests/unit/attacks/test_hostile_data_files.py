"""Attack: files that `join --data` reads without end, or that are small and unpack to more memory than there is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from client_service.data.files import read_lines
from shared.errors import DataError
from simulation.datasets.load import load_dataset

PAIRS = b"".join(b"u%d,i%d\n" % (user, item) for user in range(20) for item in range(12))
LIMIT = 320_000  # kB that a process may use which reads a small table
READS = r"""
import re, sys
from pathlib import Path
from simulation.datasets.load import load_dataset
load_dataset(Path(sys.argv[1]), 1)
print(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
"""


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as found:
        load_dataset(path, 1)
    return str(found.value)


def test_a_pipe_that_nobody_writes_to_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "ratings.csv")
    assert "expected a regular file, got a pipe" in refusal(path)
    with pytest.raises(DataError, match="got a pipe"):
        read_lines(path)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/random"])
def test_a_device_without_an_end_is_refused_at_once(tmp_path: Path, device: str) -> None:
    (path := tmp_path / "ratings.parquet").symlink_to(device)
    assert "expected a regular file, got a device" in refusal(path)


def test_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "export").write_bytes(b"user,item\n" + PAIRS)
    (path := tmp_path / "ratings.csv").symlink_to(tmp_path / "export")
    assert len(load_dataset(path, 1).events) == 240


def test_a_column_that_is_not_read_takes_no_memory(tmp_path: Path) -> None:
    rows = 4_000
    blob = pl.Series([["z" * 1000] * 100]).new_from_index(0, rows)  # 400 MB, in a file of 200 kB
    numbers = pl.Series(range(rows))
    table = pl.DataFrame({"user": numbers % 50, "item": numbers % 77, "blob": blob})
    table.lazy().sink_parquet(path := tmp_path / "ratings.parquet", compression="zstd")
    env = {**os.environ, "POLARS_MAX_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", READS, path], env=env, capture_output=True, text=True, check=True)
    assert int(done.stdout) < LIMIT


def test_lists_where_ids_belong_are_refused_before_they_are_read(tmp_path: Path) -> None:
    pl.DataFrame({"user": [[["a"]]] * 3, "item": ["b"] * 3}).write_parquet(path := tmp_path / "ratings.parquet")
    assert "expected strings or whole numbers in column 'user', got List" in refusal(path)


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def have(size: int) -> None:
        monkeypatch.setattr("shared.memory.usable_memory", lambda: size)

    return have


def test_a_dictionary_of_long_ids_is_refused_before_they_are_copied(
    tmp_path: Path, small_machine: Callable[[int], None]
) -> None:
    small_machine(64_000_000)
    table = pl.select(user=pl.repeat("u" * 4000, 10_000), item=pl.repeat("i" * 4000, 10_000))
    table.lazy().sink_parquet(path := tmp_path / "ratings.parquet", compression="zstd")
    assert path.stat().st_size < 64_000
    assert "expected values of at most 16,000,000 bytes together" in refusal(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ratings.csv", b"user,item\n" + b"," * 300_000),
        ("ratings.csv", b"user,item\n" + b"a,b\n" * 60_000),
        ("ratings.csv", b'user,item\n"' + b"," * 300_000 + b'"'),
        ("ratings.dat", b"1::2::3::4\n" * 60_000),
        ("ratings.txt", b"1 " + b"2 " * 300_000),
        ("ratings.jsonl", b'{"a":1' + b',"":1' * 300_000),
    ],
    ids=["commas", "rows", "quoted", "movielens", "lightgcn", "json"],
)
def test_more_fields_than_there_is_memory_for_are_refused_before_the_text_is_split(
    tmp_path: Path, small_machine: Callable[[int], None], name: str, content: bytes
) -> None:
    small_machine(16_000_000)  # bytes: 250,000 fields
    (path := tmp_path / name).write_bytes(content)
    assert "expected lines of at most" in refusal(path)


def test_a_line_without_an_end_is_refused_by_its_length(tmp_path: Path, small_machine: Callable[[int], None]) -> None:
    small_machine(8_000_000)
    (path := tmp_path / "ratings.csv").write_bytes(b"user,item\n" + b"a" * 1_000_001)
    assert "expected text of at most 1,000,000 bytes" in refusal(path)
    small_machine(1_000_000)
    assert "expected at most 500,000 bytes, half of this machine's memory" in refusal(path)
