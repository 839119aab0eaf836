"""What was answered to a writer that is killed is kept, once."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from client_service.event_log.messages import InteractionIn
from client_service.event_log.store import EventStore

WRITER = """
import sys
from pathlib import Path
from client_service.event_log.messages import InteractionIn
from client_service.event_log.store import EventStore
from concurrent.futures import ThreadPoolExecutor
store = EventStore(Path(sys.argv[1]), most=10**6)
def write(writer):
    for batch in range(10_000):
        names = [f"{writer}-{batch}-{place}" for place in range(5)]
        store.append([InteractionIn(event=name, user=name, item="i", time=None, rating=None) for name in names])
        sys.stdout.write("".join(name + "\\n" for name in names)); sys.stdout.flush()
list(ThreadPoolExecutor(4).map(write, range(4)))
"""


def test_what_was_answered_outlives_a_kill_and_is_there_once(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    answered = [process.stdout.readline() for _ in range(200)]
    process.kill()
    answered += process.stdout.readlines()[:-1]  # the last may be half a line
    process.wait()
    process.stdout.close()
    store = EventStore(tmp_path, most=10**6)
    users = [one.user for one in store.interactions()]
    assert len(users) >= len(answered) >= 200 and {line.strip() for line in answered if line.endswith("\n")} <= {*users}
    assert len(users) == len({*users})
    repeated = [InteractionIn(event=user, user=user, item="i", time=None, rating=None) for user in users[:50]]
    with ThreadPoolExecutor(4) as pool:
        assert [one for found in pool.map(store.append, [repeated] * 4) for one in found] == []
    store.close()
