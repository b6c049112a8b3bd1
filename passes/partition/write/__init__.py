"""The program of one device, and what it costs, from a plan. Decides nothing."""
