"""Forks processes that share the memory of loaded modules with the starting process.

A fork server has one thread and no event loop, so that it can fork at any time. It ends with its parent process, and
its forked processes end with it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import selectors
import signal
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

from client_service.runtime.memory import return_free_memory
from client_service.runtime.trainer_process import FAILED, die_with_parent, end_at_once_with_parent
from shared.descriptors import DescriptorLine, open_line
from shared.errors import FederationError
from shared.web.health import READY_PIPE

START, STARTED, ENDED = b"s", "started", "ended"  # what is told over the socket
ENDING = (signal.SIGINT, signal.SIGTERM)
Run = Callable[[int], int]
"""(descriptor of the refusal pipe) -> exit code: the function that a forked process runs."""


def start_fork_server(prepare: Callable[[], Run]) -> ForkServer | None:
    """Starts a fork server; None on a system that cannot fork.

    Call it before this process has an event loop or starts threads. prepare: runs in the fork server, once; what it
    builds is shared, and it returns what each forked process runs.
    """
    if not hasattr(os, "fork"):
        return None
    return_free_memory()  # a collection in a forked process would copy each page that it looks at
    ours, theirs = open_line()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if pid := os.fork():
        theirs.close()
        ours.set_blocking(False)
        return ForkServer(pid, ours)
    ours.close()
    _run_and_exit(lambda: _answer_starts(theirs, prepare))


def _run_and_exit(run: Callable[[], int]) -> NoReturn:
    """Runs a function and ends this process with its exit code.

    What the parent process has registered for its end is not run.
    """
    code = FAILED
    try:
        code = run()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _answer_starts(line: DescriptorLine, prepare: Callable[[], Run]) -> int:
    """Forks a process at each request and reports its end.

    It goes on until the parent process closes its side.
    """
    die_with_parent()
    if (inherited := os.environ.pop(READY_PIPE, "")).isdecimal():  # the parent process alone says that it is ready
        os.close(int(inherited))
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # the parent process ends this one
    woken, waking = os.pipe()
    for one in (woken, waking):
        os.set_blocking(one, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    try:
        run = prepare()
    except FederationError:  # the parent process meets it as well, and tells it
        return FAILED
    gc.collect()
    gc.freeze()
    with selectors.DefaultSelector() as waits:
        waits.register(line, selectors.EVENT_READ)
        waits.register(woken, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in waits.select()}
            if woken in ready:
                os.read(woken, 1 << 10)
                _report_ends(line)
            if line in ready and not _start_one(line, run, (woken, waking)):
                return 0


def _report_ends(line: DescriptorLine) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        line.send(f"{ENDED} {pid} {os.waitstatus_to_exitcode(status)}\n".encode())


def _start_one(line: DescriptorLine, run: Run, own: tuple[int, ...]) -> bool:
    """Forks one process.

    False: the parent process has closed its side.
    """
    told, given = line.receive(len(START))
    if not told:
        return False
    server = os.getpid()
    if (pid := os.fork()) == 0:
        _run_and_exit(lambda: _become_child(server, run, (line.fileno(), *own), *given))
    for descriptor in given:
        os.close(descriptor)
    line.send(f"{STARTED} {pid} 0\n".encode())
    return True


def _become_child(server: int, run: Run, own: tuple[int, ...], tether: int, ready: int, refusal: int) -> int:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    for one in own:
        os.close(one)
    os.dup2(tether, 0)
    os.close(tether)
    end_at_once_with_parent()
    if os.getppid() != server:  # it has ended before this process could be tied to it
        return FAILED
    os.environ[READY_PIPE] = str(ready)
    return run(refusal)


@dataclass(eq=False)
class ForkedProcess:
    """A process of the fork server.

    It has what callers need of `asyncio.subprocess.Process`. tether: descriptor whose closing ends the process.
    """

    pid: int
    tether: int
    returncode: int | None = None
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self) -> int:
        """Waits for the end, and returns the exit code."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def end(self, code: int) -> None:
        """Notes that the process has ended."""
        if self.returncode is None:
            os.close(self.tether)
            self.returncode = code
            self._ended.set()


class ForkServer:
    """A process that forks others, as its parent process sees it."""

    def __init__(self, pid: int, line: DescriptorLine) -> None:
        self.pid, self._line = pid, line
        self._come, self._is_read = b"", False
        self._starting: deque[tuple[asyncio.Future[ForkedProcess], int]] = deque()  # each with its tether
        self._processes: dict[int, ForkedProcess] = {}
        self.has_ended = False

    async def start(self, ready: int, refusal: int) -> ForkedProcess:
        """Forks one process.

        ready, refusal: descriptors of pipes for the process. OSError: the fork server has ended.
        """
        loop = asyncio.get_running_loop()
        if not self._is_read and not self.has_ended:
            loop.add_reader(self._line, self._read)
            self._is_read = True
        theirs, tether = os.pipe()
        try:
            self._line.send(START, (theirs, ready, refusal))
        except OSError:
            os.close(tether)
            raise
        finally:
            os.close(theirs)
        future: asyncio.Future[ForkedProcess] = loop.create_future()
        self._starting.append((future, tether))
        return await future

    def _read(self) -> None:
        """Reads the messages of the fork server about started and ended processes."""
        try:
            piece, _ = self._line.receive(1 << 12)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            return self._note_end()
        *lines, self._come = (self._come + piece).split(b"\n")
        for line in lines:
            word, pid, code = line.decode().split()
            if word == ENDED:
                self._processes.pop(int(pid)).end(int(code))
                continue
            future, tether = self._starting.popleft()
            found = self._processes[int(pid)] = ForkedProcess(int(pid), tether)
            if future.cancelled():  # nobody waits for it any more
                found.kill()
            else:
                future.set_result(found)

    def _note_end(self) -> None:
        """Notes that the fork server has ended: its processes are killed with it."""
        self.has_ended = True
        asyncio.get_running_loop().remove_reader(self._line)
        for process in self._processes.values():
            process.end(-signal.SIGKILL)
        for future, tether in self._starting:
            os.close(tether)
            if not future.done():
                future.set_exception(ConnectionError("expected a running fork server, got one that has ended"))
        self._processes.clear()
        self._starting.clear()
        self.close()

    def close(self) -> None:
        """Ends the fork server, and waits for its end."""
        if self.pid:
            self._line.close()
            os.waitpid(self.pid, 0)
            self.pid = 0
