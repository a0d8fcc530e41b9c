"""HCL+, beyond the paper: measured moments and a sequential test for changes of task."""
