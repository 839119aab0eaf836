"""What all deployments need: a number of silos in range, subnets, templates, and files replaced by new texts."""

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
    """The number itself. SettingsError, with the reason of the limit, outside of 1 to `most`."""
    if not 1 <= silos <= most:
        raise SettingsError(f"--silos: expected 1 to {most}, {reason}, got {silos}")
    return silos


def render_template(name: str, values: Mapping[str, Any]) -> str:
    """A template's text with these values; one that is missing is an error."""
    return str(_read_templates().get_template(name).render(values))


@cache
def _read_templates() -> Environment:
    """The folder's templates, each compiled once."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        line_statement_prefix="#:",
        keep_trailing_newline=True,
        autoescape=False,  # YAML; where a value comes from somebody, its caller has held it to what YAML reads as it is
    )


def write_files(texts: Mapping[Path, str]) -> tuple[Path, ...]:
    """Replace each file by its text. SettingsError where that is not possible."""
    for path, text in texts.items():
        try:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(PUBLIC)  # containers of other users read some of them, and no secret is in any
        except OSError as error:
            raise SettingsError(f"{path}: expected a place for a file, got none ({error.strerror})") from None
    return tuple(texts)


def assign_subnets(networks: Iterable[str], within: str) -> dict[str, IPv4Network]:
    """Name of a network -> its subnet, in this order from the beginning of `within`.

    SettingsError for a range that is none, is not private, or is too small.
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
