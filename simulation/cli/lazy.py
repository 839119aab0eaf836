"""Group of commands that imports a command's module only when that command is called."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command as build_command

from audit.terminal import CommandGroup
from shared.files import use_private_umask
from simulation.cli.commands import COMMANDS
from simulation.progress import command_progress, heartbeat, hide_progress


def unwrap_paragraphs(text: str) -> str:
    """Joins the lines of each paragraph; paragraphs stay apart."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text).split("\n\n"))


def set_help_texts(app: typer.Typer) -> None:
    """Sets each command's help to its docstring without the line breaks of the source."""
    for command in app.registered_commands:
        command.help = unwrap_paragraphs((command.callback and command.callback.__doc__) or "")
    for group in app.registered_groups:
        if group.typer_instance is not None:
            set_help_texts(group.typer_instance)


WITHOUT_HEARTBEAT = ("aggregator", "client", "join", "members")  # they serve, with a log, or ask and wait for an answer


def load_command(name: str) -> TyperCommand | TyperGroup:
    """Imports and builds a command, or a group of commands, of the table."""
    entry = COMMANDS[name]
    found = getattr(import_module(entry.module_name), entry.attribute)
    if isinstance(found, typer.Typer):
        app = found
    else:
        app = typer.Typer(add_completion=False)
        app.command(name)(found)
    set_help_texts(app)
    command = build_command(app)
    assert isinstance(command, TyperCommand | TyperGroup)
    command.name = name
    _add_quiet(command)
    return command


def _add_quiet(command: Any) -> None:
    """Adds --quiet to each command that prints results, and lets --json hide progress too."""
    for part in getattr(command, "commands", {}).values():
        _add_quiet(part)
    for as_json in [one for one in command.params if one.name == "as_json"]:
        as_json.callback = _apply_quiet
        command.params.append(_quiet_option())


def _quiet_option() -> Any:
    """Returns the option --quiet, which is not passed to the command itself."""
    app = typer.Typer(add_completion=False)

    @app.command()
    def hide(
        quiet: Annotated[bool, typer.Option("--quiet", expose_value=False, help="Hide progress on stderr")] = False,
    ) -> None:
        del quiet

    option = next(one for one in build_command(app).params if one.name == "quiet")
    option.callback = _apply_quiet
    return option


def _apply_quiet(ctx: Any, param: Any, requested: bool) -> bool:  # noqa: ARG001
    if requested:
        hide_progress()
    return requested


class LazyCommands(CommandGroup):
    """Commands of the table. Listing and completing names reads their help texts alone."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Returns the names in the table's order."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:  # noqa: ARG002
        """Returns a command with a help text that cannot be called."""
        entry = COMMANDS.get(cmd_name)
        return None if entry is None else TyperCommand(cmd_name, help=entry.help)

    def invoke(self, ctx: Any) -> Any:
        """Runs a command: files that it or its services write are for their owner alone."""
        with use_private_umask(), command_progress():
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: Any, args: list[str]
    ) -> tuple[str | None, TyperCommand | TyperGroup | None, list[str]]:
        """Returns the command that is called, imported and built."""
        name, _, rest = super().resolve_command(ctx, args)
        command = None if name is None else load_command(name)
        if name is not None and name not in WITHOUT_HEARTBEAT:
            ctx.with_resource(heartbeat(name))
        return name, command, rest
