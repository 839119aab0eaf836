"""The processes that a server starts beside itself: the trainer, and further servers at its port.

Each gets its settings by a file without a name, so that no secret is in a command line or an environment, is started
again after growing waits where it ends, and ends with the server, also where that one is killed.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr

from client_service.runtime.logs import LOGGER
from shared.errors import FederationError, SettingsError
from shared.web.health import READY_PIPE, READY_WORD, TETHERED

TRAINER, SERVER = "--trainer", "--server"
REFUSAL = "--refusal-descriptor="  # to which a child writes why it cannot start
LONGEST_REASON = 4096  # bytes; a pipe takes so many at once
SETTINGS_FILE, TRAINER_FILE = "--settings-descriptor=", "--trainer-descriptor="  # of a server, and of its trainer
BAD_SETTINGS, FAILED = 2, 1  # exit codes that whoever starts a client knows
REFUSALS = {78: BAD_SETTINGS, 65: FAILED}  # a trainer's own: of mistakes in settings or data, which no restart mends
NICENESS = 10  # of the trainer: a server that shares its cores answers first; at 19 others could keep it from rounds
GRACE_SECONDS = 10.0  # for a process that was asked to end
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 60.0  # before a process that has ended is started again
STABLE_SECONDS = 60.0  # one that ran for so long is started again without a longer wait
SOCKET = "trainer.sock"  # in the state directory
LONGEST_SOCKET = 100  # bytes of a socket's path; the system takes 107, on some systems 103
DIE_WITH_PARENT = 1  # of Linux's prctl


def keep_settings(settings: BaseModel) -> int:
    """The descriptor of a file in memory with these settings, secrets as they are, which children inherit.

    Of what was never set nothing is said: some settings mean something by being there at all.
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
    """What `keep_settings` has written, in a process that was started with its descriptor."""
    found: dict[str, Any] = json.loads(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
    os.set_inheritable(descriptor, False)
    return found


def refusal_code(error: FederationError) -> int:
    """The exit code by which a trainer tells its server of a mistake in settings or data."""
    wanted = BAD_SETTINGS if isinstance(error, SettingsError) else FAILED
    return next(code for code, meaning in REFUSALS.items() if meaning == wanted)


def tell_refusal(descriptor: int | None, error: FederationError) -> bool:
    """Tell the process that has started this one why this one cannot start; False where nobody listens any more."""
    if descriptor is None:
        return False
    try:
        os.write(descriptor, str(error).encode()[:LONGEST_REASON])
    except OSError:
        return False
    return True


def end_at_once_with_parent() -> None:
    """Be killed where the process that started this one is gone: what is on the disk is good at any moment.

    By the system where it can; and else once the other end of standard input is closed.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)

    def wait() -> None:
        if not os.read(0, 1):
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="tether", daemon=True).start()


def choose_socket(state: Path) -> Path:
    """Where the trainer is to listen: in the state directory, or where that path is too long in a private folder of its
    own, to which a link in the state directory leads. Called by whoever holds the directory's lock."""
    place = state.absolute() / SOCKET
    _remove(place)
    if len(os.fsencode(place)) <= LONGEST_SOCKET:
        return place
    found = Path(tempfile.mkdtemp(prefix="lpsfed-")) / SOCKET
    place.symlink_to(found)
    return found


def find_socket(state: Path) -> Path:
    """Where the trainer listens, if it does."""
    place = state.absolute() / SOCKET
    return place.readlink() if place.is_symlink() else place


def _remove(place: Path) -> None:
    """A socket that an earlier trainer has left, and the folder that was made for it."""
    if place.is_symlink():
        found = place.readlink()
        found.unlink(missing_ok=True)
        with suppress(OSError):
            found.parent.rmdir()
    place.unlink(missing_ok=True)


def client_command(*words: str) -> list[str]:
    """The command line of another process of this client, by the interpreter of this one."""
    return [sys.executable, *(("-P",) if sys.flags.safe_path else ()), "-m", "client_service", *words]


class ChildProcess:
    """One process after another, each after a longer wait than the last where they end soon.

    word: of its command line after `python -m client_service`. settings: see `keep_settings`.
    """

    def __init__(self, name: str, word: str, settings: int) -> None:
        self.name, self._settings = name, settings
        self._command = client_command(word, f"{SETTINGS_FILE}{settings}", TETHERED)
        self._process: asyncio.subprocess.Process | None = None
        self._ending = False
        self.is_ready, self.has_started = False, False  # is the one of now ready, and was there any that was?
        self.refused: int | None = None  # the exit code of a server whose first trainer cannot start
        self.reason = ""  # in its words

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def keep(self) -> None:
        """Until cancelled, or until the first one says that no other would start either: then this process is asked to
        end."""
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
            LOGGER.warning(f"{self.name}_ended", code=code, starts_again_after=wait, **self._why())
            await asyncio.sleep(wait)
            wait = FIRST_WAIT_SECONDS if stable else min(2 * wait, LONGEST_WAIT_SECONDS)

    def _why(self) -> dict[str, str]:
        return {"reason": self.reason} if self.reason else {}

    def end(self) -> None:
        """Ask it to end; no other is started."""
        self._ending = True
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.terminate()

    def kill(self) -> None:
        """End the one of now at once; another one is started."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def _run(self) -> int:
        """Its exit status. Cancelled, it is asked to end, and killed where it does not."""
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        telling = os.dup(theirs)
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *(*self._command, f"{REFUSAL}{telling}"),
                stdin=asyncio.subprocess.PIPE,
                pass_fds=(self._settings, theirs, telling),
                env=os.environ | {READY_PIPE: str(theirs)},
            )
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
            await asyncio.gather(waiting, return_exceptions=True)  # the pipe has an end where the process has
            os.close(ours)
            self.is_ready = False
            if process.returncode is None:
                await self._end(process)

    async def _note_ready(self, pipe: int) -> None:
        """Wait for the word of a process that is ready."""
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

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        self.end()
        try:
            async with asyncio.timeout(GRACE_SECONDS):
                await process.wait()
        except TimeoutError:
            LOGGER.warning(f"{self.name}_killed", after=GRACE_SECONDS)
            process.kill()
            await process.wait()
