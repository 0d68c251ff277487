"""Extensions stand on the public names and on the one contract, `developer`; no core module imports
them.
"""

__all__ = ["bayes", "cli", "clinical", "hosts", "leakage", "out_of_core", "sklearn"]
