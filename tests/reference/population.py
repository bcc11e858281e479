"""Who is there and what each client weighs: shared by the naive rules."""

from collections.abc import Collection, Hashable, Sequence

Client = Hashable


class Population:
    """Sizes n_i of the present clients and the denominator n of their weights.

    Closed (sizes given):  n = sum of n_i over the present clients.
    Open (sizes None):     n = mean over the rounds so far of sum_{i in A} n_i / p_i, but never
                           less than the sum of n_i over the present clients and u - sqrt(v), if
                           positive, where with s = 1 in the first round and 1/4 from then on
                           u <- max((1 - s) u + s sum_{i new} n_i / p_i - sum_{i new} n_i, 0)
                           v <- (1 - s)^2 v + s^2 sum_{i new} (n_i / p_i)^2 (1 - p_i)

                           In the mean, every n_i is the one of today, and from round 201 on all
                           earlier rounds fade by 199/200 in each.

        d_i = n_i / n
        a_i = min(d_i / p_i, max_weight)

    A round is one call of `begin`; an empty round adds 0 to the mean. While n = 0 every
    weight is 0. `leave` takes the client's size away, from the mean as well: that
    was a mean over all clients.
    """

    def __init__(self, sizes: dict[Client, float] | None) -> None:
        self.closed = sizes is not None
        self.sizes: dict[Client, float] = {}
        if sizes is not None:
            for client, size in sizes.items():
                self.sizes[client] = float(size)
        self.rounds: list[dict[Client, float]] = []  # 1 / p_i of the clients of each
        self.rest: list[float] = []  # and the sum over clients that left since
        self.unseen = self.variance = 0.0

    def begin(
        self,
        clients: Sequence[Client],
        probabilities: Sequence[float],
        sizes: Sequence[float] | None,
        ignore: Collection[Client] = (),
    ) -> None:
        """Take in the sizes of this round; clients in `ignore` only count as present from here."""
        new = [client for client in clients if client not in self.sizes]
        for position, client in enumerate(clients):
            if sizes is not None:
                self.sizes[client] = float(sizes[position])
            elif client not in self.sizes:
                if self.closed:
                    raise ValueError(f"client {client!r} is new and brings no size")
                self.sizes[client] = 1.0
        self._shift(0.0)
        share = 0.25 if self.rounds else 1.0
        self.rounds.append({})
        self.rest.append(0.0)
        new_sum = squares = 0.0
        for client, probability in zip(clients, probabilities, strict=True):
            if client not in ignore:
                self.rounds[-1][client] = 1 / float(probability)
                if client in new:
                    new_sum += self.sizes[client] / float(probability)
                    squares += (self.sizes[client] / probability) ** 2 * (1 - probability)
        unseen = (1 - share) * self.unseen + share * new_sum
        self.unseen = max(unseen - sum(self.sizes[client] for client in new), 0.0)
        self.variance = (1 - share) ** 2 * self.variance + share**2 * squares

    def leave(self, clients: Sequence[Client]) -> None:
        leaving = 0.0
        for client in clients:
            size = self.sizes.get(client, 0.0)
            for number, past in enumerate(self.rounds):
                self.rest[number] += size * past.pop(client, 0.0)
            self.sizes.pop(client, None)
            leaving += size
        self._shift(-leaving)

    def _shift(self, points: float) -> None:
        """Add to the mean, which never becomes negative."""
        points = max(points, -self.mean())
        self.rest = [rest + points for rest in self.rest]

    def total(self) -> float:
        if self.closed:
            return sum(self.sizes.values())
        if not self.rounds:
            return 0.0
        surely = max(self.unseen - self.variance**0.5, 0.0)
        return max(self.mean(), sum(self.sizes.values()) + surely)

    def mean(self) -> float:
        if not self.rounds:
            return 0.0
        sums = [
            rest + sum(self.sizes[client] * inverse for client, inverse in past.items())
            for past, rest in zip(self.rounds, self.rest, strict=True)
        ]
        weights = [1.0] * min(len(sums), 200)
        while len(weights) < len(sums):  # a later round: all before it fade
            weights = [weight * (1 - 1 / 200) for weight in weights] + [1.0]
        return sum(w * s for w, s in zip(weights, sums, strict=True)) / sum(weights)

    def weight(self, client: Client) -> float:
        """d_i."""
        total = self.total()
        return self.sizes[client] / total if total > 0 else 0.0

    def active_weight(self, client: Client, probability: float, max_weight: float | None) -> float:
        """a_i."""
        weight = self.weight(client) / float(probability)
        return weight if max_weight is None else min(weight, max_weight)
