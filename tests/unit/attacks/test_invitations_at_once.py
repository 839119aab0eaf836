"""Attack: an invitation used, withdrawn and made anew in the same moment, or once its time is set back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from shared.errors import AuthenticationError, ConflictError, FederationError
from shared.protocol.signing.enrolment import lock_folder, register_key, registered_key
from shared.protocol.signing.invitation import (
    EnrolmentIn,
    Invitation,
    prove_enrolment,
)
from shared.protocol.signing.keys import PublicKey, new_key, raw_hex
from shared.protocol.signing.silo_registry import INVITED, RegistryFolder, folder_registry

AGGREGATOR = raw_hex(new_key().public_key())
NOW = datetime.now(UTC)
MOMENT = 0.3  # seconds that whoever waits for nobody needs at most; whoever waits is waited for


def message(code: str) -> EnrolmentIn:
    asked = Invitation(
        format="lpsfed-invitation/1", name="north", url="http://north", code=code, expires=NOW, aggregator=AGGREGATOR
    )
    return prove_enrolment(asked, new_key())


def meanwhile(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Begin `action` when the next key is about to be registered; the thread, and what comes of it."""
    came: list[object] = []

    def act() -> None:
        try:
            came.append(action())
        except FederationError as error:
            came.append(error)

    thread = threading.Thread(target=act)

    def register(held: RegistryFolder, name: str, key: PublicKey) -> None:
        thread.start()
        thread.join(MOMENT)
        register_key(name, key, held.folder)

    monkeypatch.setattr(RegistryFolder, "add_key", register)
    return thread, came


def test_who_is_removed_while_it_enrols_is_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _ = folder_registry(tmp_path).open_invitation("north", 1.0)
    thread, came = meanwhile(monkeypatch, lambda: folder_registry(tmp_path).remove_silo("north"))
    folder_registry(tmp_path).redeem_invitation(message(code), NOW, AGGREGATOR)
    thread.join()
    assert came == [None] and registered_key("north", tmp_path) is None
    with pytest.raises(AuthenticationError):
        folder_registry(tmp_path).redeem_invitation(message(code), NOW, AGGREGATOR)


def test_no_code_is_told_for_a_name_that_enrols_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _ = folder_registry(tmp_path).open_invitation("north", 1.0)
    thread, came = meanwhile(monkeypatch, lambda: folder_registry(tmp_path).open_invitation("north", 1.0))
    folder_registry(tmp_path).redeem_invitation(message(code), NOW, AGGREGATOR)
    thread.join()
    assert isinstance(came[0], ConflictError) and not list((tmp_path / INVITED).glob("*.json"))


def test_of_two_invitations_at_once_the_later_code_counts(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        for number in range(40):
            folder = tmp_path / str(number)
            codes = [
                code
                for code, _ in pool.map(
                    lambda _, to=folder: folder_registry(to).open_invitation("north", 1.0), range(2)
                )
            ]
            assert sum(is_taken(code, folder) for code in codes) == 1


def is_taken(code: str, folder: Path) -> bool:
    try:
        folder_registry(folder).redeem_invitation(message(code), NOW, AGGREGATOR)
    except AuthenticationError:
        return False
    return True


def test_an_invitation_that_has_expired_is_not_open_again_when_the_clock_is_set_back(tmp_path: Path) -> None:
    code, expires = folder_registry(tmp_path).open_invitation("north", 1.0)
    with pytest.raises(AuthenticationError):
        folder_registry(tmp_path).redeem_invitation(message(code), expires, AGGREGATOR)  # in the very moment
    with pytest.raises(AuthenticationError):
        folder_registry(tmp_path).redeem_invitation(message(code), expires - timedelta(hours=1), AGGREGATOR)
    assert registered_key("north", tmp_path) is None


def test_whoever_has_no_code_does_not_wait_and_holds_up_nobody(tmp_path: Path) -> None:
    folder_registry(tmp_path).open_invitation("north", 1.0)
    with lock_folder(tmp_path / INVITED), pytest.raises(AuthenticationError):
        folder_registry(tmp_path).redeem_invitation(message("c" * 43), NOW, AGGREGATOR)
