"""Settings, presets, exceptions, suggestions, messages and what-ifs."""
