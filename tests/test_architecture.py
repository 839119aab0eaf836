"""Imports point one way, the aggregator has no torch, and nothing on the way from another machine is unpickled."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.questions import LONGEST_SECONDS

ROOT = Path(__file__).parents[1]
PACKAGES = ("aggregator_service", "audit", "benchmarks", "client_service", "lpsfed", "shared", "simulation")
MAY_IMPORT = {
    "shared": set(),
    "aggregator_service": {"shared"},
    "client_service": {"shared"},
    "audit": {"shared", "client_service"},
    "lpsfed": set(),  # an application has it without the rest
    "simulation": {"shared", "aggregator_service", "audit", "client_service", "lpsfed"},
    "benchmarks": {"shared", "aggregator_service", "audit", "client_service", "lpsfed", "simulation"},
}
HEAVY = {"torch", "polars"}  # the client's; the aggregator's image does not hold them
TERMINAL = {"typer", "rich", "matplotlib"}  # the simulation's; the audit has a command line too, and no plots
WEB_AND_DATA = {"httpx", "fastapi", "starlette", "uvicorn", "sqlalchemy"}
OUTER_WORLD = {"os", "io", "pathlib", "tempfile", "socket", "time", "datetime", "logging", "structlog"}
KNOWING_CRYPTOGRAPHY = {
    "benchmarks/compare_commits",  # replaces the making of key pairs, so that a run can be repeated
    "shared/protocol/secure",
    "shared/protocol/signing",
    "shared/web",
    "simulation",
}
STOREYS = ("", "method", "strategies", "protocol", "web")  # of shared, from the ground up; "": files beside the rooms
AGGREGATOR_STOREYS = (
    {"process"},
    {"storage"},
    {"signatures"},
    {"rounds"},
    {"aggregation", "settings"},
    {"federation"},
    {"coordinator"},
    {"http"},
    {"pages"},
    {"app"},
    {"__main__"},
)
"""Rooms and files of the aggregator from the ground up: each imports only what lies below it."""
COMPUTED = "(computed)"  # a module whose name stands nowhere in the code
LONGEST_FUNCTION, LONGEST_FILE = 60, 400
LONGER: dict[str, int] = {
    "client_service/settings.py": 420,  # a setting a line, from which the page of settings is made
    "simulation/cli/experiments.py:simulate": 70,  # an option a line
}  # "file" or "file:function" -> lines, with a reason; empty is best


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def tree(path: Path) -> ast.Module:
    return parse(path.read_text(encoding="utf-8"))


@cache
def parse(code: str) -> ast.Module:
    return ast.parse(code)


def calls(path: Path) -> Iterator[ast.Call]:
    """Every call in a file."""
    return (node for node in ast.walk(tree(path)) if isinstance(node, ast.Call))


EVERY_FILE = [path for package in PACKAGES for path in files(package)]


def imported(path: Path) -> Iterator[str]:
    """Every module that a file names in an import, wherever in the file, or hands to importlib."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: expected absolute imports"
            yield node.module or ""
        elif isinstance(node, ast.Call) and called(node) in ("importlib.import_module", "import_module", "__import__"):
            name = node.args[0] if node.args else None
            yield module_name(name)


def module_name(name: ast.expr | None) -> str:
    """Of a module handed to importlib: a literal, or the literal package before a name in it, f"package.{name}"."""
    if isinstance(name, ast.JoinedStr) and len(name.values) == 2:
        name = name.values[0]
    if isinstance(name, ast.Constant) and isinstance(name.value, str) and name.value:
        return name.value.removesuffix(".")
    return COMPUTED


def called(node: ast.Call) -> str:
    """The dotted name of what is called, as it is written."""
    return ast.unparse(node.func)


def tops(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imported(path)}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_holds_code(package: str) -> None:
    assert (ROOT / package / "__init__.py").is_file() and (ROOT / package / "py.typed").is_file()
    assert len(files(package)) >= 5


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_lies_beneath_it(package: str) -> None:
    own = {package} | MAY_IMPORT[package] | ({COMPUTED} if package == "simulation" else set())
    wrong = {str(path): sorted((tops(path) & {*PACKAGES, COMPUTED}) - own) for path in files(package)}
    assert {path: names for path, names in wrong.items() if names} == {}


def storey(module: str) -> int:
    """The number of a module's storey in `shared`."""
    room = module.split(".")[1]
    return STOREYS.index(room) if room in STOREYS else 0


def test_no_storey_of_shared_imports_one_above_it() -> None:
    climbing = [
        (str(path.relative_to(ROOT)), name)
        for path in files("shared")
        for name in imported(path)
        if name.startswith("shared.") and storey(name) > storey(".".join(path.relative_to(ROOT).with_suffix("").parts))
    ]
    assert climbing == []


