"""`lpsfed members`: a federation's public keys, and a silo's consent to new members."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shared.errors import ConflictError, FederationError, NotFoundError, ProtocolError, SettingsError, UnavailableError
from simulation.cli.options import AsJson, Authority, print_json
from simulation.reports.terminal import OUT, print_on_stderr, word_table

if TYPE_CHECKING:
    import httpx

    from client_service.secure_rounds.members import AcceptedMembersIn, MemberKeyOut, MembersOut
    from shared.protocol.signing.members import Registry

MembersFile = Annotated[Path, typer.Argument(help="File of members")]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Manages the file of pinned public keys, and a silo's consent to new members.",
)


@app.command()
def write(
    file: MembersFile,
    keys: Annotated[Path, typer.Option(help="Folder of the clients' public keys, NAME.pub")],
    aggregator: Annotated[
        Path, typer.Option(help="The aggregator's public key: aggregator.pub in its state directory")
    ],
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing file")] = False,
    as_json: AsJson = False,
) -> None:
    """Writes the file of members from these keys.

    Compare its fingerprint with the other operators before a client uses it.
    """
    from shared.protocol.signing.enrolment import registered_files
    from shared.protocol.signing.members import read_registry, write_registry

    if file.exists() and not replace:
        raise ConflictError(f"{file}: expected no file there, got one; nothing was changed (--replace)")
    write_registry(file, aggregator, registered_files(keys))
    _print_members(file, read_registry(file), as_json=as_json)


@app.command()
def show(file: MembersFile, as_json: AsJson = False) -> None:
    """Shows the keys in a file, and the fingerprint by which silos compare their files."""
    from shared.protocol.signing.members import read_registry

    _print_members(file, read_registry(file), as_json=as_json)


@app.command()
def accept(
    names: Annotated[list[str] | None, typer.Argument(help="Names of new members (default: all that wait)")] = None,
    silo: Annotated[Path, typer.Option(help="The silo's settings, for its address and operator key")] = Path(
        "silo.toml"
    ),
    client_url: Annotated[str | None, typer.Option(help="URL of the client (default: by the silo's settings)")] = None,
    operator_key_file: Annotated[
        Path | None, typer.Option(help="File with the silo's operator key (default: by its settings)")
    ] = None,
    ca: Authority = None,
    yes: Annotated[bool, typer.Option("--yes", help="Accept without a question")] = False,
    as_json: AsJson = False,
) -> None:
    """Accepts new members of a secure federation. Compare their keys' fingerprints with their operators first.

    A silo that trusts on first use takes part in no sum with later members, or with new keys of known ones, until it
    accepts them.
    """
    from client_service.secure_rounds.members import AcceptedMembersIn, MembersOut

    with _open_client(silo, client_url, operator_key_file, ca) as http:
        found = MembersOut.model_validate(_ask(http, "GET"))
        chosen = _choose_new_members(found, names)
        if not as_json:
            _print_new_members(found, chosen)
        if chosen and (yes or _confirm()):
            keys = AcceptedMembersIn(keys={one.client: one.key for one in chosen})
            found = MembersOut.model_validate(_ask(http, "POST", keys))
            print_on_stderr(f"accepted: {', '.join(one.client for one in chosen)}")
    if as_json:
        print_json(found.model_dump(mode="json", exclude_none=True))


def _choose_new_members(found: MembersOut, names: list[str] | None) -> list[MemberKeyOut]:
    """Selects members that the silo has not accepted. Raises NotFoundError for other names."""
    open_ones = {one.client: one for one in (*found.members, *found.waiting) if not one.agreed}
    if unknown := [name for name in names or () if name not in open_ones]:
        waiting = ", ".join(sorted(open_ones)) or "none"
        raise NotFoundError(f"expected names that wait for this silo's consent ({waiting}), got {unknown[0]!r}")
    return [one for name, one in sorted(open_ones.items()) if not names or name in names]


def _print_new_members(found: MembersOut, chosen: list[MemberKeyOut]) -> None:
    if not chosen:
        return OUT.print("no new member waits for this silo's consent", soft_wrap=True)
    table = word_table("new member", "fingerprint of its key", whole=("fingerprint of its key",))
    for one in chosen:
        table.add_row(one.client, one.fingerprint)
    OUT.print(table)
    if found.refused is not None:
        OUT.print(f"{found.refused} waits for this consent", soft_wrap=True)


def _confirm() -> bool:
    if not sys.stdin.isatty():
        raise SettingsError("--yes: expected it without a terminal, got none; no member was accepted")
    return typer.confirm("Have their operators confirmed these fingerprints, and do they take part?")


def _open_client(silo: Path, url: str | None, key_file: Path | None, ca: Path | None) -> httpx.Client:
    import httpx

    from client_service.settings import read_settings_file
    from shared.web.outgoing import OutgoingTls
    from simulation.operating.silo_client import read_silo_address
    from simulation.operating.text_files import read_small_file

    values = read_settings_file(silo) if silo.is_file() else {}
    given = key_file or (Path(str(values["operator_key_file"])) if values.get("operator_key_file") else None)
    if url is None and not values:
        raise SettingsError(f"--silo: expected a silo's settings, or --client-url, got no file {silo}")
    key = None if given is None else read_small_file(given, "the silo's operator key")
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    address = url or read_silo_address(silo).url
    return httpx.Client(
        base_url=address, headers=headers, trust_env=False, verify=OutgoingTls(ca).context, timeout=30.0
    )


def _ask(http: httpx.Client, method: str, body: AcceptedMembersIn | None = None) -> object:
    import httpx
    from pydantic import ValidationError

    from shared.protocol.problem import ProblemOut
    from shared.web.outgoing import describe_call_failure

    try:
        path = "/v1/members" if body is None else "/v1/members/accept"
        answer = http.request(method, path, json=None if body is None else body.model_dump())
    except httpx.TransportError as error:
        raise UnavailableError(
            f"{http.base_url}: expected the silo's client, got {describe_call_failure(error)}"
        ) from None
    if answer.is_success:
        return answer.json()
    try:
        detail = ProblemOut.model_validate_json(answer.content).detail
    except ValidationError:
        raise ProtocolError(f"{http.base_url}: expected a silo's client, got another answer") from None
    raise (ConflictError if answer.status_code == httpx.codes.CONFLICT else FederationError)(detail)


def _print_members(file: Path, registry: Registry, *, as_json: bool) -> None:
    from shared.protocol.signing.keys import fingerprint

    marks = {name: fingerprint(key) for name, key in sorted(registry.clients.items())}
    own = fingerprint(registry.aggregator)
    if as_json:
        return print_json({"fingerprint": registry.fingerprint(), "aggregator": own, "clients": marks})
    table = word_table("member", "fingerprint of its key", whole=("fingerprint of its key",))
    for name, mark in {"(aggregator)": own, **marks}.items():
        table.add_row(name, mark)
    OUT.print(table)
    OUT.print(f"{file}: fingerprint {registry.fingerprint()}", soft_wrap=True)
