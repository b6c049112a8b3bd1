"""What ops and collectives take on a machine: seconds, bytes and memory."""
