"""Commands of the application. Those that need a database live beside those that need none."""
