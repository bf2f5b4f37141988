"""Join main rows with side inputs."""
