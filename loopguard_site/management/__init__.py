"""The command line as a door: reads arguments, calls, prints."""
