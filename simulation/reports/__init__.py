"""Reports of runs, and what commands show on a terminal: tables, plots, progress."""
