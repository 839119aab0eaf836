"""An environment gets those packages of another one that its lock has in the same version, and no program of them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "requirements/link_packages.py"
LOCK = """
one-package==1.0 \\
    --hash=sha256:00
other==2.0 ; python_version < "4" \\
    --hash=sha256:00
present==2.0 \\
    --hash=sha256:00
absent==1.0 \\
    --hash=sha256:00
"""


def write_package(site: Path, name: str, version: str) -> None:
    module, known = f"{name}/__init__.py", f"{name}-{version}.dist-info"
    files = {
        module: f"VERSION = '{version}'\n",
        f"{known}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"../../../bin/{name}": "#!/of/the/first/environment\n",
    }
    files[f"{known}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{known}/RECORD"))
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text, encoding="utf-8")


def test_packages_of_the_locked_version_are_linked_without_their_programs(tmp_path: Path) -> None:
    source, target = (tmp_path / name / "lib/python/site-packages" for name in ("first", "second"))
    for name, version in (("one_package", "1.0"), ("other", "1.9"), ("present", "2.0"), ("unlocked", "1.0")):
        write_package(source, name, version)
    write_package(target, "present", "1.0")
    before = set(target.rglob("*"))
    compiled = Path(importlib.util.cache_from_source(str(source / "one_package/__init__.py")))
    compiled.parent.mkdir()
    compiled.write_bytes(b"compiled")
    (tmp_path / "lock.txt").write_text(LOCK, encoding="utf-8")
    command = [sys.executable, str(SCRIPT), str(tmp_path / "lock.txt"), str(source), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("1 of 4 packages ")
    new = [path for path in target.rglob("*") if path.is_file() and path not in before]
    found = {path.relative_to(target).as_posix() for path in new}
    kept = compiled.relative_to(source).as_posix()
    info = {f"one_package-1.0.dist-info/{name}" for name in ("METADATA", "RECORD")}
    assert found == {"one_package/__init__.py", kept, *info}
    assert (target / kept).stat().st_ino == compiled.stat().st_ino
    assert [path.name for path in (tmp_path / "second/bin").iterdir()] == ["present"]
