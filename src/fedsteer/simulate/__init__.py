"""The simulator: one experiment, one loop, checkpoints and resume.

experiment   what is run, as checked dataclasses read from TOML
entries      which rules, under which label
world        data, partition, participation and engine of one (experiment, seed)
loop         the only round loop
runner       one run on disk: records, checkpoints, resume, interruption
compare      many runs, same draws for every rule
cells        one of them: an entry under a seed, and its folder
executors    where the runs take place: processes, one GPU, a Ray cluster
sheet        a table or figure of the paper: several experiments beside the published figures
settings     an experiment as a TOML file in which every setting says what it means
"""