def aggregator_storey(module: str) -> int:
    """The number of a module's storey in `aggregator_service`. StopIteration for a room that has none yet."""
    room = module.split(".")[1]
    return next(number for number, rooms in enumerate(AGGREGATOR_STOREYS) if room in rooms)


def climbing_imports(path: Path, module: str) -> list[str]:
    """What a module of the aggregator imports from its own storey or above, its own room aside."""
    own, room = aggregator_storey(module), module.split(".")[1]
    names = [name for name in imported(path) if name.startswith("aggregator_service.")]
    return [name for name in names if name.split(".")[1] != room and aggregator_storey(name) >= own]


def test_no_room_of_the_aggregator_imports_one_above_it() -> None:
    paths = [path for path in files("aggregator_service") if path != ROOT / "aggregator_service" / "__init__.py"]
    assert len(paths) > 30
    climbing = {
        str(path.relative_to(ROOT)): found
        for path in paths
        if (found := climbing_imports(path, ".".join(path.relative_to(ROOT).with_suffix("").parts)))
    }
    assert climbing == {}


def test_the_rule_for_rooms_names_an_import_that_climbs(tmp_path: Path) -> None:
    path = tmp_path / "rows.py"
    path.write_text("from aggregator_service.rounds.run import Run\nfrom aggregator_service.storage import disk\n")
    assert climbing_imports(path, "aggregator_service.storage.records") == ["aggregator_service.rounds.run"]
    assert climbing_imports(path, "aggregator_service.aggregation.computation") == []


def test_the_rule_sees_imports_wherever_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "def f(x):\n    import torch.nn\n    from simulation.experiments.in_process import g\n    __import__('polars')\n"
    )
    assert tops(path) == {"torch", "simulation", "polars"}
    path.write_text("import importlib\nimportlib.import_module('simu' + 'lation')\n")
    assert tops(path) == {"importlib", COMPUTED}


@pytest.mark.parametrize("package", ["shared", "aggregator_service"])
def test_what_the_aggregator_runs_needs_neither_torch_nor_the_client_s_tables(package: str) -> None:
    assert [str(path) for path in files(package) if tops(path) & (HEAVY | TERMINAL)] == []


def test_a_service_needs_nothing_of_the_terminal() -> None:
    assert [str(path) for path in files("client_service") if tops(path) & TERMINAL] == []


def test_of_a_client_the_audit_knows_the_boundary_alone() -> None:
    names = {name for path in files("audit") for name in imported(path) if name.startswith("client_service")}
    assert names and {name for name in names if not name.startswith("client_service.boundary.")} == set()


def test_only_the_audit_s_commands_know_the_terminal() -> None:
    knowing = {path.name for path in files("audit") if tops(path) & TERMINAL}
    assert knowing == {"cli.py", "console.py", "entry.py", "terminal.py"}
    assert [str(path) for path in files("audit") if tops(path) & (HEAVY | {"matplotlib"})] == []


def test_the_mathematics_knows_neither_http_nor_databases() -> None:
    pure = [path for path in files("shared") if "web" not in path.parts] + files("client_service/models")
    assert len(pure) > 10
    assert [str(path) for path in pure if tops(path) & WEB_AND_DATA] == []


def test_keys_and_ciphers_are_handled_in_few_places() -> None:
    knowing = {str(path.relative_to(ROOT).parent) for path in EVERY_FILE if "cryptography" in tops(path)}
    assert "shared/protocol/secure" in knowing and knowing <= KNOWING_CRYPTOGRAPHY


def test_secure_aggregation_touches_neither_disk_nor_network_nor_clock() -> None:
    assert len(files("shared/protocol/secure")) > 10
    assert [str(path) for path in files("shared/protocol/secure") if tops(path) & (OUTER_WORLD | WEB_AND_DATA)] == []


def test_only_one_module_of_the_client_builds_a_way_to_the_outside() -> None:
    makers = ("httpx.AsyncClient", "httpx.Client", "httpx.get", "httpx.post", "httpx.request", "httpx.stream")
    others = {"requests", "urllib", "urllib3", "http", "socket", "ssl", "aiohttp", "websockets", "smtplib", "ftplib"}
    building = [path.name for path in files("client_service") for node in calls(path) if called(node) in makers]
    assert building == ["aggregator.py"]
    assert [str(path) for path in files("client_service") if tops(path) & others] == []


def loaded(*modules: str) -> set[str]:
    """Every package that is there once these modules are imported, in a process of its own."""
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stdout.split()}


@pytest.mark.thorough
def test_importing_the_aggregator_leaves_torch_and_the_client_out() -> None:
    found = loaded("aggregator_service.app", "aggregator_service.__main__")
    assert {"aggregator_service", "shared", "fastapi"} <= found
    assert found & (HEAVY | {"client_service", "simulation", "httpx"}) == set()


