"""The routes by resource. Each checks who asks, reads, calls one service or selector, and answers; no more than that."""
