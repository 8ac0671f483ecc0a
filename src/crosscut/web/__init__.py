"""The page of a job, its metrics for Prometheus, and its record in the checkpoint directory."""
