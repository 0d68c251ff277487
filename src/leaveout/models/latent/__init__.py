"""Latent Gaussian models.

Mixed models, fields, Gaussian processes, by Laplace's method and quadrature.
"""
