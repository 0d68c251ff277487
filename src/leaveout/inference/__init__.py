"""Sums over all paths of a chain and all configurations of a graph, with their moments and draws, from potentials."""
