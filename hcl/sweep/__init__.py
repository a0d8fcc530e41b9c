"""``sweep``: every run of the grid that the store does not hold, on all cores or on a cluster."""
