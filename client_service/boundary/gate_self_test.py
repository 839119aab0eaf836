"""Tests the running gate with forbidden messages, and computes digests of the code it runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np
from pydantic import Field
from safetensors.numpy import save

from client_service.boundary.gate import Boundary, GateTransport
from client_service.boundary.ledger import LEDGER, Ledger
from shared.errors import PrivacyError
from shared.message import Message
from shared.method.declaration import Declaration
from shared.method.parameters import STORED
from shared.protocol.request_heads import CONSTANT, USER_AGENT
from shared.protocol.schemas import JoinIn
from shared.protocol.wire import MEDIA_TYPE

CODE_PACKAGES = ("client_service", "shared", "httpx", "httpcore", "h11")
"""Packages whose code handles every request to the aggregator."""
STARTUP_FILES = ("sitecustomize.py", "usercustomize.py")
"""Modules that Python imports at its start, from any folder of its search path."""
CACHE_FOLDER = "__pycache__"


def package_folder(package: str) -> Path:
    """Returns the folder that this process loads a package from."""
    found = find_spec(package)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(package)
    return Path(found.origin).parent


def digest_folder(folder: Path) -> str:
    """Computes a digest over names and contents of all files below a folder."""
    whole = hashlib.sha256()
    for path in sorted(_files(folder), key=lambda one: one.relative_to(folder).as_posix()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        whole.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return whole.hexdigest()


def digest_code() -> dict[str, str]:
    """Computes the digests of the code that this process runs, by package."""
    return {package: digest_folder(package_folder(package)) for package in CODE_PACKAGES}


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and CACHE_FOLDER not in path.relative_to(folder).parts:
            yield path


WORD = "probe"
MODEL, OWN = "/v1/runs/run-1/model", "/v1/runs/run-1/rounds/1/clients"
FORBIDDEN = (
    "an undeclared tensor",
    "foreign dtypes",
    "no tensors at all",
    "ids as a body",
    "a join with a field more",
    "another client's name",
    "ids in a query",
    "ids in a path",
    "a header more",
    "ids in the user agent",
    "a signature of its own",
    "another destination",
    "an undeclared call",
)
"""Names of the requests that the gate must refuse."""
CONTROL = "control: a declared question"


@dataclass
class NullTransport(httpx.AsyncBaseTransport):
    """Transport that sends nothing and counts requests."""

    requests: int = field(default=0)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        del request
        self.requests += 1
        return httpx.Response(204, stream=httpx.ByteStream(b""))


class GateOut(Message):
    """Result of the gate's self-test, and digests of its code.

    Both are this client's own statement.
    """

    client: str = Field(description="the client's name", examples=["client-1"])
    verdicts: dict[str, str] = Field(
        description="by message, whether it was refused or passed", examples=[{"ids in a query": "refused"}]
    )
    code: dict[str, str] = Field(
        description="sha256 over the files of each package that handles requests",
        examples=[{"client_service": "9f" * 32}],
    )


async def check_gate(gate: GateTransport) -> dict[str, str]:
    """Sends forbidden messages and one allowed through a copy of the gate.

    Returns `refused` or `passed` by the message's name. Nothing leaves the silo.
    """
    with TemporaryDirectory(prefix="lpsfed-gate-") as folder:
        beneath = NullTransport()
        copy = gate.copy_for_test(beneath, Ledger(Path(folder) / LEDGER))
        return {name: await _try_request(copy, beneath, request) for name, request in _messages(gate.boundary)}


async def _try_request(copy: GateTransport, beneath: NullTransport, request: httpx.Request) -> str:
    before = beneath.requests
    try:
        await copy.handle_async_request(request)
    except PrivacyError:
        return "refused" if beneath.requests == before else "refused, but something was sent"
    return "passed"


def _messages(boundary: Boundary) -> Iterator[tuple[str, httpx.Request]]:
    def build_request(method: str, path: str, body: bytes | None = None, media: str = "", **more: str) -> httpx.Request:
        headers = {**CONSTANT, **({"content-type": media} if media else {})}
        headers |= {name.replace("_", "-"): value for name, value in more.items()}
        return httpx.Request(method, boundary.aggregator.join(path), headers=headers, content=body)

    update = f"{OWN}/{boundary.client}/update"
    for name, body in zip(FORBIDDEN, _bodies(boundary.declaration), strict=False):
        yield name, build_request("PUT", update, body, MEDIA_TYPE)
    join = JoinIn(client=boundary.client, declaration=boundary.declaration).model_dump_json().encode()
    others = (
        build_request("POST", "/v1/clients", join[:-1] + b',"probe":"probe"}', "application/json"),
        build_request("GET", f"{OWN}/another-client/personalized?wait=1"),
        build_request("GET", "/v1/runs/current?wait=user-1"),
        build_request("GET", "/v1/runs/user-1/model"),
        build_request("GET", MODEL, x_note=WORD),
        build_request("GET", MODEL, user_agent=f"{USER_AGENT}/{WORD}"),
        build_request("GET", MODEL, signature=f"sig1={WORD}"),
        build_request("GET", f"http://elsewhere.invalid{MODEL}"),
        build_request("GET", "/v1/runs"),
    )
    yield from zip(FORBIDDEN[4:], others, strict=True)
    yield CONTROL, build_request("GET", MODEL)


def _bodies(declaration: Declaration) -> tuple[bytes, ...]:
    declared = {spec.name: np.zeros(spec.shape, STORED[spec.dtype]) for spec in declaration.tensors}
    more = save({**declared, WORD: np.zeros(1)})
    foreign = save({name: value.astype(np.float64) for name, value in declared.items()} or {WORD: np.zeros(1)})
    return more, foreign, save({WORD: np.zeros(1)}), b"user-1,item-1"
