"""A silo's own result of a run: alone against together. It is sent nowhere.

The silo's client evaluates the run, and is asked with its operator's key.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from client_service.evaluation.metrics import LABELS, SESSION_LABELS
from client_service.evaluation.node_measures import NODE_LABELS
from client_service.settings import read_settings_file
from shared.errors import ConflictError, FederationError, ProtocolError, SettingsError, UnavailableError
from shared.message import Message
from shared.protocol.signing.keys import raw_hex
from shared.protocol.signing.members import read_registry
from shared.words import count_noun
from simulation.operating.silo_client import DEFAULT_PORT
from simulation.operating.text_files import read_small_file
from simulation.progress import step

if TYPE_CHECKING:
    from client_service.federation.messages import QualityOut

Answer = TypeVar("Answer", bound=Message)
CALL_SECONDS = 30.0
PATIENCE_SECONDS = 900.0  # a large silo judges for minutes
POLL_SECONDS = 0.5
FIRST_CALL_SECONDS = 15.0  # of a client that has just started
BEFORE_FIRST_CALL = ("starting", "joining")
NODE_MEASURES = {label.title for label in NODE_LABELS.values()}


@dataclass(frozen=True)
class SiloAccess:
    """Address and operator key of a silo's client.

    aggregator: public key of its aggregator, in hexadecimal; None if it has pinned none. aggregator_url: as its
    settings have it, if they do.
    """

    file: Path
    name: str
    url: str
    key: str | None = field(repr=False)
    aggregator: str | None
    aggregator_url: str | None = None


@dataclass(frozen=True)
class SiloWorth:
    """A silo's measure, alone and together, of its last run on its users' test items.

    ratio: together over alone as (low, middle, high) of a 95 % interval; None for too few users.
    """

    silo: str
    run: str
    measure: str
    users: int
    few: bool
    alone: float
    together: float
    ratio: tuple[float, float, float] | None

    def to_json(self) -> dict[str, Any]:
        """Returns the fields by name."""
        return asdict(self)

    @property
    def line(self) -> str:
        """Description in one line."""
        text = f"{self.silo}: {self.measure} alone {self.alone:.4f}, together {self.together:.4f}"
        if self.ratio is not None:
            low, mid, high = self.ratio
            text += f", x {mid:.3f} [{low:.3f}, {high:.3f}]"
        few = ": too few to say much" if self.few else ""
        one = "evaluated node" if self.measure in NODE_MEASURES else "evaluated user"
        return f"{text} ({self.run}, {count_noun(self.users, one)}{few})"


def read_access(file: Path) -> SiloAccess:
    """Reads a silo's settings file. Raises SettingsError for another file, or an unreadable key."""
    if not file.is_file():
        raise SettingsError(
            f"--silo: expected the settings of a silo, as `lpsfed join` writes them, got no file {file}"
        )
    values = read_settings_file(file)
    if not isinstance(name := values.get("name"), str):
        raise SettingsError(f"--silo: expected the settings of a silo with its name, got none in {file}")
    key = values.get("operator_key_file")
    scheme = "https" if values.get("tls_certificate") else "http"
    return SiloAccess(
        file,
        name,
        f"{scheme}://127.0.0.1:{values.get('port', DEFAULT_PORT)}",
        None if key is None else read_small_file(Path(str(key)), "the silo's operator key"),
        _pinned_key(values),
        values.get("aggregator_url"),
    )


def _pinned_key(values: Mapping[str, Any]) -> str | None:
    if values.get("aggregator_key") or not values.get("members"):
        return values.get("aggregator_key")
    return raw_hex(read_registry(Path(str(values["members"]))).aggregator)


def choose_aggregator_url(given: str | None, accesses: Sequence[SiloAccess], usual: str) -> str:
    """Returns the given URL of the aggregator, else that of the silos' settings.

    Raises SettingsError for silos whose settings name several.
    """
    urls = sorted({one.aggregator_url for one in accesses if one.aggregator_url is not None})
    if given is None and len(urls) > 1:
        raise SettingsError(f"--silo: expected silos of one aggregator, or --aggregator-url, got {', '.join(urls)}")
    return given or (urls[0] if urls else usual)


def require_members(accesses: Sequence[SiloAccess], aggregator: str, names: Collection[str]) -> None:
    """Raises SettingsError for a silo of another federation or with an unknown name.

    aggregator: public key of the aggregator. names: of its clients.
    """
    for access in accesses:
        if access.aggregator not in (None, aggregator):
            raise SettingsError(
                f"--silo: expected a silo of this federation, {access.file} is one of another aggregator"
            )
        if access.name not in names:
            raise SettingsError(f"--silo: expected a silo of this federation, got {access.name!r} of {access.file}")


