"""The gain of every client from federated training over training alone, on its own test samples, and its costs.

The gain of a client in a split is the score of the federated model minus that of its local model, on the test samples of
that client, with the sign of the metric, so that more is better. Where the clients are the same in all splits, each client
has a posterior of its mean gain, shrunk towards the other clients. Where they are drawn, the share of drawn clients that
gain has one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedarena.config.errors import join_words
from fedarena.results.run import Run
from fedarena.statistics.bayes import verdict
from fedarena.statistics.hierarchical import Estimate, shrunk_gains
from fedarena.statistics.repeats import paired_posterior

if TYPE_CHECKING:
    from fedarena.results.comparison import Comparison

LEVEL = 0.9  # of the intervals
MOST_SHRUNK = 100  # clients up to which each is shrunk towards the others: the time grows faster than their number
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)  # of the gains of drawn clients
MOST_NAMED = 3  # clients that lose and are named in a sentence
APPROXIMATE = (
    "Clients share a model, so their gains are not independent of each other: the probabilities of single clients are "
    "approximate."
)
NOT_SHRUNK = f"With more than {MOST_SHRUNK} clients every client is judged by its own splits, without shrinkage."
ONE_SPLIT = "The difference of a drawn client is that of one split, with the chance of its few test samples in it."
Array = NDArray[np.float64]


@dataclass(frozen=True)
class ClientEstimate:
    """The effect of one algorithm on one client, or of one client on the others; unknown values are None."""

    client: str
    algorithm: str
    verdict: str  # + above one rope, = practically equal, - below, ? undecided
    mean: float | None
    interval: tuple[float, float] | None  # 90 % credible


@dataclass(frozen=True)
class ClientGain(ClientEstimate):
    """The gain of one client from one algorithm."""

    p_gain: float | None  # probability of a gain above one rope
    p_equal: float | None
    p_loss: float | None
    federated: float | None  # mean score over the splits that count
    local: float | None
    splits: int  # that count
    undefined: int  # splits whose samples of this client leave the metric undefined
    samples: float  # training samples, mean over splits
    bytes: float  # up and down in a run: those of the federation over its clients
    clock_seconds: float  # simulated time until the federated model is final
    training_seconds: float  # measured training time of the simulation, by the client's share of the samples


@dataclass(frozen=True)
class Share:
    """A share of drawn clients: its posterior mean and 90 % credible interval."""

    mean: float
    interval: tuple[float, float]

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.mean:.0%} ({low:.0%} to {high:.0%})"


@dataclass(frozen=True)
class GainShares:
    """The shares of drawn clients that gain from one algorithm, are practically equal, or lose."""

    algorithm: str
    gain: Share
    equal: Share
    loss: Share
    splits: int
    clients: int  # drawn clients that count, over all splits
    undefined: int  # drawn clients whose samples leave the metric undefined
    bytes: float  # that a client sends and receives in a run, on average
    clock_seconds: float
    quantiles: tuple[float, ...]  # of the gains of all drawn clients, at QUANTILES


@dataclass(frozen=True)
class ClientGains:
    """The gains of all clients from all algorithms, or the shares of drawn clients."""

    reference: str  # label of the local training
    metric: str
    rope: float
    kind: Literal["clients", "drawn"]
    clients: tuple[ClientGain, ...]
    shares: tuple[GainShares, ...]
    notes: tuple[str, ...]

    def of(self, algorithm: str) -> list[ClientGain]:
        """Return the gains from one algorithm, in the order of the clients."""
        return [gain for gain in self.clients if gain.algorithm == algorithm]

    @property
    def algorithms(self) -> list[str]:
        """The algorithms that were compared with local training."""
        found = self.clients if self.kind == "clients" else self.shares
        return list(dict.fromkeys(gain.algorithm for gain in found))


def client_gains(result: Comparison) -> ClientGains | None:
    """Return the gains of a comparison; None without local training, or with fewer than two splits."""
    reference = _local_label(result)
    federated = [label for label in result.labels if not result.is_baseline(label)]
    if reference is None or not federated or not _is_paired(result, [reference, *federated]):
        return None
    plan, clients, shares = result.plan, [], []
    notes = [APPROXIMATE]
    if plan.keeps_clients:
        names = _all_names(result.runs[reference])
        clients = [gain for label in federated for gain in gains_against(result, label, reference)]
        notes += [NOT_SHRUNK] if len(names) > MOST_SHRUNK else []
        undefined = {gain.client: gain.undefined for gain in clients if gain.undefined}
        if undefined:
            most = max(undefined.values())
            held_out = ", or they never train," if plan.experiment.get("evaluate", {}).get("unseen") else ""
            notes.append(
                f"{plan.metric} is undefined on the own test samples of {len(undefined)} of {len(names)} clients{held_out} "
                f"in at least one split (at most {most} of {len(plan.splits)}); these splits do not count for them."
            )
    else:
        shares = [share for label in federated if (share := _shares(result, label, reference)) is not None]
        notes = [ONE_SPLIT]
        if any(share.undefined for share in shares):
            most = max(share.undefined for share in shares)
            notes.append(f"{plan.metric} is undefined for {most} drawn clients, which do not count.")
    kind: Literal["clients", "drawn"] = "clients" if plan.keeps_clients else "drawn"
    found = ClientGains(reference, plan.metric, plan.rope, kind, tuple(clients), tuple(shares), tuple(notes))
    return found if clients or shares else None


def gains_against(result: Comparison, label: str, reference: str) -> list[ClientGain]:
    """Return the gains of all clients from one algorithm over another, for clients that are the same in all splits."""
    runs, base, plan = result.runs[label], result.runs[reference], result.plan
    names = _all_names(base)
    scores, local, unknown = _scores(runs, base, names, plan.metric)
    differences = result.scoring().sign * (scores - local)
    known = ~np.isnan(differences)
    repeats = [split.repeat for split in plan.splits] if result.has_repeat_effect else None
    counts = [
        not unknown[k]
        and known[:, k].sum() >= 2
        and (repeats is None or len({r for r, there in zip(repeats, known[:, k], strict=True) if there}) >= 2)
        for k in range(len(names))
    ]
    compared = [k for k, enough in enumerate(counts) if enough]
    found: dict[int, Estimate] = {}
    if compared:
        estimates = shrunk_gains(
            differences[:, compared],
            plan.rho,
            rope=plan.rope,
            level=LEVEL,
            repeats=repeats,
            shrink=len(compared) <= MOST_SHRUNK,
        )
        found = dict(zip(compared, estimates, strict=True))
    costs = _costs(runs, names)
    return [
        _gain(result, shown_name(name), label, found.get(k), scores[:, k], local[:, k], costs[k])
        for k, name in enumerate(names)
    ]


def _gain(
    result: Comparison,
    client: str,
    label: str,
    found: Estimate | None,
    scores: Array,
    local: Array,
    costs: dict[str, float],
) -> ClientGain:
    there = ~np.isnan(scores) & ~np.isnan(local)
    facts: dict[str, Any] = {"splits": int(there.sum()), "undefined": int((~there).sum()), **costs}
    if found is None:
        return ClientGain(client, label, "?", None, None, None, None, None, None, None, **facts)
    loss, equal, gain = found.regions
    sign = "?" if result.plan.undecidable else verdict(gain, equal, loss, result.plan.threshold)
    means = float(scores[there].mean()), float(local[there].mean())
    return ClientGain(client, label, sign, found.mean, found.interval, gain, equal, loss, *means, **facts)


def _scores(
    runs: Sequence[Run], base: Sequence[Run], names: Sequence[str], metric: str
) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Return the scores of both (splits x clients, NaN where the labels leave them undefined), and clients without any.

    A score that is missing because a model diverged does not drop the split: nothing is known about that client.
    """
    ours, theirs = (
        np.array([_of_clients(run, client_values(run, metric), names, math.nan) for run in all_runs])
        for all_runs in (runs, base)
    )
    lost = np.zeros(ours.shape, bool)
    for split, (run, other) in enumerate(zip(runs, base, strict=True)):
        broken = ~np.isfinite(ours[split]) & run.diverged, ~np.isfinite(theirs[split]) & other.diverged
        lost[split] = (broken[0] & np.isfinite(theirs[split])) | (broken[1] & np.isfinite(ours[split]))
    lost |= np.isinf(ours) | np.isinf(theirs)
    undefined = ~np.isfinite(ours) | ~np.isfinite(theirs)
    none_known: NDArray[np.bool_] = np.asarray(lost.any(axis=0))
    return np.where(undefined, np.nan, ours), np.where(undefined, np.nan, theirs), none_known


