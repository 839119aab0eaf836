"""Column names of interaction files: known names of each field, and options that name others."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

COLUMNS = {
    "session": ("session", "session_id", "sessionid", "user", "user_id", "userid"),
    "user": ("user", "user_id", "userid"),
    "item": ("item", "item_id", "itemid", "movie", "movie_id", "movieid"),
    "split": ("split",),
    "time": ("time", "timestamp"),
    "rating": ("rating",),
    "label": ("label", "liked", "is_liked", "clicked", "is_click"),
    "count": ("count", "counts", "plays", "play_count", "playcount", "listen_count", "weight"),
    "event": ("event_type", "event", "eventtype", "event_name", "action", "action_type", "behavior", "behaviour"),
    "quantity": ("quantity", "qty", "units"),
    "title": ("title", "item_title", "movie_title", "name", "item_name"),
}
_ATTRIBUTES = (
    "genre genres class category categories kategorie kategorien type year release_year publication_year jahr "
    "erscheinungsjahr brand marke manufacturer hersteller author authors autor artist interpret director publisher "
    "verlag language sprache country land price preis pages description beschreibung 类别 类型 年份 品牌 作者"
)
_NUMBERS = "year release_year publication_year jahr erscheinungsjahr 年份 price preis pages"
ATTRIBUTES, NUMBERS = (frozenset(words.split()) for words in (_ATTRIBUTES, _NUMBERS))
"""Columns of a file of items that a shop states of them. Tags, ratings and counts are left out: they come from users,
and an item without interactions cannot have them."""
ID_FIELDS, DETAIL_FIELDS = (
    ("session", "user", "item", "split"),
    ("time", "rating", "label", "count", "event", "quantity"),
)
KNOWN = frozenset(name for names in COLUMNS.values() for name in names)
_POSITIVE_EVENTS = (
    "view views viewed pageview page_view detail click clicks clicked pv visit read play plays played listen listened "
    "watch watched stream cart add_to_cart addtocart add_cart basket add_to_basket order ordered purchase purchases "
    "purchased buy bought transaction sale sold checkout rent rented download install subscribe follow like liked love "
    "loved favorite favourite fav save saved wishlist add_to_wishlist bookmark share shared upvote rate rated"
)
_OTHER_EVENTS = (
    "return returned returns refund refunded cancel cancelled canceled remove removed remove_from_cart removefromcart "
    "remove_from_basket delete deleted dislike disliked unlike unliked downvote skip skipped hide hidden block blocked "
    "unsubscribe unfollow uninstall impression impressions shown complaint"
)
_WORDS_OF_NAMES = (
    "account action age amount article artist asin at author basket behavior behaviour book brand buyer category "
    "client code content count country created currency customer customerid date datetime day description event film "
    "game genre genres id ids interaction invoice isbn item itemid key label like liked member movie movieid name "
    "order person play plays post price product productid purchase qty quantity rating ratings review reviewer score "
    "session "
    "shop sku song split star stars store text time timestamp title track ts type unit units user userid value visit "
    "visitor visitorid weight when"
)
POSITIVE_EVENTS, OTHER_EVENTS, WORDS_OF_NAMES = (
    frozenset(words.split()) for words in (_POSITIVE_EVENTS, _OTHER_EVENTS, _WORDS_OF_NAMES)
)


@dataclass(frozen=True)
class FileOptions:
    """Options of a data file.

    columns: the file's own name of a field of `COLUMNS`. delimiter: None: it is detected. attributes: names of columns
    that are read as item attributes, in a file of items. needs_rows: is a file without rows refused?
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    delimiter: str | None = None
    attributes: frozenset[str] = frozenset()
    needs_rows: bool = True

    def names(self, role: str) -> tuple[str, ...]:
        """Returns the names of a field's column, in lower case.

        Empty for a field that is given as "", not to be read.
        """
        if role not in self.columns:
            return COLUMNS[role]
        return (name,) if (name := self.columns[role].strip().lower()) else ()

    def is_id(self, name: str) -> bool:
        """Tells whether a column of this name may hold ids or splits."""
        return any(name in self.names(role) for role in ID_FIELDS)

    def is_read(self, name: str) -> bool:
        """Tells whether a column of this name is read."""
        detail = any(name in self.names(role) for role in (*DETAIL_FIELDS, "title"))
        return self.is_id(name) or detail or is_title(name) or self.is_attribute(name)

    def is_attribute(self, name: str) -> bool:
        """Tells whether a column of this name is an attribute of the items."""
        return name in self.attributes


DEFAULT_OPTIONS, ITEM_OPTIONS = FileOptions(), FileOptions(attributes=ATTRIBUTES)


def is_title(name: str) -> bool:
    """Tells whether a column of this name, such as "app_name", may hold titles."""
    return "title" in name or "name" in name


def plain_names(names: Sequence[str]) -> list[str]:
    """Selects names that are common header words.

    The others are not shown: in a file without a header they are ids.
    """
    return [name for name in names if name in KNOWN or WORDS_OF_NAMES.intersection(re.split(r"[^a-z]+", name))]
