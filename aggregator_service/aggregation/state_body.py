"""A state -> the arrays and scalars of one file, and back: what is made for one client stands under its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shared.method.exchanged import Parameters, Scalars, State
from shared.method.parameters import Arrays, Float32, part

OWNED = "/"  # neither a client's name nor a tensor's can hold one
MEMORY = "@memory"  # no client can have this name


class PrefixedArrays(Mapping[str, Float32]):
    """Those of the arrays whose names start so, without that start; each read when asked for."""

    def __init__(self, arrays: Arrays, start: str) -> None:
        self._arrays, self._start = arrays, start
        self._names = [name.removeprefix(start) for name in arrays if name.startswith(start)]

    def __getitem__(self, name: str) -> Float32:
        return self._arrays[self._start + name]

    def part(self, name: str, begin: int, end: int) -> Float32:
        return part(self._arrays, self._start + name, begin, end)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class CommonArrays(PrefixedArrays):
    """The arrays that belong to no client."""

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(arrays, "")
        self._names = [name for name in arrays if OWNED not in name]


def pack_state(state: State) -> Parameters:
    """Everything of a state but its `latest`, as one file holds it."""
    owned = {f"{client}{OWNED}{n}": value for client, arrays in state.own.items() for n, value in arrays.items()}
    remembered = {f"{MEMORY}{OWNED}{name}": value for name, value in state.memory.items()}
    return Parameters({**state.arrays, **owned, **remembered}, state.scalars)


def unpack_state(content: Parameters, latest: Mapping[str, Scalars]) -> State:
    """The state that was packed, its arrays as lazy as the content's."""
    clients = {name.partition(OWNED)[0] for name in content.arrays if OWNED in name} - {MEMORY}
    own = {client: PrefixedArrays(content.arrays, client + OWNED) for client in sorted(clients)}
    memory = PrefixedArrays(content.arrays, MEMORY + OWNED)
    return State(CommonArrays(content.arrays), content.scalars, latest, own, memory)
