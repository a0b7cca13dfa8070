"""`polyfed view`: a local, read-only page over the runs and comparisons below a directory."""
