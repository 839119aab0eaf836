"""`lpsfed encode`: writes vectors of items' titles and attributes to a file.

A shard can keep these vectors.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shared.errors import SettingsError
from shared.words import count_noun
from simulation.cli import options
from simulation.cli.options import AsJson, print_json, print_notes
from simulation.progress import step
from simulation.reports.terminal import OUT

if TYPE_CHECKING:
    from client_service.text.encoders import CatalogueTexts
    from simulation.datasets.columns import FileOptions


def encode(
    items: Annotated[Path, typer.Argument(help="File of items with titles and attributes, or a shard's folder")],
    out: Annotated[Path, typer.Option(help="File for the vectors, for `lpsfed shard features`")],
    encoder: Annotated[
        str, typer.Option(help="Encoder: projection, svd, glove, or the folder of a sentence-transformers model")
    ] = "projection",
    width: Annotated[int, typer.Option(help="Numbers per vector, of projection and svd")] = 64,
    like: Annotated[Path | None, typer.Option(help="Earlier file of vectors, whose encoder is used")] = None,
    attribute: Annotated[
        list[str] | None, typer.Option(help="Name of a further column that describes the items; repeatable")
    ] = None,
    columns: options.Columns = None,
    delimiter: options.Delimiter = None,
    as_json: AsJson = False,
) -> None:
    """Encodes titles and attributes of items as vectors.

    With these vectors a silo recommends items without interactions. Columns that users make (tags, ratings, counts of
    views) are never read: a new item cannot have them.
    """
    from client_service.text.encoders import encode_by_file, encode_items
    from client_service.text.feature_file import read_feature_file, write_feature_file

    texts, left_out = _read_texts(items, options.parse_file_options(columns, delimiter), attribute or [])
    with step("encoding the items"):
        if like is None:
            found = encode_items(texts, encoder, width)
        else:
            found = encode_by_file(texts, read_feature_file(like), like)
    digest = write_feature_file(out, found)
    known, size = int(found.values.any(axis=1).sum()), found.values.shape[1]
    if as_json:
        counts = {"items": len(texts.item_ids), "known": known, "width": size, "encoder": found.encoder}
        return print_json(counts | {"columns": sorted(texts.columns), "digest": digest, "file": str(out)})
    print_notes(left_out)
    described = f"{count_noun(len(texts.item_ids), 'item')}, {known:,} with text or attributes"
    OUT.print(f"{out}: {described}, {size} numbers each, by {found.encoder}, digest {digest[:16]}", soft_wrap=True)


@step("reading the items")
def _read_texts(path: Path, given: FileOptions, attributes: list[str]) -> tuple[CatalogueTexts, list[str]]:
    """Reads ids, titles and attributes of items from a file or a shard.

    Also returns notes of the columns that users make, which are left out.
    """
    from client_service.text.encoders import CatalogueTexts
    from client_service.text.item_features import attribute_columns
    from client_service.text.projection import is_behaviour
    from simulation.datasets.columns import ATTRIBUTES, FileOptions
    from simulation.datasets.load import read_titles

    for name in attributes:
        if is_behaviour(name):
            expected = f"expected a column that describes items, got {name!r}, which users make"
            raise SettingsError(f"--attribute: {expected}: a new item has none")
    if path.is_dir():
        from client_service.data.interaction_files import load_shard

        table = load_shard(path).items_with_ids()
    else:
        wanted = ATTRIBUTES | {name.strip().lower() for name in attributes}
        table = read_titles(path, FileOptions(given.columns, given.delimiter, wanted)).unique(
            "item", keep="first", maintain_order=True
        )
    held = attribute_columns(table.drop("item", "title"))
    kept = {name: values for name, values in held.items() if not is_behaviour(name)}
    notes = [f"column {name} is left out: users make it" for name in held if name not in kept]
    return CatalogueTexts(table["item"].to_list(), table["title"].to_list(), kept), notes
