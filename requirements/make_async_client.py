"""Generates `lpsfed/asynchronous.py` from `lpsfed/client.py`: `make format` runs it.

Each method of `Client` becomes a coroutine that awaits what sends or sleeps. Comments get lost, all else stays.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "lpsfed" / "asynchronous.py"
MODULE_DOCSTRING = "Awaitable client of a silo; `make format` writes this file from client.py."
CLASS_DOCSTRING = "Awaitable client of a silo; arguments, calls, keys and errors are those of `Client`."
AWAITED = {"self._send", "self._try_once", "self._http.send", "self.close", "self._http.aclose", "asyncio.sleep"}
RENAMED = {
    **{name: f"Async{name}" for name in ("Client", "BaseTransport", "Iterator")},
    **{"__enter__": "__aenter__", "__exit__": "__aexit__", "self._http.close": "self._http.aclose", "time": "asyncio"},
}


class AsyncConversion(ast.NodeTransformer):
    """Transformer of a blocking client's syntax tree to an awaitable one."""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        node.name, node.body[0] = RENAMED[node.name], ast.Expr(ast.Constant(CLASS_DOCSTRING))
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        name = RENAMED.get(node.name, node.name)
        made = node if name == "__init__" else ast.AsyncFunctionDef(**{**vars(node), "name": name})
        return ast.copy_location(made, node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = RENAMED.get(node.id, node.id)
        return node

    def visit_alias(self, node: ast.alias) -> ast.AST:
        node.name = RENAMED.get(node.name, node.name)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        node.attr = RENAMED.get(ast.unparse(node), RENAMED.get(node.attr, node.attr)).rpartition(".")[2]
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return ast.Await(node) if ast.unparse(node.func) in AWAITED else node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """Rewrites `yield from` as a loop, because a coroutine has none."""
        self.generic_visit(node)
        if not isinstance(node.value, ast.YieldFrom):
            return node
        one = ast.Expr(ast.Yield(ast.Name("one")))
        return ast.For(ast.Name("one"), node.value.value, [one], [])


def make_async_client(source: str) -> str:
    """Returns the source of the awaitable client, formatted."""
    tree = ast.parse(source)
    tree.body[0] = ast.Expr(ast.Constant(MODULE_DOCSTRING))
    text = ast.unparse(ast.fix_missing_locations(AsyncConversion().visit(tree)))
    for command in (["check", "--quiet", "--select", "I", "--fix"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(TARGET), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


if __name__ == "__main__":
    TARGET.write_text(make_async_client((ROOT / "lpsfed" / "client.py").read_text(encoding="utf-8")), encoding="utf-8")
