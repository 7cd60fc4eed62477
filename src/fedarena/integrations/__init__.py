"""Bridges to other tools: algorithms inside Flower apps, runs in MLflow."""
