"""What methods are made of: the one training loop, steps, losses, averages, clusters and the like."""
