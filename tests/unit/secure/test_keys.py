"""Both sides of a pair derive one key; another purpose, round, name, direction or roster gives another."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from shared.errors import ProtocolError
from shared.protocol.secure import group, keys
from shared.protocol.secure.keys import Context

CONTEXT = Context(2, "run-1", 3, "ab" * 32)
KEY, LABEL = bytes(range(32)), b"from ada to bob"


def test_both_clients_of_a_pair_derive_the_same_seed() -> None:
    ada, bob = group.draw_scalar(), group.draw_scalar()
    seeds = keys.agree_on_masks(ada, {"bob": group.multiply_base(bob)}, CONTEXT, "ada")
    back = keys.agree_on_masks(bob, {"ada": group.multiply_base(ada)}, CONTEXT, "bob")
    assert len(seeds["bob"]) == 32 and seeds["bob"] == back["ada"]


def test_agreement_is_a_point_of_both_and_hkdf_sha256_of_rfc_5869() -> None:
    (u,) = group.convert_points([group.multiply_base(6)])
    extracted = hmac.digest(bytes(32), u, hashlib.sha256)
    expected = hmac.digest(extracted, LABEL + b"\x01", hashlib.sha256)
    for private, public in ((2, 3), (3, 2)):
        assert keys.agree(private, {"bob": (group.multiply_base(public), LABEL)}) == {"bob": expected}


@pytest.mark.parametrize("length", [1, 32, 64, 65, 200])
def test_what_is_derived_is_the_library_s_hkdf(length: int) -> None:
    secret, label = bytes(range(length)), b"purpose" * length
    assert keys.derive(secret, label) == HKDF(SHA256(), 32, salt=None, info=label).derive(secret)


def test_every_part_of_the_context_changes_the_label_and_parts_cannot_run_into_each_other() -> None:
    labels = {
        CONTEXT.label("mask", "ada", "bob"),
        CONTEXT.label("seal", "ada", "bob"),
        CONTEXT.label("seal", "bob", "ada"),
        CONTEXT.label("seal", "adab", "ob"),
        replace(CONTEXT, version=3).label("seal", "ada", "bob"),
        replace(CONTEXT, run="run-13").label("seal", "ada", "bob"),
        replace(CONTEXT, round=33).label("seal", "ada", "bob"),
        replace(CONTEXT, transcript="cd" * 32).label("seal", "ada", "bob"),
    }
    assert len(labels) == 8


def test_a_self_mask_is_one_client_s_and_one_round_s() -> None:
    seeds = {
        keys.derive_self_mask(5, CONTEXT, "ada"),
        keys.derive_self_mask(6, CONTEXT, "ada"),
        keys.derive_self_mask(5, CONTEXT, "bob"),
        keys.derive_self_mask(5, replace(CONTEXT, round=4), "ada"),
    }
    assert len(seeds) == 4


def test_nonces_are_new_each_time() -> None:
    assert keys.seal(KEY, b"shares", LABEL) != keys.seal(KEY, b"shares", LABEL)


def test_what_was_sealed_comes_out_again() -> None:
    sealed = keys.seal(KEY, b"shares", LABEL)
    assert b"shares" not in sealed and len(sealed) == keys.NONCE_BYTES + len(b"shares") + keys.TAG_BYTES
    assert keys.unseal(KEY, sealed, LABEL) == b"shares"


@pytest.mark.parametrize("place", range(keys.NONCE_BYTES + len(b"shares") + keys.TAG_BYTES))
def test_a_changed_byte_anywhere_is_refused(place: int) -> None:
    sealed = bytearray(keys.seal(KEY, b"shares", LABEL))
    sealed[place] ^= 1
    with pytest.raises(ProtocolError, match="as its sender made it"):
        keys.unseal(KEY, bytes(sealed), LABEL)


@pytest.mark.parametrize(("key", "label"), [(KEY[::-1], LABEL), (KEY, b"from bob to ada")])
def test_another_key_or_label_is_refused(key: bytes, label: bytes) -> None:
    with pytest.raises(ProtocolError, match="as its sender made it"):
        keys.unseal(key, keys.seal(KEY, b"shares", LABEL), label)
