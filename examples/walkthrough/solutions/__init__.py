"""Solutions of the walkthrough's exercises, a module for each notebook."""
