"""Who owns which rows: data sets, partitions, folds, client test sets."""
