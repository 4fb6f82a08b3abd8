"""What is computed from trajectories: uncertainty, OOD scores, prediction sets."""
