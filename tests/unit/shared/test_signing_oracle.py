"""Signatures written and read by hand, compared with a library of RFC 9421 over 10,000 requests and answers.

The library is the oracle. What it verifies and the services refuse must be of another form than the one that they
write; what the services take, it must verify.
"""

from __future__ import annotations

import base64
import hashlib
import random
import re
import string
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from http_message_signatures import (
    HTTPMessageSignaturesException,
    HTTPMessageSigner,
    HTTPMessageVerifier,
    InvalidSignature,
    MappingKeyResolver,
    VerifyResult,
    algorithms,
)

from shared.errors import AuthenticationError, ProtocolError, UnavailableError
from shared.protocol.signing.keys import raw_hex
from shared.protocol.signing.requests import (
    RequestTarget,
    Signatory,
    body_digest,
    is_valid_claim,
    read_claim,
    sign_request,
)
from shared.protocol.signing.responses import require_answer, sign_answer

DIGEST, INPUT, SIGNATURE = "content-digest", "signature-input", "signature"
KEYS = {
    name: Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest()) for name in ("east", "west-1")
}
STRANGER = Ed25519PrivateKey.from_private_bytes(bytes(32))
NONCE = "0123456789abcdef" * 2
SECONDS = 1_700_000_000
HUGE = 100_000
Headers = list[tuple[str, str]]


@dataclass
class FieldLines:
    """Header lines as the library takes them: in order, a name perhaps twice."""

    lines: Headers

    def items(self) -> Headers:
        return self.lines


@dataclass
class LibraryRequest:
    method: str
    url: str
    headers: Any


@dataclass
class LibraryAnswer:
    status_code: int
    headers: Any
    request: LibraryRequest


class TimelessVerifier(HTTPMessageVerifier):
    """The services check the time themselves."""

    def validate_created_and_expires(self, sig_input: object, max_age: object = None) -> None:
        del sig_input, max_age


@dataclass(frozen=True)
class Came:
    """A request as it has come, with what was done to it."""

    target: RequestTarget
    headers: Headers
    change: str = "none"


def url_of(target: RequestTarget) -> str:
    return f"http://unsigned{target.path}" + (f"?{target.query}" if target.query else "")


def library_sign(
    message: Any, name: str, key: Any, created: int, covered: tuple[str, ...], **more: Any
) -> dict[str, str]:
    keys = MappingKeyResolver(public_keys={}, private_keys={name: key})
    HTTPMessageSigner(signature_algorithm=algorithms.ED25519, key_resolver=keys).sign(
        message,
        key_id=name,
        created=datetime.fromtimestamp(created, UTC),
        covered_component_ids=covered,
        **{"label": "sig1", **more},
    )
    return {header.lower(): value for header, value in message.headers.items()}


def library_sign_request(
    target: RequestTarget, body: bytes, name: str, created: int, nonce: str, **more: Any
) -> dict[str, str]:
    covered = more.pop("covered", ("@method", "@path", *(("@query",) if target.query else ()), DIGEST))
    message = LibraryRequest(target.method, url_of(target), {})
    return library_sign(message, name, KEYS[name], created, covered, **{"nonce": nonce, "body": body, **more})


def library_verify(message: Any) -> VerifyResult | None:
    keys = MappingKeyResolver(public_keys={name: key.public_key() for name, key in KEYS.items()}, private_keys={})
    verifier = TimelessVerifier(signature_algorithm=algorithms.ED25519, key_resolver=keys)
    try:
        (found,) = verifier.verify(message, max_age=None)
    except (InvalidSignature, HTTPMessageSignaturesException):
        return None
    return found


def takes(came: Came) -> bool:
    """The service's own verdict."""
    try:
        claim = read_claim(came.headers)
    except AuthenticationError:
        return False
    key = KEYS.get(claim.name, STRANGER)
    return is_valid_claim(claim, came.target, key.public_key()) and claim.name in KEYS


