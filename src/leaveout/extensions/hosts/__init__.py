"""Fitted models of other libraries, with their own objectives and parameters."""
