"""The first bytes of a file -> what kind of content it is, whatever its name; None for all that nobody looks for."""

from __future__ import annotations

import re

HEAD_BYTES = 4096
PRIVATE_KEY, TOKEN, ROWS = "private key", "token", "rows"
MAGIC = {
    b"PAR1": "Parquet",
    b"SQLite format 3\0": "SQLite",
    b"\x93NUMPY": "arrays",
    b"PK\x03\x04": "archive",  # .npz and what torch saves too
    b"ARROW1": "Arrow",
    b"\x1f\x8b": "archive",
    b"\x28\xb5\x2f\xfd": "archive",
    b"\xfd7zXZ\0": "archive",
    b"BZh": "archive",
    b"7z\xbc\xaf\x27\x1c": "archive",
}
TAR = (257, b"ustar")
KEY_AS_TEXT = re.compile(rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY")
KEY_AS_BYTES = re.compile(
    rb"\x30(?:[\x00-\x7f]|\x81.|\x82..)\x02\x01[\x00\x01]\x30", re.DOTALL
)  # PKCS 8 without its armour
SECRET = re.compile(rb"\s*(?:[0-9a-fA-F]{64}|[A-Za-z0-9_-]{43}=?)\s*")  # 256 bits, as the operators' tokens are
LONGEST_TOKEN = 80
MOST_HEADER = 100 << 20  # bytes of a safetensors head
FEWEST_ROWS, LONGEST_FIELD = 5, 64
SEPARATORS = ("::", "\t", ",", ";", "|")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def recognise_content(head: bytes, size: int) -> str | None:
    """By its first `HEAD_BYTES`, and by its size."""
    if known := next((kind for magic, kind in MAGIC.items() if head.startswith(magic)), None):
        return known
    if KEY_AS_TEXT.search(head) or KEY_AS_BYTES.match(head):
        return PRIVATE_KEY
    if size <= LONGEST_TOKEN and SECRET.fullmatch(head):
        return TOKEN
    if head[TAR[0] :].startswith(TAR[1]):
        return "archive"
    if _is_safetensors(head, size):
        return "arrays"
    return ROWS if _has_rows(head, size) else None


def _is_safetensors(head: bytes, size: int) -> bool:
    length = int.from_bytes(head[:8], "little")
    return head[8:10] == b'{"' and 2 <= length <= min(MOST_HEADER, size - 8)


def _has_rows(head: bytes, size: int) -> bool:
    """Lines of one shape: tables as text, and objects of one kind as JSON."""
    try:
        text = head.decode("utf-8") if size <= len(head) else head.decode("utf-8", errors="ignore")
    except UnicodeDecodeError:
        return False
    lines = text.splitlines()
    lines = [line for line in (lines if size <= len(head) else lines[:-1]) if line.strip()]
    if len(lines) < FEWEST_ROWS or "\0" in text:
        return False
    return all(line.startswith('{"') for line in lines) or any(_is_table(lines, sign) for sign in SEPARATORS)


def _is_table(lines: list[str], separator: str) -> bool:
    """So many short fields in each line, and one column of numbers beneath the first line, which may be a head."""
    rows = [[field.strip().strip('"') for field in line.split(separator)] for line in lines]
    same = len(rows[0]) > 1 and all(len(row) == len(rows[0]) for row in rows)
    if not same or any(len(field) > LONGEST_FIELD for row in rows for field in row):
        return False
    columns = zip(*rows[1:], strict=True)
    return any(all(NUMBER.fullmatch(field) for field in column) or _has_ids(column) for column in columns)


def _has_ids(column: tuple[str, ...]) -> bool:
    """Words without a space, with digits in each: `user-00006`."""
    return all(" " not in field and any(sign.isdigit() for sign in field) for field in column)
