"""Results against limits: class, verdict, and how these are shown."""
