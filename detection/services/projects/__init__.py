"""Projects, their members, and invitations into them."""
