"""Writes pages of reference from the code: the command line, settings, both APIs, strategies.

`python docs/site/reference.py` writes docs/settings.md; `make site` writes the others.
"""

from __future__ import annotations

import inspect
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from typer.core import TyperCommand, TyperGroup

from aggregator_service.app import create_app as create_aggregator
from aggregator_service.settings import AggregatorSettings
from aggregator_service.settings import aggregator_settings as read_aggregator_settings
from client_service.app import create_app as create_client
from client_service.boundary.policy import Policy
from client_service.privacy.settings import PrivacySettings
from client_service.settings import ClientSettings, client_settings
from shared.method.settings import MethodSettings
from shared.protocol.schemas import RunIn
from shared.strategies import STRATEGIES, build_strategy
from simulation.cli.commands import COMMANDS
from simulation.cli.lazy import load_command

SETTINGS_PAGE = Path(__file__).resolve().parents[1] / "settings.md"
GENERATED = "<!-- made from the code by docs/site/reference.py -->\n\n"
SETTINGS: Mapping[str, tuple[type[BaseModel], str, str]] = {
    "Client": (
        ClientSettings,
        "LPSFED_CLIENT_",
        "In the environment, or in lower case in the TOML file that `lpsfed join` writes (`silo.toml`). A dot of the"
        " file is two underscores in the environment: `policy.common_basis` is `LPSFED_CLIENT_POLICY__COMMON_BASIS`.",
    ),
    "A silo's policy": (Policy, "", "In a client's `[policy]`: what the silo allows, whatever a federation asks for."),
    "Differential privacy of updates": (
        PrivacySettings,
        "",
        "In a client's `[privacy]`; [what each does](privacy.md#differential-privacy).",
    ),
    "Aggregator": (AggregatorSettings, "LPSFED_AGGREGATOR_", "In the environment."),
    "The method": (
        MethodSettings,
        "",
        "In a run's `method`, in both services' `METHOD`, and by `--set` of the command line.",
    ),
    "A run": (RunIn, "", "The body of `POST /v1/runs`, and the flags of `lpsfed run`."),
}
SETTINGS_HEAD = """# Settings

Start with none of these: `lpsfed join` and `lpsfed aggregator` need no setting.

```sh
lpsfed doctor --shard shards/client-1 --port 8801    # says what would keep a client from starting
```

A variable with a service's prefix that
is not a setting is refused at the start, with the name that was probably meant. The variables that Kubernetes sets for
a service called `lpsfed-client`, such as `LPSFED_CLIENT_SERVICE_HOST` or `LPSFED_CLIENT_PORT=tcp://10.0.0.5:8801`, are
ignored. A secret can also be the content of a file: `OPERATOR_TOKEN_FILE` in place of `OPERATOR_TOKEN`.
"""


def reference_pages() -> dict[str, str]:
    """Returns the reference pages by file name."""
    return {
        "command-line.md": command_line_page(),
        "client-api.md": api_page("The client's API", _client_document()),
        "aggregator-api.md": api_page("The aggregator's API", _aggregator_document()),
        "strategies.md": strategies_page(),
    }


def command_line_page() -> str:
    """Writes the page of every command with its arguments and options."""
    parts = [f"{GENERATED}# The command line\n"]
    for name in COMMANDS:
        command = load_command(name)
        parts.extend(_command_parts(f"lpsfed {name}", command, "##"))
        inner = command.commands.items() if isinstance(command, TyperGroup) else ()
        for word, one in inner:
            assert isinstance(one, TyperCommand)
            parts.extend(_command_parts(f"lpsfed {name} {word}", one, "###"))
    return "\n".join(parts)


def _command_parts(title: str, command: TyperCommand | TyperGroup, mark: str) -> Iterator[str]:
    yield f"{mark} {title}\n\n{_plain(command.help or '')}\n"
    rows = [_parameter_row(one) for one in command.params if one.name != "help"]
    if rows and not isinstance(command, TyperGroup):
        yield "| parameter | default | meaning |\n| --- | --- | --- |"
        yield "\n".join(rows) + "\n"


def _parameter_row(parameter: Any) -> str:
    names = parameter.opts if parameter.param_type_name == "option" else [str(parameter.name)]
    needed = "needed" if parameter.required else _default(parameter.default)
    text = getattr(parameter, "help", None) or ""
    return f"| {', '.join(f'`{name}`' for name in names)} | {needed} | {_cell(text)} |"


