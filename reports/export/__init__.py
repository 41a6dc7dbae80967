"""Results in the formats of other tools: tables, benchmarks, test reports, metrics of a monitoring system."""
