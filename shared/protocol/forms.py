"""A declaration -> the tensors and scalars of a body, as they are declared or as they are masked."""

from __future__ import annotations

from shared.method.declaration import Declaration
from shared.method.parameters import Form
from shared.protocol.secure.messages import visible_scalars
from shared.protocol.secure.vector import layout
from shared.strategies import find_strategy


def declare_answer(declaration: Declaration) -> Declaration:
    """What a client may get back: the declared tensors, the scalars that the strategy returns, and in a secure
    federation those that it tells each client. Never masked."""
    strategy = find_strategy(declaration)
    returned = [name for name in declaration.scalars if strategy.scalars[name].returned]
    told = strategy.mixing.told if strategy.mixing is not None and declaration.secure else ()
    return declaration.model_copy(update={"scalars": (*returned, *told), "secure": False, "reports": ()})


def forms(declaration: Declaration) -> dict[str, Form]:
    """The tensors of an update's body by name: as they are declared, or as they are masked."""
    if not declaration.secure:
        return {spec.name: spec.form for spec in declaration.uploaded}
    return layout(declaration)


def beside(declaration: Declaration) -> tuple[str, ...]:
    """The scalars that anybody can read who has an update's body."""
    return tuple(sorted(visible_scalars(declaration))) if declaration.secure else declaration.scalars
