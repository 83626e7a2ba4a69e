"""Where Django looks for template libraries."""
