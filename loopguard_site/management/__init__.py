"""Commands of the site: read arguments, call, print."""
