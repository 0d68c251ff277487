"""Cross-validation with scikit-learn's calls and results, from one fit, and the error of each
score.
"""
