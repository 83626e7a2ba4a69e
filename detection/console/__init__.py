"""The pages that people see. Reads by selectors, changes by services; nothing here writes a row itself."""
