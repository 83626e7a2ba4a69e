"""API routes by resource. Each checks the key, parses the request and calls one service or selector."""
