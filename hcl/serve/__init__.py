"""``serve``: a model over HTTP, which answers, learns from labels, and shows its stream."""
