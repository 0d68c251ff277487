"""Fitted models of other libraries, taken as they are."""
