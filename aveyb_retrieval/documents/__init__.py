"""Read documents from files, folders, hubs and Python iterables."""
