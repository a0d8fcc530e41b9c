"""A package, so that no ``tests`` that another package installs (Avalanche does) hides ours."""
