"""Imports point one way, the aggregator has no torch, and nothing on the way from another machine is unpickled."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.questions import LONGEST_SECONDS

ROOT = Path(__file__).parents[3]
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
    "simulation/deployment",
}
COMPUTED = "(computed)"  # a module whose name stands nowhere in the code
LONGEST_FILE = 600  # a module reads as a whole


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def tree(path: Path) -> ast.Module:
    return parse(path.read_text(encoding="utf-8"))


@cache
def parse(code: str) -> ast.Module:
    return ast.parse(code)


@cache
def nodes(code: str) -> tuple[ast.AST, ...]:
    """All of a file's calls and imports."""
    return tuple(node for node in ast.walk(parse(code)) if isinstance(node, ast.Call | ast.Import | ast.ImportFrom))


def calls(path: Path) -> Iterator[ast.Call]:
    """Every call in a file."""
    return (node for node in nodes(path.read_text(encoding="utf-8")) if isinstance(node, ast.Call))


@pytest.fixture(scope="module", autouse=True)
def forget_trees() -> Iterator[None]:
    """The trees of all files are a million objects, which no later test needs."""
    yield
    for one in (parse, nodes, called):
        one.cache_clear()


EVERY_FILE = [path for package in PACKAGES for path in files(package)]


def imported(path: Path) -> Iterator[str]:
    """Every module that a file names in an import, wherever in the file, or hands to importlib."""
    for node in nodes(path.read_text(encoding="utf-8")):
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


@cache
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


def broken_contracts(folder: Path) -> list[str]:
    """Names of the contracts in pyproject.toml that the packages below a folder break."""
    command = [
        str(Path(sys.executable).parent / "lint-imports"),
        "--no-cache",
        "--config",
        str(ROOT / "pyproject.toml"),
    ]
    done = subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": str(folder)}, capture_output=True, text=True, timeout=LONGEST_SECONDS
    )
    broken = [line.removesuffix(" BROKEN") for line in done.stdout.splitlines() if line.endswith(" BROKEN")]
    assert "kept" in done.stdout and done.returncode == bool(broken), done.stdout + done.stderr
    return broken


def test_rooms_import_what_lies_beneath_them_and_the_contracts_name_one_that_does_not(tmp_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "results*"))
    assert broken_contracts(tmp_path) == []
    for module, line in (
        ("aggregator_service/storage/records.py", "from aggregator_service.rounds.run import Run"),
        ("client_service/data/ids.py", "import client_service.serving.recommender"),
        ("audit/evidence/case.py", "import aggregator_service.settings"),
        ("shared/method/graph.py", "import shared.protocol.wire"),
    ):
        path = tmp_path / module
        path.write_text(path.read_text(encoding="utf-8") + f"\n{line}\n", encoding="utf-8")
    assert broken_contracts(tmp_path) == [
        "The audit knows the aggregator by its answers alone",
        "Rooms of shared, top to bottom",
        "Rooms of the aggregator, top to bottom",
        "Rooms of the client, top to bottom",
    ]


def benchmark_imports(folder: Path) -> dict[str, set[str]]:
    """Which folders of benchmarks each folder imports: most are no packages, so that no contract sees them."""
    found: dict[str, set[str]] = {}
    for path in sorted(folder.glob("*/**/*.py")):
        own = path.relative_to(folder).parts[0]
        names = {name.split(".")[1] for name in imported(path) if name.startswith("benchmarks.")}
        found.setdefault(own, set()).update(names - {own})
    return {own: {name for name in names if name in found} for own, names in found.items()}


