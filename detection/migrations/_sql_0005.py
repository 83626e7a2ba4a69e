"""SQL of the fifth migration: snapshots are packed already, and compressing them again costs time and saves nothing."""

PACKED_SNAPSHOTS = (
    "ALTER TABLE detection_trackerstate ALTER COLUMN snapshot SET STORAGE EXTERNAL",
    "ALTER TABLE detection_trackerstate ALTER COLUMN snapshot SET STORAGE EXTENDED",
)
