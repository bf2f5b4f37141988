"""Lists of resources, routes and PEs, page by page."""
