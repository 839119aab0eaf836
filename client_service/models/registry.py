"""The client's models: name -> builder. A new model is one file in this folder and one line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from client_service.models.attention import GraphAttention
from client_service.models.fedrap import FedRAP
from client_service.models.frequency import FrequencyLGCN
from client_service.models.lgcn import LGCN
from client_service.models.masked import MaskedLGCN
from client_service.models.metapath import MetaPaths
from client_service.models.mf import MF
from client_service.models.model import Ingredients, Model
from client_service.models.ngcf import NGCF
from client_service.models.pfedrec import PFedRec


@dataclass(frozen=True)
class Kind:
    """How a model is built, and whether it can begin at a filter (`start` = exact)."""

    build: Callable[[Ingredients], Model]
    starts: bool = False


MODELS: dict[str, Kind] = {
    "lgcn": Kind(LGCN, starts=True),
    "masked": Kind(MaskedLGCN, starts=True),
    "frequency": Kind(FrequencyLGCN, starts=True),
    "ngcf": Kind(NGCF),
    "mf": Kind(MF),
    "pfedrec": Kind(PFedRec),
    "fedrap": Kind(FedRAP),
    "attention": Kind(GraphAttention),
    "metapath": Kind(MetaPaths),
}
