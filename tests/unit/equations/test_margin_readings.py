"""The readings of Eq. 8: what each has in the place of xi, where its margin goes, and which of them teach at pi."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scipy import sparse

from client_service.data.interactions import Shard
from client_service.models.popularity_angle import PopularityTables
from client_service.training.item_trainer import ItemTrainer
from client_service.training.margins import MARGIN_FORMS, Margins
from client_service.training.sampling import Batch
from shared.method.parameters import Parameters
from shared.method.settings import PRESETS, MarginReading, MethodSettings, greatest_margin, method_settings
from shared.method.spectrum import low_spectrum
from shared.method.tensors import initial_parameters, mlp_specification
from shared.strategies.lpsfed import declared_scalars

pytestmark = pytest.mark.usefixtures("double")

GRAPH = sparse.csr_array([[1.0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]])
PAIR = Batch(torch.tensor([0]), torch.tensor([1]), torch.tensor([2]), torch.tensor([[False]]))


def tables_at(u: list[float], v: list[float]) -> PopularityTables:
    """Tables in which every user has the vector u, and every item v."""
    tables = PopularityTables(GRAPH, width=2)
    with torch.no_grad():
        tables.user_table.copy_(torch.tensor(u).expand_as(tables.user_table))
        tables.item_table.copy_(torch.tensor(v).expand_as(tables.item_table))
    return tables


def learn(reading: MarginReading, f: float, *, gamma: float = 1.0) -> tuple[float, float, bool]:
    """Of one positive whose xi is pi / 2: its logit before tau, the slope of that in f, and whether it is level."""
    score = torch.tensor([f], requires_grad=True)
    margins = Margins(tables_at([1.0, 0.0], [0.0, 2.0]), gamma, 0.25, None, reading)
    widened, level = margins.widen(score, PAIR)
    widened.sum().backward()
    return float(widened.detach()[0]), float(score.grad[0]), bool(level[0])


def test_each_reading_has_its_own_in_the_place_of_xi() -> None:
    tables = tables_at([3.0, 0.0], [0.0, 2.0])
    found = {name: float(form.widening(tables)[0, 0]) for name, form in MARGIN_FORMS.items()}
    # Orthogonal vectors: xi = pi / 2, of pi a half; u . v = 0, and 1 - sigmoid(0) is a half too.
    assert found == pytest.approx({"literal": math.pi / 2, "scaled": 0.5, "sigmoid": 0.5, "additive": math.pi / 2})


def test_the_released_form_depends_on_the_product_and_not_on_the_angle_alone() -> None:
    # Three buckets of two columns each way: each table's deviation after Xavier is sqrt(2 / (buckets + 2)).
    tables = tables_at([1.0, 0.0], [4.0, 0.0])
    users, items = len(tables.user_table), len(tables.item_table)
    product = 4.0 * math.sqrt(2 / (users + 2)) * math.sqrt(2 / (items + 2))
    assert float(MARGIN_FORMS["sigmoid"].widening(tables)[0, 0]) == pytest.approx(1 - 1 / (1 + math.exp(-product)))
    assert float(tables.angles()[0, 0]) == pytest.approx(0.0, abs=2e-3)


@pytest.mark.parametrize("name", sorted(MARGIN_FORMS))
def test_no_reading_passes_a_gradient_to_the_tables(name: MarginReading) -> None:
    assert not MARGIN_FORMS[name].widening(tables_at([1.0, 2.0], [0.5, 1.0])).requires_grad


def test_as_printed_a_positive_that_nothing_is_known_of_teaches_nothing_at_gamma_1() -> None:
    # f = 0: R = pi / 2 and xi = pi / 2 reach pi, where the cosine is level.
    logit, slope, level = learn("literal", 0.0)
    assert (logit, level) == (pytest.approx(-1.0), True) and abs(slope) < 1e-12


@pytest.mark.parametrize("name", ["scaled", "sigmoid"])
def test_a_margin_of_half_a_radian_teaches_there_and_no_more_where_the_angle_is_wide(name: MarginReading) -> None:
    logit, slope, level = learn(name, 0.0)
    assert logit == pytest.approx(math.cos(math.pi / 2 + 0.5)) and not level
    assert slope == pytest.approx(math.cos(0.5))  # a negative's is 1: all scores fall together
    assert learn(name, -2.0)[1:] == (pytest.approx(0.0, abs=1e-12), True)  # R = 2.87, and pi - R < .5


@pytest.mark.parametrize("f", [-2.0, -0.5, 0.0, 1.0])
def test_off_the_cosine_a_positive_is_as_steep_as_a_negative_at_every_score(f: float) -> None:
    logit, slope, level = learn("additive", f)
    room = math.pi - math.acos(math.tanh(f))
    assert logit == pytest.approx(math.tanh(f) - min(math.pi / 2, room)) and not level
    assert slope == pytest.approx(1.0 - math.tanh(f) ** 2)


def test_off_the_cosine_a_positive_is_level_only_where_its_own_angle_is_at_pi() -> None:
    assert learn("additive", -20.0)[2]


def test_without_a_margin_the_readings_are_one() -> None:
    assert {learn(name, 0.3, gamma=0.0) for name in MARGIN_FORMS} == {learn("literal", 0.3, gamma=0.0)}


def test_the_preset_of_the_paper_teaches_at_its_own_gamma_whatever_the_score() -> None:
    paper = method_settings("paper")
    assert paper.margin_strength == 1.0
    for f in (-2.0, 0.0, 2.0):
        assert learn(paper.margin_reading, f, gamma=paper.margin_strength)[1] > 0.05


@pytest.mark.parametrize("gamma", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("name", sorted(MARGIN_FORMS))
def test_the_range_of_the_mean_margin_follows_from_the_reading(name: MarginReading, gamma: float) -> None:
    greatest = gamma * (1.0 if name in ("scaled", "sigmoid") else math.pi)
    method = MethodSettings(margin_strength=gamma, margin_reading=name)
    assert greatest_margin(name, gamma) == pytest.approx(greatest)
    assert declared_scalars(method)["margin"].range.most == pytest.approx(greatest, abs=2e-4)


@pytest.mark.parametrize("name", sorted(MARGIN_FORMS))
def test_the_mean_margin_is_that_of_the_reading(name: MarginReading, shard_of: Callable[..., Shard]) -> None:
    method = MethodSettings(width=3, layers=1, cutoff=2, margin_strength=0.9, margin_reading=name)
    client = ItemTrainer(shard_of(GRAPH), low_spectrum(GRAPH, 2), method, torch.device("cpu"))
    client.load(Parameters(initial_parameters(mlp_specification(method), 3, exact=False)))
    users, items = torch.arange(3).repeat_interleave(4), torch.arange(4).repeat(3)
    xi = client.tables.at(MARGIN_FORMS[name].widening(client.tables), users, items)
    f = client.model.scores(users, items, items, leave_one_out=False)[0].detach()
    expected = torch.minimum(0.9 * xi, math.pi - torch.arccos(torch.tanh(f))).mean()
    (found,) = client.measure("mean_margin")
    assert found == pytest.approx(float(expected), abs=1e-9)
    assert found in declared_scalars(method)["margin"].range


def test_a_run_as_printed_is_written_as_before_the_readings() -> None:
    assert "margin_reading" not in MethodSettings().model_dump()
    assert method_settings("paper").model_dump()["margin_reading"] == PRESETS["paper"]["margin_reading"]
