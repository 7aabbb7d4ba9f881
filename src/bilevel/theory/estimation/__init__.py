"""Constants and step sizes for a problem whose constants nobody knows."""
