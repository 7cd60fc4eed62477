"""What organiser and participants say to each other. Everything that leaves a participant's house has a name here.

The organiser asks, a participant answers. Vectors travel beside these words, as the load of a message (wire.py).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0, lt=2**53)]
Seconds = Annotated[float, Field(ge=0)]
Hex = Annotated[str, Field(pattern=r"^([0-9a-f]{2})*$")]
Key = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

# What a message is called on the wire, and in the files of clients, where that is not its class in lower case.
WIRE_KINDS = {
    "Invitation": "hello",
    "TableDescription": "described",
    "AgreementRequest": "agree",
    "SampleCounts": "counted",
    "StatisticsResponse": "statistics",
    "ReadyResponse": "ready",
    "KeysRequest": "keys",
    "KeysResponse": "keyed",
    "SharesRequest": "deal",
    "SharesResponse": "dealt",
    "RevealRequest": "reveal",
    "RevealResponse": "revealed",
    "RoundRequest": "work",
    "RoundResponse": "done",
    "BatchNormRequest": "recompute",
    "BatchNormResponse": "recomputed",
    "EvaluateRequest": "look",
    "EvaluateResponse": "looked",
    "ModelRequest": "show",
    "ModelResponse": "shown",
    "AsyncTrainRequest": "train",
    "AsyncTrainResponse": "trained",
    "SendResultRequest": "send",
    "CannotTrainResponse": "skips",
    "ErrorResponse": "broke",
    "UnsendableResponse": "unsendable",
    "RefusalResponse": "refused",
    "GoodbyeRequest": "goodbye",
    "GoodbyeResponse": "bye",
}

KINDS: dict[str, type[MessageBody]] = {}


class MessageBody(BaseModel):
    """One kind of message."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    what: ClassVar[str] = ""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        cls.what = WIRE_KINDS.get(cls.__name__, cls.__name__.lower())
        KINDS[cls.what] = cls


class MessagePart(BaseModel):
    """A part of a message."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# Getting to know each other


class ColumnDescription(MessagePart):
    """A column of a participant's table: its name, whether it holds numbers, and which words, where they are encoded."""

    name: str
    kind: Literal["numbers", "words"]
    words: tuple[str, ...] = ()


class Agreement(MessagePart):
    """What all participants have agreed on, and the place of one of them."""

    client: Count
    clients: Count
    rows_before: Count  # of participants whose names come before: where its rows would lie in a table of all
    rows: Count  # of all
    classes: tuple[str, ...]  # labels, in the order in which they are numbered
    columns: tuple[ColumnDescription, ...]  # features, in the order in which the model sees them
    means: tuple[float, ...] | None = None  # of the columns, over all training rows
    deviations: tuple[float, ...] | None = None
    class_counts: tuple[int, ...] | None = None  # over all training rows, where the algorithm needs them
    heaviest: int | None = None  # most training rows of a participant, where answers are masked
    shares_models: bool = False  # models of one's own go to the others, to be tested there

    @property
    def position(self) -> str:
        """What decides which rows of the participant are for training, and how they look."""
        return self.model_dump_json(include={"client", "clients", "rows_before", "rows", "classes", "columns"})


class Invitation(MessageBody):
    """Server: this is the experiment. Do you take part?"""

    experiment: str  # TOML
    clients: Annotated[int, Field(ge=1, lt=2**31)]  # that take part: it decides whether statistics are masked
    shares_models: bool = False


class TableDescription(MessageBody):
    """Participant: yes. This is what my table looks like."""

    session: str  # of this process: another one remembers nothing of what was said
    rows: Count
    test_rows: Count  # of a file of their own
    label_kind: Literal["numbers", "truths", "words"]
    classes: tuple[str, ...]
    columns: tuple[ColumnDescription, ...]


class AgreementRequest(MessageBody):
    """Server: this is agreed. Send your sample counts, or get ready."""

    agreement: Agreement
    tell: Literal["counts", "ready"]


class SampleCounts(MessageBody):
    """Client: the number of training and test samples."""

    train: Count
    test: Count


class StatisticsKeyRequest(MessageBody):
    """Server: draw a key pair for one release of statistics."""


class StatisticsKey(MessageBody):
    """Client: the public half."""

    key: Key


class StatisticsRequest(MessageBody):
    """Server: send your statistics, masked with the keys of all clients; without keys where fewer than three take part."""

    agreement: Agreement
    keys: dict[Count, Key] = {}


class StatisticsResponse(MessageBody):
    """Client: the load is a vector of integers (statistics_release.py), masked where keys were given."""


class ReadyResponse(MessageBody):
    """Participant: I have built the model. It begins with these weights."""

    torch: str
    initial: str  # sha256


# Work


class ExchangeInfo(MessagePart):
    """One exchange of a round and who is asked in it, where answers are changed on their way up."""

    number: Count
    asked: tuple[Count, ...]
    everyone: bool


class KeyPair(MessagePart):
    """Public keys of an exchange: of masks in pairs, and of the channel to a participant."""

    mask: Key
    channel: Key


