"""Shared harness of all tables: plan, cells, processes, results, statistics, document."""
