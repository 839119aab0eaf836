"""Number of silos -> docker-compose.yml and the two files that may be added to it."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from shared.protocol.secure.messages import FEWEST_CLIENTS
from simulation.deployment.files import BasisKind, require_silos, write_files

MAIN = "docker-compose.yml"
ADDED = (".gpu.yml", ".start-interval.yml")  # ends of the names of the files that may be added to it
TEMPLATES = Path(__file__).parent / "templates"
MOST_SILOS = 8  # each needs three networks, and all together four; an engine's own address pools hold thirty
USER = "user-00006"  # a customer of the first shop of the generated chain, whatever the number of shops


def compose_files(silos: int, out: Path = Path(MAIN), basis: BasisKind = "exact") -> dict[Path, str]:
    """The main file `out` and the two beside it -> their texts. SettingsError for a number that is out of range.

    basis: the common basis by default; fewer than three silos have none, because nothing can be masked between them.
    """
    numbers = range(1, require_silos(silos, MOST_SILOS, "for which an engine has networks") + 1)

    def join_numbered(prefix: str, separator: str) -> str:
        return separator.join(f"{prefix}{number}" for number in numbers)

    summed = "off" if silos < FEWEST_CLIENTS else basis
    known = {"silos": silos, "numbers": numbers, "series": join_numbered, "user": USER, "most": MOST_SILOS}
    known |= {"basis": summed, "secure": "false" if summed == "off" else "true"}
    environment, templates = _template_environment(), _compose_paths(Path(MAIN))
    texts = [environment.get_template(template.name).render(known) for template in templates]
    return dict(zip(_compose_paths(out), texts, strict=True))


def write_compose(silos: int, out: Path, basis: BasisKind = "exact") -> tuple[Path, ...]:
    """Write `out` and the two files beside it, whose names begin as its own. Their paths."""
    return write_files(compose_files(silos, out, basis))


def _compose_paths(main: Path) -> tuple[Path, ...]:
    return (main, *(main.with_suffix(end) for end in ADDED))


def _template_environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        line_statement_prefix="#:",
        keep_trailing_newline=True,
        autoescape=False,  # YAML, and nothing in it comes from anybody
    )
