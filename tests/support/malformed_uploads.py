"""A valid safetensors body and a seeded generator -> bodies that are nearly valid, each spoilt in one or two ways."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Header = dict[str, Any]
LENGTH = 8  # bytes of the header's length
SIZES = (0, 1, 7, 8, 9, 100, 1 << 20, 1 << 31, 1 << 32, (1 << 53) + 1, 1 << 63, (1 << 64) - 1)
DTYPES = (*"F16 BF16 F64 F8_E4M3 F8_E5M2 I8 I32 I64 U8 U64 BOOL f32".split(), "F32 ", "", None, 7)  # noqa: SIM905
SHAPES = (
    [],
    [0],
    [-1],
    [1.5],
    ["1"],
    None,
    [1 << 31, 1 << 31],
    [1 << 32, 1 << 32],
    [1 << 62, 2],
    [1 << 63],
    [1 << 64],
    [1] * 100,
    [0, 1 << 62],
    {"0": 1},
)
SCALARS = (
    "",
    "{",
    "[]",
    "null",
    "1",
    '"rho"',
    '{"rho": 1}',
    '{"rho": true}',
    '{"rho": null}',
    '{"rho": "0.5"}',
    '{"rho": NaN}',
    '{"rho": Infinity}',
    '{"rho": 1e999}',
    '{"rho": -1e999, "margin": 0.5}',
    '{"rho": 0.1, "rho": 0.2}',
    '{"rho":0.1}',
    '{"rho": 0.1, "users": 6040.0}',
    '{"rho": {"rho": 0.1}}',
    '{"rho": 0.10}',
    '{"\\ud800": 0.1}',
    "[" * 5000,
    '{"a":' * 5000,
    "9" * 5000,
)


def split(body: bytes) -> tuple[Header, bytes]:
    """The header of a valid body, and its data."""
    end = LENGTH + int.from_bytes(body[:LENGTH], "little")
    header: Header = json.loads(body[LENGTH:end])
    return header, body[end:]


def joined(text: bytes, data: bytes) -> bytes:
    return len(text).to_bytes(LENGTH, "little") + text + data


def pack_state(header: Header, data: bytes) -> bytes:
    """As a writer of safetensors would, in the order of the header's fields and filled up with spaces."""
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    return joined(text + b" " * (-len(text) % 8), data)


