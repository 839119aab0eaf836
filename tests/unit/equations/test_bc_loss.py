"""Step 7: the contrastive loss with a margin (Eq. 9), its gradient in the dead zone, and BPR."""

from __future__ import annotations

import math

import pytest
import torch

from client_service.training.losses import bpr, contrastive, margin, shifted_cosine

pytestmark = pytest.mark.usefixtures("double")

TAU = 0.5


def test_the_loss_of_one_positive_counts_the_one_negative_that_is_not_excluded() -> None:
    # f = .6 with margin .3, negatives -.2 and 1.5, of which the second is a training item of the user.
    f, shift, negatives = torch.tensor([0.6]), torch.tensor([0.3]), torch.tensor([[-0.2, 1.5]])
    found = contrastive(shifted_cosine(f, shift), torch.tanh(negatives), torch.tensor([[False, True]]), TAU)
    positive = math.exp(math.cos(math.acos(math.tanh(0.6)) + 0.3) / TAU)
    expected = -math.log(positive / (positive + math.exp(math.tanh(-0.2) / TAU)))
    assert found.item() == pytest.approx(expected, abs=1e-12)


def test_the_loss_of_a_batch_is_the_mean_over_its_positives() -> None:
    # Cosines .5 against .1 and -.3; then 0 against the same two: with tau .5 their exponents are 1; .2, -.6; 0.
    positive, negatives = torch.tensor([0.5, 0.0]), torch.tensor([[0.1, -0.3], [0.1, -0.3]])
    found = contrastive(positive, negatives, torch.zeros(2, 2, dtype=torch.bool), TAU)
    rest = math.exp(0.2) + math.exp(-0.6)
    expected = (math.log(1 + rest / math.exp(1)) + math.log(1 + rest)) / 2
    assert found.item() == pytest.approx(expected, abs=1e-12)


def test_a_positive_without_negatives_costs_nothing_and_an_excluded_one_has_no_gradient() -> None:
    negatives = torch.tensor([[0.9, 0.3]], requires_grad=True)
    assert contrastive(torch.tensor([0.1]), negatives, torch.tensor([[True, True]]), TAU).item() == 0.0
    contrastive(torch.tensor([0.1]), negatives, torch.tensor([[True, False]]), TAU).backward()
    assert negatives.grad[0, 0].item() == 0.0 and negatives.grad[0, 1].item() > 0.0


@pytest.mark.parametrize("f", [-2.5, -0.7, 0.0, 0.4, 3.0])
@pytest.mark.parametrize("shift", [0.0, 0.2, 1.0])
def test_the_shifted_cosine_is_the_cosine_of_the_widened_angle(f: float, shift: float) -> None:
    expected = math.cos(math.acos(math.tanh(f)) + shift)
    assert shifted_cosine(torch.tensor([f]), torch.tensor([shift])).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("f", [-100.0, 0.0, 100.0])
def test_the_shifted_cosine_and_its_gradient_are_finite_at_every_score(f: float, dtype: torch.dtype) -> None:
    score = torch.tensor([f], dtype=dtype, requires_grad=True)
    value = shifted_cosine(score, torch.tensor([0.5], dtype=dtype))
    value.sum().backward()
    # Far out R is 0 or pi, so that the cosine is cos(.5) or cos(pi + .5); in the middle it is cos(pi / 2 + .5).
    expected = math.cos({-100.0: math.pi, 0.0: math.pi / 2, 100.0: 0.0}[f] + 0.5)
    assert value.item() == pytest.approx(expected, abs=1e-6)
    assert torch.isfinite(score.grad).all()


def gradient(f: float, xi: float, gamma: float) -> float:
    """Slope of cos(R + m) in f, with the margin of Eq. 8."""
    score = torch.tensor([f], requires_grad=True)
    shifted_cosine(score, margin(torch.tensor([xi]), score, gamma)).sum().backward()
    return float(score.grad[0])


@pytest.mark.parametrize("f", [-1.0, 0.0, 0.8])
def test_a_saturated_positive_has_no_gradient(f: float) -> None:
    # gamma xi = 3 is more than pi - R for each f: pi - arccos(tanh .8) = 2.30. The angle is pi whatever f does.
    assert math.pi - math.acos(math.tanh(f)) < 3.0
    assert abs(gradient(f, xi=3.0, gamma=1.0)) < 1e-12


@pytest.mark.parametrize("f", [-1.0, 0.0, 0.8])
def test_an_unsaturated_positive_has_the_slope_of_the_shifted_cosine(f: float) -> None:
    # gamma xi = .3 is less than pi - R. d/df cos(R + m) = -sin(R + m) dR/df, and dR/df = -1 / cosh f.
    angle = math.acos(math.tanh(f))
    assert math.pi - angle > 0.3
    assert gradient(f, xi=1.5, gamma=0.2) == pytest.approx(math.sin(angle + 0.3) / math.cosh(f), abs=1e-12)
    assert gradient(f, xi=1.5, gamma=0.2) > 0.05


def test_bpr_is_the_mean_log_sigmoid_of_the_score_differences_that_count() -> None:
    # f_ui = 1 and 2. Counted: 1 - .5 = .5 and 2 - 3 = -1; the others are training items of their users.
    positive, negatives = torch.tensor([1.0, 2.0]), torch.tensor([[0.5, 7.0], [-5.0, 3.0]])
    excluded = torch.tensor([[False, True], [True, False]])
    expected = -(math.log(1 / (1 + math.exp(-0.5))) + math.log(1 / (1 + math.exp(1.0)))) / 2
    assert bpr(positive, negatives, excluded).item() == pytest.approx(expected, abs=1e-12)


def test_bpr_without_a_single_pair_is_zero() -> None:
    assert bpr(torch.ones(1), torch.ones(1, 1), torch.tensor([[True]])).item() == 0.0


@pytest.mark.parametrize("shift", [0.05, 0.3])
def test_a_margin_adds_most_gradient_where_the_score_is_high(shift: float) -> None:
    """sin R sin(R + M) over sin^2 R is cos M + sin M sinh f, with R = arccos(tanh f). So popular items, whose pairs
    score high, gain more from a margin than rare ones do, though theirs is larger."""
    slopes = []
    for width in (0.0, shift):
        score = torch.linspace(-1.0, 3.0, 9, dtype=torch.float64, requires_grad=True)
        shifted_cosine(score, torch.full_like(score, width)).sum().backward()
        slopes.append(score.grad)
    gained = slopes[1] / slopes[0]
    expected = math.cos(shift) + math.sin(shift) * torch.sinh(score.detach())
    assert torch.allclose(gained, expected, atol=1e-9) and bool((gained.diff() > 0).all())
