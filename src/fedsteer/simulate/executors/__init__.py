"""Where the runs of a comparison are executed; the records are the same everywhere.

processes   processes of this machine, the default
lockstep    round by round together, so that their clients fill one GPU
cluster     tasks of a Ray cluster; parcel: the files of a run on their way between machines
"""
