"""Commands that start a service: aggregator, client."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.errors import SettingsError
from shared.files import PUBLIC, create_secret, replace_file
from shared.web.address import require_https
from simulation.cli import options
from simulation.reports.terminal import print_on_stderr

if TYPE_CHECKING:
    from aggregator_service.settings import AggregatorSettings

INVITATION_OPTIONS = ("invite", "url", "ca", "allow_http", "detach")
"""Options of `lpsfed aggregator` that are not settings of the service."""
"""Default model of graphs, where the strategy trains."""
METHOD_PREFIX = "LPSFED_AGGREGATOR_METHOD__"
SHARING_VARIABLES = ("LPSFED_AGGREGATOR_SHARE", "LPSFED_AGGREGATOR_METHOD")
"""Prefixes of environment variables that decide what is shared."""
Host = Annotated[str | None, typer.Option(help="Address to listen on")]
Port = Annotated[int | None, typer.Option(help="Port to listen on")]
PortCertificate = Annotated[Path | None, typer.Option(help="Certificate of this port (PEM), for TLS")]
PortKey = Annotated[Path | None, typer.Option(help="Private key of --tls-certificate (PEM)")]
PortAuthority = Annotated[Path | None, typer.Option(help="CA bundle (PEM): callers must show a certificate of it")]


def aggregator(
    state_directory: Annotated[Path | None, typer.Option(help="Folder for database and model files")] = None,
    operator_token_file: Annotated[Path | None, typer.Option(help="File with the operator's token")] = None,
    keys_directory: Annotated[Path | None, typer.Option(help="Folder of the clients' public keys")] = None,
    strategy: options.StrategyOrNone = None,
    share: Annotated[
        options.Share | None,
        typer.Option(
            help="parameters: networks, trained in rounds; sums: masked statistics of items, which gain most if"
            " silos sell the same items, in seconds; both (default: parameters; asked at a terminal)"
        ),
    ] = None,
    catalogue: Annotated[
        Path | None,
        typer.Option(
            help="List of items for --share sums, in place of the one that the silos sum. Needed for visits and for"
            " noised sums"
        ),
    ] = None,
    nodes: Annotated[
        Path | None,
        typer.Option(
            help="Names of features and classes of a federation of graphs, as JSON:"
            ' {"features": ["amount"], "classes": ["ok", "fraud"]}, or the shard.json of one silo'
        ),
    ] = None,
    host: Host = None,
    port: Port = None,
    workers: Annotated[int | None, typer.Option(help="Processes that serve at the port, with PostgreSQL")] = None,
    tls_certificate: PortCertificate = None,
    tls_key: PortKey = None,
    tls_client_authority: PortAuthority = None,
    invite: Annotated[
        list[str] | None, typer.Option("--invite", help="Name of a silo, whose NAME.invite is written here; repeatable")
    ] = None,
    url: Annotated[str | None, typer.Option(help="URL in the invitations (default: http://127.0.0.1:PORT)")] = None,
    ca: Annotated[Path | None, typer.Option(help="CA certificate in the invitations (PEM)")] = None,
    allow_http: options.AllowHttp = False,
    detach: Annotated[bool, typer.Option("--detach", help="Serve in the background")] = False,
) -> None:
    """Serves the aggregator.

    LPSFED_AGGREGATOR_* variables set the same settings; options override them.

    With a state directory and no operator token, it makes the token there: operator.token.
    """
    flags = options.drop_unset_flags(locals())  # before anything else has a name here
    from aggregator_service.__main__ import serve as serve_aggregator
    from aggregator_service.settings import aggregator_settings
    from shared.web.address import write_address
    from simulation.joining.background import serve_in_background
    from simulation.operating.text_files import read_small_file
    from simulation.ports import require_free_port

    flags = {name: value for name, value in flags.items() if name not in INVITATION_OPTIONS}
    flags = _load_saved_choice(flags) | flags
    words = [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    if _lacks_content(flags):
        flags["method"] = WITHOUT_CONTENT
    if (listed := flags.pop("nodes", None) or _find_saved_names(flags)) is not None:
        flags |= read_node_names(listed, flags.get("strategy"))
        if flags["strategy"] == "local" and not _is_set_by_environment():
            flags.setdefault("share", options.Share.sums.value)  # by itself the strategy shares nothing
    if (answer := _ask_share(flags)) is not None:
        flags["share"] = answer
    if (token := _choose_token_file(flags)) is not None:
        aggregator_settings(**flags, operator_token=secrets.token_hex())  # nothing is made for what cannot start
        if create_secret(token):
            print_on_stderr(f"{token}: made; it is the password of the operator")
        flags["operator_token_file"] = token
    settings = aggregator_settings(**flags)
    if settings.share is not None or listed is not None:
        _require_same_federation(settings)  # else the next start would load a choice that its database refuses
    if listed is not None and listed.resolve() != (settings.state_directory / NODES_FILE).resolve():
        settings.state_directory.mkdir(parents=True, exist_ok=True)
        replace_file(settings.state_directory / NODES_FILE, listed.read_bytes(), PUBLIC)  # for the next start
    if settings.share is not None:
        _save_choice(settings)
        print_on_stderr(_describe_share(settings))
    address = write_address(settings.host, settings.port, tls=settings.tls_certificate is not None)
    authority = None if ca is None else read_small_file(ca, "a certificate")
    if invite:
        require_https(url or address, allow_http=allow_http, secure=settings.secure)
        require_free_port(settings.host, settings.port)  # else the invitations would lead to another process
    in_rows = settings.database_url() is not None
    if in_rows or not detach:  # rows are made before the start: one aggregator alone then keeps the database
        _write_invitations(settings, invite, url, authority)
    if not detach:
        return serve_aggregator(settings)
    log = settings.state_directory / "aggregator.log"
    settings.state_directory.mkdir(parents=True, exist_ok=True)
    pid = serve_in_background(["aggregator", *words], log, settings)
    if not in_rows:
        _write_invitations(settings, invite, url, authority)
    print_on_stderr(f"{address} answers until `kill {pid}`; log: {log}")
    if settings.operator_token_file is not None:
        print_on_stderr(
            f"its page asks for user and password: operator, and the content of {settings.operator_token_file}"
        )


SHARE_QUESTION = """What do the silos share?
  parameters  two small networks, trained in rounds and averaged: the least that can leave a silo; it seldom helps
  sums        masked statistics of items, titles and attributes: all silos learn how often each item, and which items,
              words and categories together, are bought over all silos, but not at one silo. It takes seconds, and gains
              most where silos sell the same or similar items
  both        sums, and networks trained on top
