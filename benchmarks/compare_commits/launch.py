"""Launcher of command lines in the tree that PYTHONPATH names.

python -P launch.py MODULE:FUNCTION [MODULE ...]
"""

from __future__ import annotations

import hashlib
import json
import os
import pkgutil
import secrets
import signal
import sys
import time
import traceback
from collections.abc import Callable
from itertools import count
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

LONGEST_SECONDS = 240  # of one command; SIGALRM then ends its process


def main() -> None:
    """Serves commands until stdin ends."""
    entry, *_ = [pkgutil.resolve_name(name) for name in sys.argv[1:]]
    _write_message({"file": sys.modules[entry.__module__].__file__})
    for line in sys.stdin:
        command = json.loads(line)
        began = time.perf_counter()
        status = _run_command(entry, command["arguments"], Path(command["folder"]), repeatable=command["repeatable"])
        _write_message({"status": status, "seconds": time.perf_counter() - began})


def _run_command(entry: Callable[[], object], arguments: list[str], folder: Path, *, repeatable: bool) -> int:
    """Runs one command; returns its exit status, negative for a signal."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.alarm(LONGEST_SECONDS)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), descriptor)
    if repeatable:
        fix_secrets()
    sys.argv = ["command", *arguments]
    os._exit(_exit_status(entry))


def fix_secrets() -> None:
    """Makes key pairs and secret bytes repeatable; tokens stay random."""
    numbers = count()

    def generate_key(cls: type[Ed25519PrivateKey]) -> Ed25519PrivateKey:
        return cls.from_private_bytes(hashlib.sha256(f"key pair {next(numbers)}".encode()).digest())

    Ed25519PrivateKey.generate = classmethod(generate_key)  # type: ignore[assignment, method-assign]
    secrets.token_hex = lambda nbytes=None: os.urandom(nbytes or 32).hex()
    secrets.token_bytes = lambda nbytes=None: hashlib.shake_256(b"secret").digest(nbytes or 32)


def _exit_status(entry: Callable[[], object]) -> int:
    status = 0
    try:
        entry()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 99
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _write_message(message: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
