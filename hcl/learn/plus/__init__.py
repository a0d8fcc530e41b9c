"""HCL+, beyond the paper: measured moments in place of a flow's."""
