"""CO-OP: Y. Wang, "CO-OP: Cooperative Machine Learning from Mobile Devices", MSc thesis, University of Alberta, 2017, as
run by Nilsson et al. 2018."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Self

from annotated_types import Ge

from fedarena.algorithms.base import Asynchronous, AsyncState, Model, PollResult, Reply, Setting, Vector, Work
from fedarena.config.errors import BadValue
from fedarena.config.registry import register


@register("algorithm", "coop", paper="Y. Wang 2017, MSc thesis, University of Alberta; Nilsson et al. 2018")
@dataclass(frozen=True)
class COOP(Asynchronous):
    """Clients train at their own pace; a model is merged only if the age filter finds it not too old and not too young.

    d models after its fetch a client is overactive (d < b_l: it trains on), outdated (d > b_u: it fetches again) or
    merged. Left open, the filter scales with the federation: 16 and 51 for 100 clients. A filter that can leave every
    client waiting for the others is refused, unless `allow_deadlock` lets it happen.

    >>> import fedarena as fa
    >>> federation = dict(rounds=5, clients=6, partition="iid", out=False)
    >>> run = fa.run("digits", algorithm=fa.COOP(), **federation)
    >>> run.final.accuracy > 0.8
    True
    """

    b_l: Annotated[int, Ge(0)] | None = None
    b_u: Annotated[int, Ge(1)] | None = None
    allow_deadlock: bool = False

    everyone = True
    asks = True

    def settled(self, setting: Setting) -> Self:
        """Scale the published filter, which is for 100 clients, to this federation."""
        b_l = setting.clients * 16 // 100 if self.b_l is None else self.b_l
        b_u = max(setting.clients * 51 // 100, 2 * b_l, 1) if self.b_u is None else self.b_u
        return replace(self, b_l=b_l, b_u=b_u)

    def check(self, setting: Setting) -> None:
        """Refuse a filter that leads to a deadlock: b_l >= K always does, b_u < 2 b_l may once K > b_u - b_l."""
        b_l, b_u, clients = self._filter[0], self._filter[1], setting.clients
        if b_l >= b_u:
            raise BadValue(
                f"coop's age filter is empty: b_l = {b_l}, b_u = {b_u}",
                remedy=f"raise b_u above {b_l}",
                where="algorithm.b_u",
            )
        certain, possible = b_l >= clients, b_u < 2 * b_l and clients >= b_u - b_l + 1
        if (certain or possible) and not self.allow_deadlock:
            fate = f"will deadlock after {clients} merges" if certain else "may deadlock"
            raise BadValue(
                f"coop with b_l = {b_l}, b_u = {b_u} and {clients} clients {fate}: all would wait for the others",
                remedy="two conditions keep it going: b_l < clients, and b_u >= 2 b_l; or set allow_deadlock = true",
                where="algorithm.b_l" if certain else "algorithm.b_u",
            )

    @property
    def _filter(self) -> tuple[int, int]:
        assert self.b_l is not None
        assert self.b_u is not None
        return self.b_l, self.b_u

    def init(self, w: Vector) -> AsyncState:
        """Start the server's age at b_l and the clients' at 0, so that all first updates are merged."""
        return AsyncState(w, self._filter[0])

    def client(self, message: Model, client_state: None, work: Work) -> Reply:
        """Train from the model fetched last, or continue with the client's own."""
        return Reply(Model(work.train(message.w).w))

    def poll(self, state: AsyncState, d: int) -> PollResult:
        """Decide by the age filter: b_l and b_u bound d."""
        b_l, b_u = self._filter
        return "outdated" if d > b_u else "overactive" if d < b_l else "merge"

    def deadlock(self, merges: int) -> None:
        """End the run without an error where `allow_deadlock` is set."""
        if not self.allow_deadlock:
            super().deadlock(merges)

    def share(self, d: int) -> float:
        """Return alpha = (d + 1)^(-1/2)."""
        return float((d + 1) ** -0.5)

    def merge(self, state: AsyncState, sent: Model, d: int) -> AsyncState:
        """w <- (1 - alpha) w + alpha w_k."""
        return state.mixed(sent.w, self.share(d))
