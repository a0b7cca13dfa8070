"""What it achieved: confusion counts, the metrics that follow from them, and the records."""
