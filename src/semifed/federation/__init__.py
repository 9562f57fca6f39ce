"""Runs between real sites: keys, the server, the sites, and what carries letters between them (Flower)."""
