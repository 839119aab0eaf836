"""Experiments that see more than one client's data. No service may import this package."""

from importlib.metadata import PackageNotFoundError, version

NAME = "lpsfed"


def version_line() -> str:
    """Returns name and version of the installed package, or says that it is not installed."""
    try:
        return f"{NAME} {version(NAME)}"
    except PackageNotFoundError:
        return f"{NAME}, not installed as a package: no version is known"
