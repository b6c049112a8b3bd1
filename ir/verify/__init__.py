"""What makes a program valid: its ops, its regions, its shardings, and what may vary from device to device."""
