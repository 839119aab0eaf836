"""`lpsfed keys`: key pairs of clients, and the aggregator's folder of public keys."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from shared.errors import ProtocolError, SettingsError
from simulation.cli import options
from simulation.cli.options import AsJson, print_json
from simulation.reports.terminal import OUT, print_on_stderr, word_table

if TYPE_CHECKING:
    from shared.protocol.signing.invitation import EnrolledOut
    from simulation.operating.operator_calls import Operator

SILOS_OF_PAGE, MOST_SILOS = 1000, 1_000_000
Registry = Annotated[
    Path, typer.Option("--keys", help="The aggregator's folder of public keys: LPSFED_AGGREGATOR_KEYS_DIRECTORY")
]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Manages clients' key pairs and the aggregator's registry of public keys.",
)


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Name of the client")],
    out: Annotated[Path, typer.Option(help="Folder for NAME.key, which stays with the client, and NAME.pub")],
    as_json: AsJson = False,
) -> None:
    """Makes a key pair for a client. An existing pair is kept."""
    from shared.protocol.signing.enrolment import make_key_pair
    from shared.protocol.signing.keys import fingerprint, read_public

    pair = make_key_pair(name, out)
    mark = fingerprint(read_public(pair.public))
    if as_json:
        described = {"name": name, "private": str(pair.private), "public": str(pair.public), "fingerprint": mark}
        return print_json(described)
    OUT.print(f"{pair.private}: private key; it stays with the client", soft_wrap=True)
    OUT.print(f"{pair.public}: to be registered, fingerprint {mark}", soft_wrap=True)


@app.command()
def register(
    public: Annotated[Path, typer.Argument(help="Public key: NAME.pub")], keys: Registry, as_json: AsJson = False
) -> None:
    """Registers a client's public key. A name with another key is an error."""
    from shared.protocol.signing.enrolment import public_file
    from shared.protocol.signing.enrolment import register_key_file as register_key
    from shared.protocol.signing.keys import fingerprint, read_public

    name = register_key(public, keys)
    mark = fingerprint(read_public(public_file(name, keys)))
    if as_json:
        return print_json({"name": name, "fingerprint": mark})
    OUT.print(f"{name}: registered, fingerprint {mark}", soft_wrap=True)


@dataclass(frozen=True)
class KeysPlace:
    """Flags of the place of keys: a folder, or an aggregator."""

    keys: Annotated[
        Path | None, typer.Option("--keys", help="The aggregator's folder of public keys (or --operator-token-file)")
    ] = None
    operator_token_file: Annotated[
        Path | None, typer.Option(help="File with the operator's token, for the keys that the aggregator keeps")
    ] = None
    aggregator_url: options.AggregatorUrl = options.DEFAULT_URL

    def require_one(self) -> None:
        """Raises SettingsError for both places, and for neither."""
        if (self.keys is None) == (self.operator_token_file is None):
            got = "neither" if self.keys is None else "both"
            raise SettingsError(f"expected --keys or --operator-token-file, got {got}: give one of them")


@app.command("list")
@options.spread_records
def show(*, place: KeysPlace, call: options.CallFlags, as_json: AsJson = False) -> None:
    """Lists the registered clients: of a folder, or all that an aggregator knows.

    With a database the aggregator knows more than its folder: keys that were registered by invitations.
    """
    from shared.protocol.signing.enrolment import registered_keys
    from shared.protocol.signing.keys import fingerprint
    from simulation.operating.operator_calls import open_operator

    place.require_one()
    marks: dict[str, str | None] = {}
    if place.operator_token_file is not None:
        with open_operator(place.aggregator_url, place.operator_token_file, call.make_tls()) as operator:
            marks = {one.name: one.fingerprint for one in _list_enrolments(operator)}
    elif place.keys is not None:
        if not place.keys.is_dir():  # the aggregator makes it with the first key
            print_on_stderr(f"--keys: expected the aggregator's folder of public keys, got no folder {place.keys}")
        marks = {name: None if key is None else fingerprint(key) for name, key in registered_keys(place.keys).items()}
    if as_json:
        return print_json([{"name": name, "fingerprint": mark} for name, mark in marks.items()])
    table = word_table("client", "fingerprint", whole=("fingerprint",))
    for name, mark in marks.items():
        table.add_row(name, mark or Text("not an Ed25519 public key: refused", "red"))
    OUT.print(table)


def _list_enrolments(operator: Operator) -> list[EnrolledOut]:
    """Lists every silo whose key is registered, page by page.

    Raises ProtocolError for pages that are not in the order of names, and for more silos than a federation has.
    """
    from pydantic import ValidationError

    from shared.protocol.signing.invitation import EnrolmentsOut
    from simulation.operating.operator_calls import call_as_operator

    found: list[EnrolledOut] = []
    while len(found) <= MOST_SILOS:
        after = f"&after={found[-1].name}" if found else ""
        answer = call_as_operator(operator, "GET", f"/v1/enrolments?limit={SILOS_OF_PAGE}{after}")
        try:
            page = EnrolmentsOut.model_validate(answer).entries
        except ValidationError:
            raise ProtocolError("expected registered silos from the aggregator, got another answer") from None
        if any(one.name >= two.name for one, two in pairwise((*found[-1:], *page))):
            raise ProtocolError("expected registered silos by name from the aggregator, got another order")
        if not page:
            return found
        found += page
    raise ProtocolError(f"expected at most {MOST_SILOS:,} registered silos, got more")


@app.command()
@options.spread_records
def remove(
    name: Annotated[str, typer.Argument(help="Name of the client")],
    *,
    place: KeysPlace,
    call: options.CallFlags,
    as_json: AsJson = False,
) -> None:
    """Removes a client's key: its next request is refused.

    An open invitation of this name ends too.
    """
    from shared.protocol.signing.enrolment import require_name
    from shared.protocol.signing.silo_registry import folder_registry
    from simulation.operating.operator_calls import call_as_operator, open_operator

    place.require_one()
    if place.operator_token_file is not None:
        with open_operator(place.aggregator_url, place.operator_token_file, call.make_tls()) as operator:
            call_as_operator(operator, "DELETE", f"/v1/enrolments/{require_name(name)}")
    elif place.keys is not None:
        folder_registry(place.keys).remove_silo(name)
    if as_json:
        return print_json({"name": name})
    OUT.print(f"{name}: removed")
