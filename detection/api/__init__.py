"""The API: one door for agents, scripts and other programs. Rules live in the services, reads in the selectors."""
