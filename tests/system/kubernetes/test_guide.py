"""The guides' kubectl lines: folders render, what is named is in the manifests, and kubectl understands them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer
import yaml

from audit.cli import app as audit
from simulation.ports import free_ports
from tests.support.questions import LONGEST_SECONDS

if TYPE_CHECKING:
    from conftest import Document, Render

ROOT = Path(__file__).parents[3]
GUIDES = ("docs/kubernetes.md", "k8s/overlays/production/README.md")
OVERLAYS = ("demo", "production", "production/silo/load-shard", "tls", "serving")
SHORT = {
    "deployment",
    "horizontalpodautoscaler",
    "job",
    "pod",
    "poddisruptionbudget",
    "secret",
    "service",
    "statefulset",
}
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
    found |= {
        (one["metadata"]["namespace"], "secret", one["spec"]["secretName"])
        for one in documents
        if one["kind"] == "Certificate"
    }
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
    named = {tuple(word.split("/")) for word in words(line) if "/" in word and word.partition("/")[0] in SHORT}
    named |= {("pod", word) for word in words(line) if SETS.fullmatch(word)}
    named |= {("pod", word.partition(":")[0]) for word in words(line) if re.match(r"[a-z0-9-]+:/(?!/)", word)}
    assert {(namespace, *one) for one in named} <= there
    made = " create secret " in line or " create configmap " in line
    assert named or made, "a line that names nothing is not checked"


@pytest.fixture
def desk(tmp_path: Path, render: Render) -> Path:
    """A folder with what the lines read, seen from the repository's root."""
    render("demo")  # skips where there is no kubectl
    (tmp_path / "k8s").symlink_to(ROOT / "k8s")
    (tmp_path / "shards" / "north").mkdir(parents=True)
    (tmp_path / "keys").mkdir()
    public = [f"client-{number}.pub" for number in range(1, 5)]
    for name in (
        "operator.token",
        "application.key",
        "operator.key",
        "north.key",
        "members.toml",
        "keys/north.pub",
        *public,
    ):
        (tmp_path / name).write_text("s" * 64, encoding="utf-8")
    return tmp_path


def kubectl(line: str, desk: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """The line, run where no cluster is known."""
    own, *command = line.split(" > ")[0].split(" -- ")
    typed = [*words(own), *flags, *(["--", *words(command[0])] if command else [])]
    bare = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"} | {"HOME": str(desk)}
    return subprocess.run(typed, cwd=desk, env=bare, capture_output=True, text=True, timeout=LONGEST_SECONDS)


@pytest.mark.parametrize("line", [line for line in KUBECTL if " create secret tls " not in line])
def test_kubectl_understands_a_line_and_only_misses_the_cluster(line: str, desk: Path) -> None:
    (port,) = free_ports(1)
    done = kubectl(line.replace("--dry-run=client -o yaml", ""), desk, f"--server=http://127.0.0.1:{port}")
    assert done.returncode == 1 and f"127.0.0.1:{port}" in done.stderr and "refused" in done.stderr, done.stderr


def test_kubectl_does_not_understand_everything(desk: Path) -> None:
    assert "refused" not in kubectl("kubectl scale statefulset/client --replicase=1", desk).stderr


@pytest.mark.parametrize("line", [line for line in KUBECTL if " create secret generic " in line])
def test_a_secret_that_is_made_is_the_one_that_is_read(line: str, desk: Path, render: Render) -> None:
    done = kubectl(line.replace("--dry-run=client -o yaml", ""), desk, "--dry-run=client", "--output=yaml")
    made = yaml.safe_load(done.stdout)
    assert made["data"]
    (spec,) = (
        one["spec"]["template"]["spec"]
        for one in render("production")
        if one["kind"] == "StatefulSet" and one["metadata"]["namespace"] == made["metadata"]["namespace"]
    )
    volumes = {one["name"]: one["secret"]["secretName"] for one in spec["volumes"] if "secret" in one}
    (container,) = spec["containers"]
    (mount,) = (one for one in container["volumeMounts"] if volumes.get(one["name"]) == made["metadata"]["name"])
    read = [entry["value"] for entry in container["env"] if entry["name"].endswith("_FILE")]
    assert {f"{mount['mountPath']}/{key}" for key in made["data"]} == {
        path for path in read if path.startswith(f"{mount['mountPath']}/")
    }


@pytest.mark.parametrize("line", [line for line in KUBECTL if " create configmap " in line])
def test_a_config_map_of_public_keys_is_where_its_reader_looks(line: str, desk: Path, render: Render) -> None:
    done = kubectl(line.replace("--dry-run=client -o yaml", ""), desk, "--dry-run=client", "--output=yaml")
    made = yaml.safe_load(done.stdout)
    assert made["data"] and all(key.endswith(".pub") or key == "members.toml" for key in made["data"])
    spec, *_ = (
        one["spec"]["template"]["spec"]
        for overlay in ("production/silo", "secure", "demo/aggregator")
        for one in render(overlay)
        if one["kind"] == "StatefulSet" and one["metadata"]["namespace"] == made["metadata"]["namespace"]
        if made["metadata"]["name"] in {volume.get("configMap", {}).get("name") for volume in volumes_of(one)}
    )
    (volume,) = (one for one in spec["volumes"] if one.get("configMap", {}).get("name") == made["metadata"]["name"])
    (mount,) = (one for one in spec["containers"][0]["volumeMounts"] if one["name"] == volume["name"])
    given = {entry["name"]: entry.get("value") for entry in spec["containers"][0]["env"]}
    read = {given.get("LPSFED_AGGREGATOR_KEYS_DIRECTORY"), str(Path(given.get("LPSFED_CLIENT_MEMBERS") or "").parent)}
    assert mount["mountPath"] in read and mount["readOnly"]


def volumes_of(document: Document) -> list[Document]:
    found: list[Document] = document["spec"]["template"]["spec"]["volumes"]
    return found


def test_a_probe_s_container_mounts_what_the_client_has_and_changes_nothing(render: Render) -> None:
    custom = yaml.safe_load((ROOT / "k8s" / "probe.yaml").read_text(encoding="utf-8"))
    (client, *_) = (
        one for one in render("demo") if one["kind"] == "StatefulSet" and one["metadata"]["name"] == "client"
    )
    theirs = {mount["name"]: mount for mount in client["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]}
    for mount in custom["volumeMounts"]:
        assert mount["mountPath"] == theirs[mount["name"]]["mountPath"]
        assert mount.get("readOnly") or mount["mountPath"] == "/tmp"
    assert custom["securityContext"] == {"readOnlyRootFilesystem": True}


def test_the_audit_has_the_flags_that_are_shown() -> None:
    shown = [line.partition(" -m audit ")[2].split() for line in lines() if " -m audit " in line]
    assert {command for command, *_ in shown} == {"probe", "privacy-report"}
    commands = vars(typer.main.get_command(audit))["commands"]
    for command, *rest in shown:
        known = {flag for parameter in commands[command].params for flag in parameter.opts}
        assert {word for word in rest if word.startswith("--")} <= known


def test_the_guide_names_every_overlay_and_component() -> None:
    text = (ROOT / GUIDES[0]).read_text(encoding="utf-8")
    folders = [path.name for place in ("overlays", "components", "base") for path in (ROOT / "k8s" / place).iterdir()]
    assert [name for name in folders if name not in text] == []


def test_links_lead_somewhere() -> None:
    for guide in GUIDES:
        for link in re.findall(r"\]\((?!http)([^)#]+)", (ROOT / guide).read_text(encoding="utf-8")):
            assert ((ROOT / guide).parent / link).exists(), (guide, link)
