"""The program of one device, written op by op as it was decided."""
