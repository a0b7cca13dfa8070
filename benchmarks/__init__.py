"""Speed, memory and scale, measured as ratios within one run."""
