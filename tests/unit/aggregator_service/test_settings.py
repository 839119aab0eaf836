"""Settings from the environment, and what a bad one says."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator_service.__main__ import main
from aggregator_service.settings import AggregatorSettings, aggregator_settings
from shared.errors import SettingsError
from shared.sums import method_of_part
from shared.sums.item_basis import choose_basis


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a token of the operator\n", encoding="utf-8")
    values = {"STATE_DIRECTORY": tmp_path, "OPERATOR_TOKEN_FILE": tmp_path / "token", "METHOD__WIDTH": 32, "PORT": 81}
    for name, value in values.items():
        monkeypatch.setenv(f"LPSFED_AGGREGATOR_{name}", str(value))
    settings = aggregator_settings()
    assert (settings.method.width, settings.port, settings.token()) == (32, 81, "a token of the operator")


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        ({"operator_token": "too-short"}, "operator_token: expected at least 16 characters, got 9"),
        ({"operator_token": None}, "operator_token: expected either it or operator_token_file"),
        ({"operator_token": None, "operator_token_file": "/nowhere"}, "operator_token_file: expected a readable"),
        ({"strategy": "fedbn"}, "strategy: expected one of lpsfed, fedavg, local, .* got 'fedbn'"),
        ({"port": 99999}, "port: "),
        ({"method": {"width": 0}}, "method.width: "),
    ],
)
def test_a_bad_setting_is_named_and_no_secret_is_repeated(bad: dict[str, object], expected: str) -> None:
    values = {"state_directory": "state", "operator_token": "token-of-the-tests"} | bad
    with pytest.raises(SettingsError, match=expected) as caught:
        aggregator_settings(**values)
    assert "too-short" not in str(caught.value)


def test_without_settings_the_program_ends_with_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 2
    assert capsys.readouterr().err == "aggregator: state_directory: expected a value, got none\n"


def listed(folder: Path, items: int) -> Path:
    path = folder / f"{items}.txt"
    path.write_text("".join(f"i{number}\n" for number in range(items)))
    return path


def summing(folder: Path, items: int, **changes: object) -> AggregatorSettings:
    given = {"state_directory": folder, "operator_token": "token-of-the-tests", "share": "sums"}
    return aggregator_settings(**(given | {"catalogue": listed(folder, items)} | changes))


def test_what_is_shared_chooses_the_sums_by_the_length_of_the_list(tmp_path: Path) -> None:
    few, many = summing(tmp_path, 4096), summing(tmp_path, 4097)
    assert few.secure and few.method.basis.kind == "exact" and few.method.catalogue == 4096
    assert many.method.basis.kind == "iterated" and many.method.basis.words == 64
    assert few.method.strategy == {"train": False, "send": False} and few.declaration().sums
    assert "4,096 items" in choose_basis(4096)[1] and "most pairs are too rare" in choose_basis(4097)[1]
    sparse, dense = choose_basis(2000, 9 * 2000), choose_basis(2000, 11 * 2000)
    assert sparse[0] == choose_basis(4097)[0] and "9.0 interactions an item" in sparse[1]
    assert dense[0] == choose_basis(300, 300)[0] == {"kind": "exact"}, "300 items are fewer than the directions"
    assert few.declaration().of_part("training").tensors == () and few.declaration().scalars == ()
    both = summing(tmp_path, 12, share="both")
    assert both.method.strategy == {} and both.method.basis.kind == "exact" and both.secure
    noised = summing(tmp_path, 5000, method={"basis": {"epsilon": 8.0}})
    assert (noised.method.basis.kind, noised.method.basis.epsilon) == ("exact", 8.0)
    chosen = summing(tmp_path, 300, method={"basis": {"kind": "iterated", "rank": 16}})
    assert (chosen.method.basis.kind, chosen.method.basis.rank, chosen.method.basis.words) == ("iterated", 16, None)
    assert few.items is not None and few.describe_federation().items_sha256 == few.items.sha256
    plain = aggregator_settings(state_directory=tmp_path, operator_token="token-of-the-tests", share="parameters")
    unsaid = aggregator_settings(state_directory=tmp_path, operator_token="token-of-the-tests")
    assert plain.method == unsaid.method and not plain.secure and plain.items is None
    long = summing(tmp_path, 12, catalogue=None, method={"catalogue": 500})  # the silos have the file
    assert long.method.basis.kind == "exact" and long.items is None


def test_without_a_list_the_silos_sum_one_and_each_kind_that_it_may_choose_is_declared(tmp_path: Path) -> None:
    whole = summing(tmp_path, 12, catalogue=None)
    assert whole.secure and whole.method.basis.kind == "off" and whole.method.catalogue == 0
    assert list(whole.declaration().sums) == ["items", "content", "basis_exact", "basis_iterated"]
    held = whole.declaration().sums["items"]
    assert held.secure and held.strategy == "item_list" and held.tensors[0].shape == (2, 1 << 20)
    said = summing(tmp_path, 12, catalogue=None, method={"basis": {"kind": "iterated", "rank": 16, "places": 999}})
    assert list(said.method.sums) == ["content", "items", "basis_iterated"]
    assert (said.method.sums["basis_iterated"].rank, said.method.sums["basis_iterated"].places) == (16, 999)
    assert said.method.sums["basis_iterated"].words == 64
    both = summing(tmp_path, 12, catalogue=None, share="both")
    assert both.method.strategy == {} and list(both.method.sums) == list(whole.method.sums)
    assert whole.declaration().sums["content"].secure and whole.method.sums["content"].encoder == "projection/64/1"
    without = summing(tmp_path, 12, catalogue=None, method={"sums": {"content": {"kind": "off"}}})
    assert "content" not in without.declaration().sums
    assert list(summing(tmp_path, 12).declaration().sums) == ["content", "basis"]
    assert list(summing(tmp_path, 12, method={"basis": {"epsilon": 8.0}}).declaration().sums) == ["basis"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"catalogue": None, "method": {"basis": {"epsilon": 8.0}}}, "lpsfed catalogue shop1.csv shop2.csv --out"),
        ({"catalogue": None, "method": {"basis": {"kind": "transitions"}}}, "expected one of exact, iterated"),
        ({"catalogue": Path("/nowhere/items.txt")}, "catalogue: /nowhere/items.txt: expected a list of items"),
        ({"strategy": "fedavg"}, "share: expected both, or the strategy lpsfed"),
        ({"method": {"model": "srgnn"}, "strategy": "fedavg"}, "share: expected both, or the strategy local"),
        ({"share": "parameters", "method": {"basis": {"kind": "exact"}}}, "share: expected sums or both"),
        ({"method": {"catalogue": 7}}, "catalogue: expected a list of 7 items, got 12"),
        ({"method": {"strategy": {"train": True}}}, "share: expected both with strategy.train = True, got sums"),
        ({"share": "all"}, "share: expected parameters, sums or both, got all"),
        (
            {"method": {"aggregate": "median"}},
            "aggregate: expected its default with strategy lpsfed, which sends no tensors",
        ),
    ],
)
def test_sums_that_cannot_be_are_refused_at_the_start(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        summing(tmp_path, 12, **changes)


def test_a_federation_of_nodes_shares_gram_sums_and_directions_where_features_are_wide(tmp_path: Path) -> None:
    nodes = {"model": "sage", "nodes": {"features": 20, "classes": 2}}
    alone = summing(tmp_path, 12, strategy="local", method=nodes, catalogue=None)
    assert alone.secure and alone.method.basis.kind == "node_gram" and not alone.method.sums
    assert alone.declaration().of_part("training").tensors == () and list(alone.declaration().sums) == ["basis"]
    assert "silos hold graphs of nodes" in alone.explain_sum(alone.method)
    wide = {"model": "sage", "nodes": {"features": 2000, "classes": 2}}
    both = summing(tmp_path, 12, strategy="fedavg", share="both", method=wide, catalogue=None)
    assert list(both.declaration().sums) == ["directions", "basis"] and both.declaration().of_part("training").tensors
    assert "more than nodes.directions" in both.explain_sum(method_of_part(both.method, "directions"))
    for changes, words in (
        ({"strategy": "fedavg", "method": nodes}, "the strategy local"),
        ({"strategy": "local", "method": {"model": "sage"}}, "nodes.features, nodes.classes: expected"),
    ):
        with pytest.raises(SettingsError, match=words):
            summing(tmp_path, 12, catalogue=None, **changes)


def test_a_federation_of_visits_shares_transitions_and_alone_no_network(tmp_path: Path) -> None:
    visits = {"model": "srgnn"}
    alone = summing(tmp_path, 12, strategy="local", method=visits)
    assert alone.secure and alone.method.basis.kind == "transitions"
    assert alone.declaration().of_part("training").tensors == () and list(alone.declaration().sums) == ["basis"]
    assert "silos hold visits" in alone.explain_sum(alone.method)
    both = summing(tmp_path, 12, strategy="fedavg", share="both", method=visits)
    assert both.method.basis.kind == "transitions" and both.declaration().of_part("training").tensors
    for changes, words in (
        ({"strategy": "fedavg"}, "the strategy local"),
        ({"strategy": "local", "catalogue": None}, "expected the silos. common list of items"),
    ):
        with pytest.raises(SettingsError, match=words):
            summing(tmp_path, 12, method=visits, **changes)
