"""FedSGD: the baseline of McMahan et al. 2017, arXiv:1602.05629, section 2."""

from __future__ import annotations

from dataclasses import dataclass

from fedarena.algorithms.base import Algorithm, Cohort, Model, Reply, Setting, Step, Work
from fedarena.algorithms.checks import check_plain_sgd
from fedarena.config.registry import register


@register("algorithm", "fedsgd", paper="McMahan et al. 2017, arXiv:1602.05629")
@dataclass(frozen=True)
class FedSGD(Algorithm):
    """Each client sends the gradient over all its rows; the server takes one step along their mean.

    Local epochs, batch size and momentum have no meaning here: a round is one step.

    >>> import fedarena as fa
    >>> federation = dict(rounds=40, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.FedSGD(), **federation)
    >>> run.final.accuracy > 0.7
    True
    """

    steps_a_round = 1
    beyond_steps = "the gradient over all samples of a client"

    def check(self, setting: Setting) -> None:
        """Refuse other local optimizers."""
        check_plain_sgd("fedsgd", setting, "makes one step on the server")

    def client(self, message: Model, client_state: None, work: Work) -> Reply:
        """eta grad F_k(w_t): the client applies the rate, because its decay is counted there."""
        return Reply(Step(work.lr * work.gradient(message.w)), weight=work.rows)

    def server(self, state: Model, mean: Step, cohort: Cohort) -> Model:
        """w_{t+1} = w_t - eta sum_k p_k g_k."""
        return Model(state.w - mean.delta)
