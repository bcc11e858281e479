"""The simulator: one experiment, one round loop, checkpoints and resume."""
