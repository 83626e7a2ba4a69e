"""Measuring the engine: written scenarios, recorded runs, and how well both come out. Pure; files are read by the commands."""
