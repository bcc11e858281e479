"""The same federated work on several simulators, timed in turns.

workloads   what is done: data, network, clients, cohort, local steps
work        a workload on disk: points, cohorts and initial weights, the same for everybody
networks    its network as a torch module
sides       how fedsteer, a plain loop, pfl, Flower and FedJAX do it, one file each
protocol    a worker's side of the talk: rounds when told to, their time, the final weights
worker      the worker process of one side
processes   the other end of the talk
measure     warm-up, choice of threads, rounds in turns, paired intervals
table       what was measured, in words
machine     on what
"""
