"""`lpsfed join` for all that an aggregator can declare, with a real process as the client; and cut off anywhere."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from client_service.data import interaction_files
from client_service.settings import client_settings
from client_service.tasks.items import load_listed_shard
from shared.errors import ConflictError, DataError, PrivacyError, SettingsError
from shared.files import lock_directory
from shared.method.settings import BasisSettings
from shared.protocol.item_list import pack_item_list
from shared.protocol.signing.enrolment import registered_keys
from shared.protocol.signing.invitation import read_invitation
from simulation.cli import app
from simulation.joining import join as joining
from simulation.joining import own_data
from tests.support.joining import AGREED, BASIS, ITEMS, call, invited, write_listed_data
from tests.support.joining import join_north as join
from tests.support.small import SMALL, TOKEN


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_listed_data()


def test_a_silo_stays_strict_until_it_agrees_and_then_takes_part(tmp_path: Path) -> None:
    """What it has changed in silo.toml stays; the earlier file lies beside it."""
    with invited(tmp_path, method=BASIS, secure=True) as (chosen, _):
        done = join("--no-start")
        assert done.exit_code == 0, (done.output, done.exception)
        [line] = [one for one in done.stderr.splitlines() if "policy" in one]
        assert line.startswith("north: this silo's policy does not allow") and "--accept sums" in line
        assert "the aggregator refuses it" in line and "its own data are too few" in line
        file = Path("north/silo.toml")
        strict = client_settings(file)
        assert strict.policy.common_basis == "no" and strict.method.basis.kind == "off"
        assert strict.declaration().sums == {} and strict.aggregator_key is not None
        file.write_text("threads = 2\n" + file.read_text())
        refused = join("--no-start", "--policy", "common_basis=secure")
        assert isinstance(refused.exception, SettingsError) and "--catalogue: expected the list" in str(
            refused.exception
        )
        assert client_settings(file) == strict.model_copy(update={"threads": 2})
        assert join("--no-start", *AGREED).exit_code == 0
        agreed = client_settings(file)
        assert agreed.method == chosen.method and agreed.policy.common_basis == "secure" and agreed.threads == 2
        assert (agreed.port, agreed.known_members) == (strict.port, ("north", "south", "west"))
        assert "threads = 2" in Path("north/silo.toml.earlier").read_text()


def sums(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    """Settings of a federation that shares sums over a list that its invitations carry."""
    return {"method": SMALL, "share": "sums", "catalogue": tmp_path / "catalogue.txt", **changes}


def test_one_word_agrees_to_the_sums_by_the_list_of_the_invitation(tmp_path: Path) -> None:
    """What would leave is said before, tensor by tensor in words, and no second file is needed."""
    with invited(tmp_path, **sums(tmp_path)) as (chosen, _):
        done = join("--no-start", "--accept", "sums")
        assert done.exit_code == 0, (done.output, done.exception)
        told = done.stderr
        assert (
            "leaves this silo: how many of its users have each item, and how many have both, for each two items" in told
        )
        assert "312\N{NO-BREAK SPACE}B, once, masked" in told and "no network is trained or sent" in told  # 2 * 12 * 13
        assert "the others learn, from the sums over all silos: " in told and "it gains: an unknown amount" in told
        assert "masked: only the sum over all silos can be read, if the others are who the aggregator says" in told
        assert "strict boundary" not in told
        settings = client_settings(Path("north/silo.toml"))
        assert settings.method == chosen.method and settings.policy.common_basis == "secure"
        assert Path("north/catalogue.txt").read_bytes() == Path("catalogue.txt").read_bytes()
        assert settings.declaration() == chosen.declaration()
        back = join("--no-start", "--accept", "parameters")
        assert back.exit_code == 0 and "it stays in the strict boundary" in back.stderr
        strict = client_settings(Path("north/silo.toml"))
        assert strict.policy.common_basis == "no" and strict.declaration().sums == {}


@pytest.mark.parametrize(("answer", "allowed"), [("y", "secure"), ("n", "no"), ("", "no")])
def test_whoever_is_at_a_terminal_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, allowed: str
) -> None:
    monkeypatch.setattr("simulation.cli.options.is_interactive", lambda: True)
    with invited(tmp_path, **sums(tmp_path)):
        words = ["join", "north.invite", "--data", "data.csv", "--no-start"]
        done = CliRunner().invoke(app, words, input=f"{answer}\n")
        assert done.exit_code == 0 and "May these sums leave this silo?" in done.output, (done.output, done.exception)
        assert client_settings(Path("north/silo.toml")).policy.common_basis == allowed


def test_sums_in_the_open_are_not_agreed_to_by_one_word(tmp_path: Path) -> None:
    basis = BasisSettings(kind="exact")
    with invited(tmp_path, method=SMALL.model_copy(update={"catalogue": 12, "basis": basis})) as (chosen, _):
        refused = join("--no-start", "--accept", "sums")
        assert "--policy common_basis=open" in str(refused.exception) and registered_keys(chosen.registry) == {}
        assert "expected it or --policy" in str(
            join("--no-start", "--accept", "sums", "--policy", "common_basis=open").exception
        )


def test_where_nothing_is_summed_the_word_changes_nothing(tmp_path: Path) -> None:
    with invited(tmp_path):
        done = join("--no-start", "--accept", "sums")
        assert done.exit_code == 0 and "this federation sums nothing" in done.stderr
        assert client_settings(Path("north/silo.toml")).policy.common_basis == "no"


def test_another_list_than_the_invitation_s_is_refused(tmp_path: Path) -> None:
    with invited(tmp_path, **sums(tmp_path)) as (chosen, _):
        Path("other.txt").write_text("".join(f"{item}\n" for item in sorted(ITEMS, reverse=True)))
        refused = join("--no-start", "--accept", "sums", "--catalogue", "other.txt")
        assert isinstance(refused.exception, SettingsError) and "the federation's list, sha256" in str(
            refused.exception
        )
        told = json.loads(Path("north.invite").read_text())
        for changed in (
            told["items"] | {"sha256": "0" * 64},  # not the federation's
            pack_item_list([*ITEMS[1:], "x"]).model_dump(),  # whole, and another one
            told["items"] | {"packed": pack_item_list([*ITEMS[1:], "x"]).packed},
        ):
            Path("north.invite").write_text(json.dumps(told | {"items": changed}))
            refused = join("--no-start", "--accept", "sums")
            assert isinstance(refused.exception, SettingsError), refused.exception
            assert "the invitation's list of items" in str(refused.exception)
        assert registered_keys(chosen.registry) == {} and not Path("north/silo.toml").exists()


def test_an_invitation_of_before_is_read_and_its_silo_brings_the_list_itself(tmp_path: Path) -> None:
    with invited(tmp_path, **sums(tmp_path)) as (chosen, _):
        told = json.loads(Path("north.invite").read_text())
        del told["items"], told["federation"]["items_sha256"]
        Path("north.invite").write_text(json.dumps(told))
        assert "--catalogue: expected the list of the federation's 12" in str(
            join("--no-start", "--accept", "sums").exception
        )
        Path("other.txt").write_text("".join(f"{item}\n" for item in sorted(ITEMS, reverse=True)))
        refused = join("--no-start", "--accept", "sums", "--catalogue", "other.txt")
        assert "the federation's list, sha256" in str(refused.exception) and not Path("north/silo.toml").exists()
        done = join("--no-start", "--accept", "sums", "--catalogue", "catalogue.txt")
        assert done.exit_code == 0, (done.output, done.exception)
        assert client_settings(Path("north/silo.toml")).method == chosen.method


def test_silos_invited_by_rest_get_the_list_too(tmp_path: Path) -> None:
    with invited(tmp_path, **sums(tmp_path)) as (chosen, url):
        Path("token").write_text(TOKEN)
        words = ("invite", "east", "--url", url, "--operator-token-file", "token", "--out", ".")
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, (done.output, done.exception)
        later, first = (read_invitation(Path(f"{name}.invite")) for name in ("east", "north"))
        assert later.items == first.items == chosen.items and later.federation == first.federation


def test_what_no_client_would_start_with_is_refused_before_anything_is_registered(tmp_path: Path) -> None:
    Path("other.txt").write_text("".join(f"x{number}\n" for number in range(12)))
    with invited(tmp_path, method=SMALL.model_copy(update={"catalogue": 12}), strategy="fedmf") as (chosen, _):
        for flags, words in (
            ((), "the silo agrees with --policy strategies=fedmf"),
            (("--policy", "strategies=fedmf"), "--catalogue: expected the list of the federation's 12 items"),
            (("--policy", "strategies=fedmf", "--catalogue", "other.txt"), "expected every item of the shard"),
        ):
            refused = join("--no-start", *flags)
            assert refused.exit_code == 1 and words in str(refused.exception), words
            assert registered_keys(chosen.registry) == {} and not Path("north/silo.toml").exists()
        assert isinstance(join("--no-start").exception, PrivacyError)
        good = ("--policy", "strategies=fedmf", "--catalogue", "catalogue.txt")
        assert join("--no-start", *good).exit_code == 0
    Path("south.csv").write_text(Path("data.csv").read_text())
    into = ("join", "south.invite", "--data", "south.csv", "--folder", "north", "--no-start")
    assert isinstance(CliRunner().invoke(app, into).exception, ConflictError)  # the folder is another silo's


class CutOffError(Exception):
    """The process is killed here."""


SHARD = {"save_interactions": own_data, "save_shard": interaction_files}
STEPS = ("copy_catalogue", "require_usable", "enrol_silo", "write_settings")
WITHIN = ("ensure_key_pair", "_save_authority", "_require_signed", "_read_enrolment", "replace_settings")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", [*SHARD, *STEPS, *WITHIN])
def test_cut_off_at_any_step_the_same_command_again_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    module = SHARD.get(step, joining)
    whole: Callable[..., Any] = getattr(module, step)

    def cut(*args: Any, **kwargs: Any) -> Any:
        if after:
            whole(*args, **kwargs)
        raise CutOffError

    with invited(tmp_path, method=BASIS, secure=True) as (chosen, _):
        with monkeypatch.context() as patched:
            patched.setattr(module, step, cut)
            assert isinstance(join("--no-start", *AGREED).exception, CutOffError)
        done = join("--no-start", *AGREED)
        assert done.exit_code == 0, (done.output, done.exception)
        settings = client_settings(Path("north/silo.toml"))
        assert settings.method == chosen.method and list(registered_keys(chosen.registry)) == ["north"]


def test_half_a_shard_is_written_anew(tmp_path: Path) -> None:
    with invited(tmp_path):
        half = Path("north/shard/.staged")
        half.mkdir(parents=True)
        (half / "interactions.parquet").write_bytes(b"PAR1")
        assert join("--no-start").exit_code == 0
        assert "12 users, 12 items, 72 interactions" in join("--no-start", "--policy", "counts=true").stderr


def test_a_silo_whose_client_is_running_is_told_to_end_it_before_it_is_started_again(tmp_path: Path) -> None:
    with invited(tmp_path, method=BASIS, secure=True):
        assert join("--no-start").exit_code == 0
        state = client_settings(Path("north/silo.toml")).state_directory
        with lock_directory(state):
            refused = [join(*AGREED, *flags) for flags in (["--detach"], [])]
        expected = f"one is running with the settings of its start: `kill {os.getpid()}` ends it"
        for done in refused:
            assert isinstance(done.exception, ConflictError) and expected in str(done.exception)
        assert client_settings(Path("north/silo.toml")).policy.common_basis == "secure"


def test_a_silo_joins_with_the_matches_that_it_has_signed(tmp_path: Path) -> None:
    """Its own ids stay; their places are those of the list's. What is not one to one is refused before its key is."""
    with invited(tmp_path, **sums(tmp_path)) as (chosen, _):
        Path("data.csv").write_text(Path("data.csv").read_text().replace(",i3,", ",art-3,").replace(",i4,", ",art-4,"))
        Path("own.csv").write_text('item,title\nart-3,"Postman, The"\nart-4,Heat Wave\n')
        Path("list.csv").write_text("item,title\ni3,The Postman\ni4,Heat Wave\n")
        made = call("catalogue", "match", "own.csv", "list.csv", "--out", "matches.csv", "--json")
        assert made.exit_code == 0 and json.loads(made.stdout)["taken"] == 2, (made.output, made.exception)
        twice = Path("matches.csv").read_text().replace(",i4,", ",i3,")
        Path("twice.csv").write_text(twice)
        refused = join("--no-start", "--accept", "sums", "--matches", "twice.csv")
        assert "for one own item alone" in str(refused.exception) and registered_keys(chosen.registry) == {}
        done = join("--no-start", "--accept", "sums", "--matches", "matches.csv")
        assert done.exit_code == 0, (done.output, done.exception)
        settings = client_settings(Path("north/silo.toml"))
        assert settings.matches == Path("north/matches.csv").resolve()
        shard = load_listed_shard(settings)
        rows = dict(zip(shard.item_ids, shard.places, strict=True))
        listed = sorted(ITEMS)
        assert (rows["art-3"], rows["art-4"], rows["i5"]) == tuple(map(listed.index, ("i3", "i4", "i5")))
        assert join("--no-start", "--accept", "sums").exit_code == 0
        assert client_settings(Path("north/silo.toml")).matches == settings.matches  # said once
        Path("north/matches.csv").write_text(Path("north/matches.csv").read_text().replace("i4", "i9"))
        with pytest.raises(DataError, match="got changed ones"):
            load_listed_shard(settings)