class Spoiler:
    """All ways to spoil one valid body."""

    def __init__(self, valid: bytes, seed: int) -> None:
        self._valid, self._rng = valid, np.random.default_rng(seed)
        self.ways: dict[str, Callable[[], bytes]] = {
            "length": self._length,
            "text": self._text,
            "type": self._type,
            "offsets": self._offsets,
            "names": self._names,
            "twice": self._twice,
            "shape": self._shape,
            "scalars": self._scalars,
            "metadata": self._metadata,
            "form": self._form,
            "truncated": self._truncated,
            "extended": self._extended,
            "header flips": lambda: self._flips(0, self._start),
            "data flips": lambda: self._flips(self._start, len(self._valid)),
            "flips": lambda: self._flips(0, len(self._valid)),
            "noise": lambda: self._rng.bytes(int(self._rng.integers(0, 300))),
        }

    def bodies(self, count: int) -> Iterator[tuple[str, bytes]]:
        """So many, each with the way in which it is spoilt."""
        names = list(self.ways)
        for number in range(count):
            name = names[number % len(names)]
            yield name, self.ways[name]()

    @property
    def _start(self) -> int:
        return LENGTH + int.from_bytes(self._valid[:LENGTH], "little")

    def _one(self, choices: Any) -> Any:
        return choices[int(self._rng.integers(len(choices)))]

    def _parts(self) -> tuple[Header, bytes, str]:
        """Header, data, and the name of one of the tensors."""
        header, data = split(self._valid)
        return header, data, self._one(sorted(name for name in header if name != "__metadata__"))

    def _length(self) -> bytes:
        true = int.from_bytes(self._valid[:LENGTH], "little")
        said = self._one(
            (*SIZES, true - 1, true + 1, true - 8, true + 8, len(self._valid), int(self._rng.integers(1 << 62)))
        )
        return said.to_bytes(LENGTH, "little") + self._valid[LENGTH:]

    def _text(self) -> bytes:
        """A header that is no JSON, or no JSON of a header."""
        header, data, _ = self._parts()
        whole = json.dumps(header).encode()
        cut = int(self._rng.integers(len(whole)))
        fixed = (
            b"",
            b"{}",
            b"[]",
            b"null",
            b"1",
            b'"a"',
            b"\xff\xfe",
            b"[" * 5000,
            b'{"a":' * 5000,
            b"{" * 5000,
            whole * 2,
        )
        return joined(
            self._one((*fixed, whole[:cut], whole[:cut] + self._rng.bytes(3) + whole[cut:], b" " + whole)), data
        )

    def _field(self, field: str, value: Any) -> bytes:
        header, data, name = self._parts()
        header[name] = header[name] | {field: value}
        return pack_state(header, data)

    def _type(self) -> bytes:
        return self._field("dtype", self._one(DTYPES))

    def _shape(self) -> bytes:
        return self._field("shape", self._one(SHAPES))

    def _offsets(self) -> bytes:
        """Overlapping, reversed, negative, beyond the end, with a gap, or no offsets at all."""
        header, data, name = self._parts()
        begin, end = header[name]["data_offsets"]
        moved = int(self._rng.integers(1, 64))
        wrong = ([begin + moved, end + moved], [begin - moved, end - moved], [begin, end + moved], [begin, end - moved])
        others = (
            [end, begin],
            [0, end - begin],
            [-4, end],
            [begin, 1 << 63],
            [1 << 64, 1 << 65],
            [0.0, 4.0],
            [begin],
            None,
        )
        header[name]["data_offsets"] = self._one((*wrong, *others, [0, len(data)], [len(data), len(data)]))
        return pack_state(header, data)

    def _names(self) -> bytes:
        """One tensor more, one less, or one under another name."""
        header, data, name = self._parts()
        entry = header[name] if self._rng.random() < 0.5 else header.pop(name)
        end = len(data) if self._rng.random() < 0.5 else 0
        empty = {"dtype": "F32", "shape": [0], "data_offsets": [end, end]}
        new = self._one(("users", "", "/", "../" * 10, name.upper(), name + "\x00", "\ud800", "ü" * 200, "n" * 20000))
        header[new] = self._one((entry, empty))
        return pack_state(header, data)

    def _twice(self) -> bytes:
        """The same name two times: a reader may take the first, another one the last."""
        header, data, name = self._parts()
        again = json.dumps({self._one((name, "__metadata__")): self._one(list(header.values()))}, separators=(",", ":"))
        text = json.dumps(header, separators=(",", ":"))
        return joined((text[:-1] + "," + again[1:]).encode(), data)

    def _scalars(self) -> bytes:
        header, data, _ = self._parts()
        header["__metadata__"] = {"scalars": self._one(SCALARS)}
        return pack_state(header, data)

    def _metadata(self) -> bytes:
        header, data, _ = self._parts()
        true = header["__metadata__"]
        wrong = (None, {}, [], "", 1, {"scalars": None}, {"scalars": 1}, {"scalars": {"rho": 0.1}}, {"other": "{}"})
        header["__metadata__"] = self._one((*wrong, true | {"note": "x" * 50000}, true | {"": ""}))
        return pack_state(header, data)

    def _form(self) -> bytes:
        """What says the same in another way: spaces, another order, another way to write a number or a letter."""
        header, data, name = self._parts()
        turned = pack_state(dict(reversed(header.items())), data)
        spaced = joined(json.dumps(header).encode(), data)
        entry = dict(reversed(header[name].items()))
        text = json.dumps(header, separators=(",", ":")).replace('"F32"', '"\\u00463\\u0032"', 1).encode()
        longer = self._valid[LENGTH : self._start] + b" " * 8 * int(self._rng.integers(1, 50))
        return self._one(
            (turned, spaced, pack_state(header | {name: entry}, data), joined(text, data), joined(longer, data))
        )

    def _truncated(self) -> bytes:
        return self._valid[: int(self._rng.integers(len(self._valid)))]

    def _extended(self) -> bytes:
        more = self._one(
            (b"\x00", b"\n", b" " * 8, bytes(4096), self._valid, self._rng.bytes(int(self._rng.integers(1, 100))))
        )
        return self._valid + more if self._rng.random() < 0.8 else more + self._valid

    def _flips(self, begin: int, end: int) -> bytes:
        """One to four bytes there are others."""
        body = bytearray(self._valid)
        for place in self._rng.integers(begin, end, size=int(self._rng.integers(1, 5))):
            body[place] ^= int(self._rng.integers(1, 256))
        return bytes(body)
