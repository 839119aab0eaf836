"""`lpsfed invite` and `lpsfed join` as an operator and a silo meet them, with a real aggregator on a real socket."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from aggregator_service.app import create_app
from aggregator_service.settings import AggregatorSettings
from aggregator_service.storage.database import Database
from client_service.app import create_app as create_client
from client_service.data.interaction_files import load_shard
from client_service.settings import ClientSettings, client_settings
from shared.errors import SettingsError
from shared.method.settings import BasisSettings
from shared.protocol.signing.enrolment import registered_keys, remove_key
from shared.protocol.signing.invitation import read_invitation
from shared.protocol.signing.keys import raw_hex, read_private
from shared.protocol.signing.members import read_registry
from simulation.cli import app
from simulation.cli.joining import UNREGISTERED
from tests.support import joining
from tests.support.joining import RATINGS, call, invite, join
from tests.support.questions import LONGEST_SECONDS
from tests.support.serving import serve
from tests.support.small import SMALL, TOKEN, small_aggregator

aggregator, data, settings = joining.aggregator, joining.data, joining.settings


def test_an_invitation_is_written_though_the_next_one_is_refused(aggregator: str, tmp_path: Path) -> None:
    refused = invite(aggregator, tmp_path, "north", "../south")
    assert refused.exit_code == 1 and "'../south'" in str(refused.exception)
    assert [path.name for path in tmp_path.glob("*.invite")] == ["north.invite"]


def test_one_command_makes_a_silo_of_a_file_of_ratings(
    aggregator: str, settings: AggregatorSettings, tmp_path: Path, data: Path
) -> None:
    assert invite(aggregator, tmp_path, "north", "south").exit_code == 0
    assert (tmp_path / "north.invite").stat().st_mode & 0o077 == 0
    done = join(tmp_path, data)
    assert done.exit_code == 0, done.output
    assert "120 of 200 rated interactions, below 4, are not positive" in " ".join(done.stderr.split())
    silo = client_settings(tmp_path / "north" / "silo.toml")
    assert (silo.name, silo.aggregator_url, silo.method) == ("north", aggregator, SMALL)
    shard = load_shard(silo.shard)
    assert shard.name == "north" and shard.train.nnz + shard.valid.nnz + shard.test.nnz == 80
    own = read_private(silo.state_directory / "north.key").public_key()
    found = registered_keys(settings.registry)["north"]
    assert found is not None and raw_hex(found) == raw_hex(own)
    assert silo.members is not None
    pinned = raw_hex(read_registry(silo.members).aggregator)
    assert pinned == raw_hex(read_private(settings.state_directory / "aggregator.key").public_key())
    assert silo.key("application_key") != silo.key("operator_key")


def test_every_positive_is_in_the_shard_also_of_items_that_one_user_alone_has(
    aggregator: str, tmp_path: Path, data: Path
) -> None:
    """Whether another user has an item for training decides nothing."""
    alone = "".join(f"user-0,own-{number},5,{1_700_000_000 + number}\n" for number in range(30))
    data.write_text(RATINGS.rstrip() + "\n" + alone)
    invite(aggregator, tmp_path, "north")
    done = join(tmp_path, data)
    assert done.exit_code == 0 and "dropped" not in done.stderr, done.output
    shard = load_shard(tmp_path / "north" / "shard")
    assert shard.train.nnz + shard.valid.nnz + shard.test.nnz == 110
    assert len(shard.item_ids) > np.count_nonzero(shard.train.sum(axis=0))
    assert shard.met_events is not None and len(shard.met_events) == 120


def test_who_serves_in_the_background_is_told_what_to_do_next(
    aggregator: str, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulation.joining.background.serve_in_background", lambda *_: 4711)
    invite(aggregator, tmp_path, "north")
    own = ("--data", data, "--folder", tmp_path / "north", "--detach", "--port", "8999")
    done = call("join", tmp_path / "north.invite", *own)
    assert done.exit_code == 0, done.output
    address, key, page = done.stderr.splitlines()[-3:]
    assert address == f"http://127.0.0.1:8999 answers until `kill 4711`; log: {tmp_path / 'north' / 'client.log'}"
    assert key == f"applications use the key in {tmp_path / 'north' / 'application.key'}"
    assert (
        page
        == f"its page asks for user and password: operator, and the content of {tmp_path / 'north' / 'operator.key'}"
    )


def test_who_serves_with_a_removed_key_is_told_so_at_the_join_and_how_to_register_again(
    aggregator: str, settings: AggregatorSettings, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    invite(aggregator, tmp_path, "north")
    assert join(tmp_path, data).exit_code == 0
    remove_key("north", settings.registry)
    own, invitation = tmp_path / "north", tmp_path / "north.invite"
    again = ("join", invitation, "--folder", own, "--detach")
    with ExitStack() as served:

        def start(*given: Any) -> int:
            silo: ClientSettings = given[-1]
            url = served.enter_context(serve(create_client(silo), silo))
            written = (own / "silo.toml").read_text()
            (own / "silo.toml").write_text(re.sub("(?m)^port = .*", f"port = {url.rpartition(':')[2]}", written))
            return 4711

        monkeypatch.setattr("simulation.joining.background.serve_in_background", start)
        done = call(*again)
        said = " ".join(done.stderr.split())
        assert done.exit_code == 0 and "north: it takes no part so far: " in said and UNREGISTERED in said, done.output
        assert "`kill 4711`, and run the same command with the new invitation and --accept" in said
        served.close()
        invitation.unlink()
        assert invite(aggregator, tmp_path, "north").exit_code == 0
        done = call(*again, "--accept", "parameters")
        assert done.exit_code == 0 and "north" in registered_keys(settings.registry), done.output
        assert "it takes no part" not in done.stderr, done.output


def test_lines_have_no_colours_of_their_own() -> None:
    """Addresses and names would be coloured in parts, and an address with the sign that follows it."""
    line = "shop-1: http://a:8800; 17 of 3"
    words = [
        sys.executable,
        "-c",
        f"from simulation.reports.terminal import ERR, OUT; OUT.print({line!r}); ERR.print({line!r})",
    ]
    forced = os.environ | {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    done = subprocess.run(words, env=forced, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=True)
    assert done.stdout == done.stderr == f"{line}\n"


def test_what_was_cut_off_is_gone_on_with_and_what_is_there_stays(aggregator: str, tmp_path: Path, data: Path) -> None:
    invite(aggregator, tmp_path, "north")
    away = json.loads((tmp_path / "north.invite").read_text()) | {"url": "http://127.0.0.1:1"}
    (tmp_path / "away.invite").write_text(json.dumps(away))
    folder = tmp_path / "north"
    failed = call("join", tmp_path / "away.invite", "--data", data, "--folder", folder, "--no-start")
    assert failed.exit_code == 1 and "expected the aggregator, got ConnectError" in str(failed.exception)
    key = (folder / "state" / "north.key").read_bytes()
    done = call("join", tmp_path / "north.invite", "--folder", folder, "--no-start")  # the data are converted
    assert done.exit_code == 0 and "is not read" not in done.output, done.output
    assert (folder / "state" / "north.key").read_bytes() == key
    (folder / "silo.toml").write_text((folder / "silo.toml").read_text() + "threads = 2\n")
    assert join(tmp_path, data).exit_code == 0
    assert "threads = 2" in (folder / "silo.toml").read_text()


def test_data_are_read_where_no_shard_is_and_whoever_gives_them_where_one_is_is_told(
    aggregator: str, tmp_path: Path, data: Path
) -> None:
    """A silo that has joined too: whoever moves its shard away gets another, by the ratings of its own scale."""
    invite(aggregator, tmp_path, "north")
    assert join(tmp_path, data).exit_code == 0
    shard, settings = tmp_path / "north" / "shard", tmp_path / "north" / "silo.toml"
    first = load_shard(shard).train.nnz
    other = tmp_path / "other.csv"
    other.write_text(
        "user,item,rating\n" + "".join(f"a{n // 10},b{n % 10},{1 + (n + n // 10) % 10}\n" for n in range(90))
    )
    for flags in ([], ["--policy", "counts=true"]):
        told = join(tmp_path, other, "--min-rating", "0", *flags)
        assert told.exit_code == 0 and load_shard(shard).train.nnz == first
        assert f"{shard} exists already, so --data, --min-rating are not read" in told.stderr
        assert f"move {shard} away, and run the same command with --data" in told.stderr
    served = call("join", tmp_path / "north.invite", "--folder", tmp_path / "north", "--no-start")
    assert served.exit_code == 0 and "not read" not in served.stderr
    assert client_settings(settings).least_rating == 4
    shard.rename(tmp_path / "earlier")
    again = join(tmp_path, other)
    assert again.exit_code == 0 and "are not read" not in again.stderr, again.output
    assert len(load_shard(shard).user_ids) == 9 and client_settings(settings).least_rating == 8


@pytest.mark.parametrize("flag", ["--data", "--edges", "--catalogue", "--matches"])
@pytest.mark.parametrize("joined", [False, True])
def test_a_file_that_is_not_there_is_an_error_also_where_nothing_would_read_it(
    aggregator: str, tmp_path: Path, data: Path, flag: str, joined: bool
) -> None:
    invite(aggregator, tmp_path, "north")
    if joined:
        assert join(tmp_path, data).exit_code == 0
    lost = tmp_path / "lost.csv"
    own = ("join", tmp_path / "north.invite", "--folder", tmp_path / "north", "--no-start")
    refused = call(*own, *(() if flag == "--data" else ("--data", data)), flag, lost)
    expected = f"{flag} {lost}: expected a file or a folder, got nothing there"
    assert isinstance(refused.exception, SettingsError) and str(refused.exception).startswith(expected)
    assert ("leave it out" in str(refused.exception)) == (joined and flag == "--data")
    assert (tmp_path / "north").exists() == joined, "nothing is made for what cannot be read"


def test_a_used_or_an_expired_invitation_is_refused_in_words(aggregator: str, tmp_path: Path, data: Path) -> None:
    invite(aggregator, tmp_path, "north")
    assert join(tmp_path, data).exit_code == 0
    again = call("join", tmp_path / "north.invite", "--data", data, "--folder", tmp_path / "thief", "--no-start")
    assert again.exit_code == 1 and "expected the code of an open invitation" in str(again.exception)
    late = json.loads((tmp_path / "north.invite").read_text())
    late["expires"] = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    (tmp_path / "late.invite").write_text(json.dumps(late))
    old = call("join", tmp_path / "late.invite", "--data", data, "--folder", tmp_path / "late", "--no-start")
    assert old.exit_code == 1 and "expected one that is open, it expired at" in str(old.exception)
    assert str(old.exception).endswith("UTC: ask the operator for another one")
    assert not (tmp_path / "late").exists()
    (tmp_path / "none.invite").write_text('{"code": "secret-code"}')
    none = call("join", tmp_path / "none.invite", "--data", data, "--no-start")
    assert none.exit_code == 1 and "expected an invitation" in str(none.exception)
    assert "secret-code" not in str(none.exception)
    taken = invite(aggregator, tmp_path, "north")
    assert taken.exit_code == 1 and "'north' has one" in str(taken.exception)


def test_each_rating_counts_where_that_is_said_and_no_data_are_an_error(
    aggregator: str, tmp_path: Path, data: Path
) -> None:
    invite(aggregator, tmp_path, "north")
    nothing = call("join", tmp_path / "north.invite", "--folder", tmp_path / "north", "--no-start")
    assert nothing.exit_code == 1 and "--data: expected the silo's own data" in str(nothing.exception)
    assert join(tmp_path, data, "--min-rating", "0").exit_code == 0
    shard = load_shard(tmp_path / "north" / "shard")
    assert shard.train.nnz + shard.valid.nnz + shard.test.nnz == 200


def test_the_aggregator_writes_invitations_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[AggregatorSettings] = []
    monkeypatch.setattr("aggregator_service.__main__.serve", served.append)
    monkeypatch.chdir(tmp_path)
    done = call(
        "aggregator", "--state-directory", "operator", "--port", "8900", "--invite", "north", "--invite", "south"
    )
    assert done.exit_code == 0, done.output
    north = read_invitation(tmp_path / "north.invite")
    assert north.url == "http://127.0.0.1:8900"
    assert north.aggregator == raw_hex(read_private(tmp_path / "operator" / "aggregator.key").public_key())
    assert served[0].token() == (tmp_path / "operator" / "operator.token").read_text()
    call("aggregator", "--state-directory", "operator", "--port", "8900")
    assert served[1].token() == served[0].token()


def test_whoever_starts_an_aggregator_at_a_terminal_is_asked_what_the_silos_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, with what each answer means; never without a terminal, and not where it is said already."""
    served: list[AggregatorSettings] = []
    monkeypatch.setattr("aggregator_service.__main__.serve", served.append)
    monkeypatch.chdir(tmp_path)
    Path("items.txt").write_text("a\nb\nc\n")
    words = ["aggregator", "--state-directory", "operator", "--catalogue", "items.txt"]
    assert call(*words).exit_code == 0 and served[-1].share is None
    monkeypatch.setattr("simulation.cli.options.is_interactive", lambda: True)
    done = CliRunner().invoke(app, words, input="all\nsums\n")
    assert done.exit_code == 0 and served[-1].share == "sums", (done.output, done.exception)
    assert "What do the silos share?" in done.output and "expected one of parameters, sums, both" in done.output
    assert "this federation shares sums, masked: how features of items go together" in done.output
    assert "; exact sums: 3 items" in done.output
    other = ["aggregator", "--state-directory", "other"]
    assert CliRunner().invoke(app, other, input="\n").exit_code == 0 and served[-1].share == "parameters"
    assert "What do" not in call(*other, "--share", "both", "--catalogue", "items.txt").output
    assert served[-1].share == "both"
    monkeypatch.setenv("LPSFED_AGGREGATOR_METHOD__WIDTH", "32")
    assert "What do" not in call("aggregator", "--state-directory", "third").output and served[-1].share is None


