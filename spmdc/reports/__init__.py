"""What is reported of a partitioned program: its collectives, and why a value is split as it is."""