@pytest.mark.thorough
def test_importing_the_audit_leaves_torch_and_the_services_out() -> None:
    found = loaded(
        "audit.cli", "audit.__main__", "audit.probes.inquiry", "audit.probes.inquiry", "audit.report", "audit.console"
    )
    assert {"audit", "shared", "client_service", "typer", "rich"} <= found
    assert found & (HEAVY | {"matplotlib", "aggregator_service", "simulation", "fastapi"}) == set()


def test_nothing_is_unpickled_and_nothing_is_evaluated() -> None:
    pickling = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    wrong = [f"{path} imports {', '.join(names)}" for path in EVERY_FILE if (names := tops(path) & pickling)]
    assert wrong + [f"{path}:{node.lineno}" for path in EVERY_FILE for node in calls(path) if is_unsafe(node)] == []


def is_unsafe(node: ast.Call) -> bool:
    """Does this call evaluate text, or read or write a pickle?"""
    options = {word.arg: ast.unparse(word.value) for word in node.keywords}
    return (
        options.get("allow_pickle", "False") != "False"
        or (called(node).endswith("torch.load") and options.get("weights_only") != "True")
        or called(node) in ("eval", "exec", "np.load", "numpy.load", "torch.save")
    )


@pytest.mark.parametrize(
    ("code", "unsafe"),
    [
        ("torch.load(f)", True),
        ("torch.load(f, weights_only=True)", False),
        ("np.load(f)", True),
        ("np.save(f, a, allow_pickle=True)", True),
        ("eval(text)", True),
        ("safetensors.numpy.load(f)", False),
    ],
)
def test_the_rule_knows_what_evaluates(code: str, unsafe: bool) -> None:
    [node] = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    assert is_unsafe(node) is unsafe


def test_nothing_is_printed_but_by_the_command_line() -> None:
    silent = [path for path in EVERY_FILE if path.relative_to(ROOT).parts[0] not in ("simulation", "benchmarks")]
    assert [f"{path}:{node.lineno}" for path in silent for node in calls(path) if called(node) == "print"] == []


def test_every_file_says_what_it_is_for() -> None:
    assert [str(path) for path in EVERY_FILE if not ast.get_docstring(tree(path))] == []


def test_files_and_functions_stay_short() -> None:
    assert [name for name, lines, most in lengths() if lines > LONGER.get(name, most)] == []


def lengths() -> Iterator[tuple[str, int, int]]:
    """Every file and every function of it, its lines, and how many it may have."""
    for path in EVERY_FILE:
        name = str(path.relative_to(ROOT))
        yield name, len(path.read_text(encoding="utf-8").splitlines()), LONGEST_FILE
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1 - imported_lines(node)
                yield f"{name}:{node.name}", lines, LONGEST_FUNCTION


def imported_lines(function: ast.AST) -> int:
    """How many lines of a function import, with the empty one below: a command imports when it is called."""
    found = [node for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in found) + bool(found)


BARE_PARTICIPLES = frozenset(
    re.findall(
        r"\w+",
        """
        asked begun built checked chosen cleaned clipped counted damaged drawn found given gone held joined
        kept known left limited listed loaded made masked named noised noted opened packed prepared said
        seen sent settled shown signed started stored taken told tried unpacked written
        """,
    )
)
"""No function is called so: one that does something is a verb with its object, one that gives something is a noun."""


def bare_participles(module: ast.Module) -> list[str]:
    functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [node.name for node in functions if node.name.strip("_") in BARE_PARTICIPLES]


def test_no_function_is_called_by_a_bare_participle() -> None:
    assert bare_participles(ast.parse("class Box:\n    def _kept(self): ...\ndef keep_box(): ...")) == ["_kept"]
    found = {str(path.relative_to(ROOT)): bare_participles(tree(path)) for path in EVERY_FILE}
    assert {path: names for path, names in found.items() if names} == {}


def test_a_public_class_name_means_one_thing_in_the_whole_repository() -> None:
    places: dict[str, list[str]] = {}
    for path in EVERY_FILE:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_no_call_goes_through_a_proxy_of_the_environment() -> None:
    """Each of httpx says so itself, or by its transport, which heeds none."""
    made = {"AsyncClient", "AsyncHTTPTransport", "Client", "HTTPTransport", "delete", "get", "post", "put", "request"}
    heeding = []
    for path in EVERY_FILE:
        for node in calls(path):
            module, _, name = called(node).rpartition(".")
            said = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if module == "httpx" and name in made and "transport" not in said and said.get("trust_env") != "False":
                heeding.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert heeding == []
