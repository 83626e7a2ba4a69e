"""Commands that measure detection; Django knows them in a checkout only."""
