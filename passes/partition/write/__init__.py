"""Writes a plan as the program of one device, and finds its cost. Decides nothing."""
