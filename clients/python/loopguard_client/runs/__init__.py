"""``loopguard run -- COMMAND``: starts a program whose model requests, tools and telemetry LoopGuard sees."""