def _of_clients(run: Run, values: NDArray[Any], names: Sequence[str], missing: float) -> Array:
    """Return the values of the clients of these names in one run; `missing` for a client that it does not have."""
    by_name = dict(zip(names_of(run), values.tolist(), strict=False))
    return np.array([by_name.get(name, missing) for name in names], np.float64)


def client_values(run: Run, metric: str) -> Array:
    """Return the metric of each client on its own test samples; NaN where it is undefined."""
    if metric in run.client_metrics:
        return run.client_metrics[metric]
    return run.client_accuracy if metric == "accuracy" else np.full(len(run.client_sizes), np.nan)


def names_of(run: Run) -> tuple[str, ...]:
    """Return the names of the clients of a run, or their numbers."""
    return run.measured.client_names or tuple(str(k) for k in range(len(run.client_sizes)))


def shown_name(name: str) -> str:
    """Return the name of a client in a sentence; a number becomes "client 3"."""
    return f"client {name}" if name.isdigit() else name


def _all_names(runs: Sequence[Run]) -> list[str]:
    """Return the names of all clients that have samples in a split, in the order of their numbers."""
    return list(
        dict.fromkeys(
            name
            for run in runs
            for name, samples in zip(names_of(run), run.client_sizes.tolist(), strict=False)
            if samples
        )
    )


