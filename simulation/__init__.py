"""Experiments that see more than one client's data. No service may import this package."""

from importlib.metadata import PackageNotFoundError, version

NAME = "lpsfed"


def version_line() -> str:
    """Name and version of the installed package; of a checkout that is not installed, that it is none."""
    try:
        return f"{NAME} {version(NAME)}"
    except PackageNotFoundError:
        return f"{NAME}, not installed as a package: no version is known"
