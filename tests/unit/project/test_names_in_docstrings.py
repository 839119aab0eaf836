"""Names in backticks in docstrings: each is a name of its module, or one that the project defines."""

from __future__ import annotations

import ast
import re

from tests.unit.project.test_plain_english import ROOT, every_file

NAME = re.compile(r"[A-Za-z_][\w.]*")
OTHERS = {
    *("with", "executescript", "operationId", "recbole", "flower", "serving"),  # of Python, sqlite3, OpenAPI, packages
    *("lpsfed", "compose", "revision", "conflict", "checks", "consents", "raw", "explain"),  # words of the interfaces
    *("embedding", "time", "met", "optimiser", "lines"),  # columns, parameters and arguments of other modules
    *("STRASSE", "Straße", "cafe", "café"),  # examples
}


def code_names(tree: ast.Module, docstrings: set[int]) -> set[str]:
    """Returns the identifiers of a module, and the words of its strings other than docstrings."""
    found: set[str] = set()
    for node in ast.walk(tree):
        found |= {
            value
            for field in ("id", "attr", "arg", "name", "asname")
            if isinstance(value := getattr(node, field, None), str)
        }
        if isinstance(node, ast.alias):
            found |= set(node.name.split("."))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            found |= set(re.findall(r"\w+", node.value))
    return found


def docstrings_of(tree: ast.Module) -> dict[int, tuple[int, str]]:
    """Returns line and text of each docstring, by the id of its node."""
    strings = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    return {
        id(one): (one.lineno, one.value)
        for one in strings
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    }


def defined_names(tree: ast.Module) -> set[str]:
    """Returns the names that a module defines, but for plain small words, which could be anything."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    found = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
    found |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return {name for name in found if "_" in name or name != name.lower()}


def find_unknown_names(text: str, here: set[str], defined: set[str], anywhere: set[str]) -> list[str]:
    """Lists the names in backticks that neither the module nor the project has."""
    names = (name for name in re.findall(r"`([^`\n]+)`", text) if NAME.fullmatch(name))
    return [
        name
        for name in names
        if name.rpartition(".")[2] not in here | defined | OTHERS
        and not ("." in name and set(name.split(".")) <= anywhere)
    ]


def test_names_in_docstrings_exist() -> None:
    trees = {path: ast.parse(path.read_text("utf-8")) for path in every_file()}
    texts = {path: docstrings_of(tree) for path, tree in trees.items()}
    names = {path: code_names(tree, set(texts[path])) for path, tree in trees.items()}
    defined = set().union(*map(defined_names, trees.values()))
    modules = {part for path in trees for part in path.relative_to(ROOT).with_suffix("").parts}
    anywhere = set().union(modules, *names.values(), {path.name for path in trees}, {"py", "txt", "item", "dat"})
    faults = [
        f"{path.relative_to(ROOT)}:{line}: `{name}`"
        for path, found in texts.items()
        for line, text in found.values()
        for name in find_unknown_names(text, names[path] | modules, defined, anywhere)
    ]
    assert faults == [], "\n".join(faults)


def test_the_check_finds_a_name_that_is_gone() -> None:
    assert find_unknown_names("See `holds` and `a.b`.", {"b"}, {"is_valid_claim"}, set()) == ["holds"]
    assert find_unknown_names("See `is_valid_claim`, `x -> y`.", set(), {"is_valid_claim"}, set()) == []
