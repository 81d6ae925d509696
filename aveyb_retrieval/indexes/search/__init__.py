"""Answer queries over one version of an index."""