def is_our_form(came: Came, found: VerifyResult) -> bool:
    """Whether a request that the library verifies is written in the one form; told by what the library has read."""
    lines = [(name.lower(), value) for name, value in came.headers if name.lower() in (DIGEST, INPUT, SIGNATURE)]
    if sorted(name for name, _ in lines) != [DIGEST, SIGNATURE, INPUT]:
        return False
    if "#" in came.target.path + came.target.query:  # the library reads a fragment, which is not signed
        return False
    one, said = dict(lines), found.parameters
    covered = ['"@method"', '"@path"', *(['"@query"'] if came.target.query else []), f'"{DIGEST}"']
    created = said.get("created")
    if not isinstance(created, int) or not 0 < created < 10**12 or not re.fullmatch("[0-9a-f]{32}", str(found.nonce)):
        return False
    written = (
        f'sig1=({" ".join(covered)});created={created};keyid="{said["keyid"]}";alg="ed25519";nonce="{found.nonce}"'
    )
    digest, signature = re.fullmatch("sha-256=:(.*):", one[DIGEST]), re.fullmatch("sig1=:(.*):", one[SIGNATURE])
    return bool(
        one[INPUT] == written
        and re.fullmatch("[A-Z0-9!#$%&'*+.^_`|~-]+", came.target.method)
        and digest
        and signature
        and is_base64_of(digest[1], 32)
        and is_base64_of(signature[1], 64)
    )


def is_base64_of(text: str, size: int) -> bool:
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return len(raw) == size and base64.b64encode(raw).decode() == text


PATHS = (
    "/v1/runs/current",
    "/",
    "//",
    "/v1/runs/run-1/rounds/1/clients/east/update",
    "/a%20b",
    "/%C3%A9",
    "/%63",
    "/a;b=c,d",
    "/:@!$&'()*+,;=",
    "/~_.-",
    "/../x",
    "/./",
    "/a/",
)
QUERIES = (
    "",
    "",
    "wait=20",
    "wait=20&after=3",
    "a",
    "=",
    "&",
    "?",
    "a=%20&b=+",
    "/?:@",
    "a=b=c",
    "wait=20&wait=20",
    "%C3%A9",
)
ODD = (
    "",
    " ",
    "%",
    "%zz",
    "%4",
    "#x",
    "[",
    "|",
    "\\",
    '"',
    "é",
    "\u0100",
    "\U0001f600",
    "\n",
    "\r\n",
    "\t",
    "\x00",
    "\x7f",
    "^",
)
METHODS = ("GET", "PUT", "POST", "DELETE", "M-SEARCH")
ODD_METHODS = ("get", "Get", "G T", " GET", "GET ", "", "GÉT", "GET\n", "GET:", "(GET)", "\x7f")


@dataclass
class Generator:
    """Draws requests that are signed, and changes them."""

    seed: int
    draw: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)

    def target(self) -> RequestTarget:
        path = self.draw.choice(PATHS)
        if self.draw.random() < 0.2:
            path += "".join(self.draw.choices(string.ascii_letters + string.digits + "-._~!$&'()*+,;=:@/", k=20))
        return RequestTarget(self.draw.choice(METHODS), path, self.draw.choice(QUERIES))

    def nonce(self) -> str:
        return "".join(self.draw.choices("0123456789abcdef", k=32))

    def created(self) -> int:
        return self.draw.choice((SECONDS, self.draw.randrange(1, 250_000_000_000), 1))

    def body(self) -> bytes:
        return self.draw.choice((b"", b"{}", self.draw.randbytes(50)))

    def signed(self) -> Came:
        target, name = self.target(), self.draw.choice(list(KEYS))
        who = Signatory(name, KEYS[name])
        made = sign_request(target, self.body(), who, created=self.created(), nonce=self.nonce())
        return Came(target, [("host", "aggregator"), *made.items(), ("accept", "*/*")])

    def request(self) -> Came:
        """Draws a request: one in eight is as it was signed."""
        came = self.signed()
        kind = self.draw.choice(KINDS)
        return came if kind is None else replace(kind(self, came), change=kind.__name__)


