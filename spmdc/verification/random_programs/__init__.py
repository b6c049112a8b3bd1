"""Programs drawn at random, a file for each family of ops."""
