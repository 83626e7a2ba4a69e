"""Commands of the application. Some need a database, others do not."""
