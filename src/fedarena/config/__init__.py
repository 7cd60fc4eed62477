"""The experiment as one validated value, components by name, seeds, limits and errors.

All other folders may import this one; it imports no other folder of fedarena."""
