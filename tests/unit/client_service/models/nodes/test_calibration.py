"""Calibration of scores of nodes: probabilities that come true, few nodes, no nodes."""

from __future__ import annotations

import numpy as np
import pytest

from client_service.models.nodes.calibration import UNCALIBRATED, calibrate, measure_reliability
from client_service.models.nodes.measures import area_under_roc


@pytest.mark.parametrize("classes", [2, 4])
def test_probabilities_come_true_on_other_nodes(classes: int) -> None:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((4000, classes)) * 1.5
    true = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (true.cumsum(1) < rng.random((4000, 1))).sum(1)
    scores = (logits / 7.0).astype(np.float32)  # as a ridge's: in order, on another scale
    found = calibrate(scores[:2000], labels[:2000])
    assert found.scale == pytest.approx(7.0, rel=0.15)
    assert measure_reliability(found.probabilities(scores[2000:]), labels[2000:]).error < 0.03
    assert measure_reliability(UNCALIBRATED.probabilities(scores[2000:] * 0.1), labels[2000:]).error > 0.05


def test_two_classes_of_which_one_is_rare_have_an_offset() -> None:
    rng = np.random.default_rng(1)
    strength = rng.standard_normal(3000)
    labels = (rng.random(3000) < 1 / (1 + np.exp(-(2 * strength - 3)))).astype(np.int64)
    scores = np.stack([-strength, strength], axis=1).astype(np.float32)
    found = calibrate(scores, labels)
    assert found.probabilities(scores)[:, 1].mean() == pytest.approx(labels.mean(), abs=0.02)
    assert area_under_roc(found.probabilities(scores), labels) == pytest.approx(area_under_roc(scores, labels))


def test_few_nodes_stay_near_the_usual_scale_and_none_have_it() -> None:
    scores = np.array([[0.9, 0.1], [0.2, 0.8]], np.float32)
    assert calibrate(scores[:0], np.zeros(0, np.int64)) == UNCALIBRATED
    assert 1.0 < calibrate(scores, np.array([0, 1])).scale < 25.0
    assert np.isfinite(calibrate(np.zeros((3, 2), np.float32), np.array([1, 1, 1])).probabilities(scores)).all()


def test_reliability_of_nothing_is_not_a_number() -> None:
    assert np.isnan(measure_reliability(np.zeros((0, 2), np.float32), np.zeros(0, np.int64)).error)
