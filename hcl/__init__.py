"""Continual learning with one normalizing flow and a latent Gaussian for each class of each task.

The path of the data, one room after the other, each named after its stage:

    fetch → extract → split → train → evaluate → report

Glossary: the paper's symbol and its one name in the code.

==============================  =========================================
f_θ, f_θ⁻¹                      ``flow(x)``, ``flow.inverse(z)``
f_θ^(k), the snapshot           ``snapshot``
μ_{y,t}                         ``means[t, y]``
S1, S2, S3                      ``log_px``, ``log_pz``, ``log_det``
λ, l                            ``threshold``, ``window``
α                               ``alpha``
a_{i,j}                         ``accuracy[i, j]``, task i after j tasks
L_GR, L_FR                      ``replay_loss``, ``functional_loss``
==============================  =========================================

``log_…`` is a natural logarithm, per sample, summed over features.
"""

__version__ = "0.1.0"
