"""``train``: the stream, the loop that shows it to a learner, and the store of finished runs."""
