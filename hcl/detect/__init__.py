"""One detector of changes of task for every learner and stream, with a stated false-alarm rate."""
