"""A client as it runs: a server that answers, and a trainer beside it, whatever becomes of either."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from client_service.data.interaction_files import load_shard
from client_service.runtime.trainer_process import find_socket
from client_service.settings import ClientSettings
from shared.protocol.signing.enrolment import ensure_key_pair
from simulation.ports import free_ports
from tests.support.kept import keep_first_model
from tests.support.questions import LONGEST_SECONDS

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="children are looked for in /proc"),
]


NOWHERE = "http://127.0.0.1:9"


class Running:
    """A client's server, and what can be asked of it."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process, self.log = process, log
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=LONGEST_SECONDS)

    def child(self, word: str) -> int | None:
        """The process that was started with this word of a command line."""
        return next((pid for pid in children(self.process.pid) if word in command_line(pid).split()), None)

    @property
    def trainer(self) -> int:
        found = self.child("--trainer")
        assert found is not None
        return found

    def ready(self) -> dict[str, Any] | None:
        with suppress(httpx.TransportError):
            answer = self.http.get("/health/ready")
            return answer.json() if answer.is_success else None
        return None

    def trains(self) -> bool:
        return (self.ready() or {}).get("trainer") == "running"

    def serves(self) -> bool:
        """Does a model answer, and is there a trainer?"""
        return self.trains() and (self.ready() or {}).get("model") == "serving"

    def lists(self, user: str) -> dict[str, Any]:
        answer = self.http.get(f"/v1/users/{user}/recommendations?k=40")
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def has_done(self, receipt: str) -> bool:
        """Is this erasure done?"""
        return self.http.get(f"/v1/erasures/{receipt}").json()["done_at"] is not None

    def post(self, event: str, user: str, item: str) -> None:
        body = {"interactions": [{"event": event, "user": user, "item": item}]}
        answer = self.http.post("/v1/interactions", json=body)
        assert answer.json() == {"accepted": 1, "repeated": 0, "unknown_items": 0}


@contextmanager
def running(settings: ClientSettings, **changes: Any) -> Iterator[Running]:
    """A client as processes of their own, with their log."""
    log, (port,) = settings.state_directory.parent / "client.log", free_ports(1)
    names = ("name", "shard", "state_directory")
    given = {name: getattr(settings, name) for name in names} | {"port": port, "aggregator_url": NOWHERE} | changes
    environment = {f"LPSFED_CLIENT_{name.upper()}": str(value) for name, value in given.items()}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "client_service"],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
        found = Running(process, port, log)
        try:
            yield found
        finally:
            process.kill()
            process.wait()
            found.http.close()


def wait_for(question: Callable[[], object]) -> None:
    until = time.monotonic() + LONGEST_SECONDS
    while not question():
        assert time.monotonic() < until
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    """Of a process, which may have ended."""
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if parent_of(path) == pid]


