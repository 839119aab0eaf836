"""HTTP interface of the aggregator: authentication, checks of request heads, audit log and routes."""
