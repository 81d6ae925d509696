"""Where vectors and words live: what a search needs of it, and the engines other than our own files."""
