"""What an experiment is: its text or keywords as one validated value, components by name, seeds and errors.
Everything else may import this folder; it imports nothing but itself."""
