"""What the rules share: clients and their weights, probabilities, bounds, state, kernels."""
