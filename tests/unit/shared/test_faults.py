"""Words of validation errors: each says what was expected and what came, without data and in bounded length."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import pytest
from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import PydanticKnownError, core_schema

from shared.errors import SettingsError
from shared.faults import describe_fault, describe_safely
from shared.method.settings import method_settings
from shared.web.problems import list_faults

SECRET = "alice-4711"
LONG = 240  # characters of a description
SHORT = Annotated[str, Field(max_length=3)]
RUN = Annotated[str, Field(pattern=r"^run-[0-9]{1,9}$")]
DIGEST = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
OUR_OWN = ("value_error", "assertion_error", "extra_forbidden")


def first_fault(kind: Any, value: Any) -> str:
    with pytest.raises(ValidationError) as raised:
        TypeAdapter(kind).validate_python(value)
    return describe_fault(raised.value.errors()[0], describe_safely)


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (Annotated[int, Field(ge=1)], 0, "expected a number of 1 or more, got 0"),
        (Annotated[int, Field(le=1000)], "2000", "expected a number of at most 1,000, got 2000"),
        (Annotated[float, Field(gt=0)], -0.5, "expected a number above 0, got -0.5"),
        (int, SECRET, "expected a whole number, got text of 10 characters"),
        (int, 1.5, "expected a whole number, got 1.5"),
        (bool, SECRET, "expected true or false, got text of 10 characters"),
        (str, 4711, "expected text, got a number"),
        (str, None, "expected text, got null"),
        (list[str], SECRET, "expected a list, got text of 10 characters"),
        (dict[str, str], [1], "expected an object, got a list of 1"),
        (Annotated[list[int], Field(max_length=2)], [1, 2, 3], "expected a list of at most 2, got a list of 3"),
        (SHORT, SECRET, "expected text of at most 3 characters, got text of 10 characters"),
        (Literal["parameters", "sums"], "everything", "expected parameters or sums, got everything"),
        (Literal["parameters", "sums"], SECRET, "expected parameters or sums, got text of 10 characters"),
        (RUN, "abc", "expected the name of a run, as run-1, got text of 3 characters"),
        (DIGEST, "d7", "expected 64 digits of 0-9 and a-f, got text of 2 characters"),
        (Annotated[str, Field(pattern="^x+$")], "d", "expected text of the form ^x+$, got text of 1 character"),
    ],
)
def test_a_fault_says_what_was_expected_and_what_came(kind: Any, value: Any, said: str) -> None:
    assert first_fault(kind, value) == said


@pytest.mark.parametrize("kind", [one for one in get_args(core_schema.ErrorType) if one not in OUR_OWN])
def test_every_error_of_pydantic_has_both_parts_and_nothing_of_the_input(kind: str) -> None:
    context = dict.fromkeys(("error", "tag", "method_name", "class_name", "message", "fields"), SECRET)
    context |= dict.fromkeys(("ge", "gt", "le", "lt", "multiple_of", "min_length", "max_length"), 3)
    context |= {"field_type": "List", "expected": "'a' or 'b'", "pattern": "^x{900}$" * 100, "actual_length": 4}
    said = describe_fault({"type": kind, "msg": f"wrong {SECRET}", "ctx": context, "input": SECRET}, describe_safely)
    assert said.startswith("expected ") and ", got " in said, said
    assert SECRET not in said and len(said) < LONG


def test_a_number_too_long_to_be_a_parameter_is_not_repeated() -> None:
    assert first_fault(Annotated[int, Field(le=9)], 10**30) == "expected a number of at most 9, got a number"


def test_a_member_of_a_list_is_data_and_a_parameter_is_none() -> None:
    def told(*place: str | int) -> str:
        error = {"type": "greater_than_equal", "loc": place, "msg": "", "input": 4711, "ctx": {"ge": 9000}}
        return list_faults([error], {"k": 4711, "events": [{"time": 4711}]})[0].detail

    assert told("body", "k") == "expected a number of 9,000 or more, got 4711"
    assert told("body", "events", 0, "time") == "expected a number of 9,000 or more, got a number"


def test_a_setting_of_the_command_line_is_repeated_in_bounded_length() -> None:
    with pytest.raises(SettingsError, match=r"^local_epochs: expected a number of 1 or more, got 0$"):
        method_settings(local_epochs="0")
    with pytest.raises(SettingsError) as raised:
        method_settings(local_epochs="x" * 9000)
    assert "expected a whole number, got 'xxx" in str(raised.value) and len(str(raised.value)) < LONG + LONG


def test_own_words_keep_what_they_say() -> None:
    error = PydanticKnownError("value_error", {"error": "expected a basket, got neither"})
    assert (
        describe_fault({"type": error.type, "msg": error.message(), "input": SECRET})
        == "expected a basket, got neither"
    )
