"""Latent Gaussian models: mixed models, fields, Gaussian processes, by Laplace's method and quadrature."""
