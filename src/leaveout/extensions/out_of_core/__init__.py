"""Generalised linear models of rows that come in batches, from a disk or a cluster, with every row
left out by itself.
"""
