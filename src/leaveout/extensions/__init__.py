"""What stands on the public names and on the one contract, `developer`, and what no core module
imports.
"""

__all__ = ["bayes", "cli", "clinical", "hosts", "leakage", "out_of_core", "sklearn"]
