"""The paper's two analyses of GR against FR: two moons (Figure 2), f(x) = θx (Figure S1)."""
