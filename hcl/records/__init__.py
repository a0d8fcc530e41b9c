"""Files between stages: what they hold, how they are written, read and checked. No torch."""
