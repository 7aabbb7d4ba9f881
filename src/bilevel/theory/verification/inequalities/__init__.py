"""Every inequality of the paper, and of the certificates beyond it, as a function of a measured run."""