"""


WITHOUT_CONTENT = {"sums": {"content": {"kind": "off"}}}
SHARE_FILE, ITEMS_FILE, NODES_FILE = "share.json", "items.txt", "nodes.json"
EARLIER_VERSION = (
    "expected a federation whose silos send sums alone, got one of an earlier version, whose silos also send untrained"
    " networks: start it with --share both and LPSFED_AGGREGATOR_METHOD__STRATEGY__TRAIN=false, or make a new one"
)


def _find_saved_names(flags: Mapping[str, Any]) -> Path | None:
    """Finds the file of names that an earlier start has saved in the state directory."""
    folder = flags.get("state_directory") or os.environ.get("LPSFED_AGGREGATOR_STATE_DIRECTORY")
    path = None if folder is None else Path(folder) / NODES_FILE
    return path if path is not None and path.is_file() else None


def read_node_names(path: Path, strategy: str | None) -> dict[str, Any]:
    """Reads the names of features and classes as settings of a federation of graphs.

    Raises SettingsError for a file of another form.
    """
    from shared.method.node_settings import DEFAULT_NETWORK, NodeSettings
    from shared.method.settings import method_settings, validate_settings

    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        names = {"feature_names": tuple(content["features"]), "class_names": tuple(content["classes"])}
    except (OSError, ValueError, KeyError, TypeError):
        raise SettingsError(
            f"--nodes: expected JSON with the lists features and classes in {path}, got others"
        ) from None
    found = validate_settings(NodeSettings, names)
    if found.features == 0 or found.classes < 2:
        raise SettingsError(f"--nodes: expected one feature and two classes or more in {path}, got fewer")
    usual = {"model": method_settings("nodes").model} if strategy in (None, "local") else DEFAULT_NETWORK
    model = {key: value for key, value in usual.items() if METHOD_PREFIX + key.upper() not in os.environ}
    return {"strategy": strategy or "local", "method": {**model, "nodes": found.model_dump(exclude_unset=True)}}


def _load_saved_choice(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Loads the choice of shared data that an earlier start saved in this state directory."""
    folder = flags.get("state_directory") or os.environ.get("LPSFED_AGGREGATOR_STATE_DIRECTORY")
    if folder is None or "share" in flags or "LPSFED_AGGREGATOR_SHARE" in os.environ:
        return {}
    path = Path(folder) / SHARE_FILE
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        listed = {"catalogue": Path(folder) / ITEMS_FILE} if kept["listed"] else {}
        if kept["share"] == "sums" and not kept.get("alone", False):
            raise SettingsError(f"{path}: {EARLIER_VERSION}")
        return {"share": str(kept["share"]), **listed}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError):
        raise SettingsError(f"{path}: expected the saved choice of --share, got another file: give --share") from None


def _lacks_content(flags: Mapping[str, Any]) -> bool:
    """Tells whether an earlier version began this federation, without the content sums of --share sums."""
    folder = flags.get("state_directory") or os.environ.get("LPSFED_AGGREGATOR_STATE_DIRECTORY")
    try:
        kept = json.loads((Path(folder) / SHARE_FILE).read_text(encoding="utf-8")) if folder is not None else {}
    except (OSError, ValueError):
        return False
    return isinstance(kept, dict) and kept.get("share") in ("sums", "both") and not kept.get("content", False)


