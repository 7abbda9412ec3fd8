"""Folders with checksums, records that are appended, and one reader of runs that are finished or still go on."""
