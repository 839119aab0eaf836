"""Templates, subnets and files of all deployments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from ipaddress import IPv4Network, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shared.errors import SettingsError
from shared.files import PUBLIC

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"
DEFAULT_SUBNETS = "10.201.0.0/16"
SUBNET_PREFIX = 28  # 13 addresses for containers: the largest network has aggregator, gateway, operator and Prometheus
BasisKind = Literal["off", "exact", "iterated"]


def require_silos(silos: int, most: int, reason: str) -> int:
    """Returns the number of silos. Raises SettingsError outside of 1 to `most`.

    reason: of the limit, for the error.
    """
    if not 1 <= silos <= most:
        raise SettingsError(f"--silos: expected 1 to {most}, {reason}, got {silos}")
    return silos


def render_template(name: str, values: Mapping[str, Any]) -> str:
    """Renders a template with these values. A missing value is an error."""
    return str(_read_templates().get_template(name).render(values))


@cache
def _read_templates() -> Environment:
    """Returns the folder's templates, each compiled once."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        line_statement_prefix="#:",
        keep_trailing_newline=True,
        autoescape=False,  # YAML; callers check values of users for characters with a meaning in YAML
    )


def write_files(texts: Mapping[Path, str]) -> tuple[Path, ...]:
    """Replaces each file by its text. Raises SettingsError if that fails."""
    for path, text in texts.items():
        try:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(PUBLIC)  # containers of other users read some of them, and no secret is in any
        except OSError as error:
            raise SettingsError(f"{path}: expected a place for a file, got none ({error.strerror})") from None
    return tuple(texts)


def assign_subnets(networks: Iterable[str], within: str) -> dict[str, IPv4Network]:
    """Assigns a subnet to each network, in this order from the beginning of `within`.

    Raises SettingsError for a range that is invalid, not private, or too small.
    """
    names, free = list(networks), _parse_range(within)
    if free.prefixlen > SUBNET_PREFIX or len(names) > 1 << (SUBNET_PREFIX - free.prefixlen):
        raise SettingsError(f"--subnets: expected room for {len(names)} networks of a /{SUBNET_PREFIX}, got {within}")
    return dict(zip(names, free.subnets(new_prefix=SUBNET_PREFIX), strict=False))


def _parse_range(within: str) -> IPv4Network:
    try:
        found = ip_network(within)
    except ValueError as error:
        raise SettingsError(f"--subnets: expected a range such as {DEFAULT_SUBNETS}, got {within} ({error})") from None
    if not isinstance(found, IPv4Network) or not found.is_private:
        raise SettingsError(f"--subnets: expected private addresses of IPv4, got {within}")
    return found
