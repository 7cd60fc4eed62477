"""Variants that exist only to imitate published code or printed formulas; the papers' own algorithms are in their files.

A setting of the paper's class selects its variant: `FedAvg(denominator="all")` creates a `LiteralFedAvg`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedarena.algorithms.base import Cohort, Model, Pull, Reply, RequestSender, Setting, Step, Vector, Work
from fedarena.algorithms.cyclic import Cyclic
from fedarena.algorithms.fedavg import FedAvg
from fedarena.algorithms.fednova import FedNova, NormalizedUpdate
from fedarena.algorithms.scaffold import Scaffold, ScaffoldState, ScaffoldUpdate
from fedarena.config.errors import BadValue
from fedarena.config.variant_selection import variant_of


@variant_of(FedAvg, denominator=("all",), literal_eta=(True,))
@dataclass(frozen=True)
class LiteralFedAvg(FedAvg):
    """FedAvg with a server step as printed.

    `denominator = "all"` reads the printed sum over all K clients literally: a client that was not selected counts as w_t,
    and the step shrinks to the selected share of rows. `literal_eta` multiplies the step by the learning rate once more,
    as two of the printed algorithms do.
    """

    def server(self, state: Model, mean: Step, cohort: Cohort) -> Model:
        """w_{t+1} = w_t - gamma sum_k p_k Delta_k, gamma being eta, or times n_S / n."""
        gamma = cohort.lr if self.literal_eta else self.server_lr
        if self.denominator == "all":
            gamma *= cohort.rows / cohort.total_rows
        return Model(state.w - gamma * mean.delta)


@variant_of(Scaffold, control_weighting=("size", "cohort"), momentum_form=("outside_tau",), start=("weights",))
@dataclass(frozen=True)
class ScaffoldVariant(Scaffold):
    """SCAFFOLD with the control variates of published code.

    Weighting models by rows but controls uniformly leads to the optimum of the uniform mean; `control_weighting = "size"`
    leads to that of the mean by rows; "cohort" divides by the clients that answered, not by all: c is N / |S_t| times too
    large then. `momentum_form = "outside_tau"` corrects the step beside the momentum and divides c_k by tau eta; any other
    pair of these two choices is wrong. `start = "weights"` starts all controls from the weights of the first model.
    """

    def check(self, setting: Setting) -> None:
        """Refuse option (i) outside momentum: c_k must be 1 / (1 - rho) times a gradient, and is the gradient itself."""
        super().check(setting)
        if setting.momentum and self.option == "i" and self.momentum_form == "outside_tau":
            raise BadValue(
                "scaffold with momentum cannot correct outside of it (outside_tau) by plain gradients (option i)",
                remedy='use momentum_form = "inside_norm", or option = "ii"',
                where="algorithm.momentum_form",
            )

    def remember(self, w: Vector) -> Vector:
        """Start with c_k = w_0, or c_k = 0."""
        return w.copy() if self.start == "weights" else np.zeros_like(w)

    def client(self, message: ScaffoldState, c_k: Vector, work: Work) -> Reply:
        """Train as SCAFFOLD, with the correction and the length of the path that `momentum_form` selects."""
        outside = self.momentum_form == "outside_tau"
        out = work.train(message.w, adjust=Pull(b=message.c - c_k, outside=outside))
        delta, length = message.w - out.w, (out.lr_sum if outside else out.unit_displacement) or 1.0
        c_new = work.gradient(message.w) if self.option == "i" else c_k - message.c + delta / length
        dc = (c_new - c_k) * work.rows if self.control_weighting == "size" else c_new - c_k
        return Reply(ScaffoldUpdate(delta, dc), c_new, work.rows if self.weights == "rows" else 1.0)

    def server(self, state: ScaffoldState, mean: ScaffoldUpdate, cohort: Cohort) -> ScaffoldState:
        """c <- c + sum Delta c_k over N, n or |S_t|."""
        divisors = {"uniform": cohort.population, "size": cohort.total_rows, "cohort": len(cohort.answered)}
        c = state.c + mean.dc / divisors[self.control_weighting]
        return ScaffoldState(state.w - self.server_lr * mean.delta, c)


@variant_of(Cyclic, pass_on=(False,))
@dataclass(frozen=True)
class SeparateCyclic(Cyclic):
    """Cyclic weight transfer as FLamby's code runs it: every client trains a copy of its own, and none is passed on.

    The result is the model of client 0, which has seen no samples but its own.
    """

    def remember(self, w: Vector) -> Vector:
        """Start each client's copy from the common weights."""
        return w

    def client(self, message: Model, client_state: Vector | None, work: Work) -> Reply:
        """Continue with the client's own copy."""
        trained = work.train(message.w if client_state is None else client_state).w
        return Reply(Model(trained), keep=trained)

    def round(self, state: Model, request: RequestSender) -> Model:
        """Let all selected clients train, one after the other, and take the model of client 0."""
        for client in request.clients_in_turn(shuffle=self.order == "random"):
            trained = request(state, only=client)
            state = trained if client == 0 and trained is not None else state
        return state


@variant_of(FedNova, tau_eff=("steps",))
@dataclass(frozen=True)
class StepCountFedNova(FedNova):
    """FedNova whose server multiplies by the mean number of steps, as the published code does with a proximal term."""

    def client(self, message: Model, client_state: None, work: Work) -> Reply:
        """Send Delta_k / ||a_k||_1, and the number of steps."""
        out = work.train(message.w, adjust=Pull(self.mu, centre=message.w))
        d = (message.w - out.w) / (out.effective_steps or 1.0)
        tau = float(out.steps) if self.tau_eff == "steps" else out.effective_steps
        return Reply(NormalizedUpdate(d, tau), weight=work.rows)
