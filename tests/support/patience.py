"""How long tests wait for what must happen."""

PATIENCE_SECONDS = 60.0
"""Where everything works, nothing waits so long: a machine that does ten other things needs this, an idle one a moment."""
