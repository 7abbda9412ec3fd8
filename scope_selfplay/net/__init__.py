"""HTTP, spoken one way: clients that retry, what is served, files that are fetched."""
