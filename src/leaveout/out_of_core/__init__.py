"""A generalised linear model of rows that come in batches, from a disk or from a cluster, and every row left out by itself."""
