"""Reports about a partitioned program: its collectives, its costs, and the reasons for its shardings."""
