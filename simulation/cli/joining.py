"""`lpsfed invite` and `lpsfed join`: how a silo joins a federation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shared.errors import ConflictError, SettingsError
from shared.web.address import require_https
from simulation.cli import options
from simulation.reports.terminal import print_on_stderr

if TYPE_CHECKING:
    from shared.protocol.signing.invitation import FederationOut, Invitation, InvitationOut
    from simulation.datasets.columns import FileOptions
    from simulation.datasets.ratings import LeastRating
    from simulation.datasets.splits import SplitKind
    from simulation.graphs.read import GraphOptions
    from simulation.joining.join import SiloFolder
    from simulation.joining.silo_toml import AgreedSettings, SiloChoices
    from simulation.operating.operator_calls import Operator

Names = Annotated[list[str], typer.Argument(help="Names of the silos: a-z, 0-9, _ and -")]


@options.spread_records
def invite(
    names: Names,
    operator_token_file: options.OperatorToken,
    url: Annotated[
        str,
        typer.Option(show_default=False, help="URL of the aggregator, as the silos call it (default: this machine's)"),
    ] = options.DEFAULT_URL,
    days: Annotated[float, typer.Option(min=0.01, max=365, help="Days until an invitation expires")] = 7.0,
    out: Annotated[Path | None, typer.Option(help="Folder for NAME.invite (default: print it)")] = None,
    *,
    call: options.CallFlags,
    allow_http: options.AllowHttp = False,
) -> None:
    """Invites silos: writes an invitation for each, which registers one key under one name, once.

    Hand it over as you would a password.
    """
    from simulation.joining.invite import make_invitation
    from simulation.operating.operator_calls import open_operator
    from simulation.operating.text_files import read_small_file

    if out is None and len(names) > 1:
        raise SettingsError(f"--out: expected a folder for {len(names)} invitations, got none")
    require_https(url, allow_http=allow_http)
    authority = None if call.ca is None else read_small_file(call.ca, "a certificate")
    with open_operator(url, operator_token_file, call.make_tls()) as operator:
        answers: dict[str, InvitationOut] = {}
        try:
            for name in names:
                answers[name] = _invite_silo(operator, name, days)
        finally:  # a refused name does not revoke the other invitations
            members = tuple(sorted({name for one in answers.values() for name in one.members}))
            for name, one in answers.items():
                _output_invitation(
                    make_invitation(name, url, one.model_copy(update={"members": members}), authority), out
                )


def _output_invitation(made: Invitation, out: Path | None) -> None:
    from simulation.joining.invite import write_invitation

    if out is None:
        return typer.echo(made.model_dump_json(indent=1))
    path = write_invitation(made, options.ensure_folder(out))
    print_on_stderr(f"{path}: for {made.name} alone; it expires at {made.expires:%Y-%m-%d %H:%M} UTC")


def _invite_silo(operator: Operator, name: str, days: float) -> InvitationOut:
    from shared.method.settings import validate_settings
    from shared.protocol.signing.enrolment import require_name
    from shared.protocol.signing.invitation import InvitationIn, InvitationOut
    from simulation.operating.operator_calls import call_as_operator

    request = validate_settings(InvitationIn, {"name": require_name(name), "days": days})
    return InvitationOut.model_validate(
        call_as_operator(operator, "POST", "/v1/invitations", request.model_dump_json())
    )


def join(
    invitation: Annotated[Path, typer.Argument(help="NAME.invite from the operator")],
    data: Annotated[Path | None, typer.Option(help="The silo's own data: a file or a folder")] = None,
    folder: Annotated[Path | None, typer.Option(help="Folder for keys, shard and state (default: NAME)")] = None,
    min_rating: Annotated[
        float | None, typer.Option(help="Smallest rating that is positive (default: 4 of 5, 8 of 10, else any; 0: any)")
    ] = None,
    rating_kind: options.RatingKindChoice = None,
    split: options.SplitChoice = None,
    rule: options.Rules = None,
    columns: options.Columns = None,
    delimiter: options.Delimiter = None,
    edges: options.Edges = None,
    values: options.Values = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the client (default: the first free one from 8801)")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", help="What the silo allows, KEY=VALUE, as common_basis=secure; repeatable"),
    ] = None,
    catalogue: Annotated[
        Path | None, typer.Option(help="List of the shared items, if the federation needs one")
    ] = None,
    matches: Annotated[
        Path | None, typer.Option(help="Matches of own items to that list, of `lpsfed catalogue match`")
    ] = None,
    accept: Annotated[
        options.AcceptChoice | None,
        typer.Option(
            help="sums: masked statistics of the silo's data may leave; parameters: they may not (default: by --policy,"
            " else asked at a terminal)"
        ),
    ] = None,
    allow_http: options.AllowHttp = False,
    start: Annotated[bool, typer.Option(help="Serve the client after it has joined")] = True,
    detach: Annotated[bool, typer.Option("--detach", help="Serve in the background")] = False,
) -> None:
    """Joins a federation: makes keys, converts the data, registers, writes silo.toml and serves.

    The same command resumes a join that was interrupted. For a silo that has joined it only serves, unless --policy,
    --catalogue, --matches or --accept changes its part. A shard that is there is kept, and --data is not read.
    """
    from shared.protocol.signing.invitation import read_invitation
    from shared.sums import WORDS
    from simulation.joining.join import SiloFolder, replace_settings, require_same_silo
    from simulation.joining.silo_toml import SiloChoices, parse_policy, read_toml
    from simulation.ports import HOST, require_free_port

    reading: dict[str, object] = {
        "--data": data,
        "--edges": edges,
        "--min-rating": min_rating,
        "--rating-kind": rating_kind,
    }
    reading |= {"--split": split, "--rule": rule, "--columns": columns, "--delimiter": delimiter, "--values": values}
    parsed = read_invitation(invitation)
    silo = SiloFolder(folder or Path(parsed.name))
    _require_named_files({"--data": data, "--edges": edges, "--catalogue": catalogue, "--matches": matches}, silo)
    joined = silo.settings.exists()
    earlier = require_same_silo(parsed, silo) if joined else {}
    secure = parsed.federation is not None and parsed.federation.secure
    require_https(parsed.url, allow_http=allow_http or joined, secure=secure)
    if port is not None and port != earlier.get("port"):
        require_free_port(str(earlier.get("host", HOST)), port)
    own_policy = parse_policy(options.parse_pairs(policy or [], "--policy"))
    words = sorted(WORDS & own_policy.keys())
    if accept is not None and words:
        raise SettingsError(f"--accept: expected it or --policy {words[0]}, got both")
    allowed = {**earlier.get("policy", {}), **own_policy}
    if accept is options.AcceptChoice.parameters:
        allowed |= dict.fromkeys({"common_basis"} | (WORDS & allowed.keys()), "no")
    choices = SiloChoices(allowed, catalogue, matches, port)
    least = options.choose_min_rating(min_rating, rating_kind, "usual")
    files = options.FileFlags(columns=columns, delimiter=delimiter, edges=edges, values=values)
    told = tuple(flag for flag, value in reading.items() if value is not None and value != [])
    given = DataOptions(data, least, options.split_kind(split), rule or [], files, told)
    if not joined or policy or catalogue or matches or accept:
        _join_federation(parsed, silo, choices, given, options.AcceptChoice.parameters if words else accept)
    elif told:
        _prepare_shard(silo, parsed.name, given, parsed.federation)
    if port is not None and joined and port != earlier.get("port"):
        replace_settings(silo, {**read_toml(silo.settings), "port": port})
        print_on_stderr(f"{silo.settings}: port {port} from now on")
    if start:
        _start_client(silo, detach=detach)


@dataclass(frozen=True)
class DataOptions:
    """Path of the silo's data and options that say how it is read.

    least: smallest rating that is positive. flags: those of them that were given.
    """

    path: Path | None
    least: LeastRating
    split: SplitKind | None
    rules: list[str]
    files: options.FileFlags
    flags: tuple[str, ...] = ()

    @property
    def edges(self) -> Path | None:
        """File of a graph's edges."""
        return self.files.edges

    @property
    def has_rules(self) -> bool:
        """Whether a rule is given."""
        return bool(self.rules)

    def parse_rules(self) -> dict[str, str]:
        """Parses the rules. Raises SettingsError for other texts than key=value."""
        return options.parse_pairs(self.rules, "--rule")

    def parse_file_options(self) -> FileOptions:
        """Parses the options of a file of interactions.

        Raises SettingsError for options of graphs alone.
        """
        if self.files.edges is not None or self.files.values:
            raise SettingsError("--edges, --values: expected none in this federation, whose silos have no graphs")
        return options.parse_file_options(self.files.columns, self.files.delimiter)

    def parse_graph_options(self) -> GraphOptions:
        """Parses the options of a graph's files."""
        files = self.files
        return options.parse_graph_options(files.columns, files.delimiter, files.values, shared=False)


