"""Pages about results: one HTML file each, with its pictures inside, that a browser opens without a network."""
