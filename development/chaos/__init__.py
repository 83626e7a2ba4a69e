"""Faults at random under load, and a comparison of what is left with runs without faults: `manage.py chaos`."""
