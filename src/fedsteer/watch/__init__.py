"""A live view of runs, from their records alone: it reads, and never locks or writes.

`folder` finds the runs, `run` follows one of them, `clients` and `warnings` say who does what in
it. `words` puts that into words, for the lines of `text`, which `terminal` shows, and for `page`.
"""
