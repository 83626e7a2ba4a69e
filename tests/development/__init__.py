"""Tests of the development commands."""
