"""Start of training on a shard: the model, and the closed-form scores fused with it.

The choices that validation makes for it are stored beside the shard's spectrum, so that a run need not choose again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from client_service.data.interactions import Shard
from client_service.models.closed_form.content import ColdItemScorer, ContentSums, find_item_features
from client_service.models.closed_form.registry import ClosedFormScorers
from client_service.models.closed_form.scorer_part import Scorer
from client_service.models.initial_filter import CommonSpectrum, Filter, build_start
from client_service.models.model import Model, ModelInputs, build_model
from client_service.models.score_fusion import Codes, Fusion, Recipe, build_fusion
from client_service.runtime.interruption import Interrupt
from client_service.runtime.memory import return_free_memory
from client_service.sums.registry import SILO_SUMS
from client_service.sums.silo_sum import Statistics
from client_service.text.item_features import ItemFeatures, item_features
from client_service.training.filter_search import best_filter
from client_service.training.fusion_search import KEPT_ITEMS, best_recipe
from shared.errors import SettingsError
from shared.files import replace_file
from shared.message import Message
from shared.method.graph import Float64
from shared.method.parameters import Float32
from shared.method.settings import MethodSettings
from shared.method.spectrum import Spectrum
from shared.method.tensors import EXCHANGES, ITEM_TABLE, TABLE_DEVIATION, TEXT_START, begins_at_text

FORMAT = "lpsfed-choice/5"
COMMON_START = Filter(128, ridge=0.03, exponent=0.25)
"""Chosen once, on ML-100k, and the same in every silo, so that a coordinate has one scale everywhere."""


class Choice(Message):
    """Stored choice of validation: start filter and fusion recipe; None: not chosen yet."""

    format: str = FORMAT
    start: Filter | None = None
    recipe: Recipe | None = None


@dataclass(frozen=True)
class TrainingStart:
    """Model at the start of training, its filter, and its fusion.

    codes: of the users' training items, for the fusion. cold: scorer of items without interactions; None without item
    metadata.
    """

    model: Model
    start: Filter | None
    recipe: Recipe | None
    fusion: Fusion
    codes: Codes
    cold: ColdItemScorer | None = None


def build_start_model(
    shard: Shard,
    spectrum: Spectrum,
    method: MethodSettings,
    name: str,
    chosen: Choice,
    interrupt: Interrupt,
    basis: Statistics | None = None,
    others: ContentSums | None = None,
) -> TrainingStart:
    """Builds the named model at its start, with its fusion.

    Only a model that begins at a filter (`start` = exact or common) is fused with closed-form scores, and with those of
    a common basis where there is one. others: the content sums of the other silos.
    """
    start = recipe = start_spectrum = None
    closed_forms = ClosedFormScorers.from_shard(shard, spectrum, others)
    common: tuple[Scorer, ...] = ()
    if method.start != "random" and EXCHANGES[name].starts_at_filter:
        start_spectrum = common_start(basis, shard, method)
        start = chosen.start or (
            best_filter(shard, spectrum, interrupt).choice if start_spectrum is None else COMMON_START
        )
    if start is not None and method.fusion:
        common = () if basis is None else SILO_SUMS[basis.kind].scorers(basis, shard)
        directions = None if basis is None else basis.directions
        covered_share = 1.0 if basis is None or chosen.recipe else SILO_SUMS[basis.kind].covered_share(basis, shard)
        recipe = chosen.recipe or best_recipe(
            shard, spectrum, start, interrupt, common, start_spectrum, directions, covered_share, closed_forms
        )
    cold = closed_forms.choose_cold_setting() if recipe is None or recipe.cold is None else recipe.cold
    if recipe is not None:
        recipe = replace(recipe, cold=cold)
    if recipe is not None and chosen.recipe is None and shard.train.shape[1] >= KEPT_ITEMS:
        return_free_memory()  # of the choice, before the model is built: some 200 MB
    frequencies = start_spectrum or spectrum
    origin = None if start is None else build_start(start, frequencies, shard.train)
    text = text_rows(shard, method, name)
    model = build_model(name, ModelInputs(frequencies, shard.train, origin, shard.places, method, text))
    fusion = build_fusion(recipe, shard.train, spectrum, common, closed_forms)
    return TrainingStart(model, start, recipe, fusion, fusion.encode(shard.train), closed_forms.make_cold_scorer(cold))


def text_rows(shard: Shard, method: MethodSettings, name: str) -> Float32 | None:
    """Computes the initial item vectors from the items' text, (N, d).

    Returns None if they begin at random. A row depends on the item and the encoder alone, so that it is the same in
    every silo. Its root mean square is TABLE_DEVIATION, as users' vectors have it: with longer rows the first scores
    would saturate. An item without text has a row that its place in the catalogue draws. SettingsError if text is
    asked for and there is none, or that of another encoder.
    """
    exchange = EXCHANGES[name]
    start = method.item_start or exchange.item_start
    if not begins_at_text(start) or ITEM_TABLE not in exchange.names or shard.places is None:
        return None
    features = item_features(shard, method.width)
    if features is None and method.item_start:
        raise SettingsError(f"item_start: expected items with titles or features for {start!r}, got neither")
    drawn = np.random.default_rng([method.catalogue, method.width]).normal(size=(method.catalogue, method.width))
    rows = drawn[shard.places]
    if features is not None:
        known = features.values.any(1)
        rows[known] = _encoded_rows(features, start, method.width)[known]
    lengths = np.sqrt((rows**2).mean(1, keepdims=True))
    scaled: Float32 = (rows * (TABLE_DEVIATION / lengths)).astype(np.float32)
    return scaled


def _encoded_rows(features: ItemFeatures, start: str, width: int) -> Float64:
    """Returns the features, or projects them on as many columns as vectors have."""
    usual = features.encoder.startswith("projection/")
    if not (usual if start == TEXT_START else features.encoder == start):
        expected = "the usual encoder" if start == TEXT_START else repr(start)
        raise SettingsError(f"item_start: expected item features of {expected}, got those of {features.encoder!r}")
    values = features.values.astype(np.float64)
    if values.shape[1] == width:
        return values
    generator = np.random.default_rng([values.shape[1], width])
    return values @ generator.normal(size=(values.shape[1], width))


def common_start(basis: Statistics | None, shard: Shard, method: MethodSettings) -> CommonSpectrum | None:
    """Returns the frequencies of all silos' graph, where the model begins in them.

    Else None. The shard's own held-out pairs, by which the model is evaluated, are taken out. Raises DataError for a
    shard without places in the common catalogue.
    """
    if basis is None or method.start != "common":
        return None
    return SILO_SUMS[basis.kind].start(basis, shard, method)


def load_choice(shard: Shard, cutoff: int, folder: Path, basis: str = "") -> Choice:
    """Loads the stored choice for this shard, cut-off and basis.

    An empty choice without a file.
    """
    try:
        found = Choice.model_validate_json(_path(shard, cutoff, folder, basis).read_bytes())
    except (OSError, ValidationError):
        return Choice()
    return found if found.format == FORMAT else Choice()


def save_choice(shard: Shard, cutoff: int, folder: Path, choice: Choice, basis: str = "") -> None:
    """Saves a choice in place of the stored one."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(_path(shard, cutoff, folder, basis), choice.model_dump_json(indent=1).encode())


def _path(shard: Shard, cutoff: int, folder: Path, basis: str) -> Path:
    end = f"-{basis}" if basis else ""
    features = find_item_features(shard)  # no part of the digest
    end += f"-text-{features.digest[:16]}" if features is not None else ""
    return folder / f"choice-{shard.digest[:16]}-{cutoff}{end}.json"
