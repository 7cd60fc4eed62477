"""Pure functions from arrays to numbers: the metrics of predictions, and the posteriors that a comparison reports. They
read no files, run nothing and know no experiment; what a comparison does with their numbers belongs to `results`."""
