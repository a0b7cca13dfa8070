"""What each client holds: sources, long tail, partitions, and the federation made of them."""
