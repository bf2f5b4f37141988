"""Wire formats: manifests, views, hints, capabilities, problems and reports.

Both sides of every interface use these modules. Formats that carry a version reject a newer one.
"""