def test_an_aggregator_that_starts_again_is_the_federation_that_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the flags and without the list's file, or its silos would be refused; other flags win."""
    served: list[AggregatorSettings] = []
    monkeypatch.setattr("aggregator_service.__main__.serve", served.append)
    monkeypatch.chdir(tmp_path)
    Path("items.txt").write_text("a\nb\nc\n")
    again = ("aggregator", "--state-directory", "operator")
    assert call(*again, "--share", "sums", "--catalogue", "items.txt").exit_code == 0
    Path("items.txt").unlink()
    assert call(*again).exit_code == 0
    assert served[1].describe_federation() == served[0].describe_federation() and served[1].items == served[0].items
    assert call(*again, "--share", "parameters").exit_code == 0 and not served[2].secure
    assert call(*again).exit_code == 0 and served[3].describe_federation() == served[2].describe_federation()
    assert served[3].share == "parameters"
    Path("operator/share.json").write_text("{}")
    assert "expected the saved choice of --share" in str(call(*again).exception)


def test_a_choice_that_the_federation_refuses_is_not_saved_for_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the plain start after it would load that choice, and be refused by the database too."""
    served: list[AggregatorSettings] = []
    monkeypatch.setattr("aggregator_service.__main__.serve", served.append)
    monkeypatch.chdir(tmp_path)
    again = ("aggregator", "--state-directory", "operator")
    assert call(*again, "--share", "sums").exit_code == 0
    database = Database(Path("operator"), served[0].declaration())
    running = str(call(*again, "--share", "parameters").exception)
    assert "expected a free directory" in running and running.endswith("nothing was changed")
    database.close()
    other = str(call(*again, "--share", "parameters").exception)
    assert "it holds a federation with another" in other and "start it with the --share" in other
    assert other.endswith("nothing was changed")
    assert len(served) == 1
    assert call(*again).exit_code == 0 and served[1].describe_federation() == served[0].describe_federation()


def test_a_federation_of_sums_that_an_earlier_version_began_goes_on_without_content_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its silos have declared none, and its database holds what they have declared."""
    served: list[AggregatorSettings] = []
    monkeypatch.setattr("aggregator_service.__main__.serve", served.append)
    monkeypatch.chdir(tmp_path)
    Path("operator").mkdir()
    Path("operator/share.json").write_text('{"share": "sums", "listed": false, "alone": true}')
    for more in ((), ("--share", "sums"), ()):
        assert call("aggregator", "--state-directory", "operator", *more).exit_code == 0
    assert call("aggregator", "--state-directory", "other", "--share", "sums").exit_code == 0
    assert ["content" in one.declaration().sums for one in served] == [False, False, False, True]
    for held, given in ((served[0], served[3]), (served[3], served[0])):
        folder = tmp_path / f"database-{'content' in held.declaration().sums}"
        Database(folder, held.declaration()).close()
        with pytest.raises(SettingsError) as refused:
            Database(folder, given.declaration())
        assert ("METHOD__SUMS__CONTENT__KIND=off" in str(refused.value)) == (given is served[3])


