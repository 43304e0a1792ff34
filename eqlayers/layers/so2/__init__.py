"""Linear maps in the frames of edges."""
