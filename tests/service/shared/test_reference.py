"""The page at /docs loads files of its own service alone, and starts by none of its own scripts."""

from __future__ import annotations

import re

import httpx
import pytest
from fastapi import FastAPI

from shared.web import openapi, problems
from shared.web.pages import SECURITY_HEADERS, static_router


@pytest.mark.anyio
async def test_the_page_loads_its_own_files_alone_and_is_guarded() -> None:
    app = FastAPI(title="A <service>", docs_url=None, redoc_url=None, openapi_url=None)
    openapi.add_reference_routes(app)
    app.include_router(static_router)
    problems.install_error_handlers(app)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as http:
        answer = await http.get("/docs")
        again = await http.get("/docs", headers={"If-None-Match": answer.headers["etag"]})
        links = re.findall(r'(?:src|href)="([^"]+)"', answer.text)
        statuses = {link: (await http.get(f"/{link}")).status_code for link in links}
        document = (await http.get("/openapi.json")).json()
    assert (answer.status_code, again.status_code) == (200, 304) and "/docs" not in document["paths"]
    scripts = {f"static/{name}" for name in ("swagger-ui-bundle.js", "reference.js")}
    assert statuses == dict.fromkeys(scripts | {"static/swagger-ui.css", "static/icon.svg", "openapi.json"}, 200)
    assert set(re.findall(r"<script([^>]*)>([^<]*)", answer.text)) == {(f' src="{one}" defer', "") for one in scripts}
    assert "A &lt;service&gt;" in answer.text
    others = {name: answer.headers[name] for name in SECURITY_HEADERS if name != "Content-Security-Policy"}
    assert others.items() <= SECURITY_HEADERS.items()


@pytest.mark.anyio
async def test_its_policy_is_every_page_s_but_for_images_within_its_style_sheet() -> None:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    openapi.add_reference_routes(app)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as http:
        policy = (await http.get("/docs")).headers["content-security-policy"]
    assert (
        policy.replace("img-src 'self' data:;", "img-src 'self';")
        == SECURITY_HEADERS["Content-Security-Policy"]
        != policy
    )
