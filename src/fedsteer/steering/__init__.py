"""What the rules share: client bookkeeping, subspace, core-set search, safeguards, kernels."""
