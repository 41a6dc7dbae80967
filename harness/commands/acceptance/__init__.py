"""`dlio-bench accept`: a whole acceptance campaign, from one plan to one folder that is handed over."""
