"""Federated rounds timed in turns: fedsteer beside a plain PyTorch loop.

workloads   the tasks: data, network, clients, cohorts
sides       fedsteer and the plain loop
measure     choice of threads, rounds in turns, paired intervals
table       the results as text
machine     the machine they were measured on

`benchmarks/peers` measures other simulators on the same workloads.
"""
