"""Starts the processes beside a server: the trainer, and further servers at its port.

A child reads its settings from a file without a name: no secret is in a command line or an environment. A child that
ends is started again, after growing waits. Every child ends with the server, also where the server is killed. A trainer
without anything to do replaces itself by a smaller image of the same process, which keeps its sockets and its lock.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import struct
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, SecretStr

from client_service.runtime.logs import LOGGER
from shared.errors import FederationError, SettingsError
from shared.web.health import ENDS_WITH_PARENT, READY_PIPE, READY_WORD

if TYPE_CHECKING:
    from client_service.runtime.fork_server import ForkedProcess, ForkServer

TRAINER, SERVER = "--trainer", "--server"
REFUSAL = "--refusal-descriptor="  # of a pipe: a child writes there why it cannot start
LONGEST_REASON = 4096  # bytes; a pipe takes so many in one write
SETTINGS_FILE, TRAINER_FILE = "--settings-descriptor=", "--trainer-descriptor="  # of a server, and of its trainer
BAD_SETTINGS, FAILED = 2, 1  # exit codes of a client
REFUSALS = {78: BAD_SETTINGS, 65: FAILED}  # a trainer's code -> a client's: settings or data that no restart mends
NICENESS = 10  # of the trainer: a server that shares its cores answers first; at 19 others could keep it from rounds
SHORT_SLICE = 300_000  # nanoseconds; Linux's own slices are 0.7 to 4 ms long
SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # the system call's number, for which the C library has no function
GRACE_SECONDS = 10.0  # for which a process that was asked to end may go on
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 60.0  # before a process that has ended is started again
STABLE_SECONDS = 60.0  # a process that ran for longer is started again after the first wait
WAITING, HANDOVER_FILE = "--waiting", "--handover-descriptor="  # of a trainer's next image
STOP_SIGNALS = frozenset((signal.SIGTERM, signal.SIGINT))
SOCKET = "trainer.sock"  # in the state directory
HEALTH_SOCKET = "health.sock"  # beside it: wakes no trainer that waits
MISDIRECTED = 421  # status at the health socket: a request that only the other socket answers
LONGEST_SOCKET = 100  # bytes of a socket's path; the system takes 107, on some systems 103
DIE_WITH_PARENT = 1  # of Linux's prctl


def keep_settings(settings: BaseModel) -> int:
    """Writes settings to a file in memory, and returns its descriptor, which children inherit.

    Secrets are in plain text. Fields that were never set are left out: the presence of some settings has a meaning.
    """
    text = json.dumps(settings.model_dump(exclude_unset=True), default=_plain_value)
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("settings")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.write(descriptor, text.encode())
    os.set_inheritable(descriptor, True)
    return descriptor


def _plain_value(value: object) -> object:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


def read_kept_settings(descriptor: int) -> dict[str, Any]:
    """Reads the settings that `keep_settings` has written, in a process that has inherited their descriptor."""
    found: dict[str, Any] = json.loads(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
    os.set_inheritable(descriptor, False)
    return found


def refusal_code(error: FederationError) -> int:
    """Finds the exit code by which a trainer reports bad settings or data."""
    wanted = BAD_SETTINGS if isinstance(error, SettingsError) else FAILED
    return next(code for code, meaning in REFUSALS.items() if meaning == wanted)


def send_refusal(descriptor: int | None, error: FederationError) -> bool:
    """Tells the parent process why this one cannot start.

    False: there is no pipe, or no reader.
    """
    if descriptor is None:
        return False
    try:
        os.write(descriptor, str(error).encode()[:LONGEST_REASON])
    except OSError:
        return False
    return True


def lower_priority() -> None:
    """Lowers this process's priority below that of servers on the same cores.

    As a batch process, where the system has them, it does not push another process from a core when it wakes. It gets
    the system's own time slice, not the short one of the server that has started it.
    """
    os.nice(NICENESS)
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    set_time_slice(0)


def set_time_slice(nanoseconds: int) -> None:
    """Sets the scheduler's time slice of the calling thread and its later children.

    A thread that wakes takes the core at once from one with a longer slice, and gets no more of the core in all. 0:
    the system's default. Has no effect before Linux 6.12, and on other systems.
    """
    number = SCHED_SETATTR.get(os.uname().machine) if sys.platform == "linux" else None
    if number is not None:
        policy, nice = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
        attributes = struct.pack("=IIQiIQQQ", 48, policy, 0, nice, 0, nanoseconds, 0, 0)
        ctypes.CDLL(None).syscall(ctypes.c_long(number), 0, attributes, 0)


def die_with_parent() -> None:
    """Makes Linux kill this process when its parent process ends; other systems ignore it."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)


