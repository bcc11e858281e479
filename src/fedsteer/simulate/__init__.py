"""The simulator: one experiment, one loop, checkpoints and resume.

experiment   what is run, as checked dataclasses read from TOML
entries      which rules, under which label
world        data, partition, participation and engine of one (experiment, seed)
loop         the only round loop
runner       one run on disk: records, checkpoints, resume, interruption
compare      many runs, same draws for every rule, in parallel processes
"""
