"""The silo's web page: status, charts, record of what left."""
