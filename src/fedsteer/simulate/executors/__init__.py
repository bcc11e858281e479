"""Where the runs of a comparison are executed; the records are the same everywhere.

processes   processes of this machine, the default
lockstep    many runs round by round together, so that their clients fill one GPU
cluster     tasks of a Ray cluster; task: one of them, and the files it sends home
"""
