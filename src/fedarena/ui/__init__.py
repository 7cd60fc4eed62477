"""A local web page that shows runs and comparisons as they grow. It reads folders and never writes."""
