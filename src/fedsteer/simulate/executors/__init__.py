"""Where the runs of a comparison are executed; the records are the same everywhere."""