def _join_federation(
    invitation: Invitation,
    silo: SiloFolder,
    choices: SiloChoices,
    given: DataOptions,
    accept: options.AcceptChoice | None,
) -> None:
    """Joins the federation. What can be refused is refused before the silo's key is registered."""
    from simulation.joining.join import choose_catalogue, enrol_silo, require_unexpired, write_settings
    from simulation.joining.silo_toml import apply_policy, require_catalogue

    require_unexpired(invitation, silo)
    federation = invitation.federation
    if federation is not None:
        apply_policy(federation, choices.policy)  # refuses before the data are read
    _prepare_shard(silo, invitation.name, given, federation)
    if federation is not None:
        choices = _agree_on_sums(invitation, silo, federation, choices, accept)
        require_catalogue(apply_policy(federation, choices.policy), choices.catalogue)
        _require_usable(invitation, silo, apply_policy(federation, choices.policy), choices)
    enrolled = enrol_silo(invitation, silo)
    if federation is None:
        choices = _agree_on_sums(invitation, silo, enrolled, choices, accept)
        require_catalogue(apply_policy(enrolled, choices.policy), choices.catalogue)
        _require_usable(invitation, silo, apply_policy(enrolled, choices.policy), choices)
    choose_catalogue(invitation, silo, enrolled, choices)  # an invitation of an earlier version has no list
    write_settings(invitation, silo, enrolled, apply_policy(enrolled, choices.policy), choices)
    print_on_stderr(f"{invitation.name}: registered at {invitation.url}; settings: {silo.settings}")