def fetch_worth(access: SiloAccess, ca: Path | None = None) -> SiloWorth:
    """Fetches the result of the last run, and waits while the silo evaluates it.

    Raises ConflictError if no run has ended there, and UnavailableError for a client that does not answer.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    with step(f"waiting for {access.name} to judge its last run"):
        while not (quality := _fetch_quality(access, ca)).finished:
            if not _is_evaluating(access, ca, quality) or time.monotonic() > until:
                break
            time.sleep(POLL_SECONDS)
    if (found := _build_worth(access.name, quality)) is None:
        raise ConflictError(
            f"{access.name}: expected a run that has ended and test items to judge it by, got none so far"
        )
    return found


def _is_evaluating(access: SiloAccess, ca: Path | None, quality: QualityOut) -> bool:
    """Tells whether the silo is in the last round of this result's run."""
    from client_service.federation.messages import StatusOut

    status = _fetch(access, ca, "/v1/status", StatusOut)
    return quality.run is not None and status.run == quality.run and 0 < status.rounds <= status.round


def wait_for_first_call(access: SiloAccess) -> str | None:
    """Returns the problem of a started client's first call to its aggregator, if any.

    None also where its status cannot be read, or no call has ended within FIRST_CALL_SECONDS.
    """
    from client_service.federation.messages import StatusOut

    until = time.monotonic() + FIRST_CALL_SECONDS
    with step(f"waiting for the first call of {access.name} to its aggregator"):
        while time.monotonic() < until:
            try:
                status = _fetch(access, None, "/v1/status", StatusOut)
            except FederationError:
                return None
            if status.problem is not None or status.phase not in BEFORE_FIRST_CALL:
                return status.problem
            time.sleep(POLL_SECONDS)
    return None


def wait_for_worth(access: SiloAccess, run: str, ca: Path | None = None) -> SiloWorth:
    """Waits until the silo has evaluated this run.

    Raises FederationError if that takes more than PATIENCE_SECONDS.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    with step(f"waiting for {access.name} to judge the run"):
        while True:
            quality = _fetch_quality(access, ca)
            if quality.run == run and quality.finished:
                return fetch_worth(access, ca)
            if time.monotonic() > until:
                expected = f"expected a silo that has judged {run} within {PATIENCE_SECONDS:g} s"
                raise FederationError(
                    f"{access.name}: {expected}, got {quality.run or 'no run'}: see its page, {access.url}"
                )
            time.sleep(POLL_SECONDS)


def _fetch_quality(access: SiloAccess, ca: Path | None) -> QualityOut:
    from client_service.federation.messages import QualityOut

    found = _fetch(access, ca, "/v1/quality", QualityOut)
    if found.client != access.name:
        raise ProtocolError(f"{access.url}: expected the client of {access.name}, got that of {found.client}")
    return found


def _fetch(access: SiloAccess, ca: Path | None, path: str, message: type[Answer]) -> Answer:
    import httpx
    from pydantic import ValidationError

    from shared.web.outgoing import OutgoingTls, describe_call_failure

    headers = {} if access.key is None else {"Authorization": f"Bearer {access.key}"}
    try:
        with httpx.Client(
            headers=headers, trust_env=False, verify=OutgoingTls(ca).context, timeout=CALL_SECONDS
        ) as http:
            answer = http.get(f"{access.url}{path}")
    except httpx.TransportError as error:
        raise UnavailableError(
            f"{access.url}: expected the client of {access.name}, got {describe_call_failure(error)}"
        ) from None
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        words = f"expected the operator key of {access.name}, it refuses the one that {access.file} names"
        raise FederationError(f"{access.url}: {words}")
    try:
        return message.model_validate_json(answer.content)
    except ValidationError:
        raise ProtocolError(f"{access.url}: expected the client of {access.name}, got another answer") from None


def _build_worth(name: str, quality: QualityOut) -> SiloWorth | None:
    compared = quality.comparison
    if not quality.finished or quality.run is None or compared is None or not compared.groups:
        return None
    whole = compared.groups[0]
    ratio = None if whole.ratio is None else (whole.ratio.low, whole.ratio.mean, whole.ratio.high)
    titles = {label.key: label.title for label in (*LABELS.values(), *SESSION_LABELS.values(), *NODE_LABELS.values())}
    measure = titles.get(compared.measure, compared.measure)
    return SiloWorth(
        name, quality.run, measure, whole.users, compared.few, whole.alone.mean, whole.federated.mean, ratio
    )