def settings_page() -> str:
    """Writes docs/settings.md: every setting with its default and meaning."""
    parts = [f"{GENERATED}{SETTINGS_HEAD}"]
    for title, (model, prefix, words) in SETTINGS.items():
        prefixed = f" Each name begins with `{prefix}`." if prefix else ""
        parts.append(f"## {title}\n\n{words}{prefixed}\n\n| name | default | meaning |\n| --- | --- | --- |")
        parts.append("\n".join(_setting_rows(model, capitals=bool(prefix))) + "\n")
    return "\n".join(parts)


def _setting_rows(model: type[BaseModel], *, capitals: bool = False, group: str = "") -> Iterator[str]:
    """Yields a row for each field; nested groups by dotted names."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if not capitals and isinstance(inner, type) and issubclass(inner, BaseModel) and inner is not MethodSettings:
            yield from _setting_rows(inner, group=f"{group}{name}.")
        else:
            yield _setting_row(group + (name.upper() if capitals else name), field)


def _setting_row(name: str, field: Any) -> str:
    default = "needed" if field.default is PydanticUndefined else _default(field.default)
    meaning, _, unset = (field.description or "").partition("; unset: ")
    return f"| `{name}` | {_cell(unset) or default} | {_cell(meaning)} |"


def api_page(title: str, document: Mapping[str, Any]) -> str:
    """Writes the page of every call of an OpenAPI document.

    With its parameters, its statuses, and the line of curl that makes it.
    """
    words = "`/openapi.json` at the service's own port has the schemas, and the same calls in Python and JavaScript; "
    words += (
        "`/docs` tries each call. KEY stands for the application's key, the operator's key or the operator's token."
    )
    parts = [f"{GENERATED}# {title}\n\n{words}\n"]
    for path, methods in document["paths"].items():
        for method, call in methods.items():
            parts.extend(_call_parts(method.upper(), path, call))
    return "\n".join(parts)


def _call_parts(method: str, path: str, call: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {method} {path}\n\n{_plain(call.get('description') or call.get('summary') or '')}\n"
    asked = call.get("parameters", ())
    rows = [f"| `{one['name']}` | {one['in']} | {_cell(one.get('description') or '')} |" for one in asked]
    if rows:
        yield "| parameter | in | meaning |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n"
    for one in call.get("x-codeSamples", ())[:1]:
        yield f"```sh\n{one['source']}\n```\n"
    answers = ", ".join(f"{status} {_cell(one['description'])}" for status, one in sorted(call["responses"].items()))
    yield f"Answers: {answers}.\n"


def strategies_page() -> str:
    """Writes the page of every strategy with the scalars that leave a client."""
    rows = []
    for name in STRATEGIES:
        strategy = build_strategy(name, MethodSettings(catalogue=1000))
        module = inspect.getmodule(STRATEGIES[name])
        words = (inspect.getdoc(module) or "").split("\n\n")[0].replace("\n", " ")
        rows.append(f"| `{name}` | {_cell(words)} | {', '.join(strategy.scalars) or 'none'} |")
    head = f"{GENERATED}# Strategies\n\n| name | what it is | scalars |\n| --- | --- | --- |\n"
    return head + "\n".join(rows) + "\n"


def _client_document() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        settings = client_settings(name="silo", shard=Path(place, "shard"), state_directory=Path(place, "state"))
        return _document(create_client(settings))


def _aggregator_document() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        token = "a-token-of-no-service-that-runs-1234"
        return _document(create_aggregator(read_aggregator_settings(state_directory=Path(place), operator_token=token)))


def _document(app: FastAPI) -> dict[str, Any]:
    document: dict[str, Any] = app.openapi()
    return document


def _default(value: Any) -> str:
    if value is None or value is ... or value == () or value == "":
        return "none"
    if isinstance(value, BaseModel):
        return "see below"
    text = str(value).lower() if isinstance(value, bool) else str(getattr(value, "value", value))
    return f"`{_cell(text)}`" if len(text) < 200 else "see the source"


def _plain(text: str) -> str:
    return "\n".join(line.strip() for line in text.replace("<", "&lt;").splitlines())


def _cell(text: str) -> str:
    """Escapes text for one cell of a table."""
    return json.dumps(text, ensure_ascii=False)[1:-1].replace('\\"', '"').replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    SETTINGS_PAGE.write_text(settings_page(), encoding="utf-8")