def with_value(came: Came, name: str, value: str) -> Came:
    return replace(came, headers=[(one, value if one == name else old) for one, old in came.headers])


def value_of(came: Came, name: str) -> str:
    return dict(came.headers)[name]


def any_header(by: Generator) -> str:
    return by.draw.choice((DIGEST, INPUT, SIGNATURE))


def change_character(by: Generator, came: Came) -> Came:
    name = any_header(by)
    text = value_of(came, name)
    place, put = by.draw.randrange(len(text)), by.draw.choice(string.printable + "éĀ")
    cut = by.draw.choice((0, 1, 1))
    return with_value(came, name, text[:place] + put + text[place + cut :])


def remove_character(by: Generator, came: Came) -> Came:
    name = any_header(by)
    text, place = value_of(came, name), by.draw.randrange(len(value_of(came, name)))
    return with_value(came, name, text[:place] + text[place + 1 :])


def shuffle_headers(by: Generator, came: Came) -> Came:
    return replace(came, headers=by.draw.sample(came.headers, len(came.headers)))


def respell_names(by: Generator, came: Came) -> Came:
    spell = by.draw.choice((str.title, str.upper, str.swapcase))
    return replace(came, headers=[(spell(name), value) for name, value in came.headers])


def repeat_header(by: Generator, came: Came) -> Came:
    name = any_header(by)
    other = by.draw.choice((value_of(came, name), "", dict(by.signed().headers)[name]))
    lines = [*came.headers]
    lines.insert(by.draw.randrange(len(lines) + 1), (by.draw.choice((name, name.title())), other))
    return replace(came, headers=lines)


def drop_header(by: Generator, came: Came) -> Came:
    name = any_header(by)
    return replace(came, headers=[line for line in came.headers if line[0] != name])


def empty_header(by: Generator, came: Came) -> Came:
    return with_value(came, any_header(by), by.draw.choice(("", " ", ",", "()", "sig1=")))


def add_space(by: Generator, came: Came) -> Came:
    name, space = any_header(by), by.draw.choice((" ", "\t", "  ", "\r\n ", "\n", "\xa0", "\x0b", "\u2028"))
    text = value_of(came, name)
    place = by.draw.choice((0, len(text), by.draw.randrange(len(text))))
    return with_value(came, name, text[:place] + space + text[place:])


def take_header_of_another(by: Generator, came: Came) -> Came:
    name = any_header(by)
    return with_value(came, name, dict(by.signed().headers)[name])


def change_target(by: Generator, came: Came) -> Came:
    part = by.draw.choice(("method", "path", "query"))
    old: str = getattr(came.target, part)
    if part == "method":
        new = by.draw.choice((*METHODS, *ODD_METHODS))
    elif by.draw.random() < 0.5:
        new = by.draw.choice(PATHS if part == "path" else QUERIES)
    else:
        place = by.draw.randrange(len(old) + 1)
        new = old[:place] + by.draw.choice(ODD) + old[place:]
    return replace(came, target=replace(came.target, **{part: new}))


def sign_odd_target(by: Generator, came: Came) -> Came:
    """Signs, by the bare rules, a target that may not be one: whether it holds is the form's question alone."""
    odd, name = change_target(by, came).target, "east"
    digest = body_digest(hashlib.sha256(b"").digest())
    covered = " ".join(f'"{one}"' for one in ("@method", "@path", *(("@query",) if odd.query else ()), DIGEST))
    said = f'({covered});created={SECONDS};keyid="{name}";alg="ed25519";nonce="{by.nonce()}"'
    query = f'"@query": ?{odd.query}\n' if odd.query else ""
    base = f'"@method": {odd.method}\n"@path": {odd.path}\n{query}"{DIGEST}": {digest}\n"@signature-params": {said}'
    signature = base64.b64encode(KEYS[name].sign(base.encode())).decode()
    return Came(odd, [(DIGEST, digest), (INPUT, f"sig1={said}"), (SIGNATURE, f"sig1=:{signature}:")])


