"""`sbatch`: job scripts for Slurm."""
