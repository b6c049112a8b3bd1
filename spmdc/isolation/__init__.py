"""Work in separate processes, so that an abort or an endless loop affects nothing else."""
