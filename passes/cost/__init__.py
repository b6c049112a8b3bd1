"""The cost of ops and collectives on a machine: seconds, bytes and memory."""
