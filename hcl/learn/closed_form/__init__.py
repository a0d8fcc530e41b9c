"""What learns by sums alone, told its tasks: nearest mean, streaming LDA, RanPAC."""
