"""Shards, keys, databases and tokens are found by what is in them, wherever they lie and whatever their names."""

from __future__ import annotations

import io
import secrets
import sqlite3
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from safetensors.numpy import save

from audit.probes import contents
from audit.probes import contents as recognised
from audit.probes.contents import recognise_content

if TYPE_CHECKING:
    from conftest import Made

PAIRS = {"user": [f"user-{n:05}" for n in range(50)], "item": [f"item-{n % 7}" for n in range(50)]}
CANARY = "canary-of-somebody"


def parquet() -> bytes:
    made = io.BytesIO()
    polars.DataFrame(PAIRS).write_parquet(made)
    return made.getvalue()


def csv(separator: str = ",", head: bool = True) -> bytes:
    rows = [f"{user}{separator}{item}" for user, item in zip(*PAIRS.values(), strict=True)]
    return "\n".join([*([f"user{separator}item"] if head else []), *rows]).encode()


def key(encoding: Encoding = Encoding.PEM, form: PrivateFormat = PrivateFormat.PKCS8) -> bytes:
    return Ed25519PrivateKey.generate().private_bytes(encoding, form, NoEncryption())


def npz() -> bytes:
    made = io.BytesIO()
    np.savez(made, x=np.arange(3))
    return made.getvalue()


def zipped() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("interactions.parquet", parquet())
    return made.getvalue()


def database(folder: Path) -> bytes:
    with sqlite3.connect(folder / "made") as made:
        made.execute("create table x (y)")
    made.close()
    return (folder / "made").read_bytes()


@pytest.mark.parametrize("name", ["aggregator", "client-2", "gateway-2"])
@pytest.mark.parametrize("file", ["train.parquet", "x", "deep/er/README.md"])
def test_a_shard_under_another_name_is_found_by_its_content(part: Made, name: str, file: str) -> None:
    broken = part(name)
    broken.mount("/public")
    broken.put(f"/public/{file}", parquet())
    assert broken.broken() == {"contents: Parquet": "1 at /public"}


@pytest.mark.parametrize("place", ["/state/blobs/1", "/tmp/x", "/secrets/x", "/dev/shm/x"])
def test_a_shard_among_the_aggregator_s_own_files_is_found(part: Made, place: str) -> None:
    broken = part("aggregator")
    broken.put(place, parquet())
    mount = "/dev/shm" if "shm" in place else f"/{place.split('/')[1]}"
    assert broken.broken() == {"contents: Parquet": f"1 at {mount}"}


@pytest.mark.parametrize("file", ["client-1.key", "notes.txt"])
@pytest.mark.parametrize(
    "form",
    [key(), key(Encoding.DER), key(form=PrivateFormat.OpenSSH), b"Bag\n" + key()],
    ids=["PKCS 8", "DER", "OpenSSH", "with a head"],
)
def test_a_private_key_is_found_wherever_none_belongs(part: Made, file: str, form: bytes) -> None:
    aggregator = part("aggregator")
    aggregator.put("/identity/aggregator.key", key())
    aggregator.put("/identity/tls.key", key())
    assert aggregator.broken() == {}
    aggregator.put(f"/keys/{file}", form)
    assert aggregator.broken() == {"contents: private key": "1 at /keys"}


def test_a_client_has_its_own_private_key_and_no_other_s(part: Made) -> None:
    client = part("client-2")
    client.put("/secrets/client-2.key", key())
    assert client.broken() == {}
    for place in ("/secrets/client-1.key", "/state/x"):
        client.put(place, key())
    assert client.broken() == {"contents: private key": "2 at /secrets, /state"}


def test_a_token_is_found_by_its_look(part: Made) -> None:
    broken = part("client-2")
    broken.put("/public/token", secrets.token_hex(32).encode() + b"\n")
    broken.put("/public/x", secrets.token_urlsafe(32).encode())
    assert broken.broken() == {"contents: token": "2 at /public"}


def test_every_form_of_data_is_found_and_nothing_of_it_is_told(part: Made, tmp_path: Path) -> None:
    broken, forms = (
        part("gateway"),
        {
            "SQLite": database(tmp_path),
            "arrays": save({CANARY: np.ones(3)}),
            "archive": npz(),
            "rows": csv().replace(b"user-00000", CANARY.encode() + b"0"),
            "Arrow": b"ARROW1\0\0",
        },
    )
    for kind, content in forms.items():
        broken.put(f"/public/{CANARY}-{kind}", content)
    told = broken.broken()
    assert told == {f"contents: {kind}": "1 at /public" for kind in forms} and CANARY not in str(told)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (csv(), "rows"),
        (csv("\t"), "rows"),
        (csv("::", head=False), "rows"),
        (csv("|"), "rows"),
        (b"1,5,3.5,100\n" * 9, "rows"),
        (b'{"user": "u", "item": "i"}\n' * 9, "rows"),
        (zipped(), "archive"),
        (b"\x1f\x8b\x08rest", "archive"),
        (b"0" * 257 + b"ustar\0", "archive"),
        (b"", None),
        (b"some words, and more words\nof a text, as people write\n" * 5, None),
        (b"[aggregator]\nkey = 'x'\n" * 5, None),
        pytest.param(Ed25519PrivateKey.generate().public_key().public_bytes_raw(), None, id="public key"),
        (b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n", None),
    ],
)
def test_what_content_is(content: bytes, kind: str | None) -> None:
    assert recognise_content(content[: recognised.HEAD_BYTES], len(content)) == kind


def test_a_file_of_any_size_is_read_no_further_than_its_head(part: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, read = part("aggregator"), []
    monkeypatch.setattr(contents, "recognise_content", lambda head, size: read.append((len(head), size)))
    with (broken.root / "state" / "large").open("wb") as file:
        file.truncate(1 << 40)
    broken.probes()
    assert read == [(recognised.HEAD_BYTES, 1 << 40)]


def test_more_files_than_can_be_read_claim_nothing(part: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = part("aggregator")
    for number in range(4):
        broken.put(f"/state/{number}", b"")
    monkeypatch.setattr(contents, "MOST_FILES", 2)
    assert set(broken.broken().values()) == {"none; more than could be read"}


def test_the_image_s_own_files_are_not_read_and_no_link_is_followed(part: Made) -> None:
    held = part("aggregator")
    held.put("/opt/lpsfed/lib/example.parquet", parquet())
    (held.root / "state" / "link").symlink_to(held.root / "opt/lpsfed/lib/example.parquet")
    assert held.broken() == {}
