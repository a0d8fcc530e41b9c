"""``use``: a trained learner after its run: answers for new samples, and another day's learning."""
