"""The stages of the pipeline: one Click command in each module, all of them under ``hcl``."""