def parent_of(process: Path) -> int:
    with suppress(OSError):
        return int((process / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[1])
    return 0


def command_line(pid: int) -> str:
    with suppress(OSError):
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def is_running(pid: int) -> bool:
    """Whether a process is there and has not ended. One whose parent has yet to ask for its end has ended."""
    with suppress(OSError):
        stat = (Path("/proc") / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
        return stat.rpartition(")")[2].split()[0] != "Z"
    return False


def mapped(pid: int) -> set[str]:
    """Packages whose libraries a process has mapped."""
    lines = (Path("/proc") / str(pid) / "maps").read_text(encoding="utf-8").splitlines()
    paths = {line.split()[-1] for line in lines if ".so" in line and "site-packages" in line}
    return {path.partition("site-packages/")[2].partition("/")[0] for path in paths}


@pytest.fixture
def silo(settings: ClientSettings) -> ClientSettings:
    """A silo with a key and a model."""
    ensure_key_pair(settings.name, settings.state_directory)
    keep_first_model(settings)
    return settings


def test_a_killed_or_stopped_trainer_keeps_nobody_from_answers_and_loses_nothing(silo: ClientSettings) -> None:
    shard, _ = keep_first_model(silo)
    gone, user = shard.user_ids[:2]
    with running(silo) as client:
        wait_for(client.serves)
        first = client.trainer
        assert oct(find_socket(silo.state_directory).stat().st_mode & 0o777) == "0o600"
        assert client.http.get("/v1/status").json()["client"] == silo.name
        os.kill(first, signal.SIGSTOP)
        client.post("stopped", user, shard.item_ids[0])
        assert shard.item_ids[0] not in [one["item"] for one in client.lists(user)["items"]]
        receipt = client.http.delete(f"/v1/users/{gone}").json()["receipt"]
        assert client.lists(gone)["fallback"] == "unknown user"
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: not is_running(first))
        assert client.http.get("/health/live").is_success
        client.post("killed", user, shard.item_ids[1])
        assert client.lists(gone)["fallback"] == "unknown user"
        wait_for(lambda: client.http.get(f"/v1/erasures/{receipt}").json()["done_at"] is not None)  # by the next one
        assert client.trainer != first and b'"event": "trainer_ended"' in client.log.read_bytes()
        wait_for(lambda: client.http.get("/v1/refresh").json()["phase"] == "idle")
        listed = [one["item"] for one in client.lists(user)["items"]]
        assert not {*shard.item_ids[:2]} & {*listed} and client.lists(gone)["fallback"] == "unknown user"
        client.process.send_signal(signal.SIGTERM)
        assert client.process.wait(LONGEST_SECONDS) == 0
        assert not children(client.process.pid)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_killed_server_takes_its_trainer_along_and_another_one_goes_on(silo: ClientSettings, stopped: bool) -> None:
    shard, _ = keep_first_model(silo)
    with running(silo) as client:
        wait_for(client.trains)
        client.post("before", shard.user_ids[0], shard.item_ids[0])
        trainer = client.trainer
        if stopped:
            os.kill(trainer, signal.SIGSTOP)
        client.process.kill()
        wait_for(lambda: not is_running(trainer))
    with running(silo) as client:
        wait_for(client.trains)
        assert shard.item_ids[0] not in [one["item"] for one in client.lists(shard.user_ids[0])["items"]]


def test_a_server_answers_before_there_is_a_trainer_and_maps_no_library_that_trains(silo: ClientSettings) -> None:
    shard, _ = keep_first_model(silo, published=True)
    user, items = shard.user_ids[0], list(shard.item_ids[:3])
    with running(silo) as client:
        wait_for(client.ready)
        assert client.lists(user)["model"] == "run-1.0" and client.ready() == {
            "status": "ready",
            "model": "serving",
            "trainer": "starting",
        }
        client.post("early", user, items[0])
        for call in (
            client.http.get(f"/v1/users/{user}/recommendations?k=5&explain=true&mmr=0.5"),
            client.http.post("/v1/recommendations", json={"basket": items, "k": 5, "explain": True}),
            client.http.post("/v1/recommendations", json={"users": [user, "nobody"]}),
            client.http.get(f"/v1/items/{items[0]}/similar"),
            client.http.get("/v1/items?query=title"),
            client.http.get("/v1/model"),
            client.http.put(f"/v1/items/{items[1]}", json={"title": "Another"}),
            client.http.get("/metrics"),
        ):
            assert call.is_success, call.text
        assert not mapped(client.process.pid) & {"torch", "polars", "scipy", "pandas", "pyarrow", "cryptography"}
        assert "numpy" in mapped(client.process.pid)
        wait_for(client.trains)
        assert "torch" in mapped(client.trainer)
        assert (
            os.sched_getscheduler(client.trainer) == os.SCHED_BATCH and os.sched_getscheduler(client.process.pid) == 0
        )


KILLED = """
import os, signal, sys
from importlib import import_module

marker, word, moments = {marker!r}, {word!r}, {moments!r}


def install(moment):
    place, when = moment.split()
    module, _, name = place.rpartition(":")
    owner = import_module(module)
    *outer, name = name.split(".")
    for one in outer:
        owner = getattr(owner, one)
    real = getattr(owner, name)

    def strike():
        if os.path.exists(marker) and open(marker).read() == moment:
            os.unlink(marker)
            os.kill(os.getpid(), signal.SIGKILL)

    def struck(*given, **named):
        if when == "before":
            strike()
        found = real(*given, **named)
        if when == "after":
            strike()
        return found

    setattr(owner, name, struck)


if word in sys.orig_argv:
    for one in moments:
        install(one)
"""
MOMENTS = (  # of a refresh
    "client_service.refresh.rebuild:save_absorbed after",  # absorbed: the shard has what the log has still
    "client_service.compilation.item_publisher:compile_shard after",
    "client_service.compilation.item_publisher:compile_model after",  # compiled, and not published
    "client_service.compilation.item_publisher:publish after",  # published, and not forgotten
    "client_service.event_log.store:EventStore.delete_absorbed before",
    "client_service.event_log.store:EventStore.delete_absorbed after",
)


POSTS = tuple(f"client_service.event_log.store:EventStore.append_each {when}" for when in ("before", "after"))


def patch(tmp_path: Path, word: str, moments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which a test writes a moment, in which the process with this word in its command line is killed."""
    marker, place = tmp_path / "moment", tmp_path / "patch"
    place.mkdir()
    (place / "sitecustomize.py").write_text(KILLED.format(marker=str(marker), word=word, moments=moments))
    monkeypatch.setenv("PYTHONPATH", str(place))
    return marker


@pytest.mark.slow
def test_a_trainer_killed_in_any_moment_of_a_refresh_leaves_the_server_answering_and_loses_nothing(
    silo: ClientSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = patch(tmp_path, "--trainer", MOMENTS, monkeypatch)
    shard, _ = keep_first_model(silo)
    told: dict[str, str] = {}
    for number, moment in enumerate(MOMENTS):
        with running(silo) as client:
            wait_for(client.serves)
            marker.write_text(moment)
            first, gone, new = client.trainer, shard.user_ids[number], f"new-{number}"
            for user, item in ((new, shard.item_ids[number]), (shard.user_ids[-1], shard.item_ids[number])):
                client.post(f"{user}-{number}", user, item)
                told.setdefault(user, item)
            receipt = client.http.delete(f"/v1/users/{gone}").json()["receipt"]
            while is_running(first):  # it begins the refresh by itself, and dies in it
                assert client.lists(gone)["fallback"] == "unknown user"
                assert shard.item_ids[number] not in items_of(client, new)
            assert not marker.exists()
            wait_for(partial(client.has_done, receipt))
            assert client.lists(gone)["fallback"] == "unknown user"
            for user, item in told.items():
                assert item not in items_of(client, user) and "fallback" not in client.lists(user)
            again = {"interactions": [{"event": f"{new}-{number}", "user": new, "item": shard.item_ids[number]}]}
            assert client.http.post("/v1/interactions", json=again).json()["repeated"] == 1
    found = load_shard(silo.shard)
    assert not {*shard.user_ids[: len(MOMENTS)]} & {*found.user_ids} and {*told} <= {*found.user_ids}


def items_of(client: Running, user: str) -> list[str]:
    return [one["item"] for one in client.lists(user)["items"]]


@pytest.mark.slow
@pytest.mark.parametrize("moment", POSTS)
def test_a_server_killed_in_a_post_has_kept_all_of_it_or_nothing(
    silo: ClientSettings, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch(tmp_path, "--server", POSTS, monkeypatch).write_text(moment)
    kept = moment.endswith("after")
    shard, _ = keep_first_model(silo, published=True)
    user, events = shard.user_ids[0], {"interactions": [{"event": "e", "user": "u", "item": shard.item_ids[0]}]}
    with running(silo) as client:
        wait_for(client.ready)
        with pytest.raises(httpx.TransportError):
            client.http.post("/v1/interactions", json=events)
        client.process.wait(LONGEST_SECONDS)
    with running(silo) as client:
        wait_for(client.ready)
        assert client.lists(user)["model"] == "run-1.0"
        assert ("fallback" in client.lists("u")) is not kept
        answer = client.http.post("/v1/interactions", json=events).json()
        assert (answer["accepted"], answer["repeated"]) == ((0, 1) if kept else (1, 0))
        assert "fallback" not in client.lists("u")


def further_servers(client: Running) -> list[int]:
    """Processes that the client's fork server has forked, and servers that were started without it."""
    beside = [pid for pid in children(client.process.pid) if "--trainer" not in command_line(pid).split()]
    forked = [child for pid in beside for child in children(pid)]
    return forked or [pid for pid in beside if "--refusal-descriptor=" in command_line(pid)]


def fork_server(client: Running) -> int:
    found = [pid for pid in children(client.process.pid) if command_line(pid) == command_line(client.process.pid)]
    assert len(found) == 1
    return found[0]


def answers_of(client: Running, count: int = 8) -> set[int]:
    """Statuses of so many requests, each on a connection of its own, which is one process's."""
    url = f"{client.http.base_url}/v1/status"
    return {httpx.get(url, trust_env=False, timeout=LONGEST_SECONDS).status_code for _ in range(count)}


def started(client: Running, count: int) -> bool:
    """Have so many servers said that they begin?"""
    return client.log.read_bytes().count(b'"event": "starting"') >= count


def test_servers_share_the_port_and_are_started_again(silo: ClientSettings) -> None:
    with running(silo, workers=3) as client:
        wait_for(client.trains)
        wait_for(lambda: len(further_servers(client)) == 2)
        first, other = further_servers(client)
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: len({*further_servers(client)} - {first}) == 2 and started(client, 4))
        assert other in further_servers(client) and b'"event": "server_ended"' in client.log.read_bytes()
        assert answers_of(client) == {200}
        left = [*children(client.process.pid), *further_servers(client)]
        assert len(left) == 4  # the trainer, the fork server, two servers
        client.process.send_signal(signal.SIGTERM)
        assert client.process.wait(LONGEST_SECONDS) == 0
        wait_for(lambda: not any(is_running(pid) for pid in left))


def test_a_further_server_shares_the_memory_of_what_all_have_loaded(silo: ClientSettings) -> None:
    with running(silo, workers=2) as client:
        wait_for(client.trains)
        wait_for(lambda: len(further_servers(client)) == 1 and started(client, 2))
        assert answers_of(client) == {200}
        told = (Path("/proc") / str(further_servers(client)[0]) / "smaps_rollup").read_text(encoding="ascii")
        sizes = {line.split()[0]: int(line.split()[1]) for line in told.splitlines()[1:]}
        assert sizes["Private_Dirty:"] < 0.6 * sizes["Anonymous:"]


def test_a_killed_fork_server_takes_its_servers_along_and_others_are_started_without_it(silo: ClientSettings) -> None:
    with running(silo, workers=2) as client:
        wait_for(client.trains)
        wait_for(lambda: len(further_servers(client)) == 1)
        (first,), forking = further_servers(client), fork_server(client)
        os.kill(forking, signal.SIGKILL)
        wait_for(lambda: not is_running(first) and not is_running(forking))
        wait_for(lambda: further_servers(client) and started(client, 3))
        assert answers_of(client) == {200} and first not in further_servers(client)
        again = further_servers(client)[0]
        os.kill(again, signal.SIGKILL)
        wait_for(lambda: {*further_servers(client)} - {again})
        assert client.trains()


def test_a_killed_server_takes_its_fork_server_and_all_servers_along(silo: ClientSettings) -> None:
    with running(silo, workers=2) as client:
        wait_for(client.trains)
        wait_for(lambda: len(further_servers(client)) == 1)
        left = [*children(client.process.pid), *further_servers(client)]
        assert len(left) == 3
        client.process.kill()
        wait_for(lambda: not any(is_running(pid) for pid in left))


def test_a_mistake_in_the_data_is_told_by_the_exit_code_and_one_line(silo: ClientSettings) -> None:
    (silo.shard / "interactions.parquet").write_bytes(b"damaged")
    with running(silo) as client:
        assert client.process.wait(LONGEST_SECONDS) == 1
        said = [line for line in client.log.read_text(encoding="utf-8").splitlines() if not line.startswith("{")]
    assert said and all(line.startswith("client: ") and "interactions.parquet" in line for line in said)


def test_a_second_client_of_a_state_directory_ends_with_a_mistake_in_settings(silo: ClientSettings) -> None:
    with running(silo) as client:
        wait_for(client.trains)
        other = silo.model_copy(update={"shard": silo.shard})
        with running(other) as second:
            assert second.process.wait(LONGEST_SECONDS) == 2
            assert f"another process ({client.process.pid}) is using" in second.log.read_text(encoding="utf-8")
        assert client.trains()


def test_a_state_directory_with_a_long_path_has_its_socket_elsewhere(silo: ClientSettings, tmp_path: Path) -> None:
    long = tmp_path / ("long-" * 20)
    silo.state_directory.rename(long)
    with running(silo.model_copy(update={"state_directory": long})) as client:
        wait_for(client.trains)
        found = find_socket(long)
        assert len(str(found)) < 100 and found.parent.stat().st_mode & 0o777 == 0o700
        assert client.http.get("/v1/status").is_success
