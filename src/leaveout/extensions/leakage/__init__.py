"""The loss on new clusters if the known clusters have errors.

Inject more leakage, and extrapolate to none.
"""
