"""The guides' kubectl lines: folders render, namespaces and objects are the manifests', and what works offline works."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Document, Render

ROOT = Path(__file__).parents[2]
GUIDES = ("docs/kubernetes.md", "k8s/overlays/production/README.md")
OVERLAYS = ("demo", "production", "production/silo/load-shard")
SHORT = {"job", "pod", "service", "statefulset", "poddisruptionbudget"}
SETS = re.compile(r"(aggregator|client)-0")


def lines() -> list[str]:
    """Every command of the guides' shell blocks, one a line, without what follows a pipe."""
    texts = [(ROOT / guide).read_text(encoding="utf-8") for guide in GUIDES]
    blocks = [block for text in texts for block in re.findall(r"```sh\n(.*?)```", text, flags=re.S)]
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


KUBECTL = [line.split(" | ")[0].removesuffix(" &") for line in lines() if line.startswith("kubectl ")]


def words(line: str) -> list[str]:
    return shlex.split(line)


def after(line: str, flag: str) -> list[str]:
    found = words(line)
    return [found[place + 1] for place, word in enumerate(found) if word == flag]


@pytest.fixture(scope="module")
def there(render: Render) -> set[tuple[str, str, str]]:
    """(namespace, kind, name) of all that the guides may speak of, and the pods that come of it."""
    documents: list[Document] = [document for name in OVERLAYS for document in render(name)]
    found = {(one["metadata"].get("namespace", ""), one["kind"].lower(), one["metadata"]["name"]) for one in documents}
    return found | {(space, "pod", f"{name}-0") for space, kind, name in found if kind == "statefulset"}


def test_the_guides_show_commands() -> None:
    assert len(KUBECTL) > 20 and all(len(words(line)) > 2 for line in KUBECTL)


@pytest.mark.parametrize("folder", sorted({path for line in KUBECTL for path in after(line, "-k")}))
def test_a_folder_that_is_applied_renders(folder: str, render: Render) -> None:
    assert folder.startswith("k8s/overlays/") and render(folder.removeprefix("k8s/overlays/"))


@pytest.mark.parametrize("line", [line for line in KUBECTL if after(line, "-n")])
def test_what_a_line_speaks_of_is_there(line: str, there: set[tuple[str, str, str]]) -> None:
    (namespace,) = after(line, "-n")
    assert namespace in {space for space, _, _ in there}
    named = {tuple(word.split("/")) for word in words(line) if word.partition("/")[0] in SHORT}
    named |= {("pod", word) for word in words(line) if SETS.fullmatch(word)}
    named |= {("pod", word.partition(":")[0]) for word in words(line) if re.match(r"[a-z0-9-]+:/", word)}
    assert {(namespace, *one) for one in named} <= there
    assert named or " create secret " in line, "a line that names nothing is not checked"


@pytest.mark.parametrize("line", [line for line in KUBECTL if " create secret " in line])
def test_a_secret_that_is_made_is_the_one_that_is_mounted(line: str, render: Render, tmp_path: Path) -> None:
    for file in ("operator.token", "client.secret"):
        (tmp_path / file).write_text("s" * 64, encoding="utf-8")
    if " tls " in line:
        pytest.skip("kubectl wants a real key pair")
    command = words(line)
    command += [] if "--dry-run=client" in command else ["--dry-run=client", "-o", "yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (key,) = re.findall(r"^data:\n  (\w+): ", done.stdout, flags=re.M)
    (name,) = re.findall(r"^  name: (.+)$", done.stdout, flags=re.M)
    documents = render("production")
    paths = [
        f"{mount['mountPath']}/{key}"
        for one in documents
        if one["kind"] == "StatefulSet" and f"namespace: {one['metadata']['namespace']}" in done.stdout
        for mount in one["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
        if mount["name"] == name
    ]
    read = [
        entry["value"]
        for one in documents
        if one["kind"] == "StatefulSet"
        for entry in one["spec"]["template"]["spec"]["containers"][0]["env"]
        if entry["name"].endswith("_FILE")
    ]
    assert len(paths) == 1 and paths[0] in read


def test_the_guide_names_every_overlay_and_component() -> None:
    text = (ROOT / GUIDES[0]).read_text(encoding="utf-8")
    folders = [path.name for place in ("overlays", "components", "base") for path in (ROOT / "k8s" / place).iterdir()]
    assert [name for name in folders if name not in text] == []


def test_links_lead_somewhere() -> None:
    for guide in GUIDES:
        for link in re.findall(r"\]\((?!http)([^)#]+)", (ROOT / guide).read_text(encoding="utf-8")):
            assert ((ROOT / guide).parent / link).exists(), (guide, link)