def _agree_on_sums(
    invitation: Invitation,
    silo: SiloFolder,
    federation: FederationOut,
    choices: SiloChoices,
    accept: options.AcceptChoice | None,
) -> SiloChoices:
    """Adds the operator's consent to the sums, and the list of items, to the choices."""
    from shared.sums import list_sums
    from simulation.joining.consent import describe_terms, warn_missing_texts
    from simulation.joining.join import choose_catalogue
    from simulation.joining.own_data import own_data_of
    from simulation.joining.silo_toml import apply_policy, describe_missing, require_masked_sums

    agreed = apply_policy(federation, choices.policy)
    if agreed.missing:
        if accept is options.AcceptChoice.sums:
            require_masked_sums(agreed.missing)
        gain = own_data_of(federation.task).gain(silo.shard, max(len(invitation.members), 2))
        lacking = warn_missing_texts(silo.shard, federation)
        for line in (*describe_terms(invitation.name, federation), *lacking, f"- it gains: {gain}"):
            print_on_stderr(line)
        if accept is options.AcceptChoice.sums or (accept is None and _ask_consent(agreed)):
            choices = replace(choices, policy={**choices.policy, **agreed.missing})
        else:
            print_on_stderr(describe_missing(invitation.name, agreed, gain))
    elif accept is options.AcceptChoice.sums and not list_sums(federation.method):
        print_on_stderr(f"{invitation.name}: this federation sums nothing: --accept sums changes nothing")
    return replace(choices, catalogue=choose_catalogue(invitation, silo, federation, choices))


def _ask_consent(agreed: AgreedSettings) -> bool:
    """Asks at the terminal whether the sums may leave.

    False without a terminal, and for sums that are not masked.
    """
    from simulation.joining.silo_toml import needs_open_sums

    masked = not needs_open_sums(agreed.missing)
    return masked and options.is_interactive() and typer.confirm("May these sums leave this silo?", err=True)


