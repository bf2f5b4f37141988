"""What the parts say to each other: manifests, views, hints, capabilities, problems.

Both sides of every seam use these modules, so a change of form is made once.
Every form carries a version; a reader refuses a newer one by name.
"""
