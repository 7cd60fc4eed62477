"""The messages between server and clients. Everything that leaves the machine of a client has a field here.

The server sends requests, a client responds. Vectors travel as the payload of a message (wire_format.py).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0, lt=2**53)]
Seconds = Annotated[float, Field(ge=0)]
Hex = Annotated[str, Field(pattern=r"^([0-9a-f]{2})*$")]
Key = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

KINDS: dict[str, type[MessageBody]] = {}


class MessagePart(BaseModel):
    """Base class of structures inside messages."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class MessageBody(MessagePart):
    """Base class of the bodies of all messages.

    `kind` is the name on the wire, if it is not the class name in lower case; `release` is what an answer reveals, in the
    words of the log of releases.
    """

    what: ClassVar[str] = ""
    release: ClassVar[str] = ""

    def __init_subclass__(cls, kind: str = "", release: str = "") -> None:
        cls.what, cls.release = kind or cls.__name__.lower(), release
        KINDS[cls.what] = cls


# Enrollment


class ColumnDescription(MessagePart):
    """A column of a client's table: its name, its kind, and its levels where they are encoded."""

    name: str
    kind: Literal["numbers", "words", "empty"]  # empty: without any value, which goes with both
    words: tuple[str, ...] = ()


class Agreement(MessagePart):
    """The agreement of all clients, and the position of one of them."""

    client: Count
    clients: Count
    rows_before: Count  # of clients whose names come before: where its rows would be in a pooled table
    rows: Count  # of all
    classes: tuple[str, ...]  # classes in the order in which they are numbered, or the names of several labels
    columns: tuple[ColumnDescription, ...]  # features, in the order in which the model sees them
    means: tuple[float, ...] | None = None  # of the columns, over all training rows
    deviations: tuple[float, ...] | None = None
    class_counts: tuple[int, ...] | None = None  # over all training rows, where the algorithm needs them
    label_scale: tuple[float, float] | None = (
        None  # mean and deviation of a regression's labels, over all training rows
    )
    heaviest: int | None = None  # most training rows of a client, where answers are masked
    shares_models: bool = False  # personal models are sent to the other clients, to be tested there

    @property
    def position(self) -> str:
        """Return the fields that decide which rows of the client are for training, and how they are encoded."""
        return self.model_dump_json(include={"client", "clients", "rows_before", "rows", "classes", "columns"})


class Invitation(MessageBody, kind="hello"):
    """Server: invite a client to an experiment."""

    experiment: str  # TOML
    clients: Annotated[int, Field(ge=1, lt=2**31)]  # that take part: it decides whether statistics are masked
    shares_models: bool = False


class TableDescription(MessageBody, kind="described", release="description: sample counts, columns, levels and labels"):
    """Client: accept, and describe the table."""

    session: str  # of this process: another one does not know the run
    rows: Count
    test_rows: Count  # of a file of their own
    label_kind: Literal["numbers", "truths", "words", "quantity", "zeros and ones", "time and event"]
    classes: tuple[str, ...]  # of a classification
    columns: tuple[ColumnDescription, ...]


class AgreementRequest(MessageBody, kind="agree"):
    """Server: send the agreement; the client returns its sample counts, or builds the model."""

    agreement: Agreement
    tell: Literal["counts", "ready"]


class SampleCounts(MessageBody, kind="counted", release="sample counts"):
    """Client: the number of training and test samples."""

    train: Count
    test: Count


class StatisticsKeyRequest(MessageBody):
    """Server: draw a key pair for one release of statistics."""


class StatisticsKey(MessageBody):
    """Client: the public key of that pair."""

    key: Key


class StatisticsRequest(MessageBody):
    """Server: send your statistics, masked with the keys of all clients; without keys where fewer than three take part."""

    agreement: Agreement
    keys: dict[Count, Key] = {}


class StatisticsResponse(MessageBody, kind="statistics", release="sums over training samples"):
    """Client: the payload is a vector of integers (statistics_release.py), masked where keys were given."""


class ReadyResponse(MessageBody, kind="ready"):
    """Client: the model is built, and starts from these weights."""

    torch: str
    initial: str  # sha256


# Rounds


class ExchangeInfo(MessagePart):
    """One exchange of a round and who is asked in it, where answers are changed on their way up."""

    number: Count
    asked: tuple[Count, ...]
    everyone: bool


class KeyPair(MessagePart):
    """Public keys of an exchange: of masks in pairs, and of the channel to a client."""

    mask: Key
    channel: Key


class KeysRequest(MessageBody, kind="keys"):
    """Server: draw secrets for this exchange of secure aggregation."""

    exchange: Count


class KeysResponse(MessageBody, kind="keyed"):
    """Client: the public keys of this exchange."""

    keys: KeyPair


class SharesRequest(MessageBody, kind="deal"):
    """Server: pass on the public keys of all clients, and request encrypted shares of the secrets."""

    exchange: Count
    keys: dict[Count, KeyPair]


class SharesResponse(MessageBody, kind="dealt"):
    """Client: shares for each neighbour, encrypted for that neighbour."""

    shares: dict[Count, Hex]


class RevealRequest(MessageBody, kind="reveal"):
    """Server: name the clients that have answered, and request the shares that unmask their sum and nothing else."""

    exchange: Count
    answered: tuple[Count, ...]


class RevealResponse(MessageBody, kind="revealed", release="shares of masks"):
    """Client: a share of a secret of each neighbour: of its own mask if it answered, else of its key."""

    shares: dict[Count, Annotated[str, Field(pattern=r"^[0-9a-f]{1,32}$")]]


