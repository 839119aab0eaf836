"""What was spent is on the disk before anything may leave: once for a round, once for a rho, never less than left."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_service.boundary.ledger_heads import LedgerHeads
from client_service.federation.run_setup import warn_of_noised_magnitudes
from client_service.privacy import accounting as account_module
from client_service.privacy.accounting import ACCOUNT, SECRET, Charge, epsilon
from client_service.privacy.guard import FOLDER, NAME, Guard, Occasion, notices
from client_service.privacy.settings import PrivacySettings
from shared.errors import DataError, PrivacyError, SettingsError
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings, ServerStepSettings
from shared.protocol.signing.keys import new_key
from shared.protocol.wire import encode_body
from shared.strategies import build_strategy
from shared.strategies.server_optimisers import report_magnitude

METHOD = MethodSettings(width=4, layers=1)
DECLARATION = build_strategy("lpsfed", METHOD).declaration(METHOD)
RECEIVED = Parameters({spec.name: np.zeros(spec.shape, np.float32) for spec in DECLARATION.tensors}, {"margin": 0.1})
UPDATE = Parameters({name: value + 0.01 for name, value in RECEIVED.arrays.items()}, {"margin": 0.15, "rho": 0.005})
ANCHOR = np.linspace(0.01, 0.02, 20)
AT = Occasion("run-1", 0, METHOD, 1, 5, RECEIVED, ANCHOR)
SHARD, OTHER_SHARD = "1" * 64, "2" * 64
SETTINGS = PrivacySettings(
    mechanism="gaussian", clip_norm=0.1, noise_multiplier=3.0, scalar_noise_multiplier=6.0, delta=1e-5, budget=8.0
)
TENSORS, SCALAR = Charge("gaussian", 3.0), Charge("gaussian", 6.0)


KEY = new_key()


def guard(folder: Path, settings: PrivacySettings = SETTINGS, shard: str = SHARD) -> Guard:
    return Guard(settings, LedgerHeads(folder, KEY), shard, DECLARATION)


def sent(found: Parameters | None) -> bytes:
    assert found is not None
    return encode_body(found)


def charged(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / ACCOUNT).read_text().splitlines()]


def at_round(number: int, **changes: Any) -> Occasion:
    return replace(AT, round=number, **changes)


def test_what_leaves_is_declared_and_is_not_the_update(tmp_path: Path) -> None:
    found = guard(tmp_path).release(UPDATE, AT)
    assert found is not None and set(found.scalars) == {"margin", "rho"} == set(DECLARATION.scalars)
    assert all((found.arrays[name] != UPDATE.arrays[name]).any() for name in UPDATE.arrays)


def test_a_round_that_is_asked_for_again_gives_the_same_and_is_charged_once(tmp_path: Path) -> None:
    one = guard(tmp_path)
    first = sent(one.release(UPDATE, AT))
    assert sent(one.release(UPDATE, AT)) == first
    assert len(charged(tmp_path)) == 1
    assert one.spending.epsilon == pytest.approx(epsilon([TENSORS, SCALAR, SCALAR], 1e-5))


def test_after_a_restart_too_whatever_training_gave_the_second_time(tmp_path: Path) -> None:
    first, spent = sent(guard(tmp_path).release(UPDATE, AT)), guard(tmp_path).spending.epsilon
    again = guard(tmp_path)
    assert again.spending.epsilon == spent > 0.0
    assert sent(again.release(UPDATE, AT)) == first
    other = Parameters({name: value + 1.0 for name, value in UPDATE.arrays.items()}, {"margin": 0.3, "rho": 0.02})
    assert sent(again.release(other, AT)) == first
    assert len(charged(tmp_path)) == 1


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("step", ["save_release", "charge"])
def test_a_crash_between_drawing_and_charging_lets_nothing_leave_uncharged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def kill(*_: object, **__: object) -> None:
        raise Killed

    place = "client_service.privacy.guard.save_release" if step == "save_release" else None
    with monkeypatch.context() as patched:
        if place:
            patched.setattr(place, kill)
        else:
            patched.setattr(account_module.Account, "charge", kill)
        with pytest.raises(Killed):
            guard(tmp_path).release(UPDATE, AT)
    assert charged(tmp_path) == []
    kept = (tmp_path / FOLDER / NAME).read_bytes() if place is None else None
    again = guard(tmp_path)
    body = sent(again.release(UPDATE, AT))
    assert len(charged(tmp_path)) == 1 and again.permit(hashlib.sha256(body).hexdigest())
    assert kept is None or kept == (tmp_path / FOLDER / NAME).read_bytes()


def test_a_charge_is_on_the_disk_before_the_release_is_given_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, real = guard(tmp_path), Guard._compute_spending

    def looking(self: Guard) -> Any:
        assert len(charged(tmp_path)) == 1
        return real(self)

    monkeypatch.setattr(Guard, "_compute_spending", looking)
    assert one.release(UPDATE, AT) is not None


def test_a_release_that_is_gone_is_drawn_and_charged_anew(tmp_path: Path) -> None:
    first = sent(guard(tmp_path).release(UPDATE, AT))
    (tmp_path / FOLDER / NAME).unlink()
    again = guard(tmp_path)
    assert sent(again.release(UPDATE, AT)) != first
    assert len(charged(tmp_path)) == 2
    again.release(UPDATE, at_round(2))
    assert sent(again.release(UPDATE, AT)) != first  # an earlier round that comes again is another release
    assert len(charged(tmp_path)) == 4


def test_a_damaged_release_is_as_none(tmp_path: Path) -> None:
    guard(tmp_path).release(UPDATE, AT)
    (tmp_path / FOLDER / NAME).write_bytes(b"no release")
    assert guard(tmp_path).release(UPDATE, AT) is not None
    assert len(charged(tmp_path)) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"run": "run-2"},
        {"rounds": 6},
        {"method": METHOD.model_copy(update={"margin_strength": 0.2})},
        {"received": UPDATE},
        {"received": Parameters(RECEIVED.arrays, {"margin": 0.2})},
        {"anchor": ANCHOR[:-1]},
    ],
)
def test_whatever_the_aggregator_changes_makes_another_release(tmp_path: Path, changes: dict[str, Any]) -> None:
    one = guard(tmp_path)
    first = one.release(UPDATE, AT)
    second = one.release(UPDATE, replace(AT, **changes))
    assert first is not None and second is not None and len(charged(tmp_path)) == 2
    name = next(iter(UPDATE.arrays))
    before = AT.received.arrays[name] if "received" not in changes else changes["received"].arrays[name]
    assert not np.allclose(first.arrays[name] - RECEIVED.arrays[name], second.arrays[name] - before)


def test_averaging_rho_over_rounds_and_runs_gives_nothing_new(tmp_path: Path) -> None:
    found = []
    for run in ("run-1", "run-2", "run-3"):
        one = guard(tmp_path, SETTINGS.model_copy(update={"budget": 100.0}))
        found += [one.release(UPDATE, at_round(number, run=run)) for number in range(1, 6)]
    rhos = {release.scalars["rho"] for release in found if release is not None}
    margins = {release.scalars["margin"] for release in found if release is not None}
    assert len(found) == 15 and len(rhos) == 1 < len(margins)
    assert [("rho" in entry["charges"]) for entry in charged(tmp_path)] == [True] + [False] * 14


def test_another_anchor_another_cutoff_or_another_shard_has_another_rho_and_pays_for_it(tmp_path: Path) -> None:
    wide = SETTINGS.model_copy(
        update={"budget": 1e6, "scalar_noise_multiplier": 0.1, "scalar_ranges": {"rho": (-10.0, 10.0)}}
    )
    one = guard(tmp_path, wide)
    one.release(UPDATE, AT)
    one.release(UPDATE, at_round(2, anchor=ANCHOR + 0.001))
    one.release(UPDATE, at_round(3, method=METHOD.model_copy(update={"cutoff": 64})))
    guard(tmp_path, wide, OTHER_SHARD).release(UPDATE, AT)
    assert all("rho" in entry["charges"] for entry in charged(tmp_path))
    assert len({name for entry in charged(tmp_path) for name in entry["kept"]}) == 4


def test_a_rho_that_training_changes_is_drawn_and_charged_every_round(tmp_path: Path) -> None:
    trained, one = METHOD.model_copy(update={"signal": "trained"}), guard(tmp_path)
    for number in (1, 2, 3):
        one.release(UPDATE, at_round(number, method=trained))
    assert [("rho" in entry["charges"], entry["kept"]) for entry in charged(tmp_path)] == [(True, {})] * 3


def test_nothing_leaves_once_the_budget_is_spent_and_a_larger_one_goes_on(tmp_path: Path) -> None:
    one, given = guard(tmp_path), []
    for number in range(1, 40):
        given.append(one.release(UPDATE, at_round(number)) is not None)
    left = given.index(False)
    assert 5 < left < 39 and not any(given[left:]) and len(charged(tmp_path)) == left
    assert one.spending.epsilon <= SETTINGS.budget < epsilon([TENSORS, SCALAR] * (left + 1) + [SCALAR], 1e-5)  # type: ignore[operator]
    assert one.spending.exhausted and "no update leaves any more" in notices(one.spending)[0]
    assert guard(tmp_path).spending.exhausted  # and after a restart
    larger = guard(tmp_path, SETTINGS.model_copy(update={"budget": 20.0}))
    assert not larger.spending.exhausted and larger.release(UPDATE, at_round(99)) is not None
    assert notices(larger.spending) == notices(None) == ()


def test_a_changed_shard_spends_from_the_same_account(tmp_path: Path) -> None:
    """Who is in both shards is in the releases of both."""
    one = guard(tmp_path)
    one.release(UPDATE, AT)
    once = one.spending.epsilon
    other = guard(tmp_path, shard=OTHER_SHARD)
    assert other.spending.epsilon == once > 0.0
    assert other.release(UPDATE, AT) is not None  # another shard's: noise of its own, and a charge
    assert other.spending.epsilon > once and len(charged(tmp_path)) == 2
    assert guard(tmp_path).spending.epsilon == other.spending.epsilon


def test_a_guard_that_takes_up_another_shard_is_one_that_began_with_it(tmp_path: Path) -> None:
    one, fresh = guard(tmp_path / "a"), guard(tmp_path / "b", shard=OTHER_SHARD)
    one.switch_shard(OTHER_SHARD)
    one.release(UPDATE, AT), fresh.release(UPDATE, AT)
    entries = [charged(tmp_path / name)[0] for name in "ab"]
    assert [entry["shard"] for entry in entries] == [OTHER_SHARD, OTHER_SHARD]
    assert entries[0]["occasion"] == entries[1]["occasion"]
    one.switch_shard(SHARD)
    one.release(UPDATE, AT)
    assert one.spending.epsilon > fresh.spending.epsilon  # rho's new value is one more release


def test_the_gate_is_told_of_the_release_alone(tmp_path: Path) -> None:
    one = guard(tmp_path)
    with pytest.raises(PrivacyError):
        one.permit(hashlib.sha256(b"").hexdigest())
    with pytest.raises(PrivacyError):
        one.permit(None)
    body = sent(one.release(UPDATE, AT))
    said = one.permit(hashlib.sha256(body).hexdigest())
    end = {"entries": 1, "hash": charged(tmp_path)[-1]["hash"]}
    spent = {"epsilon": one.spending.epsilon, "delta": 1e-5, "budget": 8.0}
    assert said == {"mechanism": "gaussian", **spent, "account": end}
    assert one.permit(None) == said
    with pytest.raises(PrivacyError, match="expected the release of this round's update"):
        one.permit(hashlib.sha256(encode_body(UPDATE)).hexdigest())


def test_the_secret_is_the_silo_s_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    guard(tmp_path)
    path = tmp_path / SECRET
    content = path.read_bytes()
    assert len(content) == 32 and path.stat().st_mode & 0o777 == 0o600
    guard(tmp_path)
    assert path.read_bytes() == content
    path.chmod(0o644)
    with pytest.raises(SettingsError, match="chmod 600"):
        guard(tmp_path)


def test_without_its_account_or_with_a_damaged_one_nothing_begins(tmp_path: Path) -> None:
    guard(tmp_path).release(UPDATE, AT)
    path = tmp_path / ACCOUNT
    content = path.read_text()
    path.write_text(content.replace("3.0", "9.0"))
    with pytest.raises(DataError, match="line 1: expected the entry that"):
        guard(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match="the spent budget is unknown"):
        guard(tmp_path)


def test_a_charge_that_is_missing_at_the_end_of_the_account_is_missed(tmp_path: Path) -> None:
    one = guard(tmp_path)
    for number in (1, 2):
        one.release(UPDATE, at_round(number))
    path = tmp_path / ACCOUNT
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:1]))
    with pytest.raises(DataError, match=r"expected at least 2 entries, .* got 1: its end was cut off"):
        guard(tmp_path)


def test_a_secret_that_is_another_or_gone_is_not_replaced(tmp_path: Path) -> None:
    guard(tmp_path).release(UPDATE, AT)
    (tmp_path / SECRET).write_bytes(b"\0" * 32)
    with pytest.raises(DataError, match="got another in its place"):
        guard(tmp_path)
    (tmp_path / SECRET).unlink()
    with pytest.raises(DataError, match="got none: restore it"):
        guard(tmp_path)
    assert not (tmp_path / SECRET).exists()


def test_a_line_that_a_crash_cut_off_was_never_acted_upon(tmp_path: Path) -> None:
    first = guard(tmp_path)
    first.release(UPDATE, AT)
    path = tmp_path / ACCOUNT
    path.write_text(path.read_text() + '{"sequence":2,"kind":"cha')
    assert guard(tmp_path).spending.epsilon == first.spending.epsilon


def test_two_silos_with_the_same_data_send_different_noise(tmp_path: Path) -> None:
    east, west = (guard(tmp_path / name) for name in ("east", "west"))
    assert sent(east.release(UPDATE, AT)) != sent(west.release(UPDATE, AT))


def test_after_gaussian_noise_pure_epsilon_is_refused_and_the_other_way_round_is_counted(tmp_path: Path) -> None:
    pure = PrivacySettings(mechanism="laplace", clip_norm=0.1, round_epsilon=1.0, scalar_epsilon=0.1, budget=8.0)
    first = guard(tmp_path / "one", pure)
    first.release(UPDATE, AT)
    assert first.spending.epsilon == pytest.approx(1.2) and first.spending.delta is None
    later = guard(tmp_path / "one")
    later.release(UPDATE, at_round(2))
    assert later.spending.epsilon == pytest.approx(1.2 + epsilon([TENSORS, SCALAR], 1e-5))
    guard(tmp_path / "two").release(UPDATE, AT)
    with pytest.raises(SettingsError, match="needs a delta"):
        guard(tmp_path / "two", pure)


def test_the_account_says_nothing_of_what_was_hidden(tmp_path: Path) -> None:
    """Beside the noise it holds digests of public things and the released rho; no M, no clipped value, no norm."""
    guard(tmp_path).release(UPDATE, AT)
    [entry] = charged(tmp_path)
    chain = {"sequence", "time", "kind", "mac", "previous", "hash"}
    assert set(entry) - chain == {"shard", "occasion", "charges", "kept", "run", "round", "epsilon"}
    assert "0.15" not in json.dumps(entry) and "0.005" not in json.dumps(entry)


def test_the_sizes_of_changes_leave_no_second_time_beside_a_release(tmp_path: Path) -> None:
    """Magnitudes of the update itself, which the release has noised, would be another query of the same data."""
    mine = guard(tmp_path)
    released = mine.release(UPDATE, AT)
    assert released is not None and mine.permit(hashlib.sha256(encode_body(released)).hexdigest())
    of_update = report_magnitude(Parameters(UPDATE.arrays, {}), RECEIVED.arrays)
    magnitudes = {name: value for name, value in of_update.arrays.items() if name not in released.arrays}
    both = Parameters({**released.arrays, **magnitudes}, released.scalars)
    for body in (encode_body(both), encode_body(Parameters(magnitudes, {}))):
        with pytest.raises(PrivacyError, match="expected the release of this round's update"):
            mine.permit(hashlib.sha256(body).hexdigest())


@pytest.mark.parametrize(
    ("server", "magnitudes", "warns"),
    [("ga", None, True), ("adam", "computed", True), ("adam", None, False), ("none", None, False)],
)
def test_who_adds_noise_is_told_where_steps_follow_it(server: Any, magnitudes: Any, warns: bool) -> None:
    method = MethodSettings(width=4, layers=1, server=server, server_step=ServerStepSettings(magnitudes=magnitudes))
    strategy = build_strategy("fedavg", method)
    found = warn_of_noised_magnitudes(SETTINGS, strategy, method)
    assert bool(found) is warns and warn_of_noised_magnitudes(PrivacySettings(), strategy, method) == ()
    if warns:
        assert "0.48 or more" in found[0]  # 3 * 2 * .1 * sqrt(2 / pi)


def test_the_mean_length_of_the_noise_is_that_of_its_draws() -> None:
    laplace = PrivacySettings(mechanism="laplace", clip_norm=0.1, round_epsilon=0.5, budget=8.0)
    rng = np.random.default_rng(0)
    drawn = (np.abs(rng.normal(0, 0.6, 200_000)).mean(), np.abs(rng.laplace(0, 0.4, 200_000)).mean())
    assert (SETTINGS.mean_noise(), laplace.mean_noise()) == pytest.approx(drawn, rel=0.02)
