"""HTML pages from templates and values, which load nothing from other servers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, Request, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from shared.errors import NotFoundError
from shared.method.declaration import Declaration
from shared.protocol.masked_wire import body_forms, readable_scalars
from shared.web.routes import DeclaredRoute
from shared.words import count_noun, format_bytes, format_number, format_shape, format_time, shorten_digest


@dataclass(frozen=True)
class DeclaredField:
    name: str
    kind: str
    shape: str
    bytes: str


@dataclass(frozen=True)
class DeclaredFields:
    """Table of the fields of an update, with their total size in words."""

    caption: str
    sentence: str
    fields: tuple[DeclaredField, ...]


def describe_declaration(declaration: Declaration) -> DeclaredFields:
    """Describes the tensors and scalars that an update may hold.

    Tensors of 4-byte numbers; in a secure federation masked, where float32 takes 8 bytes and the hidden scalars are
    among them. Scalars as decimal text in the body's header. The tensors of sums too.
    """
    own = _describe_part(declaration)
    for part, one in declaration.sums.items():
        sums = _describe_part(one)
        sentence = f"{own.sentence} In a run of the part {part} instead: {sums.sentence}"
        own = DeclaredFields(own.caption, sentence, (*own.fields, *sums.fields))
    return own


def _describe_part(declaration: Declaration) -> DeclaredFields:
    sizes = body_forms(declaration)
    kinds = {"U64": "masked tensor", "F32": "float32 tensor", "U32": "uint32 tensor"}
    leaving = dict.fromkeys(kinds, "masked tensor") if declaration.secure else kinds
    tensors = [
        DeclaredField(name, leaving[one.dtype], format_shape(one.shape), f"{one.bytes:,}")
        for name, one in sizes.items()
    ]
    scalars = [DeclaredField(name, "scalar", "one number", "in the header") for name in readable_scalars(declaration)]
    total = format_bytes(sum(one.bytes for one in sizes.values()))
    much = f"{count_noun(len(tensors), 'tensor')} of {total} and {count_noun(len(scalars), 'scalar')}"
    much += ", masked so that only the sum of all clients’ can be read" if declaration.secure else ""
    none = "Nothing: this strategy exchanges no parameters."
    down = [
        DeclaredField(spec.name, f"{kinds[spec.dtype]}, only down", format_shape(spec.shape), f"{spec.form.bytes:,}")
        for spec in declaration.broadcasts
    ]
    more = f" {count_noun(len(down), 'tensor')} more can only come down, the same to every client." if down else ""
    return DeclaredFields(
        caption=f"All that an update may hold under strategy {declaration.strategy}",
        sentence=(f"{much}, and nothing else." if tensors or scalars else none) + more,
        fields=(*tensors, *scalars, *down),
    )


FOLDER = Path(__file__).parent
KINDS = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",  # licences
}
HTML = "text/html; charset=utf-8"

static_router = APIRouter(include_in_schema=False, route_class=DeclaredRoute)


def security_headers(images: str = "'self'") -> dict[str, str]:
    """Returns headers by which a page loads from its own service alone.

    images: sources of images, as CSP writes them.
    """
    own = " ".join(f"{kind}-src 'self';" for kind in ("style", "script", "connect"))
    others = "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    return {
        "Content-Security-Policy": f"default-src 'none'; {own} img-src {images}; {others}",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }


SECURITY_HEADERS = security_headers()


@dataclass(frozen=True)
class PageHead:
    """Head of a page: service, name, address, sections.

    address: of the same page, without the text of a form.
    """

    service: str
    name: str
    address: str
    sections: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Verdict:
    """State in words.

    kind: good, busy, idle, warn or bad; it chooses mark and colour.
    """

    kind: str
    word: str
    sentence: str


@dataclass(frozen=True)
class Fact:
    """Figure at the head of a page, with a note on its meaning."""

    label: str
    value: str
    note: str = ""


def load_templates(folder: Path) -> Environment:
    """Loads a service's templates and the shared ones; every value is escaped."""
    loader = FileSystemLoader([folder, FOLDER / "templates"])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "size": format_bytes,
        "clock": format_time,
        "short": shorten_digest,
        "figure": format_number,
    }
    return environment


def page_response(request: Request, html: str, headers: Mapping[str, str] = SECURITY_HEADERS) -> Response:
    """Answers with an HTML page; 304 where the caller has it."""
    return _answer_tagged(request, html.encode(), HTML, {**headers, "Cache-Control": "no-store"})


def refusal_page(html: str, status: int) -> Response:
    """Answers with an HTML page that explains why a request was refused."""
    return Response(html, status, {**SECURITY_HEADERS, "Cache-Control": "no-store"}, HTML)


@static_router.get("/static/{name}")
def read_static(name: str, request: Request) -> Response:
    content = _STATIC.get(name)
    if content is None:
        raise NotFoundError(f"expected one of {sorted(_STATIC)}, got another name")
    return _answer_tagged(request, content, KINDS[Path(name).suffix], {**SECURITY_HEADERS, "Cache-Control": "no-cache"})


def _answer_tagged(request: Request, body: bytes, kind: str, headers: dict[str, str]) -> Response:
    tag = f'"{hashlib.sha256(body).hexdigest()}"'
    headers = headers | {"ETag": tag}
    if tag in [one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")]:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=kind, headers=headers)


_STATIC = {path.name: path.read_bytes() for path in sorted((FOLDER / "static").iterdir()) if path.suffix in KINDS}
