"""The program of one device, and what it costs, from what a plan says. Decides nothing."""
