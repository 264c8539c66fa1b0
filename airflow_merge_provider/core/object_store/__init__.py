"""Access to object stores: one set of settings for all clients."""
