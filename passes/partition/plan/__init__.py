"""What is decided before anything is written: how each op is split, and which layouts loops carry."""