class RoundRequest(MessageBody, kind="work"):
    """Server: run a method of the algorithm; the payload is the broadcast."""

    do: str
    exchange: Count  # of the round: 0 is the first
    memory: str = ""  # the ticket of the client state to start from; empty: none
    turn: ExchangeInfo | None = None
    shares: dict[Count, Hex] | None = None  # of the neighbours' secrets, where answers are masked


class TrainingFacts(MessagePart):
    """The facts that a client reports about a training besides its result, under the names of `engine.tasks.ClientReport`."""

    finite: bool
    steps: Count
    samples: Count
    loss: float
    seconds: Seconds
    sent: Count
    sent_buffers: Count
    squared_loss: float | None = None  # of the received model, where the agreed rule selects clients by it


class RoundResponse(MessageBody, TrainingFacts, kind="done", release="an update"):
    """Client: the result of a round; the payload is the update, and BatchNorm statistics where they are averaged."""

    weight: float
    memory: str = ""  # the ticket of the client state, if there is one


class BatchNormRequest(MessageBody, kind="recompute"):
    """Server: measure the BatchNorm statistics of this model on the training samples."""


class BatchNormResponse(MessageBody, kind="recomputed", release="BatchNorm statistics"):
    """Client: the payload holds the measured statistics."""


class LossRequest(MessageBody):
    """Server: measure the loss of the model in the payload on the training samples, to select the clients of a round."""

    memory: str = ""  # the ticket of the client state, whose BatchNorm statistics are used; empty: none


class LossResponse(MessageBody, release="the training loss of a model"):
    """Client: the mean loss over its training samples."""

    loss: float


class EvaluateRequest(MessageBody, kind="look"):
    """Server: evaluate the model in the payload, or the personal model of a ticket, on the test samples."""

    memory: str | None = None  # None: the model in the payload


class EvaluateResponse(MessageBody, kind="looked", release="evaluation counts and losses"):
    """Client: correct predictions, samples and the sum of losses, also of the samples that clients are compared on."""

    right: Count
    count: Count
    loss: float
    own_right: Count
    own_count: Count


class EvaluationSumsRequest(MessageBody):
    """Server: send sums over your test samples for the model in the payload, masked as statistics are."""

    keys: dict[Count, Key] = {}
    histograms: Count = 0  # bins of score histograms among the sums; only as many as were agreed on


class EvaluationSums(MessageBody, release="sums over test samples"):
    """Client: the payload is a vector of integers (evaluation_sums.py), masked where keys were given."""

    histograms: Count = 0


class OwnMetricsRequest(MessageBody):
    """Server: compute the metrics that sums do not give on your own test samples, of this model or of your own."""

    memory: str | None = None  # None: the model in the payload


class OwnMetrics(MessageBody, release="metrics of this client, readable by the server"):
    """Client: AUC and average precision, or C-index, of its own samples, and how many they are; None where undefined."""

    count: Count
    values: dict[str, Annotated[float, Field(ge=0, le=1)] | None]


class ModelRequest(MessageBody, kind="show"):
    """Server: send the personal model of a ticket, to be tested by the other clients."""

    memory: str


class ModelResponse(MessageBody, kind="shown", release="the model that this client keeps"):
    """Client: the payload is the personal model."""


# Without rounds


class AsyncTrainRequest(MessageBody, kind="train"):
    """Server: train from the model in the payload, or from an own result, without rounds."""

    number: Count  # of the client's trainings: its random numbers are keyed by it
    memory: str = ""
    own_model: str = ""  # the training from whose result to continue
    ask_first: bool = False  # keep the result until it is requested
    keep_from: Count = 0  # results of older trainings are not needed any more


class AsyncTrainResponse(MessageBody, TrainingFacts, kind="trained", release="loss and steps of a training"):
    """Client: report a training whose result the server may request."""

    memory: str


class SendResultRequest(MessageBody, kind="send"):
    """Server: request the result of a reported training."""

    trained: AsyncTrainResponse  # as it was reported


# The end of a run


class FinalModelRequest(MessageBody, kind="final"):
    """Server: store the final model in the payload, or the personal model of a ticket, in a run folder."""

    rounds: Count  # after which the run ended
    sha256: Key  # of the weights and BatchNorm statistics in the payload
    memory: str | None = None  # None: the model in the payload


class FinalModelResponse(MessageBody, kind="stored"):
    """Client: confirm that the final model is stored."""


# Errors


class CannotTrainResponse(MessageBody, kind="skips", release="a reason not to train"):
    """Client: these samples cannot be trained on."""

    reason: str


class ErrorResponse(MessageBody, kind="broke", release="the kind of an error"):
    """Client: the algorithm raised an error."""

    error: str
    place: str = ""


class UnsendableResponse(MessageBody, kind="unsendable"):
    """Client: what the algorithm sends does not go through the steps of the experiment's uplink."""

    error: str
    remedy: str
    where: str = ""


class RefusalResponse(MessageBody, kind="refused"):
    """Client: refuse a request, with the reason."""

    why: str
    kind: Literal["unready", "no"] = "no"  # unready: this process does not know the run yet


# Goodbye


class GoodbyeRequest(MessageBody, kind="goodbye"):
    """Server: the run has ended, for all clients or for this one."""

    reason: str = ""
    finished: bool = False


class GoodbyeResponse(MessageBody, kind="bye"):
    """Client: confirm the end of the run."""
