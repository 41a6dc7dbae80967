"""`trace`: where the time of results, of logs, and of any command went. It needs their files alone."""
