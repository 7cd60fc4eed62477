"""Integrations with other tools: algorithms inside Flower apps, and runs in MLflow."""
