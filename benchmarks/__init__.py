"""Measures the promised speeds on servers of its own, each beside a bare endpoint where the promise is a ratio.

Run ``python -m benchmarks``; docs/benchmarks.md says how each figure is taken. Nothing here is imported by the product.
"""
