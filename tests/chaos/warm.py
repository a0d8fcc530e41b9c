"""Everything that the commands import. A process that has it is forked for each trial."""

from __future__ import annotations

import importlib
import pkgutil

import hcl
import stages

for package in (hcl, stages):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        try:
            importlib.import_module(module.name)
        except ImportError:  # an extra that is not installed, such as Ray
            continue