def _require_usable(invitation: Invitation, silo: SiloFolder, agreed: AgreedSettings, choices: SiloChoices) -> None:
    from simulation.joining.join import copy_catalogue, require_usable, sign_own_matches

    copy_catalogue(silo, agreed, choices.catalogue)
    sign_own_matches(silo, choices.matches)
    require_usable(silo, invitation, agreed, choices)


def _prepare_shard(silo: SiloFolder, name: str, given: DataOptions, federation: FederationOut | None) -> None:
    from shared.method.settings import MethodSettings
    from simulation.joining.join import renew_least_rating
    from simulation.joining.own_data import USUAL_TASK, own_data_of

    own = own_data_of(USUAL_TASK if federation is None else federation.task)
    described = own.describe(silo.shard)
    if described is None:
        if given.path is None:
            raise SettingsError("--data: expected the silo's own data, got none")
        method = MethodSettings() if federation is None else federation.method
        for note in own.convert(silo.shard, name, given.path, given, method):
            print_on_stderr(f"- {note}")
        described = own.describe(silo.shard)
        if silo.settings.exists():
            renew_least_rating(silo, rated=own.rated)
    elif given.flags:
        what = f"{', '.join(given.flags)} {'is' if len(given.flags) == 1 else 'are'} not read"
        print_on_stderr(f"- {silo.shard} exists already, so {what}; `lpsfed shard append` adds interactions")
        print_on_stderr(f"  {REPLACING.format(shard=silo.shard)}")
    print_on_stderr(f"{silo.shard}: {described}")


REPLACING = (
    "to convert the data anew: end the client, move {shard} away, and run the same command with --data; what was"
    " absorbed and erased since then is in the earlier shard alone"
)


UNREGISTERED = "registered under this name"  # of the aggregator's refusal
REGISTER_AGAIN = (
    "if the operator has removed its key: ask for a new invitation, `kill {pid}`, and run the same command with the new"
    " invitation and --accept sums or --accept parameters"
)


def _require_named_files(paths: Mapping[str, Path | None], silo: SiloFolder) -> None:
    """Raises SettingsError for a file that is not there, also where nothing would read it."""
    for flag, path in paths.items():
        if path is None or path.exists():
            continue
        read_before = flag == "--data" and silo.shard.exists()
        kept = f"; leave it out if {silo.shard}, which an earlier call wrote, is to stay" if read_before else ""
        raise SettingsError(f"{flag} {path}: expected a file or a folder, got nothing there{kept}")


def _start_client(silo: SiloFolder, *, detach: bool) -> None:
    from client_service.__main__ import serve as serve_client
    from client_service.settings import client_settings
    from shared.files import read_lock_owner
    from shared.web.address import write_address
    from simulation.joining.background import serve_in_background
    from simulation.joining.join import APPLICATION, OPERATOR
    from simulation.operating.silo_worth import read_access, wait_for_first_call

    settings = client_settings(silo.settings)
    if (running := read_lock_owner(settings.state_directory)) is not None:
        words = f"{settings.name}: expected no client of this silo, one is running with the settings of its start"
        raise ConflictError(f"{words}: `kill {running}` ends it, then the same command starts it with the present ones")
    if not detach:
        serve_client(settings)
    url = write_address(settings.host, settings.port, tls=settings.tls_certificate is not None)
    pid = serve_in_background(["client", "--settings", str(silo.settings)], silo.path / "client.log", settings)
    if (problem := wait_for_first_call(read_access(silo.settings))) is not None:
        print_on_stderr(f"{settings.name}: it takes no part so far: {problem}")
        if UNREGISTERED in problem:
            print_on_stderr(REGISTER_AGAIN.format(pid=pid))
    print_on_stderr(f"{url} answers until `kill {pid}`; log: {silo.path / 'client.log'}")
    print_on_stderr(f"applications use the key in {silo.path / APPLICATION}")
    print_on_stderr(f"its page asks for user and password: operator, and the content of {silo.path / OPERATOR}")
