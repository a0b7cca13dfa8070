"""Comparisons: a grid of runs as data, its directory, and running it."""