COVERED: tuple[tuple[str, ...], ...] = (
    ("@method",),
    ("@path",),
    ("@method", "@path"),
    ("@path", "@method", DIGEST),
    ("@method", "@path", DIGEST, "@query"),
    ("@method", "@authority", "@path", DIGEST),
    ("@target-uri", DIGEST),
    ("@request-target", DIGEST),
    (DIGEST,),
    (),
    ("@method", "@path", "@query", DIGEST),
    ("@method", "@path", f'"{DIGEST}";sf'),
    ("@method", "@path", f'"{DIGEST}";key="sha-256"'),
    ("@scheme", "@method", "@path", DIGEST),
    ("@method", "@path", '"@query-param";name="wait"', DIGEST),
)


def sign_in_another_form(by: Generator, came: Came) -> Came:
    """Signs validly, by the library, with other components, parameters, label, time or nonce."""
    more: list[dict[str, Any]] = [
        {"covered": by.draw.choice(COVERED)},
        {"tag": "user-00"},
        {"tag": ""},
        {"expires": datetime.fromtimestamp(SECONDS + 60, UTC)},
        {"include_alg": False},
        {"label": by.draw.choice(("sig2", "a", "*", "sig-1"))},
        {"nonce": by.draw.choice((None, "", "user-00", by.nonce().upper(), f"{by.nonce()}0", by.nonce()[1:]))},
        {"body": None, "covered": ("@method", "@path")},
    ]
    created = by.draw.choice((SECONDS, 0, -5, 250_000_000_000))
    try:
        chosen = {"body": b"", "nonce": by.nonce(), **by.draw.choice(more)}
        made = library_sign_request(came.target, name="east", created=created, **chosen)
    except (HTTPMessageSignaturesException, ValueError):
        return came
    return replace(came, headers=list(made.items()))


PARAMETERS: tuple[tuple[str, str], ...] = (
    (r"created=(\d+)", r"created=0\1"),
    (r"created=(\d+)", r"created=\1.0"),
    (r"created=(\d+)", r"created=-\1"),
    (r"created=(\d+)", r'created="\1"'),
    (r"created=(\d+)", r"created=@\1"),
    (r"created=(\d+)", r"created=\g<1>0000000"),
    (r"created=(\d+)", r"created=?1"),
    (r"created=(\d+)", "created"),
    (r";created=\d+", ""),
    (r";created=(\d+)", r";Created=\1"),
    (r'keyid="(.*?)"', r"keyid=\1"),
    (r'keyid="(.*?)"', r'keyid="\1\\""'),
    (r'keyid="(.*?)"', r"keyid=:ZWFzdA==:"),
    (r'keyid="(.*?)"', 'keyid="north"'),
    (r'keyid="(.*?)"', 'keyid="EAST"'),
    (r'keyid="(.*?)"', 'keyid=""'),
    (r';keyid=".*?"', ""),
    (r'alg="ed25519"', 'alg="hmac-sha256"'),
    (r'alg="ed25519"', "alg=ed25519"),
    (r'alg="ed25519"', 'alg="ED25519"'),
    (r';alg="ed25519"', ""),
    (r'nonce="(.*?)"', r"nonce=\1"),
    (r'nonce="(.*?)"', r'nonce="\1";nonce="\1"'),
    (r';nonce=".*?"', ""),
    (r";alg", ";expires=9999999999;alg"),
    (r";alg", ';tag="x";alg'),
    (r";alg", ";x=1;alg"),
    (r";alg", "; alg"),
    (r";alg", " ;alg"),
    (r"(;created=\d+)(;keyid=\".*?\")", r"\2\1"),
    (r"sig1", "sig2"),
    (r"sig1=", "sig1 ="),
    (r"sig1", "SIG1"),
    (r"sig1=", "=sig1="),
    (r'"@method" "@path"', '"@path" "@method"'),
    (r'"@method" "@path"', '"@method"  "@path"'),
    (r'"@method"', '"@method" "@method"'),
    (r'"@method"', "@method"),
    (r'"@path"', '"@PATH"'),
    (r' "content-digest"', ""),
    (r'"content-digest"', '"content-digest" "host"'),
    (r'"@query"', '"@query-param";name="wait"'),
    (r"\(", "( "),
    (r"\)", " )"),
    (r"^(.*)$", r"\1, \1"),
    (r"^(.*)$", r"\1,"),
    (r"^sig1(.*)$", r"sig1\1, sig2\1"),
    (r"^(.*)$", r"sig0=1, \1"),
    (r"^(.*)$", r"\1;"),
    (r"^sig1=\((.*)\)", r"sig1=(\1"),
)


