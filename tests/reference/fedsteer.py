"""FedSteer (Algorithm 1), from its equations."""

from collections.abc import Sequence

import numpy as np

from tests.reference.population import Client, Population


class NaiveFedSteer:
    """Estimates steered by a subspace: g^_i = Q s_i with old coordinates and the current Q.

    1. g^_i = Q s_i for every client
    2. Delta = sum_i d_i g^_i + sum_A a_i (g_i - g^_i),   a_i = min(d_i / p_i, max_weight)
    3. s_i <- (Q^T Q + lambda I)^-1 Q^T g_i for i in A, with the Q of this round
       (s_i <- Q^+ g_i at lambda = 0)
    4. h_i <- g_i for i in A and X

    refresh:      "after" is the order above; "before" puts step 3 (with the same Q) first.
    basis:        q_j = h_j / |h_j| ("unit") or h_j / |X| ("mean"); the column of a core client
                  never seen, gone or with a zero update is 0, and so is the coordinate on it in
                  every solve; what was stored before a zero update waits for the next column.
    coordinates:  "ridge" is step 3; "own": s_i = own_scale |g_i| e_i for i in X, 0 for others.
    magnitude:    "fixed" is step 1; "follow": s_i is solved in the unit basis as above,
                  s_ij / |h_j| is what is stored, and g^_i = sum_j stored_ij h_j; |h_j| counts as
                  |g_i| / 1000 at least. Own coordinates are stored relative to the column the step
                  ends with.

    A is the clients of the round without those asked only to refresh; the latter take part in
    step 3 alone. A core client that leaves keeps its place in X, without a column until it is
    back and active; every client's coordinate on it is set to 0.
    """

    def __init__(
        self,
        dim: int,
        sizes: dict[Client, float] | None,
        core_set: Sequence[Client],
        ridge: float = 0.5,
        refresh: str = "after",
        coordinates: str = "ridge",
        own_scale: float = 1.0,
        magnitude: str = "fixed",
        basis: str = "unit",
        max_weight: float | None = None,
    ) -> None:
        if refresh not in ("after", "before"):
            raise ValueError(refresh)
        if coordinates not in ("ridge", "own"):
            raise ValueError(coordinates)
        if magnitude not in ("fixed", "follow"):
            raise ValueError(magnitude)
        if basis not in ("unit", "mean"):
            raise ValueError(basis)
        if magnitude == "follow" and basis == "mean":
            raise ValueError("coordinates that follow are solved in the unit basis")
        self.dim = dim
        self.population = Population(sizes)
        self.core_set = list(core_set)
        self.ridge = ridge
        self.refresh = refresh
        self.kind = coordinates
        self.own_scale = own_scale
        self.magnitude = magnitude
        self.basis_kind = basis
        self.max_weight = max_weight
        self.columns: dict[Client, np.ndarray] = {}  # h_j of core clients
        self.stored: dict[Client, np.ndarray] = {}  # s_i, or s_ij / |h_j| with "follow"

    def step(
        self,
        number: int,
        clients: Sequence[Client],
        updates: np.ndarray,
        probabilities: Sequence[float],
        sizes: Sequence[float] | None = None,
        *,
        refresh: Sequence[Client] = (),
        **extra: object,
    ) -> np.ndarray:
        self.population.begin(clients, probabilities, sizes, ignore=refresh)
        updates = np.asarray(updates, dtype=np.float64)
        fresh = {}
        for client, update in zip(clients, updates, strict=True):
            kept = self.kept(client, update, client not in refresh)
            fresh[client] = self._solve(client, kept, client not in refresh)

        if self.refresh == "before":
            self.stored.update(fresh)
        delta = np.zeros(self.dim)
        for client in self.population.sizes:
            delta = delta + self.population.weight(client) * self.estimate(client)
        for client, update, probability in zip(clients, updates, probabilities, strict=True):
            if client not in refresh:
                weight = self.population.active_weight(client, probability, self.max_weight)
                delta = delta + weight * (update - self.estimate(client))
        columns = {}
        for client, update in zip(clients, updates, strict=True):
            if client in self.core_set and client not in refresh:
                columns[client] = self.kept(client, update, True).copy()
        if self.refresh == "after":
            self.stored.update(fresh)
        self.columns.update(columns)
        return delta

    def kept(self, client: Client, update: np.ndarray, active: bool) -> np.ndarray:
        """What coordinates and columns are made of."""
        return update

    def _solve(self, client: Client, update: np.ndarray, active: bool) -> np.ndarray:
        """What will be stored for a client, from the Q before this round's columns enter."""
        size = len(self.core_set)
        lengths = [np.linalg.norm(self._column(core)) for core in self.core_set]
        solution = np.zeros(size)
        if self.kind == "own":
            if client in self.core_set:
                place = self.core_set.index(client)
                length = np.linalg.norm(update)
                if active:
                    lengths[place] = length
                if lengths[place] > 0:
                    solution[place] = self.own_scale * length
        elif self.ridge == 0:
            solution = np.linalg.pinv(self.basis(), rcond=1e-10) @ update
        else:
            basis = self.basis()
            solution = np.linalg.inv(basis.T @ basis + self.ridge * np.eye(size)) @ (
                basis.T @ update
            )
        if self.magnitude == "follow":
            for place in range(size):
                floored = max(lengths[place], np.linalg.norm(update) / 1000)
                solution[place] = solution[place] / floored if lengths[place] > 0 else 0.0
        return solution

    def _column(self, client: Client) -> np.ndarray:
        """h_j, 0 where there is none."""
        return self.columns.get(client, np.zeros(self.dim))

    def basis(self) -> np.ndarray:
        """Q, (d, k): the basis coordinates are solved in."""
        basis = np.zeros((self.dim, len(self.core_set)))
        for place, client in enumerate(self.core_set):
            column = self._column(client)
            length = np.linalg.norm(column)
            if self.basis_kind == "mean":
                basis[:, place] = column / len(self.core_set)
            elif length > 0:
                basis[:, place] = column / length
        return basis

    def coordinates(self, client: Client) -> np.ndarray:
        """What is stored of a client: s_i, or s_ij / |h_j| with magnitude="follow"."""
        return self.stored.get(client, np.zeros(len(self.core_set))).copy()

    def estimate(self, client: Client) -> np.ndarray:
        """g^_i with the current columns."""
        coordinates = self.coordinates(client)
        if self.magnitude == "fixed":
            return self.basis() @ coordinates
        estimate = np.zeros(self.dim)
        for place, core in enumerate(self.core_set):
            estimate = estimate + coordinates[place] * self._column(core)
        return estimate

    def leave(self, clients: Sequence[Client]) -> None:
        self.population.leave(clients)
        for client in clients:
            self.stored.pop(client, None)
            if client in self.core_set:
                self.columns.pop(client, None)
                for stored in self.stored.values():
                    stored[self.core_set.index(client)] = 0.0


