"""Federated rounds timed in turns: fedsteer beside a plain PyTorch loop.

workloads   what is measured: data, network, clients, cohorts
networks    the network of workload (c), and weights as one vector
sides       fedsteer and the plain loop
measure     the measuring core: warm-up, choice of threads, rounds in turns, paired intervals
table       the results as text and as JSON
machine     the machine they were measured on

`benchmarks/peers` adds other simulators as further sides of the same core.
"""
