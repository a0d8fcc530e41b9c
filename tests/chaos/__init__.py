"""Kills, full disks and two processes at once: see ``python -m tests.chaos``."""
