"""Federated rounds timed in turns: fedsteer beside a plain PyTorch loop.

workloads   the tasks: data, network, clients, cohorts
sides       fedsteer and the plain loop
measure     the measuring core: warm-up, choice of threads, rounds in turns, paired intervals
table       the results as text
machine     the machine they were measured on

`benchmarks/peers` adds other simulators as further sides of the same core.
"""
