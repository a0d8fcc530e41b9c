"""Supervised CURL, the paper's baseline with a variational autoencoder."""
