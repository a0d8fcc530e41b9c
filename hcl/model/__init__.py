"""The model: flow, latent Gaussians, their likelihood and the losses (Eq. 1 to 3, Section 4.1)."""
