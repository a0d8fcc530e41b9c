"""The paper's learner: a flow with one of five memories, told its tasks or detecting them."""