def end_at_once_with_parent() -> None:
    """Kills this process once its parent process is gone.

    That is safe, because the files on the disk are whole at any moment. Linux kills the process by prctl. On every
    system it also kills itself once the other end of standard input is closed.
    """
    die_with_parent()

    def wait() -> None:
        if not os.read(0, 1):
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="tether", daemon=True).start()


class InheritedFiles(BaseModel):
    """File descriptors that each trainer process inherits.

    They are the settings, the lock of the state directory, and the listening sockets.
    """

    settings: int
    lock: int
    listener: int
    health: int

    def set_inheritable(self, inheritable: bool) -> None:
        """Sets whether the process's next image, like any child, inherits these files."""
        for descriptor in (self.settings, self.lock, self.listener, self.health):
            os.set_inheritable(descriptor, inheritable)


def replace_trainer(
    words: tuple[str, ...], kept: InheritedFiles, handover: BaseModel, is_stopped: Callable[[], bool]
) -> None:
    """Replaces this process by another image of the same trainer.

    It returns only if this process has been asked to end, as `is_stopped` tells. A stop signal that comes from now on
    ends the new image. handover: what the new image reads.
    """
    handed = keep_settings(handover)
    kept.set_inheritable(True)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    if not is_stopped():
        tether = [word for word in sys.argv if word == ENDS_WITH_PARENT]
        files = f"{SETTINGS_FILE}{kept.settings}", f"{HANDOVER_FILE}{handed}"
        os.execv(sys.executable, client_command(TRAINER, *words, *files, *tether))


def unblock_stop_signals() -> None:
    """Unblocks the stop signals that `replace_trainer` has blocked, in the new image."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def choose_socket(state: Path) -> Path:
    """Chooses the path of the trainer's socket, and removes an earlier trainer's.

    The socket is in the state directory. Where that path is too long for a socket, it is in a private folder of its
    own, and a link in the state directory leads there. Only the holder of the directory's lock may call this.
    """
    place = state.absolute() / SOCKET
    _remove_socket(place)
    if len(os.fsencode(place)) <= LONGEST_SOCKET:
        return place
    found = Path(tempfile.mkdtemp(prefix="lpsfed-")) / SOCKET
    place.symlink_to(found)
    return found


def find_socket(state: Path) -> Path:
    """Finds the path of the trainer's socket, whether or not a trainer listens there."""
    place = state.absolute() / SOCKET
    return place.readlink() if place.is_symlink() else place


def find_health_socket(state: Path) -> Path:
    """Finds the path of the socket that wakes no trainer that waits."""
    return find_socket(state).with_name(HEALTH_SOCKET)


def _remove_socket(place: Path) -> None:
    """Removes the socket of an earlier trainer, and the folder that was made for it."""
    if place.is_symlink():
        found = place.readlink()
        for path in (found, found.with_name(HEALTH_SOCKET)):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            found.parent.rmdir()
    for path in (place, place.with_name(HEALTH_SOCKET)):
        path.unlink(missing_ok=True)


def client_command(*words: str) -> list[str]:
    """Writes the command line of another process of this client, with this one's interpreter."""
    return [sys.executable, *(("-P",) if sys.flags.safe_path else ()), "-m", "client_service", *words]


