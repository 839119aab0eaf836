"""JSON messages by which applications ask for labels of nodes.

They stay in the silo.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from client_service.data.ids import normalise_id
from client_service.event_log.messages import require_edge_limit
from shared.message import Message

MOST_NODES = 1000  # in one request
MOST_NEIGHBOURS = 10_000  # of one node of a request
MOST_FEATURES = 1 << 20
MOST_SHOWN = 5  # neighbours of an answer that weigh most
LARGEST, HEAVIEST = 1e9, 1e6
NodeId = Annotated[str, Field(min_length=1, max_length=512, examples=["worker-17"]), AfterValidator(normalise_id)]
FeatureName = Annotated[str, Field(min_length=1, max_length=512)]
Value = Annotated[float, Field(allow_inf_nan=False, ge=-LARGEST, le=LARGEST)]
Features = (
    Annotated[dict[FeatureName, Value], Field(max_length=MOST_FEATURES)]
    | Annotated[tuple[Value, ...], Field(max_length=MOST_FEATURES)]
)
LabelFallback = Literal[
    "no model yet", "the model's scores are no numbers", "the closed form, for the network scores no changed nodes"
]
LABEL_SCORE = "probability from 0 to 1 of the label, calibrated on the silo's validation nodes"
FEATURES = "by their names, where what is not named is 0, or all in the shard's order; by default the node's own"
NEIGHBOURS = "nodes of the silo that it has edges with; of a node of the silo by default those it has"


class NeighbourIn(Message):
    """An edge to a node of the silo."""

    node: NodeId = Field(description="the neighbour's id")
    weight: float = Field(1.0, gt=0, le=HEAVIEST, allow_inf_nan=False, description="of the edge")


class NodeIn(Message):
    """Description of a node: a new one, or a silo's with other features or neighbours."""

    node: NodeId | None = Field(None, description="its id; a new node needs none")
    features: Features | None = Field(None, description=FEATURES, examples=[{"rejected_rate": 0.2}])
    neighbours: tuple[NeighbourIn, ...] | None = Field(None, max_length=MOST_NEIGHBOURS, description=NEIGHBOURS)

    @model_validator(mode="after")
    def _is_described(self) -> NodeIn:
        if self.node is None and self.features is None:
            raise ValueError("expected features of a new node, or the id of a node of the silo, got neither")
        return self


class LabelsIn(Message):
    """Request for labels: ids of nodes of the silo, and descriptions of other nodes."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"nodes": ["worker-17"]}]})

    nodes: tuple[NodeId | NodeIn, ...] = Field(
        min_length=1, max_length=MOST_NODES, description="ids, or descriptions of new nodes", examples=[["worker-17"]]
    )

    @model_validator(mode="before")
    @classmethod
    def _within_limits(cls, given: Any) -> Any:
        return require_edge_limit(given)

    @property
    def edges(self) -> int:
        """Number of neighbours of all nodes together."""
        return sum(len(one.neighbours or ()) for one in self.nodes if isinstance(one, NodeIn))


class WeighingNeighbourOut(Message):
    """A neighbour, and how much it counts for the answered label."""

    node: str = Field(description="the neighbour's id", examples=["worker-4"])
    weight: float = Field(description="of the edge", examples=[1.0])
    contribution: float = Field(
        description="contribution to the score of the answered label before calibration; negative: against it",
        examples=[0.31],
    )


class LabelOut(Message):
    """The most likely label of a node."""

    node: str | None = Field(None, description="its id, where one was given", examples=["worker-17"])
    label: str = Field(description="the most likely class", examples=["banned"])
    probability: float = Field(ge=0, le=1, description=LABEL_SCORE, examples=[0.83])
    probabilities: dict[str, float] = Field(
        description="of all classes, which add up to 1", examples=[{"banned": 0.83, "kept": 0.17}]
    )
    known_label: str | None = Field(None, description="label of this node in the silo's data, if any")
    fallback: LabelFallback | None = Field(
        None,
        description="why the served model has not answered, but shares of the training labels, or the closed form that"
        " stands beside a network; not there where it has",
    )
    unknown_neighbours: int = Field(0, ge=0, description="neighbours of the request that the silo does not have")
    neighbours: tuple[WeighingNeighbourOut, ...] = Field(
        (), description=f"at most {MOST_SHOWN} neighbours that count most for the label, the largest first"
    )


class JoiningOut(Message):
    """Measures of joining on this silo's own validation nodes."""

    measure: str = Field(description="the name of the figures", examples=["AUC"])
    nodes: int = Field(ge=0, description="validation nodes with a label")
    alone: float = Field(description="of the closed form of this silo's own nodes", examples=[0.735])
    served: float = Field(description="of the model that answers", examples=[0.763])
    answers: str = Field(
        description="the model that answers, and the reason", examples=["closed form of all silos' sums"]
    )


class LabelListOut(Message):
    """A label for each node, in the order of the request."""

    model: str | None = Field(
        None, description="version of the model that answered; none while there is no model", examples=["run-1.5"]
    )
    joining: JoiningOut | None = Field(None, description="gain of joining; none while there is no model")
    results: tuple[LabelOut, ...] = Field(description="one label for each node, in the order of the request")
