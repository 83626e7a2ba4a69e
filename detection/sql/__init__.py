"""SQL plumbing: pipelined statements, advisory locks, repeated transactions and deadlines. Knows no service."""
