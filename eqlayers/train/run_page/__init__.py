"""The page about a run, `report.html` in its folder: what was run, on what, how it learned, and where it fails."""
