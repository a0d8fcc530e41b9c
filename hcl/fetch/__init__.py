"""``fetch``: a data set, from its official source or a folder, into one raw file."""
