"""What every page has in common: nothing from elsewhere, nothing unescaped, nothing sent twice, readable colours."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI, Request, Response
from jinja2 import UndefinedError

from shared import words
from shared.method.declaration import Declaration, TensorSpec
from shared.web import pages, problems
from shared.web.pages import describe_declaration
from shared.words import count_noun

ROOT = Path(__file__).parents[3]
STATIC = ROOT / "shared" / "web" / "static"
TEMPLATES = sorted(
    path for package in ("shared", "aggregator_service", "client_service") for path in (ROOT / package).rglob("*.html")
)
SPACE = "\N{NO-BREAK SPACE}"


@pytest.fixture
def app() -> FastAPI:
    """A page whose text is `app.state.text`, and the static files."""
    app = FastAPI()
    app.state.text = "one"

    @app.get("/")
    async def show(request: Request) -> Response:
        return pages.page_response(request, f"<p>{app.state.text}</p>")

    app.include_router(pages.static_router)
    problems.install_error_handlers(app)
    return app


def asking(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here")


@pytest.mark.anyio
async def test_a_page_can_load_nothing_from_elsewhere_and_nobody_may_keep_or_frame_it(app: FastAPI) -> None:
    async with asking(app) as http:
        headers = (await http.get("/")).headers
    rules = dict(rule.strip().split(" ", 1) for rule in headers["content-security-policy"].split(";"))
    own = {f"{kind}-src": "'self'" for kind in ("style", "script", "img", "connect")}
    none = {"default-src": "'none'", "frame-ancestors": "'none'", "base-uri": "'none'"}
    assert rules == own | none | {"form-action": "'self'"}
    assert headers["cache-control"] == "no-store" and headers["referrer-policy"] == "no-referrer"
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.anyio
async def test_a_page_that_has_not_changed_is_not_sent_again(app: FastAPI) -> None:
    async with asking(app) as http:
        first = await http.get("/")
        known = {"If-None-Match": first.headers["etag"]}
        again = await http.get("/", headers=known)
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
        assert again.headers["content-security-policy"] == first.headers["content-security-policy"]
        app.state.text = "two"
        changed = await http.get("/", headers=known)
        assert (changed.status_code, changed.text) == (200, "<p>two</p>")


@pytest.mark.anyio
@pytest.mark.parametrize("path", sorted(STATIC.iterdir()), ids=lambda path: path.name)
async def test_what_a_page_loads_is_served_as_what_it_is(app: FastAPI, path: Path) -> None:
    kinds = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".txt": "text/plain"}
    async with asking(app) as http:
        answer = await http.get(f"/static/{path.name}")
        assert answer.headers["content-type"].partition(";")[0] == kinds[path.suffix]
        assert answer.content == path.read_bytes() and answer.headers["x-content-type-options"] == "nosniff"
        again = await http.get(f"/static/{path.name}", headers={"If-None-Match": answer.headers["etag"]})
        assert again.status_code == 304


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["page.py", "..%2fpages.py", "%2e%2e/pages.py", ".", "nothing", "page.css/"])
async def test_nothing_else_is_served(app: FastAPI, name: str) -> None:
    async with asking(app) as http:
        answer = await http.get(f"/static/{name}", follow_redirects=False)
    assert answer.status_code in (307, 404) and "import" not in answer.text


def test_values_are_escaped_and_a_value_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "one.html").write_text("<p title='{{ title }}'>{{ title }}</p>{{ title | short }}")
    template = pages.load_templates(tmp_path).get_template("one.html")
    html = template.render(title="<script>'&\"")
    assert "<script>" not in html and html.count("&lt;script&gt;") == 3
    with pytest.raises(UndefinedError):
        template.render()


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: f"{path.parts[-4]}-{path.name}")
def test_no_template_has_a_script_or_a_style_of_its_own_or_an_address_elsewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"\sstyle=|\son[a-z]+=|<style|javascript:|\|\s*safe|autoescape", text)
    assert all(
        re.fullmatch(r"src=\"static/[a-zA-Z.-]+\.js\" defer", found) for found in re.findall(r"<script ([^>]*)>", text)
    )
    links = re.findall(r"(?:href|src|action)=\"([^\"]*)\"", text)
    assert [link for link in links if re.match(r"[a-z]+:|/", link)] == []  # relative, so that any prefix will do


def test_every_template_and_every_static_file_is_part_of_the_package() -> None:
    kept = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '"templates/*.html"' in kept and '"static/*"' in kept and len(TEMPLATES) >= 6
    assert {path.parent.name for path in TEMPLATES} == {"templates"}


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (18_432, "18.4 kB"), (116_492, "116 kB"), (5 * 10**9, "5 GB")],
)
def test_a_size_is_said_in_decimal_units(count: int, said: str) -> None:
    assert words.format_bytes(count) == said.replace(" ", SPACE)


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "–"), (0.4213, "0.42 s"), (12.7, "13 s"), (59.7, "1 min 00 s"), (83.0, "1 min 23 s"), (7500, "2 h 05 min")],
)
def test_a_length_of_time_is_said_in_its_two_largest_units(value: float | None, said: str) -> None:
    assert words.format_duration(value).replace(SPACE, " ") == said


def test_other_figures_in_words() -> None:
    assert (
        words.format_time("2026-03-04T05:06:07.891+00:00") == "2026-03-04 05:06:07" and words.format_time(None) == "–"
    )
    assert words.shorten_digest("0123456789abcdef") == "0123456789ab" and words.shorten_digest(None) == "–"
    assert (words.format_number(0.12345), words.format_number(float("nan")), words.format_number(None)) == (
        "0.1235",
        "–",
        "–",
    )
    assert (count_noun(1, "entry", "entries"), count_noun(2000, "user")) == ("1 entry", "2,000 users")
    assert (words.format_shape((64, 192)), words.format_shape(())) == ("64 × 192", "one number")


def test_a_declaration_is_said_field_by_field_with_its_bytes() -> None:
    tensors = (TensorSpec(name="pooling.weight", shape=(4, 8)), TensorSpec(name="pooling.bias", shape=(4,)))
    found = describe_declaration(Declaration(strategy="lpsfed", tensors=tensors, scalars=("rho",)))
    assert [(field.name, field.shape, field.bytes) for field in found.fields] == [
        ("pooling.weight", "4 × 8", "128"),
        ("pooling.bias", "4", "16"),
        ("rho", "one number", "in the header"),
    ]
    assert found.sentence == f"2 tensors of 144{SPACE}B and 1 scalar, and nothing else."
    assert [field.kind for field in found.fields] == ["float32 tensor", "float32 tensor", "scalar"]
    summed = Declaration(strategy="fedavg", tensors=(TensorSpec(name="n", dtype="U32", shape=(4,)),), scalars=())
    for secure, kind in ((False, "uint32 tensor"), (True, "masked tensor")):
        (field,) = describe_declaration(summed.model_copy(update={"secure": secure})).fields
        assert (field.kind, field.bytes) == (kind, "16")
    told = describe_declaration(summed.model_copy(update={"broadcasts": tensors[:1], "secure": True}))
    assert [(one.name, one.kind, one.bytes) for one in told.fields][1:] == [
        ("pooling.weight", "float32 tensor, only down", "128")
    ]
    assert told.sentence.endswith("and nothing else. 1 tensor more can only come down, the same to every client.")
    nothing = describe_declaration(Declaration(strategy="local", tensors=(), scalars=()))
    assert nothing.fields == () and "no parameters" in nothing.sentence


TEXT = [(ink, paper) for ink in ("ink", "muted", "accent", "warn", "bad") for paper in ("ground", "surface")]
TEXT += [("on-accent", "accent"), ("ink", "tint"), ("accent", "tint"), ("muted", "tint")]
TEXT += [("ink", "warn-tint"), ("warn", "warn-tint"), ("ink", "bad-tint"), ("bad", "bad-tint"), ("muted", "bad-tint")]
TEXT += [("surface", "bad")]
SHAPES = [("edge", "ground"), ("edge", "surface")]  # of controls; the focus ring is the accent
SHAPES += [(f"line-{tone}", "surface") for tone in range(6)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_that_of_wcag_aa(scheme: str) -> None:
    colours = palette(scheme)
    for pairs, least in ((TEXT, 4.5), (SHAPES, 3.0)):
        weak = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in pairs}
        assert {pair: round(found, 2) for pair, found in weak.items() if found < least} == {}


def test_the_contrast_of_black_on_white_is_21() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def palette(scheme: str) -> dict[str, str]:
    """The colours of the style sheet: those of the first :root, and in the dark those of the second over them."""
    light, dark = re.findall(r":root \{(.*?)\}", (STATIC / "page.css").read_text(encoding="utf-8"), re.DOTALL)
    found = [dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", block)) for block in (light, dark)]
    assert found[0].keys() == found[1].keys()
    return found[0] if scheme == "light" else found[1]


def contrast(one: str, other: str) -> float:
    """(L1 + 0.05) / (L2 + 0.05), the lighter first."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_no_two_scripts_of_a_page_have_a_function_of_the_same_name() -> None:
    """They share one scope: the later one would take the earlier one's place."""
    own = [(STATIC / name).read_text(encoding="utf-8") for name in ("page.js", "charts.js")]
    named = [re.findall(r"^(?:async )?(?:function|const|let) (\w+)", text, re.MULTILINE) for text in own]
    assert all(len(names) > 10 for names in named) and not set(named[0]) & set(named[1])