def _save_choice(settings: AggregatorSettings) -> None:
    """Saves the choice for the next start, which must serve the same federation."""
    folder, given = settings.state_directory, settings.catalogue
    folder.mkdir(parents=True, exist_ok=True)
    if given is not None and given.resolve() != (folder / ITEMS_FILE).resolve():
        replace_file(folder / ITEMS_FILE, given.read_bytes(), PUBLIC)
    kept = {"share": settings.share, "listed": given is not None, "alone": settings.share == "sums", "content": True}
    if _lacks_content({"state_directory": folder}):
        kept["content"] = False
    replace_file(folder / SHARE_FILE, json.dumps(kept).encode(), PUBLIC)


def _require_same_federation(settings: AggregatorSettings) -> None:
    """Raises SettingsError if the state directory's database is of another federation, or in use."""
    from aggregator_service.storage.database import Database
    from aggregator_service.storage.engines.sqlite import NAME

    if settings.database_url() is not None or not (settings.state_directory / NAME).is_file():
        return
    try:
        Database(settings.state_directory, settings.declaration()).close()
    except SettingsError as error:
        raise SettingsError(f"{error}; nothing was changed") from None


def _is_set_by_environment() -> bool:
    return any(name.upper().startswith(SHARING_VARIABLES) for name in os.environ)


def _ask_share(flags: Mapping[str, Any]) -> str | None:
    """Asks at the terminal which data may leave the silo."""
    if "share" in flags or _is_set_by_environment() or not options.is_interactive():
        return None
    print_on_stderr(SHARE_QUESTION.rstrip())
    known = [one.value for one in options.Share]
    while (answer := str(typer.prompt("share", default=options.Share.parameters.value, err=True)).strip()) not in known:
        print_on_stderr(f"expected one of {', '.join(known)}")
    return answer


def _describe_share(settings: AggregatorSettings) -> str:
    """Describes in one line which data the federation shares, and the reason."""
    from shared.sums import list_sums, method_of_part
    from shared.sums.common_items import ITEMS
    from shared.sums.content import CONTENT

    method = settings.method
    texts = " then which features of items occur together," if CONTENT in list_sums(method) else ""
    if ITEMS in method.sums:
        return (
            f"this federation shares {settings.share}, masked: first which hashed ids silos have in common,{texts} then"
            " sums over the common items, of the kind that their number chooses (`lpsfed run` says which)"
        )
    reasons = [settings.explain_sum(method_of_part(method, part)) for part in list_sums(method)]
    if not reasons:
        return "this federation shares parameters: trained networks, no sums (--share sums)"
    return f"this federation shares {settings.share}, masked: {'; '.join(reasons)}"


def _write_invitations(
    settings: AggregatorSettings, names: list[str] | None, url: str | None, authority: str | None
) -> None:
    from simulation.joining.invite import write_invitations

    for path in write_invitations(settings, names or (), url, Path(), authority):
        print_on_stderr(f"{path}: invitation for this silo alone")


def _choose_token_file(flags: Mapping[str, Any]) -> Path | None:
    """Returns the path of the token's file; None if the operator gives another token."""
    folder = flags.get("state_directory") or os.environ.get("LPSFED_AGGREGATOR_STATE_DIRECTORY")
    given = {name for name in ("OPERATOR_TOKEN", "OPERATOR_TOKEN_FILE") if f"LPSFED_AGGREGATOR_{name}" in os.environ}
    if "operator_token_file" in flags or given or folder is None:
        return None
    return Path(folder) / "operator.token"


def client(
    settings: options.SettingsFile = None,
    name: Annotated[str | None, typer.Option(help="Name of the silo, given by the operator")] = None,
    shard: Annotated[Path | None, typer.Option(help="Folder of the silo's shard")] = None,
    state_directory: Annotated[Path | None, typer.Option(help="Folder for ledger and models")] = None,
    signing_key_file: Annotated[
        Path | None, typer.Option(help="Private key (default: NAME.key with the state)")
    ] = None,
    application_key_file: Annotated[Path | None, typer.Option(help="File with the key that applications need")] = None,
    operator_key_file: Annotated[
        Path | None, typer.Option(help="File with the key of status, ledger and pages")
    ] = None,
    aggregator_url: Annotated[str | None, typer.Option(help="URL of the aggregator")] = None,
    aggregator_authority: Annotated[
        Path | None, typer.Option(help="CA bundle (PEM) of the aggregator's certificate")
    ] = None,
    members: Annotated[Path | None, typer.Option(help="File of the public keys of aggregator and clients")] = None,
    strategy: options.StrategyOrNone = None,
    device: Annotated[options.Device | None, typer.Option(help="Device of the training")] = None,
    host: Host = None,
    port: Port = None,
    tls_certificate: PortCertificate = None,
    tls_key: PortKey = None,
    tls_client_authority: PortAuthority = None,
) -> None:
    """Serves one silo's client.

    LPSFED_CLIENT_* variables override the TOML file, and options override both.
    """
    flags = options.drop_unset_flags(locals())  # before anything else has a name here
    from client_service.__main__ import serve as serve_client
    from client_service.settings import client_settings

    flags.pop("settings", None)
    serve_client(client_settings(settings, **flags))