class KeysRequest(MessageBody):
    """Organiser: draw secrets for this exchange."""

    exchange: Count


class KeysResponse(MessageBody):
    """Participant: the public halves."""

    keys: KeyPair


class SharesRequest(MessageBody):
    """Organiser: these are the public keys of all. Deal out shares of your secrets."""

    exchange: Count
    keys: dict[Count, KeyPair]


class SharesResponse(MessageBody):
    """Participant: shares for each neighbour, which only that neighbour can read."""

    shares: dict[Count, Hex]


class RevealRequest(MessageBody):
    """Organiser: these have answered. Reveal the shares with which their sum, and nothing else, can be opened."""

    exchange: Count
    answered: tuple[Count, ...]


class RevealResponse(MessageBody):
    """Participant: a share of a secret of each neighbour: of its own mask if it answered, else of its key."""

    shares: dict[Count, Annotated[str, Field(pattern=r"^[0-9a-f]{1,32}$")]]


class RoundRequest(MessageBody):
    """Organiser: do your part. The load is what all hear."""

    do: str
    exchange: Count  # of the round: 0 is the first
    memory: str = ""  # which of your memories to begin from; none: you are new
    turn: ExchangeInfo | None = None
    shares: dict[Count, Hex] | None = None  # of your neighbours' secrets, where answers are masked


class RoundResponse(MessageBody):
    """Participant: done. The load is what goes up: the algorithm's answer, and BatchNorm's statistics where averaged."""

    weight: float
    finite: bool
    steps: Count
    samples: Count
    loss: float
    seconds: Seconds
    sent: Count
    sent_buffers: Count
    memory: str = ""  # under which it is kept here, if anything is


class BatchNormRequest(MessageBody):
    """Organiser: measure BatchNorm's statistics of this model on your rows."""


class BatchNormResponse(MessageBody):
    """Participant: the load is what I measured."""


class EvaluateRequest(MessageBody):
    """Organiser: how good is this model on your test rows? Or your own: the one of this memory."""

    memory: str | None = None  # None: the model in the load is all there is


class EvaluateResponse(MessageBody):
    """Participant: so many right of so many, and the sum of their losses; and right of the rows clients are compared on."""

    right: Count
    count: Count
    loss: float
    own_right: Count
    own_count: Count


class EvaluationSumsRequest(MessageBody):
    """Server: send sums over your test samples for the model in the load, masked as statistics are."""

    keys: dict[Count, Key] = {}
    histograms: Count = 0  # bins of score histograms among the sums; only as many as were agreed on


class EvaluationSums(MessageBody):
    """Client: the load is a vector of integers (metric_sums.py), masked where keys were given."""

    histograms: Count = 0


class OwnMetricsRequest(MessageBody):
    """Server: compute the metrics that sums do not give on your own test samples, of this model or of your own."""

    memory: str | None = None  # None: the model in the load


class OwnMetrics(MessageBody):
    """Client: AUC and average precision of its own samples, and how many they are; None where undefined."""

    count: Count
    values: dict[str, Annotated[float, Field(ge=0, le=1)] | None]


class ModelRequest(MessageBody):
    """Organiser: show the model of this memory, that the others may test it."""

    memory: str


class ModelResponse(MessageBody):
    """Participant: the load is my own model."""


# Without rounds


class AsyncTrainRequest(MessageBody):
    """Organiser: train, at your own pace. From the model in the load, or from your own of this memory."""

    number: Count  # of your trainings: your random numbers go by it
    memory: str = ""
    own_model: str = ""  # the training from whose result to go on
    ask_first: bool = False  # keep the result until it is asked for
    keep_from: Count = 0  # what older trainings left behind is not needed any more


class AsyncTrainResponse(MessageBody):
    """Participant: trained; may I send the result? Nothing but facts is here."""

    finite: bool
    steps: Count
    samples: Count
    loss: float
    seconds: Seconds
    sent: Count
    sent_buffers: Count
    memory: str


class SendResultRequest(MessageBody):
    """Organiser: yes, send the result of that training."""

    trained: AsyncTrainResponse  # as it was told


# When something is amiss, and at the end


class CannotTrainResponse(MessageBody):
    """Participant: with these rows I cannot take part."""

    reason: str


class ErrorResponse(MessageBody):
    """Participant: the algorithm raised an error."""

    error: str
    place: str = ""


class UnsendableResponse(MessageBody):
    """Participant: what the algorithm sends does not go through the steps of the experiment's uplink."""

    error: str
    remedy: str
    where: str = ""


class RefusalResponse(MessageBody):
    """Participant: no, and why."""

    why: str
    kind: Literal["unready", "no"] = "no"  # unready: this process does not know the run yet


class GoodbyeRequest(MessageBody):
    """Organiser: it is over, for all or for you."""

    reason: str = ""
    finished: bool = False


class GoodbyeResponse(MessageBody):
    """Participant: goodbye."""
