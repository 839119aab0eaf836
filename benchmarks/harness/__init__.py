"""What every table shares: its plan, its cells, a process a cell, the file of results, the statistics, the document."""
