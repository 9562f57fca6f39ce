"""The papers' tables and figures: what they print, how we run each cell, and what came out."""
