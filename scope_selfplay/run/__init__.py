"""An opened run: its folder, its engines, what every episode of it needs, and how a document becomes a candidate."""
