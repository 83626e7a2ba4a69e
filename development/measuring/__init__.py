"""Measures the engine with written scenarios and recorded runs, without a database."""