def test_a_federation_of_sums_of_an_earlier_version_is_refused_with_the_way_to_start_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its silos have declared networks, which leave untrained."""
    served: list[AggregatorSettings] = []
    monkeypatch.setattr("aggregator_service.__main__.serve", served.append)
    monkeypatch.chdir(tmp_path)
    Path("operator").mkdir()
    Path("operator/items.txt").write_text("a\nb\nc\n")
    Path("operator/share.json").write_text('{"share": "sums", "listed": true}')
    again = ("aggregator", "--state-directory", "operator")
    refused = str(call(*again).exception)
    assert "--share both and LPSFED_AGGREGATOR_METHOD__STRATEGY__TRAIN=false" in refused and not served
    monkeypatch.setenv("LPSFED_AGGREGATOR_METHOD__STRATEGY__TRAIN", "false")
    assert call(*again, "--share", "both", "--catalogue", "operator/items.txt").exit_code == 0
    declared = served[0].declaration()
    assert declared.tensors and declared.sums and served[0].secure


def test_a_wrong_name_and_a_file_that_is_no_invitation_are_named_plainly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("token").write_text(TOKEN)
    named = call("invite", "Shop 4", "--operator-token-file", "token", "--url", "http://127.0.0.1:1")
    assert "expected a client's name (a-z, 0-9, _ and -" in str(named.exception)
    Path("shop.csv").write_text("user,item\na,b\n")
    said = str(call("join", "shop.csv", "--data", "shop.csv").exception)
    assert said.startswith("shop.csv: expected an invitation of `lpsfed invite`, got another file; ask"), said


def test_an_aggregator_that_cannot_start_leaves_nothing_behind_and_names_the_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    begin = ("aggregator", "--state-directory", "operator")
    for flags, words in (
        (("--share", "sums", "--strategy", "fedavg"), "share: expected both, or the strategy lpsfed"),
        (("--share", "sums", "--catalogue", "nowhere.txt"), "catalogue: nowhere.txt: expected a list of items"),
    ):
        refused = call(*begin, *flags)
        assert refused.exit_code == 1 and str(refused.exception).startswith(words), refused.exception
        assert not (tmp_path / "operator").exists()


def test_what_counts_of_a_user_follows_from_no_other_where_sums_are_noised(tmp_path: Path, data: Path) -> None:
    """The kind of scale and the dates of a split are found in everybody's rows: they have to be said."""
    basis = BasisSettings(kind="exact", epsilon=1.0)
    method = SMALL.model_copy(update={"basis": basis, "catalogue": 15})
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "items.txt").write_text("\n".join(sorted(f"i{item}" for item in range(15))))
    with serve(create_app(small_aggregator(tmp_path / "noised", method=method, secure=True))) as url:
        invite(url, tmp_path, "north")
        known = ("--catalogue", tmp_path / "items.txt", "--policy", "common_basis=noised")
        for flags, said in (((), "--min-rating"), (("--min-rating", 4, "--split", "global-time"), "global-time")):
            refused = join(tmp_path, data, *known, *flags)
            assert refused.exit_code == 1 and said in str(refused.exception), refused.output
            assert "basis.epsilon" in str(refused.exception) and not (tmp_path / "north" / "shard").exists()
        done = join(tmp_path, data, *known, "--min-rating", 4)
        assert done.exit_code == 0, done.output
    assert client_settings(tmp_path / "north" / "silo.toml").fit_everything
