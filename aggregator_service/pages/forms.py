"""Forms of the operator's page.

Start a run, with the last run's values, and cancel it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from fastapi import Request
from pydantic import ValidationError

from shared.errors import ForbiddenError, MediaTypeError, ProtocolError, SettingsError
from shared.faults import describe_fault, describe_safely
from shared.method.declaration import TRAINING, Part
from shared.method.settings import MethodSettings, override_settings
from shared.protocol.schemas import RunHistoryOut, RunIn
from shared.sums import describe_part, is_basis, list_sums, method_of_part
from shared.sums.common_items import ITEMS
from shared.sums.sum import BASIS
from shared.web.credentials import is_same_secret
from shared.web.request_bodies import read_body
from shared.web.routes import FORM

LONGEST_FORM = 16 << 10  # bytes
CONTEXT = b"forms of the operator's page"


def form_guard(operator_token: str) -> str:
    """Computes the guard of the page's forms from the operator's token (against cross-site requests)."""
    return hmac.new(operator_token.encode(), CONTEXT, hashlib.sha256).hexdigest()


async def read_form(request: Request, operator_token: str) -> dict[str, str]:
    """Reads the fields of a form of this page; raises ForbiddenError for any other form."""
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise ForbiddenError("expected a form of the operator's page, got one of another site")
    if request.headers.get("content-type", "").partition(";")[0].strip() != FORM:
        raise MediaTypeError(f"expected a form as {FORM}, got another type")
    fields = _parse_form(await read_body(request, LONGEST_FORM))
    if not is_same_secret(fields.pop("guard", ""), form_guard(operator_token)):
        raise ForbiddenError("expected a form of the operator's page, got one without its guard: load the page again")
    return fields


def _parse_form(body: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, strict_parsing=True, max_num_fields=16)
    except ValueError:
        raise ProtocolError("expected the fields of a form, got something else") from None
    if len(fields := dict(pairs)) < len(pairs):
        raise ProtocolError("expected each field of the form once, got one twice")
    return fields


NUMBERS = ("clients", "rounds", "quorum", "deadline_seconds", "seed")
BASIS_FIELDS = {"basis_kind": "kind", "basis_rank": "rank", "basis_rounds": "rounds"}
FIELDS = (*NUMBERS, "settings", "part", *BASIS_FIELDS)
ALIASES = {"method": "settings", "basis": "basis_kind"}  # the service's names of these fields
OFF, ITERATED = "off", "iterated"
# Where a refusal names a field: `quorum: ...`, `method (width): ...`, `method.basis.kind: ...`.
NAMED = re.compile(rf"(?:^|; )(?=({'|'.join([*FIELDS, *ALIASES])})(?:[.(][^:;]*| \([^:;]*)?: )")


@dataclass(frozen=True)
class StartForm:
    """Content of the form that starts a run: each field as text.

    like: run that it repeats, if any. kinds: of a common basis that may be chosen; none where the federation has
    none. parts: of the federation's work, each with a description. usual: by field, the value of an empty field.
    """

    values: Mapping[str, str]
    like: str | None
    kinds: tuple[str, ...]
    parts: tuple[tuple[Part, str], ...]
    usual: Mapping[str, str]


def fill_start_form(
    runs: list[RunHistoryOut], joined: int, declared: MethodSettings, *, trains: bool = True
) -> StartForm:
    """Fills the form with the last run's request, or with defaults for the first run.

    The first run has all clients that have joined, and makes sums where the federation declares some. declared: the
    federation's own settings. trains: whether it has runs that train.
    """
    last = runs[-1] if runs else None
    request = RunIn(clients=max(joined, 2), method=declared) if last is None else last.request
    order: tuple[Part, ...] = (*_list_choices(declared), *((TRAINING,) if trains else ()))
    basis_last = request.part in (TRAINING, BASIS) and last is not None
    chosen = request.method.basis.kind if basis_last else method_of_part(declared, BASIS).basis.kind
    values = {name: "" if (value := getattr(request, name)) is None else f"{value:.15g}" for name in NUMBERS}
    values |= {"settings": "\n".join(_changed_lines(request.method, declared)), "part": _next_part(last, order)}
    values |= {"basis_kind": chosen} | dict.fromkeys(("basis_rank", "basis_rounds"), "")
    if chosen == ITERATED and basis_last:
        basis = request.method.basis
        values |= {name: f"{getattr(basis, of)}" for name, of in BASIS_FIELDS.items() if of != "kind"}
    if request.part != TRAINING:
        enough = declared.strategy.get("train") is False  # one round of closed forms
        values["rounds"] = f"{1 if enough else RunIn().rounds}"  # a run that sums takes its rounds from its sum
    own = method_of_part(declared, BASIS).basis
    usual = {name: f"{getattr(own, of)}" for name, of in BASIS_FIELDS.items()}
    kinds = () if own.kind == OFF else (OFF, own.kind)
    parts = tuple((part, "trains" if part == TRAINING else f"sums {describe_part(part)}") for part in order)
    return StartForm(values, None if last is None else last.run, kinds, parts, usual)


def _list_choices(declared: MethodSettings) -> tuple[Part, ...]:
    """Lists the parts that runs may sum.

    With a list of common items there is one basis, of the kind that the list chooses.
    """
    sums = list_sums(declared)
    if ITEMS not in sums:
        return tuple(sums)
    return (*(part for part, one in sums.items() if not is_basis(one)), BASIS)


def _next_part(last: RunHistoryOut | None, order: Sequence[Part]) -> Part:
    """Returns the part that follows the last run's; the last part repeats."""
    if last is None:
        return order[0]
    part = BASIS if last.request.part != TRAINING and is_basis(last.request.method.basis) else last.request.part
    return order[min(order.index(part) + 1, len(order) - 1)] if part in order else order[-1]


