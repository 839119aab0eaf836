"""Clients' calls in their canonical spelling, answered without the framework's reading of arguments.

The framework finds out again for each request what a route needs, and checks every parameter by a general validator:
half of a poll's time. Here a route's arguments are found out once. A request whose path and query are spelled as the
gate spells them is read by a pattern, and a message as the gate writes it by its model; the framework reads every other
one, and words its refusal.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import Annotated, Any, Final, get_args, get_type_hints

from fastapi import Path, Query, Request, Response, params
from fastapi.routing import APIRoute
from fastapi.security.base import SecurityBase
from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.types import Scope

from shared.message import Message
from shared.web.routes import JSON, announces_body, expects_body

RunPath = Annotated[str, Path(pattern=r"^run-[0-9]{1,9}$", description="the run's name", examples=["run-1"])]
RoundPath = Annotated[int, Path(ge=1, le=100_000, description="number of the round in the run", examples=[1])]
ClientPath = Annotated[
    str, Path(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$", description="the client's name", examples=["client-1"])
]
Wait = Annotated[
    float, Query(ge=0, allow_inf_nan=False, description="seconds; clamped by the aggregator", examples=[20.0])
]
Known = Annotated[
    int | None,
    Query(ge=0, lt=1 << 53, description="last known sequence; the call waits for another one", examples=[7]),
]


@dataclass(frozen=True)
class PlainSpelling:
    """Canonical spelling of a parameter, and its reader."""

    form: re.Pattern[str]
    read: Callable[[str], object] = str


SPELLINGS: Final[Mapping[object, PlainSpelling]] = {
    RunPath: PlainSpelling(re.compile(r"run-[0-9]{1,9}")),
    RoundPath: PlainSpelling(re.compile(r"[1-9][0-9]{0,4}"), int),
    ClientPath: PlainSpelling(re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")),
    Wait: PlainSpelling(re.compile(r"(?:0|[1-9][0-9]{0,11})(?:\.[0-9]{1,6})?"), float),
    Known: PlainSpelling(re.compile(r"0|[1-9][0-9]{0,11}"), int),
}
REQUEST, RESPONSE = "request", "response"  # keys of what the framework passes; no path or query has such a name
MESSAGE = "message"  # key of the body, likewise
Function = Callable[..., Awaitable[Any]]
Values = dict[object, Any]


class _NotDirectError(Exception):
    """A route needs something that is not read here, such as a form."""


@dataclass(frozen=True)
class _Step:
    """Function with the keys of its arguments; its result has the function as its key."""

    function: Function
    arguments: Mapping[str, object]


@dataclass
class DirectCall:
    """Arguments and steps of one route's function.

    in_path, in_query: spellings by name. defaults: values of a query's parameters that a request leaves out. message:
    kind of the JSON body. model: kind of the answer. with_response: whether a function sets status or headers of it.
    """

    steps: list[_Step] = field(default_factory=list)
    in_path: dict[str, PlainSpelling] = field(default_factory=dict)
    in_query: dict[str, PlainSpelling] = field(default_factory=dict)
    defaults: Values = field(default_factory=dict)
    with_body: bool = False
    with_response: bool = False
    message: type[Message] | None = None
    status: int = 200
    model: type[Message] | None = None

    @staticmethod
    def of(route: APIRoute) -> DirectCall | None:
        """Reads the needs of a route; None if only the framework can meet them."""
        if route.response_model_exclude_none:
            return None
        call = DirectCall(with_body=expects_body(route), status=route.status_code or 200)
        if isinstance(route.response_model, type) and issubclass(route.response_model, Message):
            call.model = route.response_model
        elif route.response_model is not None:
            return None
        try:
            for one in route.dependencies:
                if not isinstance(one.dependency, SecurityBase):  # these are for the OpenAPI document
                    call._add_function(one.dependency)
            call._add_function(route.endpoint)
        except _NotDirectError:
            return None
        return call if (route.body_field is None) == (call.message is None) else None

    def _add_function(self, function: Any) -> None:
        """Adds a function after those that it depends on, in the framework's order."""
        if any(step.function is function for step in self.steps):
            return
        hints, arguments = get_type_hints(function, include_extras=True), {}
        for name, parameter in signature(function).parameters.items():
            arguments[name] = self._key_of(name, parameter, hints[name])
        self.steps.append(_Step(function, arguments))

    def _key_of(self, name: str, parameter: Parameter, kind: Any) -> object:
        """Returns the key of an argument; adds what it depends on."""
        if kind is Request:
            return REQUEST
        if kind is Response:
            self.with_response = True
            return RESPONSE
        for extra in get_args(kind)[1:]:
            if isinstance(extra, params.Depends) and extra.dependency is not None and extra.use_cache:
                self._add_function(extra.dependency)
                return extra.dependency
        if name == MESSAGE and isinstance(kind, type) and issubclass(kind, Message):
            self.message = kind
            return MESSAGE
        if kind not in SPELLINGS:
            raise _NotDirectError
        if parameter.default is Parameter.empty:
            self.in_path[name] = SPELLINGS[kind]
        else:
            self.in_query[name], self.defaults[name] = SPELLINGS[kind], parameter.default
        return name

    def read_values(self, scope: Scope) -> Values | None:
        """Reads path and query; None for another spelling or an undeclared body."""
        headers = Headers(scope=scope)
        if not self.with_body and announces_body(headers):
            return None
        if self.message is not None and headers.get("content-type") != JSON:
            return None
        values = self.defaults.copy()
        if query := scope["query_string"].decode("latin-1"):
            came: set[str] = set()
            for part in query.split("&"):
                name, _, text = part.partition("=")
                if name in came or not self._read_text(values, self.in_query, name, text):
                    return None
                came.add(name)
        for name, text in scope["path_params"].items():
            if not self._read_text(values, self.in_path, name, text):
                return None
        return values

    @staticmethod
    def _read_text(values: Values, among: Mapping[str, PlainSpelling], name: str, text: str) -> bool:
        spelling = among.get(name)
        if spelling is None or spelling.form.fullmatch(text) is None:
            return False
        values[name] = spelling.read(text)
        return True

    def read_message(self, values: Values, body: bytes) -> bool:
        """Reads a body; False for one in another form.

        The framework may take or refuse that.
        """
        assert self.message is not None
        try:
            found = self.message.model_validate_json(body)
        except ValidationError:
            return False
        values[MESSAGE] = found
        return found.model_dump_json().encode() == body

    async def answer(self, request: Request, values: Values) -> Response:
        """Calls the functions and returns the answer as the framework writes it."""
        values[REQUEST], said = request, None
        if self.with_response:
            values[RESPONSE] = said = Response(status_code=self.status)
            del said.headers["content-length"]
        found: Any = None
        for step in self.steps:
            found = values[step.function] = await step.function(
                **{name: values[key] for name, key in step.arguments.items()}
            )
        if isinstance(found, Response):
            return found
        assert self.model is not None and type(found) is self.model, f"expected {self.model} of a route"
        status = self.status if said is None else said.status_code
        answer = Response(found.model_dump_json(by_alias=True), status, media_type="application/json")
        answer.headers.raw.extend(said.headers.raw if said is not None else ())
        return answer
