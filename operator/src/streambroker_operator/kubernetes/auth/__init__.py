"""TokenReview, RBAC and authorization of callers."""
