"""Write resources by server-side apply."""
