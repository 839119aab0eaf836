"""Writes a frozen model's arrays, by which `ExactScorer` computes the model's own scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from client_service.compiled.exact_scores import ExactHead, Growth, PartHead
from client_service.model_store.model_files import ServedItems
from client_service.models.closed_form.content import ContentWeights
from client_service.models.closed_form.ease import UserWeights
from client_service.models.closed_form.frequency import Frequency
from client_service.models.closed_form.full_spectrum import FullSpectrum
from client_service.models.closed_form.least_squares import LeastSquares
from client_service.models.closed_form.scorer_part import ItemWeights, Scorer
from client_service.models.encoder import Encoder
from client_service.models.encoders.ngcf import NGCF
from client_service.models.item_table import Factors, FoldedVectors
from client_service.models.low_pass import LowPass
from client_service.models.model import PooledMLPs, PreferenceMLPs, to_array
from shared.errors import SettingsError
from shared.method.parameters import Float32

Arrays = dict[str, NDArray[Any]]


def exact_arrays(served: ServedItems, sizes: Sequence[Growth]) -> tuple[ExactHead, Arrays]:
    """Makes the head and the arrays of a model's exact scores.

    sizes: for each scorer of the fusion, how the deviation of its scores grows with a basket's size. SettingsError for
    an encoder or a scorer that has no such arrays.
    """
    model, ranker = served.model, served.ranker
    head: dict[str, Any] = {"mlps": False, "width": 0, "convolutions": 0, "alpha": 1.0, "residual": ranker.residual}
    embedding = np.ascontiguousarray(ranker.items.embedding)
    if isinstance(model.encoder, Factors):  # its item vectors for baskets may differ from those for known users
        with torch.no_grad():
            embedding = to_array(model.encoder.folded_items())
    arrays: Arrays = {"item-embedding": embedding}
    if ranker.residual:
        centred = embedding - embedding.mean(axis=0)
        arrays["item-gram"] = centred.T @ centred / np.float32(len(embedding))
    fold, more = _fold_arrays(model.encoder, embedding)
    parts = []
    for place, ((loudness, part), size) in enumerate(zip(ranker.fusion.parts, sizes, strict=True)):
        described, own = _part_arrays(part)
        parts.append(PartHead(loudness=loudness, size=size, **described))
        arrays |= {f"part-{place}-{name}": array for name, array in own.items()}
    if isinstance(model.head, PooledMLPs):
        known, mlps = _mlp_arrays(model.head)
        head |= known
        arrays |= mlps
        if ranker.predictor.reach > 0.0:  # otherwise the MLP adds the same number to all items
            arrays |= {"item-narrow": ranker.items.narrow, "item-hidden": ranker.items.hidden}
    return ExactHead(**{**head, **fold}, parts=tuple(parts)), arrays | more


def _fold_arrays(encoder: Encoder, items: Float32) -> tuple[dict[str, Any], Arrays]:
    """Makes the arrays by which an encoder turns a basket into a user."""
    with torch.no_grad():
        if isinstance(encoder, LowPass):
            found = [to_array(one) for one in encoder.inference_coefficients()]
            known: dict[str, Any] = {"normalising": encoder.normalising[0], "scale": encoder.exponents[0]}
            arrays: Arrays = {"fold-step": encoder.item_step}
            return {"fold": "low_pass", "convolutions": len(found) - 1, **known}, arrays | _numbered(
                "fold-coefficients", found
            )
        if isinstance(encoder, NGCF):
            layers = [to_array(layer[encoder.users :]) for layer in encoder.layers()]
            arrays = {
                "fold-power": to_array(encoder.item_power),
                "fold-sum": to_array(encoder.on_sum),
                "fold-product": to_array(encoder.on_product),
            }
            known = {"fold": "convolutions", "convolutions": len(layers) - 1}
            return known, arrays | _numbered("fold-layer", layers)
    if isinstance(encoder, Factors):
        return {"fold": "least_squares"}, {"fold-unseen": FoldedVectors(items).unseen}
    raise SettingsError(f"expected an encoder whose baskets can be compiled, got {type(encoder).__name__}")


def _mlp_arrays(head: PooledMLPs) -> tuple[dict[str, Any], Arrays]:
    """Makes the arrays of the pooling and the predictive MLP.

    The predictive MLP's first layer is split: these arrays hold its parts for the user and for both together.
    """
    with torch.no_grad():
        on_user, _, on_both = head.predictive.hidden.weight.chunk(3, dim=1)
        arrays: Arrays = {
            "mlp-in": to_array(head.pooling.hidden.weight),
            "mlp-in-bias": to_array(head.pooling.hidden.bias),
            "mlp-out": to_array(head.pooling.output.weight),
            "mlp-out-bias": to_array(head.pooling.output.bias),
            "mlp-on-user": to_array(on_user),
            "mlp-on-both": to_array(on_both),
            "mlp-output": to_array(head.predictive.output.weight)[0],
            "mlp-bias": to_array(head.predictive.output.bias)[0],
        }
        if isinstance(head, PreferenceMLPs):
            arrays["mlp-preference"] = to_array(head.preference)
        return {
            "mlps": True,
            "width": head.width,
            "alpha": float(head.alpha),
            "preference": isinstance(head, PreferenceMLPs),
        }, arrays


def _part_arrays(part: Scorer) -> tuple[dict[str, Any], Arrays]:
    if isinstance(part, ItemWeights):
        return {"kind": "weights"}, {"weights": part.weights}
    if isinstance(part, FullSpectrum) and part.weights is not None:
        return {"kind": "weights"}, {"weights": part.entry[:, None] * part.weights * part.exit}
    if isinstance(part, FullSpectrum):
        arrays: Arrays = {"entry": part.entry, "exit": part.exit, "own": part.own}
        arrays |= {"low": part.low, "response": part.response, **_list_arrays("graph", part.graph)}
        arrays |= _list_arrays("turned", part.turned)
        return {"kind": "filter", "numbers": {"slope": float(part.slope)}}, arrays
    if isinstance(part, UserWeights):
        arrays = {"inverse": part.inverse, "scale": part.scale, **_list_arrays("graph", part.graph)}
        return {"kind": "users"}, arrays | _list_arrays("turned", part.turned)
    if isinstance(part, LeastSquares):
        numbers = {"absent": part.weighting.absent, "ridge": part.weighting.ridge}
        arrays = {"items": part.items}
        for place, turned in enumerate(part.rank_systems):
            arrays |= {
                f"turned-{place}": turned.vectors[:-1],
                f"shared-{place}": turned.shared,
                f"axes-{place}": turned.axes,
            }
        return {"kind": "squares", "numbers": numbers, "ranks": part.ranks}, arrays
    if isinstance(part, ContentWeights):
        return {"kind": "content"}, {"left": part.left, "right": part.right}
    if isinstance(part, Frequency):
        return {"kind": "frequency"}, {"row": part.row}
    raise SettingsError(f"expected a scorer that can be compiled, got {type(part).__name__}")


def _list_arrays(name: str, matrix: sparse.csr_array) -> Arrays:
    return {
        f"{name}-indptr": matrix.indptr.astype(np.int64),
        f"{name}-indices": matrix.indices.astype(np.int32),
        f"{name}-data": matrix.data.astype(np.float32),
    }


def _numbered(name: str, arrays: Sequence[Float32]) -> Arrays:
    return {f"{name}-{place}": array for place, array in enumerate(arrays)}
