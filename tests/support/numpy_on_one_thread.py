"""Imported before numpy, so that its products of matrices take one thread in each process: those of tests are so small
that further threads mostly wait for one another, and two processes run at once."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
