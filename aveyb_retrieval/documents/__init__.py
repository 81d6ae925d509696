"""Read documents and ready-made vectors from files, folders, hubs and Python iterables."""
