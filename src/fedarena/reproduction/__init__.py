"""Published tables and figures as recipes: what is run, what is checked, and the verdict."""
