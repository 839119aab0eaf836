"""Both sides of a pair derive one key; another purpose, round, name, direction or roster gives another."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace

import pytest

from shared.errors import ProtocolError
from shared.secure import keys
from shared.secure.keys import Context

CONTEXT = Context(1, "run-1", 3, "ab" * 32)
KEY, LABEL = bytes(range(32)), b"from ada to bob"
LOW_ORDER = (bytes(32), b"\x01" + bytes(31))  # points with which every agreement ends in zero


def test_both_clients_of_a_pair_derive_the_same_seed() -> None:
    ada, bob = keys.new_private(), keys.new_private()
    seed = keys.pair_seed(ada, keys.public(bob), CONTEXT, "ada", "bob")
    assert len(seed) == 32 and seed == keys.pair_seed(bob, keys.public(ada), CONTEXT, "bob", "ada")


def test_agreement_is_x25519_of_rfc_7748_and_hkdf_sha256_of_rfc_5869() -> None:
    ada = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    agreed = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    extracted = hmac.digest(bytes(32), agreed, hashlib.sha256)
    expected = hmac.digest(extracted, LABEL + b"\x01", hashlib.sha256)
    assert keys.public(bob).hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    assert keys.agree(ada, keys.public(bob), LABEL) == keys.agree(bob, keys.public(ada), LABEL) == expected


def test_every_part_of_the_context_changes_the_label_and_parts_cannot_run_into_each_other() -> None:
    labels = {
        CONTEXT.label("mask", "ada", "bob"),
        CONTEXT.label("seal", "ada", "bob"),
        CONTEXT.label("seal", "bob", "ada"),
        CONTEXT.label("seal", "adab", "ob"),
        replace(CONTEXT, version=2).label("seal", "ada", "bob"),
        replace(CONTEXT, run="run-13").label("seal", "ada", "bob"),
        replace(CONTEXT, round=33).label("seal", "ada", "bob"),
        replace(CONTEXT, transcript="cd" * 32).label("seal", "ada", "bob"),
    }
    assert len(labels) == 8


def test_another_label_gives_another_key() -> None:
    ada, bob = keys.new_private(), keys.public(keys.new_private())
    assert keys.agree(ada, bob, LABEL) != keys.agree(ada, bob, LABEL + b"!")


@pytest.mark.parametrize("point", LOW_ORDER)
def test_a_public_key_with_which_nobody_can_agree_is_refused(point: bytes) -> None:
    with pytest.raises(ProtocolError, match="nobody can agree"):
        keys.require_usable(point)


def test_an_ordinary_public_key_is_usable() -> None:
    keys.require_usable(keys.public(keys.new_private()))


def test_keys_seeds_and_nonces_are_new_each_time() -> None:
    assert keys.new_private() != keys.new_private() and keys.new_seed() != keys.new_seed()
    assert keys.seal(KEY, b"shares", LABEL) != keys.seal(KEY, b"shares", LABEL)


def test_a_commitment_holds_to_one_seed_and_is_not_the_plain_hash_of_it() -> None:
    assert keys.commitment(KEY) == keys.commitment(bytes(range(32))) != keys.commitment(bytes(32))
    assert keys.commitment(KEY) != hashlib.sha256(KEY).hexdigest()


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
