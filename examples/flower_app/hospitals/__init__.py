"""Two hospitals, one model, any algorithm of fedarena."""
