"""Why a run diverged or stopped moving, and what a look at a healthy run finds."""
