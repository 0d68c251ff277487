"""Prediction models for patients: validation, calibration, decision curves, stability, centres."""
