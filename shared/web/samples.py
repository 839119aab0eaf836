"""An operation of an OpenAPI document -> lines of curl, Python and JavaScript that make this call."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from shared.web.examples import JSON

FIELD = "x-codeSamples"  # as the tools that show such documents expect it
SHORT = 60  # characters
BY_BEARER: Mapping[str, list[str]] = {"HTTPBearer": []}


@dataclass(frozen=True)
class SampleCall:
    """What a call says; body: None where there is none. keyed: a key is shown."""

    method: str
    address: str
    body: Any
    keyed: bool


def add_samples(document: Mapping[str, Any], address: str) -> None:
    """Show each call to a service at `address` but those that clients sign, which no line of code can."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            security = operation.get("security", [])
            if not security or BY_BEARER in security:
                call = _read_call(method.upper(), address + path, operation)
                operation[FIELD] = [
                    {"lang": "Shell", "label": "curl", "source": write_curl(call)},
                    {"lang": "Python", "label": "Python", "source": write_python(call)},
                    {"lang": "JavaScript", "label": "JavaScript", "source": write_javascript(call)},
                ]


def _read_call(method: str, address: str, operation: Mapping[str, Any]) -> SampleCall:
    for one in operation.get("parameters", ()):
        if one["in"] == "path" and "examples" in one["schema"]:
            address = address.replace(f"{{{one['name']}}}", quote(str(one["schema"]["examples"][0]), safe=""))
    body = operation.get("requestBody", {}).get("content", {}).get(JSON, {}).get("example")
    return SampleCall(method, address, body, BY_BEARER in operation.get("security", []))


def write_curl(call: SampleCall) -> str:
    """For a shell that knows the key as KEY."""
    lines = [f"curl {call.address}" if call.method == "GET" else f"curl -X {call.method} {call.address}"]
    if call.keyed:
        lines.append('-H "Authorization: Bearer $KEY"')
    if call.body is not None:
        lines += [f"-H 'Content-Type: {JSON}'", f"-d {shlex.quote(json.dumps(call.body))}"]
    return " \\\n    ".join(lines)


def write_python(call: SampleCall) -> str:
    """For a module that knows the key as `key`."""
    words = [json.dumps(call.method), json.dumps(call.address)]
    words += ['headers={"Authorization": f"Bearer {key}"}'] if call.keyed else []
    words += [f"json={call.body!r}"] if call.body is not None else []
    return (
        f"import httpx\n\nanswer = httpx.request({_write_lines(words)})\nanswer.raise_for_status()\nprint(answer.text)"
    )


def write_javascript(call: SampleCall) -> str:
    """For a module that knows the key as `key`."""
    headers = ["Authorization: `Bearer ${key}`"] if call.keyed else []
    headers += [f'"Content-Type": {json.dumps(JSON)}'] if call.body is not None else []
    options = [f"method: {json.dumps(call.method)}"]
    options += [f"headers: {{{', '.join(headers)}}}"] if headers else []
    options += [f"body: JSON.stringify({json.dumps(call.body)})"] if call.body is not None else []
    return (
        f"const answer = await fetch({json.dumps(call.address)}, {{{_write_lines(options)}}});\n"
        "if (!answer.ok) throw new Error((await answer.json()).detail);\n"
        "console.log(await answer.text());"
    )


def _write_lines(words: Sequence[str]) -> str:
    """What stands in brackets, a word a line; few words that need no more than one line stand there."""
    together = ", ".join(words)
    return together if len(together) <= SHORT else "".join(f"\n    {word}," for word in words) + "\n"
