"""The demonstration: flights and weather of 2013, exported by one job and imported by two."""
