"""What learns from batches: methods, memories and task detection (Sections 4.2 and 4.3)."""
