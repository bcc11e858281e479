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

        d_i = n_i / n
        a_i = min(d_i / p_i, max_weight)

    A round is one call of `begin`; a round with nobody adds 0 to the mean. While n = 0 every
    weight is 0. `leave` takes the client's size away, from the mean as well: that
    was a mean over everybody.
    """

    def __init__(self, sizes: dict[Client, float] | None) -> None:
        self.closed = sizes is not None
        self.sizes: dict[Client, float] = {}
        if sizes is not None:
            for client, size in sizes.items():
                self.sizes[client] = float(size)
        self.round_sums: list[float] = []
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
        round_sum = new_sum = squares = 0.0
        for client, probability in zip(clients, probabilities, strict=True):
            if client not in ignore:
                round_sum += self.sizes[client] / float(probability)
                if client in new:
                    new_sum += self.sizes[client] / float(probability)
                    squares += (self.sizes[client] / probability) ** 2 * (1 - probability)
        share = 0.25 if self.round_sums else 1.0
        unseen = (1 - share) * self.unseen + share * new_sum
        self.unseen = max(unseen - sum(self.sizes[client] for client in new), 0.0)
        self.variance = (1 - share) ** 2 * self.variance + share**2 * squares
        self.round_sums.append(round_sum)

    def leave(self, clients: Sequence[Client]) -> None:
        leaving = sum(self.sizes.pop(client, 0.0) for client in clients)
        rounds = len(self.round_sums)
        if rounds:
            rest = max(sum(self.round_sums) / rounds - leaving, 0.0)
            self.round_sums = [rest] * rounds

    def total(self) -> float:
        if self.closed:
            return sum(self.sizes.values())
        if not self.round_sums:
            return 0.0
        mean = sum(self.round_sums) / len(self.round_sums)
        surely = max(self.unseen - self.variance**0.5, 0.0)
        return max(mean, sum(self.sizes.values()) + surely)

    def weight(self, client: Client) -> float:
        """d_i."""
        total = self.total()
        return self.sizes[client] / total if total > 0 else 0.0

    def active_weight(self, client: Client, probability: float, max_weight: float | None) -> float:
        """a_i."""
        weight = self.weight(client) / float(probability)
        return weight if max_weight is None else min(weight, max_weight)
