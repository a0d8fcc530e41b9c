"""``extract``: images to embeddings, by a pretrained backbone."""
