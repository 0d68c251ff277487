"""Sums over all paths of a chain and all configurations of a graph, their moments and draws: no model in them."""
