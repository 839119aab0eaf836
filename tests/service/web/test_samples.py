"""The lines of code in both documents are run as they stand, and no service finds anything undeclared in them."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.support.questions import LONGEST_SECONDS
from tests.support.small import BEARER

KEY = BEARER["Authorization"].removeprefix("Bearer ")
NOT_UNDERSTOOD = ("bad-request", "protocol", "media-type", "method-not-allowed", "http")
LABELS = ["curl", "Python", "JavaScript"]


def samples(app: FastAPI) -> dict[str, dict[str, str]]:
    """Of each operation, its lines by label."""
    return {
        f"{method} {path}": {one["label"]: one["source"] for one in what["x-codeSamples"]}
        for path, methods in app.openapi()["paths"].items()
        for method, what in methods.items()
        if "x-codeSamples" in what
    }


def test_every_call_but_those_that_clients_sign_is_shown_in_three_languages(service: tuple[str, FastAPI]) -> None:
    document, found = service[1].openapi(), samples(service[1])
    signed = {
        f"{method} {path}"
        for path, methods in document["paths"].items()
        for method, what in methods.items()
        if {"APIKeyHeader": []} in what.get("security", [])
    }
    every = {f"{method} {path}" for path, methods in document["paths"].items() for method in methods}
    assert set(found) == every - signed and len(found) >= 10
    assert all(list(one) == LABELS for one in found.values())


def test_the_lines_of_python_are_understood(
    service: tuple[str, FastAPI], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, one in samples(service[1]).items():
        require_understood(name, run_python(one["Python"], url, monkeypatch))


def require_understood(name: str, answer: str) -> None:
    """The example's ids are nobody's here, and its settings another federation's; the call itself is as declared."""
    refused = json.loads(answer) if '"about:blank"' in answer else {}
    code, of_this_federation = refused.get("code"), refused.get("detail", "").startswith("method (")
    assert code not in NOT_UNDERSTOOD or of_this_federation, f"{name}: {answer}"
    assert code != "authentication" or name.endswith("/enrolments"), f"{name}: {answer}"  # its code is none


def run_python(source: str, url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the one call of these lines is answered, at this service in the place of the one that they name."""
    answers: list[str] = []

    def call(method: str, address: str, **options: Any) -> httpx.Response:
        with httpx.Client(trust_env=False) as http:
            answer = http.request(method, url + httpx.URL(address).raw_path.decode(), **options)
        answers.append(answer.text)
        answer.status_code = 200
        return answer

    with monkeypatch.context() as patch:
        patch.setattr("httpx.request", call)
        exec(compile(source, "sample", "exec"), {"key": KEY, "print": lambda _: None})
    [answer] = answers
    return answer


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_the_lines_of_curl_are_understood(service: tuple[str, FastAPI], url: str) -> None:
    for name, one in samples(service[1]).items():
        words = [at_url(word, url) for word in shlex.split(one["curl"].replace("\\\n", ""))]
        done = subprocess.run(
            [words[0], "-s", *words[1:]], capture_output=True, text=True, check=True, timeout=LONGEST_SECONDS
        )
        require_understood(name, done.stdout)


def test_no_line_of_curl_calls_more_than_it_shows(service: tuple[str, FastAPI]) -> None:
    """curl and shells take braces, brackets, stars and question marks for several addresses."""
    for name, one in samples(service[1]).items():
        [address] = re.findall(r"http://\S+", one["curl"])
        assert re.fullmatch(r"[A-Za-z0-9%:/._-]+", address), f"{name}: {address}"


def at_url(word: str, url: str) -> str:
    """A word of the command, for the service at hand and with its key."""
    if word.startswith("http://"):
        return url + httpx.URL(word).raw_path.decode()
    return word.replace("$KEY", KEY)


def test_the_lines_of_javascript_ask_the_same(service: tuple[str, FastAPI]) -> None:
    for name, one in samples(service[1]).items():
        method, script = name.partition(" ")[0].upper(), one["JavaScript"]
        assert script.count("await fetch(") == 1 and script.count("{") == script.count("}"), name
        address = next(word for word in shlex.split(one["curl"].replace("\\\n", "")) if word.startswith("http://"))
        assert json.dumps(address) in script, name
        assert f'method: "{method}"' in script, name
        assert ("Content-Type" in script) == ("-d " in one["curl"]), name
