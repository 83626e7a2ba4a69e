"""Faults at random under load, and a comparison of what is left with the same runs without faults: `manage.py chaos`."""
