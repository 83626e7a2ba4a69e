"""Figures over time and by group."""