class ChildProcess:
    """A child process that is started again whenever it ends.

    The wait before a start grows while processes end soon. word: stands behind `python -m client_service` in the
    command line. settings: descriptor of `keep_settings`. forks: forks the processes, which are of its kind; where it
    is None or has ended, a new interpreter is started.
    """

    def __init__(self, name: str, word: str, settings: int, forks: ForkServer | None = None) -> None:
        self.name, self._settings, self._forks = name, settings, forks
        self._command = client_command(word, f"{SETTINGS_FILE}{settings}", ENDS_WITH_PARENT)
        self._process: asyncio.subprocess.Process | ForkedProcess | None = None
        self._ending = False
        self.is_ready, self.has_started = False, False  # the present process; any process so far
        self.refused: int | None = None  # the exit code of a server whose first trainer cannot start
        self.reason = ""  # the child's own words on why it cannot start

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def keep(self) -> None:
        """Keeps a child running until cancelled.

        Where the first child's exit code says that no other could start either, this process is asked to end.
        """
        wait, loop = FIRST_WAIT_SECONDS, asyncio.get_running_loop()
        while not self._ending:
            began = loop.time()
            try:
                code = await self._run()
            except OSError as error:  # no memory for another process now, for one
                code, self.reason = FAILED, f"expected to start another process ({error.strerror})"
            if self._ending:
                return
            if code in REFUSALS and not self.has_started:
                self.refused = REFUSALS[code]
                os.kill(os.getpid(), signal.SIGTERM)
                return
            stable = loop.time() - began > STABLE_SECONDS
            LOGGER.warning(f"{self.name}_ended", code=code, starts_again_after=wait, **self._end_reason())
            await asyncio.sleep(wait)
            wait = FIRST_WAIT_SECONDS if stable else min(2 * wait, LONGEST_WAIT_SECONDS)

    def _end_reason(self) -> dict[str, str]:
        return {"reason": self.reason} if self.reason else {}

    def end(self) -> None:
        """Asks the child to end; no other is started."""
        self._ending = True
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.terminate()

    def kill(self) -> None:
        """Kills the present child; another one is started."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def _run(self) -> int:
        """Runs one child process, and returns its exit status.

        On cancellation the child is asked to end, and killed where it does not within GRACE_SECONDS.
        """
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        telling = os.dup(theirs)
        try:
            self._process = process = await self._start(theirs, telling)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
            os.close(telling)
        waiting = asyncio.create_task(self._note_ready(ours))
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)  # it ends: the pipe is closed with the process
            os.close(ours)
            self.is_ready = False
            if process.returncode is None:
                await self._end(process)

    async def _start(self, ready: int, refusal: int) -> asyncio.subprocess.Process | ForkedProcess:
        """Starts one child process, which inherits these descriptors of pipes."""
        if self._forks is not None and not self._forks.has_ended:
            return await self._forks.start(ready, refusal)
        return await asyncio.create_subprocess_exec(
            *(*self._command, f"{REFUSAL}{refusal}"),
            stdin=asyncio.subprocess.PIPE,
            pass_fds=(self._settings, ready, refusal),
            env=os.environ | {READY_PIPE: str(ready)},
        )

    async def _note_ready(self, pipe: int) -> None:
        """Waits until the child says that it is ready, or why it cannot start."""
        loop, come = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(pipe, come.set)
        try:
            await come.wait()
        finally:
            loop.remove_reader(pipe)
        said = os.read(pipe, LONGEST_REASON)
        self.is_ready = said == READY_WORD
        self.has_started |= self.is_ready
        self.reason = "" if self.is_ready else said.decode(errors="replace")

    async def _end(self, process: asyncio.subprocess.Process | ForkedProcess) -> None:
        self.end()
        try:
            async with asyncio.timeout(GRACE_SECONDS):
                await process.wait()
        except TimeoutError:
            LOGGER.warning(f"{self.name}_killed", after=GRACE_SECONDS)
            process.kill()
            await process.wait()