def change_parameters(by: Generator, came: Came) -> Came:
    """Changes Signature-Input, mostly with a signature that covers the change."""
    pattern, put = by.draw.choice(PARAMETERS)
    said = re.sub(pattern, put, value_of(came, INPUT), count=1)
    changed = with_value(came, INPUT, said)
    if by.draw.random() < 0.3:
        return changed
    target, name, parameters = came.target, "east", said.partition("=")[2]
    query = f'"@query": ?{target.query}\n' if target.query else ""
    digest = value_of(came, DIGEST)
    lines = f'"@method": {target.method}\n"@path": {target.path}\n{query}"{DIGEST}": {digest}\n'
    signature = KEYS[name].sign(f'{lines}"@signature-params": {parameters}'.encode())
    return with_value(changed, SIGNATURE, f"sig1=:{base64.b64encode(signature).decode()}:")


def change_label(by: Generator, came: Came) -> Came:
    """Gives one or both headers another label, or both labels at once."""
    label, which = (
        by.draw.choice(("sig2", "SIG1", "sig1a", "a*", "-")),
        by.draw.choice(((INPUT,), (SIGNATURE,), (INPUT, SIGNATURE))),
    )
    for name in which:
        old = value_of(came, name)
        new = old.replace("sig1=", f"{label}=", 1)
        came = with_value(came, name, by.draw.choice((new, f"{old}, {new}", f"{new}, {old}")))
    return came


def respell_base64(by: Generator, came: Came) -> Came:
    name = by.draw.choice((DIGEST, SIGNATURE))
    label, text = value_of(came, name)[:-1].split("=:", 1)
    bits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    body = text.rstrip("=")
    other = by.draw.choice(
        (
            body,
            body + "=" * 3,
            body[:-1] + bits[bits.index(body[-1]) | by.draw.choice((1, 2, 3, 4, 8))] + text[len(body) :],
            text.replace("+", "-").replace("/", "_"),
            text[:10] + " " + text[10:],
            text[:10] + "\n" + text[10:],
            text[4:],
            "AAAA" + text,
            base64.b64encode(bytes(64 if name == SIGNATURE else 32)).decode(),
            "",
            text * 2,
            text.lower(),
        )
    )
    return with_value(came, name, f"{label}=:{other}:")


def add_item_parameter(by: Generator, came: Came) -> Came:
    name = by.draw.choice((DIGEST, SIGNATURE))
    return with_value(
        came, name, value_of(came, name) + by.draw.choice((";x", ";x=1", ', b="c"', ",", " ", ";", ", sig2=:AAAA:"))
    )


