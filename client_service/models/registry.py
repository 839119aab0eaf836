"""The client's models: name -> builder. A new model is one file in this folder and one line here."""

from __future__ import annotations

from collections.abc import Callable

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

MODELS: dict[str, Callable[[Ingredients], Model]] = {
    "lgcn": LGCN,
    "masked": MaskedLGCN,
    "frequency": FrequencyLGCN,
    "ngcf": NGCF,
    "mf": MF,
    "pfedrec": PFedRec,
    "fedrap": FedRAP,
    "attention": GraphAttention,
    "metapath": MetaPaths,
}
