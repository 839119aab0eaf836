"""What only a run and a silo's own settings together know -> warnings that the silo's operator reads."""

from __future__ import annotations

from client_service.privacy.settings import PrivacySettings
from client_service.settings import ClientSettings
from shared.method.declaration import Declaration
from shared.method.settings import MethodSettings
from shared.protocol.privacy import few_clients
from shared.protocol.schemas import RunOut
from shared.strategies import build_strategy
from shared.strategies.server.choice import magnitudes_for
from shared.strategies.strategy import Strategy

QUARANTINED = "the aggregator has quarantined this client and takes nothing of it: ask its operator why"


def list_cautions(
    settings: ClientSettings, state: RunOut, method: MethodSettings, signature_seconds: float | None
) -> tuple[str, ...]:
    """Of an open run. signature_seconds: by which a request may be late; None before the aggregator has said it."""
    declaration = settings.declaration()
    late = settings.limits().shortcomings(signature=signature_seconds, deadline=state.deadline_seconds)
    shut_out = (QUARANTINED,) if state.standing == "quarantined" else ()
    strategy = build_strategy(declaration.strategy, method)
    noised = warn_of_noised_magnitudes(settings.privacy, strategy, method)
    rows = warn_of_moved_rows(strategy, method, settings.task, secure=declaration.secure)
    pairs = warn_of_rare_pairs(method) if state.part == "basis" else ()
    unlike = warn_of_unlike_starts(declaration, method)
    return (*few_clients(state.joined), *unlike, *rows, *noised, *pairs, *late, *shut_out)


def warn_of_unlike_starts(declaration: Declaration, method: MethodSettings) -> tuple[str, ...]:
    """A warning, where the clients of a secure run go on from different parameters (Eq. 14)."""
    mixing = build_strategy(declaration.strategy, method).mixing
    if not declaration.secure or mixing is None or mixing.least_share == 1.0:
        return ()
    return (
        "with a similarity_floor below 1 an aggregator that lies about the mean can tell one client's update from"
        " a sum: policy.least_similarity = 1 refuses such runs",
    )


def warn_of_moved_rows(strategy: Strategy, method: MethodSettings, task: str, *, secure: bool) -> tuple[str, ...]:
    """A warning, where masks hide whose the rows of items are that a sum has moved, and other sums tell."""
    of_sessions = task == "sessions"
    if not secure or not strategy.shares_items(method) or (of_sessions and method.sessions.candidates == "catalogue"):
        return ()
    others = "; with sessions.candidates = catalogue all rows move" if of_sessions else ""
    return ("rows of items leave: sums with and without this silo tell which items it alone has" + others,)


def warn_of_rare_pairs(method: MethodSettings) -> tuple[str, ...]:
    """A warning, where rare pairs are left out of a sum whose members' own counts nobody can check."""
    basis = method.basis
    if basis.kind != "exact" or basis.epsilon is not None or basis.least_pairs == 1:
        return ()
    return (
        f"a silo that lies about its own counts reads pairs of items that fewer than {basis.least_pairs} users have"
        " too (basis.least_pairs): policy.common_basis = noised takes part in noised sums alone",
    )


def warn_of_noised_magnitudes(privacy: PrivacySettings, strategy: Strategy, method: MethodSettings) -> tuple[str, ...]:
    """A warning, where a server's steps follow the sizes of changes that are mostly this silo's noise."""
    if not privacy.on or strategy.server == "none" or magnitudes_for(strategy.server, method) == "off":
        return ()
    return (
        f"the server's steps follow the mean of the clients' |changes|, which noise keeps at {privacy.mean_noise():.2g}"
        " or more: steps become shorter; server_step.magnitudes = off follows the mean's change instead",
    )
