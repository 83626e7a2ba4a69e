"""The administration, through its pages."""
