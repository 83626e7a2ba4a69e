"""The screens, through their addresses."""
