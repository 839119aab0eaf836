"""Load tests by wrk: requests per second, latencies, processor time."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TURNS = 3
CONNECTIONS = (1, 16)
WARM_SECONDS = 1

SCRIPT = """
local requests, at = {}, 0
for line in io.lines(os.getenv("REQUESTS")) do
  local method, path, body = line:match("^(%S+) (%S+) ?(.*)$")
  requests[#requests + 1] = {method, path, body}
end
local headers = {["Authorization"] = "Bearer " .. os.getenv("KEY"), ["Content-Type"] = "application/json"}
math.randomseed(1)
request = function()
  local one = requests[math.random(#requests)]
  return wrk.format(one[1], one[2], headers, one[1] == "POST" and one[3] or nil)
end
done = function(summary, latency)
  local e = summary.errors
  local broken = e.connect + e.read + e.write + e.timeout
  io.write(string.format("FOUND %d %d %d %d", summary.requests, summary.duration, e.status, broken))
  for _, p in ipairs({50, 90, 99}) do io.write(" " .. latency:percentile(p)) end
  io.write("\\n")
end
"""


@dataclass(frozen=True)
class Load:
    """Result of one load test.

    Latencies, and the server's processor time per request, in milliseconds.
    """

    server: str
    what: str
    connections: int
    rate: float
    p50: float
    p90: float
    p99: float
    cpu: float
    errors: int


@dataclass(frozen=True)
class LoadTarget:
    """Server of a load test: address, key, and process whose time counts."""

    server: str
    url: str
    key: str
    pid: int


@dataclass(frozen=True)
class Requests:
    """Requests of a load test: lines of method, path and body, drawn at random."""

    what: str
    lines: Sequence[str]


def load_target(target: LoadTarget, requests: Requests, connections: int, seconds: int) -> Load:
    """Runs wrk with one thread, after a short run that is not counted."""
    with tempfile.TemporaryDirectory() as folder:
        script, asked = Path(folder) / "ask.lua", Path(folder) / "requests"
        script.write_text(SCRIPT, encoding="utf-8")
        asked.write_text("\n".join(requests.lines) + "\n", encoding="utf-8")
        for length in (WARM_SECONDS, seconds):
            how = ["-t1", f"-c{connections}", f"-d{length}s", "--timeout", "30s", "-s", str(script)]
            command = ["wrk", *how, target.url]
            environment = os.environ | {"KEY": target.key, "REQUESTS": str(asked)}
            before = processor_seconds(target.pid)
            told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return _read_load(target.server, requests.what, connections, told, processor_seconds(target.pid) - before)


def processor_seconds(pid: int) -> float:
    """Returns the processor seconds of a process and its threads, since its start."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _read_load(server: str, what: str, connections: int, told: str, processor: float) -> Load:
    found = re.search(r"^FOUND (.+)$", told, re.MULTILINE)
    assert found is not None, told
    count, microseconds, refused, broken, *times = map(float, found[1].split())
    p50, p90, p99 = (round(one / 1000, 3) for one in times)
    rate, cpu = round(1e6 * count / microseconds, 1), round(1e3 * processor / max(count, 1), 3)
    return Load(server, what, connections, rate, p50, p90, p99, cpu, int(refused + broken))


def alternate_loads(targets: Sequence[LoadTarget], kinds: Sequence[Requests], seconds: int) -> list[Load]:
    """Measures each target's median load, by kind of request and connections."""
    return [
        load
        for requests in kinds
        for connections in CONNECTIONS
        for load in _median_loads(targets, requests, connections, seconds)
    ]


def _median_loads(targets: Sequence[LoadTarget], requests: Requests, connections: int, seconds: int) -> list[Load]:
    turns = [[load_target(one, requests, connections, seconds) for one in targets] for _ in range(TURNS)]
    return [sorted(loads, key=lambda load: load.rate)[TURNS // 2] for loads in zip(*turns, strict=True)]


def memory_of(pid: int) -> int:
    """Returns a process's megabytes, shared pages divided by their processes."""
    told = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    kilobytes = re.search(r"^Pss:\s+(\d+)", told, re.MULTILINE)
    assert kilobytes is not None
    return int(kilobytes[1]) // 1024
