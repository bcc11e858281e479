"""The simulator: one experiment, one round loop, checkpoints and resume.

experiment         what is run: checked dataclasses, one per section
experiment_files   experiments as TOML: read, changed by --set, written with explanations
cells              what is compared: rules by name, and one cell for every rule and seed
world              data, partition, participation and engine of one (experiment, seed)
loop               the only round loop, and the result of a round
runner             one run on disk: records, checkpoints, resume, interruption
manifest           what a run is; whether a folder holds the same run
compare            many runs, with the same draws for every rule
executors          where runs are executed: processes, lock-step on a GPU, a Ray cluster
paper_table        a table or figure of the paper, beside the published numbers
"""