class NaiveDriftCorrection(NaiveFedSteer):
    """Clients add c_i = alpha (v - v_i) to each of their K_i gradients of rate eta.

    pi_i = eta K_i at the last visit, v_i = Q s_i / pi_i, v = sum n_i v_i / sum n_i over clients
    seen. Coordinates and columns are made of g_i - pi_i c_i with this round's pi_i, and
    g^_i = (1 - alpha) Q s_i + alpha pi_i v. Clients asked only to refresh are sent nothing.
    """

    def __init__(
        self, dim: int, sizes: object, drift: float, local_rate: float, **more: object
    ) -> None:
        super().__init__(dim, sizes, **more)
        self.alpha, self.rate = drift, local_rate
        self.paces: dict[Client, float] = {}
        self.steps: dict[Client, float] = {}
        self.mean = np.zeros(dim)  # v, as of the end of the last round

    def step(
        self, number: int, clients: Sequence[Client], *rest: object, **extra: object
    ) -> np.ndarray:
        self.steps = dict(zip(clients, extra["steps"], strict=True))
        delta = super().step(number, clients, *rest, **extra)
        for client in clients:
            self.paces[client] = self.rate * self.steps[client]
        self._average()
        return delta

    def correction(self, client: Client) -> np.ndarray:
        """c_i."""
        if client not in self.paces:
            return np.zeros(self.dim)
        return self.alpha * (self.mean - super().estimate(client) / self.paces[client])

    def kept(self, client: Client, update: np.ndarray, active: bool) -> np.ndarray:
        if not active:
            return update
        return update - self.rate * self.steps[client] * self.correction(client)

    def estimate(self, client: Client) -> np.ndarray:
        own = super().estimate(client)
        if client not in self.paces:
            return own
        return (1 - self.alpha) * own + self.alpha * self.paces[client] * self.mean

    def leave(self, clients: Sequence[Client]) -> None:
        super().leave(clients)
        for client in clients:
            self.paces.pop(client, None)
        self._average()

    def _average(self) -> None:
        points = {client: self.population.sizes[client] for client in self.paces}
        total = np.zeros(self.dim)
        for client, size in points.items():
            total = total + size * super().estimate(client) / self.paces[client]
        self.mean = total / sum(points.values()) if points else total


class NaiveNewcomers(NaiveDriftCorrection):
    """Clients that never came are expected to send beta m.

    m = sum n_i g^_i / sum n_i over the clients that came, as of the end of the last round;
    beta = sum g_i . m / sum m . m over first visits so far, within [0, 1].
    The points of the clients that never came are n minus those of the clients that came.
    """

    def __init__(
        self,
        dim: int,
        sizes: object,
        drift: float = 0.0,
        local_rate: float = 1.0,
        newcomers: str = "learnt",
        **more: object,
    ) -> None:
        super().__init__(dim, sizes, drift, local_rate, **more)
        self.came: set[Client] = set()
        self.typical = np.zeros(dim)  # m
        self.agreement = self.length = 0.0

    def share(self) -> float:
        """beta."""
        return float(np.clip(self.agreement / self.length, 0, 1)) if self.length > 0 else 0.0

    def estimate(self, client: Client) -> np.ndarray:
        return super().estimate(client) if client in self.came else self.share() * self.typical

    def step(
        self,
        number: int,
        clients: Sequence[Client],
        updates: np.ndarray,
        *rest: object,
        **extra: object,
    ) -> np.ndarray:
        share, typical, new = self.share(), self.typical, set(clients) - self.came
        if self.refresh == "before":  # who is here is known by what it sent
            self.came |= new
        delta = super().step(number, clients, updates, *rest, **extra)
        population = self.population
        strangers = 1.0 - sum(population.weight(client) for client in population.sizes)
        if population.total() > 0:
            delta = delta + strangers * share * typical
        for client, update in zip(clients, np.asarray(updates, np.float64), strict=True):
            if client in new:
                self.agreement += float(update @ typical)
                self.length += float(typical @ typical)
        self.came |= set(clients)
        self._settle()
        return delta

    def leave(self, clients: Sequence[Client]) -> None:
        super().leave(clients)
        self.came -= set(clients)
        self._settle()

    def _settle(self) -> None:
        """m from what is known now."""
        sizes = {client: self.population.sizes[client] for client in self.came}
        total = np.zeros(self.dim)
        for client, size in sizes.items():
            total = total + size * self.estimate(client)
        self.typical = total / sum(sizes.values()) if sizes else total
