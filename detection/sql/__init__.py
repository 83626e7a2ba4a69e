"""SQL plumbing: pipelined statements and advisory locks. Knows no service and no rule."""
