"""Reads GraphML as tables of nodes and edges.

A DataError names file and line, never an id.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.parsers import expat

import polars as pl

from client_service.data.files import decode_text, require_text_memory
from client_service.data.id_columns import normalise_ids
from shared.errors import DataError
from simulation.datasets.columns import FileOptions
from simulation.datasets.content import read_content
from simulation.datasets.tables import Table


def read_graphml(path: Path, options: FileOptions) -> tuple[Table, Table]:
    """Reads nodes and edges, whose `data` are columns named by their keys.

    Directions of edges are ignored.
    """
    file = GraphmlFile()
    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = file.begin, file.end
    parser.CharacterDataHandler = file.add_text
    file.line_of = lambda: parser.CurrentLineNumber
    content = read_content(path)
    require_text_memory(path, decode_text(path, content), "<")

    def refuse(*declared: object) -> None:
        del declared
        raise DataError(f"{path}: expected GraphML without a DOCTYPE, got one: its entities could fill the memory")

    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise DataError(f"{path}: line {error.lineno}: expected GraphML, got what is no XML") from None
    except (LookupError, ValueError):  # of an encoding that the parser does not know
        raise DataError(f"{path}: expected GraphML in UTF-8, got another encoding: save it as UTF-8") from None
    return file.build_table(path, "node", options), file.build_table(path, "edge", options)


class GraphmlFile:
    """Nodes and edges of a GraphML file, collected while its parser runs."""

    def __init__(self) -> None:
        self.line_of: Any = None
        self._rows: dict[str, list[dict[str, str]]] = {"node": [], "edge": []}
        self._lines: dict[str, list[int]] = {"node": [], "edge": []}
        self._names: dict[str, str] = {}
        self._defaults: dict[str, dict[str, str]] = {"node": {}, "edge": {}}
        self._open: dict[str, str] | None = None
        self._key = ""
        self._text: list[str] | None = None

    def begin(self, tag: str, values: dict[str, str]) -> None:
        """Handles the start of an element."""
        name = tag.rpartition(":")[2]
        if name == "key":
            self._key = values.get("id", "")
            self._names[self._key] = values.get("attr.name", self._key).strip().lower()
            self._open = self._defaults.get(values.get("for", ""), {})
        elif name in self._rows:
            ends = ("id",) if name == "node" else ("source", "target")
            self._open = {f"\0{end}": values.get(end, "") for end in ends}
            self._rows[name].append(self._open)
            self._lines[name].append(self.line_of())
        elif name in ("data", "default"):
            self._key = values.get("key", self._key)
            self._text = []

    def end(self, tag: str) -> None:
        """Handles the end of an element."""
        name = tag.rpartition(":")[2]
        if name in ("data", "default") and self._text is not None:
            if self._open is not None:
                self._open[self._names.get(self._key, self._key)] = "".join(self._text)
            self._text = None
        elif name in ("node", "edge", "key"):
            self._open = None

    def add_text(self, text: str) -> None:
        """Collects text between tags."""
        if self._text is not None:
            self._text.append(text)

    def build_table(self, path: Path, kind: str, options: FileOptions) -> Table:
        """Builds the table of all nodes, or all edges, with the line of each.

        Ids and ends of edges are in the columns of their fields.
        """
        rows, defaults = self._rows[kind], self._defaults[kind]
        if not rows and kind == "node":
            raise DataError(f"{path}: expected GraphML with nodes, got none")
        fields = {"\0id": "node", "\0source": "source", "\0target": "target"}
        ends = ("\0id",) if kind == "node" else ("\0source", "\0target")
        names = dict.fromkeys([*ends, *defaults, *(name for row in rows for name in row)])
        columns = {
            name: pl.Series([row.get(name, defaults.get(name)) for row in rows], dtype=pl.String) for name in names
        }
        found = {
            fields.get(name, name): column.str.strip_chars() for name, column in columns.items() if name not in ends
        }
        own = {fields[name]: normalise_ids(columns[name]) for name in ends}
        other_columns = {role: name for role, name in options.columns.items() if role not in own}
        return Table(
            path, found | own, pl.Series(self._lines[kind], dtype=pl.Int64), replace(options, columns=other_columns)
        )
