"""Audits locked packages for known vulnerabilities; exit code 1 if there are any.

Run it with the Python that has pip-audit: `make audit` does. Where the vulnerability service does not answer, nothing
has been audited: it says so and ends with 0, because a build must not depend on that service.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
# Every image's packages are among development's.
FILES = {"development.txt": "--require-hashes", "torch.txt": "--no-deps", "supply-chain.txt": "--require-hashes"}
SECONDS = 180.0  # for all answers of the service together
Packages = list[dict[str, Any]]


def ask_service(file: Path, option: str) -> Packages:
    """Runs pip-audit on a file; returns no packages if the service does not answer.

    Raises ValueError if the file itself cannot be read.
    """
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", option, "--progress-spinner", "off"]
    command += ["--requirement", str(file)]
    readable = subprocess.run([*command, "--dry-run"], capture_output=True, text=True, timeout=SECONDS)
    if readable.returncode:
        raise ValueError(f"expected requirements that pip-audit reads, got: {readable.stderr.strip()[-500:]}")
    try:
        done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, timeout=SECONDS)
        found: Packages = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError):
        return []
    return found


def summarise(packages: Sequence[Mapping[str, Any]]) -> tuple[list[str], int]:
    """Returns the lines to print, and the exit code."""
    asked = [package for package in packages if "skip_reason" not in package]
    findings = [
        f"audit: {package['name']} {package['version']}: {finding['id']}, mended in {finding['fix_versions'] or 'none'}"
        for package in asked
        for finding in package["vulns"]
    ]
    if not asked:
        return ["audit: SKIPPED, nothing was audited: the service that knows vulnerabilities does not answer here"], 0
    unknown = sorted(package["name"] for package in packages if "skip_reason" in package)
    without = f"; unknown to the service: {', '.join(unknown)}" if unknown else ""
    last = f"audit: {len(asked)} packages audited, {len(findings)} vulnerabilities{without}"
    return [*findings, last], int(bool(findings))


def main() -> int:
    lines, code = summarise([package for name, how in FILES.items() for package in ask_service(FOLDER / name, how)])
    sys.stdout.write("\n".join(lines) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
