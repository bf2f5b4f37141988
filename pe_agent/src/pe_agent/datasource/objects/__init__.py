"""Tasks that read and write the bucket of an export themselves, by signed URLs."""
