"""How the libraries are measured: tasks, the reference, a process for each contestant, the page."""
