"""What is imitated: one folder a workload, every number with its source."""