def _costs(runs: Sequence[Run], names: Sequence[str]) -> list[dict[str, float]]:
    """Return the mean costs of every client in a run: samples, bytes, simulated time, its share of the training time."""
    samples = np.array([_of_clients(run, run.client_sizes, names, 0) for run in runs])
    measured = np.array([sum(record.seconds_train for record in run.records) for run in runs])
    totals = np.array([max(int(run.client_sizes.sum()), 1) for run in runs])
    training = (measured / totals)[:, None] * samples
    common = _common_costs(runs)
    return [
        {"samples": float(samples[:, k].mean()), **common, "training_seconds": float(training[:, k].mean())}
        for k in range(len(names))
    ]


def _common_costs(runs: Sequence[Run]) -> dict[str, float]:
    """Return the bytes of a client and the simulated time of a run, on average."""
    shares = [run.bytes / max(int((run.client_sizes > 0).sum()), 1) for run in runs]
    return {
        "bytes": float(np.mean(shares)),
        "clock_seconds": float(np.mean([run.records[-1].clock for run in runs])),
    }


def _shares(result: Comparison, label: str, reference: str) -> GainShares | None:
    """Return the shares of drawn clients that gain, are practically equal and lose; None without two splits."""
    plan, rows, repeats, undefined = result.plan, [], [], 0
    gains: list[float] = []
    sign = result.scoring().sign
    for split, run, base in zip(plan.splits, result.runs[label], result.runs[reference], strict=True):
        names = [name for name, samples in zip(names_of(base), base.client_sizes, strict=False) if samples]
        scores, local, lost = _scores([run], [base], names, plan.metric)
        differences = sign * (scores - local)[0]
        known = differences[~np.isnan(differences)]
        undefined += int(np.isnan(differences).sum())
        if lost.any():
            return None
        if len(known):
            gains += known.tolist()
            above, below = float(np.mean(known > plan.rope)), float(np.mean(known < -plan.rope))
            rows.append((above, max(0.0, 1 - above - below), below))
            repeats.append(split.repeat)
    if len(rows) < 2 or (result.has_repeat_effect and len(set(repeats)) < 2):
        return None
    shared, clients = repeats if result.has_repeat_effect else None, len(gains)
    gain, equal, loss = (_share([row[k] for row in rows], clients, plan.rho, shared) for k in range(3))
    costs = _common_costs(result.runs[label])
    quantiles = tuple(np.quantile(gains, QUANTILES).tolist())
    return GainShares(label, gain, equal, loss, len(rows), clients, undefined, **costs, quantiles=quantiles)