def send_huge_value(by: Generator, came: Came) -> Came:
    name, text = any_header(by), by.draw.choice(("a", ";x=1", '"@method" ', ", sig2=()", "A", " ", "="))
    size = by.draw.choice((1_000, HUGE if by.draw.random() < 0.02 else 2_000))
    filler = (text * (size // len(text) + 1))[:size]
    old = value_of(came, name)
    return with_value(
        came, name, by.draw.choice((filler, old + filler, filler + old, old.replace("(", f"({filler}", 1)))
    )


def sign_with_another_key(by: Generator, came: Came) -> Came:
    who = Signatory(by.draw.choice(("east", "north")), by.draw.choice((STRANGER, KEYS["west-1"])))
    return Came(came.target, list(sign_request(came.target, b"", who, created=SECONDS, nonce=by.nonce()).items()))


Change = Callable[[Generator, Came], Came]
CHANGES: tuple[Change, ...] = (
    change_character,
    remove_character,
    shuffle_headers,
    respell_names,
    repeat_header,
    drop_header,
    empty_header,
    add_space,
    take_header_of_another,
    change_target,
    sign_odd_target,
    sign_in_another_form,
    change_parameters,
    change_label,
    respell_base64,
    add_item_parameter,
    send_huge_value,
    sign_with_another_key,
)
KINDS: tuple[Change | None, ...] = (*CHANGES, sign_odd_target, sign_in_another_form, change_parameters, None, None)
BLOCKS, IN_A_BLOCK = 10, 1_000


def generate_requests(block: int) -> Iterator[Came]:
    by = Generator(block)
    return (by.request() for _ in range(IN_A_BLOCK))


@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_verdict_on_a_request_is_the_library_s_for_our_form_and_a_refusal_for_others(block: int) -> None:
    cells: Counter[str] = Counter()
    changes: set[str] = set()
    for came in generate_requests(block):
        changes.add(came.change)
        found = library_verify(LibraryRequest(came.target.method, url_of(came.target), FieldLines(came.headers)))
        expected = found is not None and is_our_form(came, found)
        assert takes(came) == expected, f"{came.change}: {came.target}, {str(came.headers)[:2000]}"
        cells["verified" if expected else "other form" if found else "refused"] += 1
    assert changes == {"none", *(one.__name__ for one in CHANGES)}
    assert min(cells[one] for one in ("verified", "other form", "refused")) > 40, cells


def test_the_library_writes_the_same_bytes_of_every_request() -> None:
    by = Generator(99)
    for _ in range(1_000):
        target, body, name, created, nonce = (
            by.target(),
            by.body(),
            by.draw.choice(list(KEYS)),
            by.created(),
            by.nonce(),
        )
        ours = sign_request(target, body, Signatory(name, KEYS[name]), created=created, nonce=nonce)
        assert ours == library_sign_request(target, body, name, created, nonce)
        assert list(ours) == [DIGEST, INPUT, SIGNATURE]


def test_nothing_is_signed_that_would_not_be_verified() -> None:
    """The library signs a method with a space, a time before any, another nonce; the services sign one form alone."""
    by, refused, strict = Generator(98), 0, 0
    for _ in range(1_000):
        target = change_target(by, by.signed()).target
        try:
            theirs = library_sign_request(target, b"", "east", SECONDS, NONCE)
        except HTTPMessageSignaturesException:
            theirs = None
        try:
            ours = sign_request(target, b"", Signatory("east", KEYS["east"]), created=SECONDS, nonce=NONCE)
        except ProtocolError:
            refused += 1
            if theirs is not None:  # it leaves what it takes for a fragment unsigned
                assert target.method in ODD_METHODS or "#" in target.path + target.query
                strict += 1
            continue
        assert ours == theirs and takes(Came(target, list(ours.items())))
    assert refused > 200 and strict > 20
    for name, created, nonce in (("East", 1, NONCE), ('e"', 1, NONCE), ("east", 0, NONCE), ("east", 1, "user-00")):
        with pytest.raises(ProtocolError, match="expected a client's name, seconds since the epoch and a nonce"):
            sign_request(by.target(), b"", Signatory(name, STRANGER), created=created, nonce=nonce)


AGGREGATOR = STRANGER
SHA256 = hashlib.sha256(b"content").digest()
ASKED = dict(Generator(0).signed().headers)[SIGNATURE]


def library_sign_answer(status: int, sha256: bytes, asked: str, created: int) -> dict[str, str]:
    request = LibraryRequest("GET", "http://unsigned", {SIGNATURE: asked})
    message = LibraryAnswer(status, {DIGEST: body_digest(sha256)}, request)
    covered = ("@status", DIGEST, f'"{SIGNATURE}";req')
    return library_sign(
        message, raw_hex(AGGREGATOR.public_key()), AGGREGATOR, created, covered, use_existing_digest=True
    )


def library_verifies_answer(status: int, headers: Headers, asked: str) -> bool:
    request = LibraryRequest("GET", "http://unsigned", {SIGNATURE: asked})
    keys = MappingKeyResolver(public_keys={raw_hex(AGGREGATOR.public_key()): AGGREGATOR.public_key()}, private_keys={})
    verifier = TimelessVerifier(signature_algorithm=algorithms.ED25519, key_resolver=keys)
    try:
        verifier.verify(LibraryAnswer(status, FieldLines(headers), request), max_age=None)
    except (InvalidSignature, HTTPMessageSignaturesException):
        return False
    return True


def takes_answer(status: int, headers: Headers, sha256: bytes, asked: str) -> bool:
    try:
        require_answer(status, headers, sha256, asked, AGGREGATOR.public_key())
    except UnavailableError:
        return False
    return True


def test_the_library_writes_the_same_bytes_of_every_answer() -> None:
    by = Generator(97)
    for _ in range(300):
        status, sha256, created = by.draw.choice((200, 201, 204, 401, 503)), by.draw.randbytes(32), by.created()
        asked = by.draw.choice((dict(by.signed().headers)[SIGNATURE], "lpsfed enrolment 0123"))
        ours = sign_answer(status, sha256, asked, AGGREGATOR, created=created)
        assert ours == library_sign_answer(status, sha256, asked, created)
        assert list(ours) == [DIGEST, INPUT, SIGNATURE] and takes_answer(status, list(ours.items()), sha256, asked)


ANSWER_CHANGES: tuple[Change, ...] = (
    change_character,
    remove_character,
    shuffle_headers,
    respell_names,
    repeat_header,
    drop_header,
    empty_header,
    add_space,
    change_label,
    respell_base64,
    add_item_parameter,
    send_huge_value,
)


def test_every_verdict_on_an_answer_is_the_library_s_for_our_form_and_a_refusal_for_others() -> None:
    by, verified, strict = Generator(96), 0, 0
    for _ in range(1_500):
        asked = dict(by.signed().headers)[SIGNATURE]
        genuine = sign_answer(200, SHA256, asked, AGGREGATOR, created=SECONDS)
        change = by.draw.choice((None, *ANSWER_CHANGES))
        lines = Came(by.target(), list(genuine.items()))
        lines = lines if change is None else change(by, lines)
        status, other = by.draw.choice((200, 200, 200, 404)), by.draw.choice((asked, asked, asked, ASKED))
        theirs = library_verifies_answer(status, lines.headers, other)
        same = sorted((name.lower(), value) for name, value in lines.headers) == sorted(genuine.items())
        ours = takes_answer(status, lines.headers, SHA256, other)
        assert ours == (theirs and same), (change, lines)
        verified, strict = verified + ours, strict + (theirs and not ours)
    assert verified > 100 and strict > 10


@pytest.mark.parametrize("asked", ["two\nlines", " space", "space ", "é", "a\r\n\tfold", "\x00"])
def test_no_answer_covers_a_signature_that_could_be_read_as_more_components(asked: str) -> None:
    with pytest.raises(ProtocolError, match="expected the signature of a request in one line"):
        sign_answer(200, SHA256, asked, AGGREGATOR, created=SECONDS)
