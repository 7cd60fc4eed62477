"""The success of a backdoor: how many test samples with its trigger the model takes for the class of the attackers."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedarena.attacks.backdoor import Backdoor
from fedarena.engine.client import Broadcast
from fedarena.engine.context import EVALUATION_ROWS, ExperimentContext
from fedarena.engine.evaluation import ClientStates, Evaluator, LocalEvaluator
from fedarena.engine.evaluation_tasks import EvaluationTask
from fedarena.engine.personal_model import PersonalTask


class AttackSuccess:
    """Evaluates models on the common test samples of all other classes than the target, with the trigger."""

    def __init__(self, context: ExperimentContext, attack: Backdoor, evaluation: LocalEvaluator) -> None:
        self.context, self.target, self.evaluation = context, attack.target, evaluation
        test = context.owners.test
        self.rows = test[context.data.y[test] != attack.target]

    def value(self, message: Broadcast, states: ClientStates) -> float:
        """Return the share of the samples that are predicted as the target; the mean of honest clients' own models."""
        if self.context.has_personal_models:
            jobs: list[Any] = [
                PersonalTask(k, states(k), self.rows, keep="classes", triggered=True)
                for k in self.context.judged_clients
            ]
            weights = self.context.owners.sizes[self.context.judged_clients]
        else:
            pieces = np.split(self.rows, range(EVALUATION_ROWS, len(self.rows), EVALUATION_ROWS))
            jobs = [EvaluationTask(piece, keep="classes", triggered=True) for piece in pieces]
            weights = np.array([len(piece) for piece in pieces])
        found = [float(np.mean(scores.outputs == self.target)) for scores in self.evaluation.scores(jobs, message)]
        return float(np.average(found, weights=weights))


def open_attack_success(context: ExperimentContext, evaluation: Evaluator) -> AttackSuccess | None:
    """Return the success measure of an experiment's backdoor; None without one."""
    attack = context.attack
    if not isinstance(attack, Backdoor):
        return None
    assert isinstance(evaluation, LocalEvaluator)  # a real federation refuses attacks
    return AttackSuccess(context, attack, evaluation)
