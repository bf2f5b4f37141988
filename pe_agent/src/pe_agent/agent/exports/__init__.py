"""The exports of an agent: publishing, waiting, reading, and what their logs say."""