def _share(values: Sequence[float], clients: int, rho: float, repeats: Sequence[int] | None) -> Share:
    """Return the posterior mean and interval of a share, cut to the range from 0 to 1.

    A share that is the same in all splits has the binomial interval of this number of clients by Jeffreys' prior: none of 50
    clients does not mean none at all.
    """
    zeros = np.zeros(len(values))
    known = paired_posterior(zeros, values, rho, repeats)
    low, high = known.interval(LEVEL)
    if known.scale == 0:
        from scipy.stats import beta

        hits = known.mean * clients
        low, high = (float(beta.ppf(p, hits + 0.5, clients - hits + 0.5)) for p in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        low, high = min(low, known.mean), max(high, known.mean)
    return Share(known.mean, (min(max(low, 0.0), 1.0), min(max(high, 0.0), 1.0)))


def _local_label(result: Comparison) -> str | None:
    """Return the first algorithm in which every client trains alone."""
    for label in result.labels:
        made = result.runs[label][0].experiment.algorithm.made
        if not made.communicates and not made.pooled:
            return label
    return None


def _is_paired(result: Comparison, labels: Sequence[str]) -> bool:
    """Return whether all of them have a run for every split of the plan, and there are two splits."""
    n = len(result.plan.splits)
    return n > 1 and all(len(result.runs[label]) == n for label in labels)


def sentence(result: Comparison) -> str:
    """Return which clients gain and lose with the best algorithm that communicates; empty where nothing is known."""
    gains = result.client_gains()
    if gains is None:
        return ""
    label = next((label for label in result.ranked if label in gains.algorithms), "")
    rope = result.scoring().difference(result.plan.rope)
    if gains.kind == "drawn":
        share = next((share for share in gains.shares if share.algorithm == label), None)
        if share is None:
            return ""
        return (
            f"On their own test samples, {share.gain} of the drawn clients gain by more than {rope} from {label} "
            f"over {gains.reference}, and {share.loss} lose."
        )
    what = f"by more than {rope} from {label} over {gains.reference} (P > {result.plan.threshold:g})"
    return _of_named_clients(gains.of(label), what)


def _of_named_clients(found: Sequence[ClientGain], what: str) -> str:
    by_sign: dict[str, list[ClientGain]] = {sign: [g for g in found if g.verdict == sign] for sign in "+=-?"}
    unknown = [gain for gain in by_sign["?"] if gain.mean is None]
    clauses = [f"{len(by_sign['+'])} of {len(found)} clients gain {what}"]
    if losers := sorted(by_sign["-"], key=lambda gain: gain.mean or 0.0):
        named = [f"{gain.client} (P = {gain.p_loss:.2f})" for gain in losers[:MOST_NAMED]]
        more = [f"{len(losers) - MOST_NAMED} more"] if len(losers) > MOST_NAMED else []
        clauses.append(f"{join_words([*named, *more])} lose{'s' * (len(losers) == 1)}")
    if by_sign["="]:
        clauses.append(f"{len(by_sign['='])} {'is' if len(by_sign['=']) == 1 else 'are'} practically equal")
    if undecided := len(by_sign["?"]) - len(unknown):
        clauses.append(f"{undecided} {'is' if undecided == 1 else 'are'} undecided")
    if unknown:
        clauses.append(f"{len(unknown)} {'has' if len(unknown) == 1 else 'have'} no comparable score")
    return "; ".join(clauses) + "."
