"""HTTP layer of both services: problem documents, limits, access logs, pages. It knows no method."""
