"""Wide dense networks on a CPU: the first layer as a combination of each client's own points.

**The idea.** In a network like 784-64-10 nearly all weights are in the first layer, and every SGD
step of the usual kind reads and writes all of them. But plain SGD only ever moves the rows of the
first matrix W within the span of the client's own points: the gradient of W for a batch is
delta^T X_batch, where row i of delta is the gradient of the loss with respect to what the first
layer puts out for point i, before its activation.

Let X (n, inputs) be the client's points. For every point, add up what the steps so far gave back
to it, in a table A (n, outputs): A_i is the sum of rate * delta_i over the steps that met point i.
Then at any time

    W = W_0 - A^T X        b = b_0 - A^T 1

and the first layer puts out, for all points at once,

    X W^T + b = (X W_0^T + b_0) - (X X^T + 1) A = Z - G A

So the large matrix is met twice a round and never in a step:

    before the steps    Z = X W_0^T + b_0      one long product
    every step          rows of Z - G A for the batch; the layers above as usual; A += rate delta
    after the steps     W_0 - W = A^T X        one long product, the update itself

A step costs as many numbers as the client has points (say 100) instead of as many as an image has
pixels (784). Its results are those of ordinary SGD, up to rounding.

**G = X X^T + 1 never changes**, because the client's points do not. It is kept from round to round
(`GramMatrices`), for the clients seen last.

**Many clients at once.** All of the above is stacked: Z is (clients, n, outputs), and so on. A
client with fewer points than others is filled up with points of weight zero. A batch of nothing but
such points changes nothing, so all clients take part in all steps.

**Threads** share out whole clients or images in the two long products and nothing else, so results
do not depend on how many threads there are.
"""

from fedsteer.training.engines.dense.trainer import DenseTrainer, GramMatrices, is_wide

__all__ = ["DenseTrainer", "GramMatrices", "is_wide"]