def _changed_lines(method: MethodSettings, declared: MethodSettings) -> Iterator[str]:
    """Yields the run's settings that differ from the federation's and have no own field."""
    ours, theirs = (dict(_flatten(one.model_dump(mode="json"))) for one in (declared, method))
    own = {"catalogue", *(f"basis.{name}" for name in BASIS_FIELDS.values())}
    for name, value in theirs.items():
        if name not in own and value is not None and ours.get(name) != value:
            yield f"{name}={str(value).lower() if isinstance(value, bool) else value}"


def _flatten(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yields settings by dotted name; groups come after plain values."""
    plain = {name: value for name, value in values.items() if not isinstance(value, Mapping)}
    yield from ((before + name, value) for name, value in plain.items())
    for name in values.keys() - plain.keys():
        yield from _flatten(values[name], f"{before}{name}.")


def read_start(fields: Mapping[str, str], runs: list[RunHistoryOut], declared: MethodSettings) -> RunIn:
    """Reads the requested run from the form's fields.

    Raises ProtocolError that names each bad field and the expected value.
    """
    if others := sorted(set(fields) - set(FIELDS)):
        raise ProtocolError(f"expected the fields {', '.join(FIELDS)}, got {len(others)} more")
    typed = {name: value.strip() for name, value in fields.items() if value.strip()}
    method = _read_method(typed, declared)
    before = {} if not runs else {"changing_members": runs[-1].request.changing_members}
    asked = {name: typed[name] for name in (*NUMBERS, "part") if name in typed}
    try:
        return RunIn.model_validate({**before, **asked, "method": method})
    except ValidationError as error:
        said = [f"{one['loc'][0]}: {describe_fault(one, describe_safely)}" for one in error.errors()]
        raise ProtocolError("; ".join(said)) from None


def _read_method(typed: Mapping[str, str], declared: MethodSettings) -> MethodSettings:
    changes, part = _read_pairs(typed.get("settings", "")), typed.get("part", TRAINING)
    if part not in (TRAINING, BASIS):
        return _read_method_of_part(changes, declared, part)
    if ITEMS in list_sums(declared):
        return _read_method_over_list(changes, declared)
    basis = _read_basis(typed, declared, noised="basis.epsilon" in changes)
    try:
        return override_settings(declared.model_dump(), changes | basis)
    except SettingsError as error:
        raise ProtocolError(f"settings: {error}") from None


def _read_method_over_list(changes: Mapping[str, str], declared: MethodSettings) -> MethodSettings:
    """Reads settings of a run whose sum follows from the common items."""
    try:
        method = override_settings(declared.model_dump(), changes)
        own = {} if method.basis.kind == OFF and "basis.kind" not in changes else {"basis": method.basis}
        return MethodSettings.model_validate(method.model_dump(exclude={"basis", "sums", "catalogue"}) | own)
    except SettingsError as error:
        raise ProtocolError(f"settings: {error}") from None


def _read_method_of_part(changes: Mapping[str, str], declared: MethodSettings, part: Part) -> MethodSettings:
    """Reads settings of a run that makes the sum declared for this part."""
    if part not in (known := list_sums(declared)):
        raise ProtocolError(
            f"part: expected {' or '.join((TRAINING, *known))}, as this federation declares, got {part}"
        )
    try:
        return override_settings(method_of_part(declared, part).model_dump(), changes)
    except SettingsError as error:
        raise ProtocolError(f"settings: {error}") from None


def _read_pairs(text: str) -> dict[str, str]:
    """Parses one setting per line, with or without `--set` before it."""
    lines = [line.strip().removeprefix("--set ").strip() for line in text.splitlines() if line.strip()]
    pairs = [(name.strip(), mark, value.strip()) for name, mark, value in (line.partition("=") for line in lines)]
    if wrong := [line for line, (name, mark, _) in zip(lines, pairs, strict=True) if not name or not mark]:
        raise ProtocolError(f"settings: expected key=value on each line, got {wrong[0]!r}")
    if twice := [name for name, count in Counter(name for name, _, _ in pairs).items() if count > 1]:
        raise ProtocolError(f"settings: expected each setting once, got {twice[0]!r} twice")
    return {name: value for name, _, value in pairs}


def _read_basis(typed: Mapping[str, str], declared: MethodSettings, *, noised: bool) -> dict[str, str]:
    """Reads the settings of the common basis; sizes left empty are the declared ones."""
    kind, own = typed.get("basis_kind", OFF), method_of_part(declared, BASIS).basis.kind
    needed = typed.get("part") == BASIS
    if own == OFF and (kind != OFF or needed):
        raise ProtocolError("basis_kind: expected off, because this federation declares no common basis")
    if kind not in (OFF, own):
        raise ProtocolError(f"basis_kind: expected off or {own}, as this federation has declared, got {kind}")
    if needed and kind == OFF:
        raise ProtocolError(f"basis_kind: expected {own} for a basis run, got off")
    for name in ("basis_rank", "basis_rounds"):
        if name in typed and kind != ITERATED and not (noised and name == "basis_rank"):
            raise ProtocolError(f"{name}: expected only with an iterated basis, got {kind}")
    return {"basis.kind": kind} | {f"basis.{of}": typed[name] for name, of in BASIS_FIELDS.items() if name in typed}


def errors_by_field(refusal: str) -> dict[str, str]:
    """Splits a refusal into the messages of single fields."""
    starts = [*NAMED.finditer(refusal)]
    ends = [*(one.start() for one in starts), len(refusal)][1:]
    found: dict[str, str] = {}
    for one, end in zip(starts, ends, strict=True):
        said, name = refusal[one.end() : end], ALIASES.get(one[1], one[1])
        found.setdefault(name, said.removeprefix(f"{name}: "))
    return found
