"""A client's state on disk: it can go on from there, and shows its secrets to nobody who only looks at it in a log."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from shared.errors import DataError
from shared.method.parameters import Parameters
from shared.protocol.secure.state import read_state, write_state

ALL = ("ada", "bob", "cyd", "dan", "eve")


@pytest.fixture
def made(rehearsal: type, contents: Callable[..., dict[str, Parameters]]) -> Any:
    return rehearsal(contents(5)).until_masked(ALL)


def test_a_state_does_not_show_its_secrets(made: Any) -> None:
    for state in (made.begun["ada"], made.sharing["ada"], made.checked["ada"], made.ready["ada"]):
        secrets = list(json.loads(write_state(made.begun["ada"]))["secrets"].values())
        secrets += [share for pair in made.ready["ada"].shares.values() for share in (pair.seed, pair.key)]
        assert len(secrets) == 4 + 2 * 5 and not any(secret in repr(state) for secret in secrets)


def test_a_state_is_read_as_it_was_written(made: Any) -> None:
    for state in (made.begun["ada"], made.sharing["ada"], made.checked["ada"], made.ready["ada"]):
        text = write_state(state)
        assert read_state(text) == state and json.loads(text) == json.loads(state.model_dump_json())
        if state is not made.begun["ada"]:
            changed = state.roster.model_copy(update={"members": state.roster.members[1:]})
            other = state.model_copy(update={"roster": changed})
            assert read_state(write_state(other)) == other != state


@pytest.mark.parametrize("text", ["", "{}", '{"phase": "begun", "secrets": "0123abcd"}'])
def test_what_is_not_a_state_is_refused_without_its_text(text: str) -> None:
    with pytest.raises(DataError) as caught:
        read_state(text)
    assert "0123abcd" not in str(caught.value) and caught.value.__cause__ is None
