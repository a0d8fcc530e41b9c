"""``evaluate``: from runs to the paper's metrics."""