def imported_in_turn(imports: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Pairs of folders that import each other."""
    return sorted((one, two) for one, names in imports.items() for two in names if one < two and one in imports[two])


def test_no_two_folders_of_benchmarks_import_each_other(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "benchmarks", tmp_path / "b", ignore=shutil.ignore_patterns("__pycache__", "results*"))
    assert {"speed"} <= benchmark_imports(tmp_path / "b")["guard"]
    assert imported_in_turn(benchmark_imports(tmp_path / "b")) == []
    path = tmp_path / "b" / "speed" / "wrk.py"
    path.write_text(path.read_text(encoding="utf-8") + "\nimport benchmarks.guard.silo\n", encoding="utf-8")
    assert imported_in_turn(benchmark_imports(tmp_path / "b")) == [("guard", "speed")]


def test_the_rule_sees_imports_wherever_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "def f(x):\n    import torch.nn\n    from simulation.reports.report import g\n    __import__('polars')\n"
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
    assert knowing == {"cli.py", "console.py", "terminal.py"}
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


WAYS = ("httpx.AsyncHTTPTransport", "httpx.Request")


def test_only_one_module_of_the_client_builds_a_way_to_the_outside() -> None:
    """It is the transport that the gate gets; requests are built for the gate, by it, and by its self-test."""
    makers = ("httpx.AsyncClient", "httpx.Client", "httpx.get", "httpx.post", "httpx.request", "httpx.stream")
    others = {"requests", "urllib", "urllib3", "http", "socket", "ssl", "aiohttp", "websockets", "smtplib", "ftplib"}
    building = [path.name for path in files("client_service") for node in calls(path) if called(node) in makers]
    assert building == []
    made = {
        name: {path.name for path in files("client_service") for node in calls(path) if called(node) == name}
        for name in WAYS
    }
    assert made["httpx.AsyncHTTPTransport"] == {"run_poll.py"}
    assert made["httpx.Request"] == {"aggregator_api.py", "gate.py", "gate_self_test.py"}
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


def test_importing_the_aggregator_leaves_torch_and_the_client_out() -> None:
    found = loaded("aggregator_service.app", "aggregator_service.__main__")
    assert {"aggregator_service", "shared", "fastapi"} <= found
    assert found & (HEAVY | {"client_service", "simulation", "httpx"}) == set()


def test_importing_the_audit_leaves_torch_and_the_services_out() -> None:
    found = loaded(
        "audit.cli", "audit.__main__", "audit.probes.inquiry", "audit.probes.inquiry", "audit.report", "audit.console"
    )
    assert {"audit", "shared", "client_service", "typer", "rich"} <= found
    assert found & (HEAVY | {"matplotlib", "aggregator_service", "simulation", "fastapi"}) == set()


LIGHT = (  # modules of the process that answers
    "client_service.compiled.shard",
    "client_service.compiled.publication",
    "client_service.event_log.store",
    "client_service.serving.messages",
    "client_service.http.server_app",
    "client_service.__main__",
)


WAITING = (  # modules of a trainer that waits for something to do
    "client_service.http.waiting_trainer",
    "client_service.federation.run_poll",
    "client_service.refresh.scheduler",
)


@pytest.mark.parametrize("module", WAITING)
def test_what_waits_for_a_run_or_a_refresh_loads_nothing_that_trains(module: str) -> None:
    heavy = {"torch", "polars", "pandas", "scipy", "pyarrow", "jinja2", "fastapi", "uvicorn"}
    assert loaded(module) & heavy == set()


@pytest.mark.parametrize("module", LIGHT)
def test_what_answers_needs_of_data_loads_neither_torch_nor_tables(module: str) -> None:
    heavy = {"torch", "polars", "pandas", "scipy", "pyarrow", "httpx", "cryptography", "pydantic_settings", "jinja2"}
    assert loaded(module) & heavy == set()


def test_an_aggregator_starts_without_what_only_an_anchor_needs() -> None:
    assert loaded("aggregator_service.__main__") & {"torch", "polars", "pandas", "scipy"} == set()


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
        or (called(node) in ("np.load", "numpy.load") and options.get("allow_pickle") != "False")
        or called(node) in ("eval", "exec", "torch.save")
    )


@pytest.mark.parametrize(
    ("code", "unsafe"),
    [
        ("torch.load(f)", True),
        ("torch.load(f, weights_only=True)", False),
        ("np.load(f)", True),
        ("np.load(f, allow_pickle=False)", False),
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


def test_a_file_can_be_read_as_a_whole() -> None:
    lengths = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in EVERY_FILE}
    assert {path: lines for path, lines in lengths.items() if lines > LONGEST_FILE} == {}


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
