"""Joint training: all data of all tasks at once, for reference."""
